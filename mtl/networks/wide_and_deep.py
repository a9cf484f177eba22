"""Wide columns, which bypass the network and go directly to the heads.

networks.WideAndDeep.network = @networks.SharedBottom()
networks.WideAndDeep.wide = ["wide_*"]
update.Update.optimizers = {"^features/wide_": @wide/optimizers.FTRL()}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.networks import fields, trunk


@checks.dataclass
class WideAndDeep(types.Network):
    """A network on most columns, and wide columns that go directly to the linear heads.

    `h[task] = [network(other columns)[task], wide columns]`. H.-T. Cheng et al., "Wide & Deep
    Learning for Recommender Systems", DLRS 2016, arXiv:1606.07792. A wide column is an embedding
    with `dimension = 1`: a weight for each id, such as the id of a feature cross. The head
    multiplies each wide column by a learned number, which is 1 in the paper. To train wide columns
    with another optimizer, select their scope in `Update.optimizers`.

    Attributes:
      network: the network that reads all other columns; variables in `network`.
      wide: names of the columns that go to the heads, in which `*` matches any text.
    """

    network: Annotated[types.Network, checks.Part("networks.SharedBottom", arguments=3)]
    wide: Annotated[Sequence[str], fields.check_patterns, checks.Filled("name a column")] = (
        "wide_*",
    )

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Build the towers, {column: [B, ...]} -> {task: [B, H + width of the wide columns]}.

        `Towers.shared` comes from the inner network, without the wide columns.

        Raises:
          UserError: a pattern matches none of the columns, or all columns are wide.
        """
        wide = fields.choose_columns("WideAndDeep.wide", self.wide, inputs)
        deep = {column: value for column, value in inputs.items() if column not in wide}
        checks.require(bool(deep), "WideAndDeep.wide", "leave a column to the network", list(wide))
        with tf1.variable_scope("network"):
            towers = self.network(deep, tasks, training)
        wide_vectors = trunk.join_columns("WideAndDeep", wide)
        all_towers = {task: tf.concat([towers[task], wide_vectors], axis=1) for task in tasks}
        return types.Towers(all_towers, getattr(towers, "shared", ()))
