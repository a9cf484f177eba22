"""Two-tower model: separate trunks on the columns of the query and of the item.

networks.SharedBottom.trunk = @networks.TwoTower()
networks.TwoTower.query = @query/networks.MLP()
networks.TwoTower.item = @item/networks.MLP()
networks.TwoTower.item_columns = ["hashed_item", "identity_category"]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.networks import fields, trunk
from mtl.variables import freezing


@checks.dataclass
class TwoTower:
    """A two-tower model for `heads.Retrieval`: separate vectors of query and item.

    `h = [query(columns of the query), item(columns of the item)]`. P. Covington, J. Adams and E.
    Sargin, "Deep Neural Networks for YouTube Recommendations", RecSys 2016; X. Yi et al.,
    "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", RecSys 2019.
    The vector of an item does not depend on the query, so you can build an index of all items.

    Attributes:
      query: a trunk on all columns except `item_columns`; variables in `query`.
      item: a trunk on `item_columns`, with as many units as `query`; variables in `item`.
      item_columns: names of the columns of the item, in which `*` matches any text.
      trainable: False freezes all variables of the trunk.
    """

    query: trunk.Trunk
    item: trunk.Trunk
    item_columns: Annotated[Sequence[str], fields.check_patterns]
    trainable: bool = True

    def __post_init__(self):
        trunk.check_trunks("TwoTower.query and item", [self.query, self.item])

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the trunk, {column: [B, ...]} -> [B, 2 D].

        Raises:
          UserError: a trunk has no column, or the outputs of the trunks have different widths.
        """
        of_item = fields.choose_columns("TwoTower.item_columns", self.item_columns, inputs)
        of_query = {name: value for name, value in inputs.items() if name not in of_item}
        for columns, rule in (
            (of_item, "name a column"),
            (of_query, "leave a column for the query"),
        ):
            patterns = list(self.item_columns)
            checks.require(bool(columns), "TwoTower.item_columns", rule, patterns)
        with freezing.hold_part(self.trainable):
            with tf1.variable_scope("query"):
                query = self.query(of_query, training)
            with tf1.variable_scope("item"):
                item = self.item(of_item, training)
        widths = query.shape[1], item.shape[1]
        rule = "have as many units as TwoTower.query"
        checks.require(widths[0] == widths[1], "TwoTower.item", rule, widths[::-1])
        return tf.concat([query, item], axis=1)
