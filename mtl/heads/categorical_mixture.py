"""Latent classes of several categorical values: a mixture of products over one-hot columns.

kinds/heads.CategoricalMixture.name = "kinds"
kinds/heads.CategoricalMixture.sizes = [9, 16, 7]        # categories of each column
kinds/heads.CategoricalMixture.num_components = 4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.heads import base, density, values


@checks.dataclass
class CategoricalMixture(density.Density):
    """The latent class model `p_k(h) = prod_j t_kj[h_j]`: in a class, columns are independent.

    The model is from Lazarsfeld and Henry, "Latent Structure Analysis", 1968. `density.Density`
    lists the predictions. The tower must be a concatenation of one-hot columns
    (`Categorical.dimension = None`), the output of a network without layers (`MLP.layers = []`). A
    column of zeros is a missing value; its factor in the product is 1.

    The probabilities are `t = f + (1 - f size) softmax(c)` for the variables c and the floor f, so
    even a value that never occurred in a class has a probability above 0. Samples are category ids,
    [B, S, number of columns], as float32. The head has the variables `weights` [R, K] and
    `probabilities` [R, K, sum of sizes].

    Attributes:
      sizes: the number of categories of each column, at least 2. The numbers of categories are in
        the order of the columns, which are sorted by name. A column with a vocabulary has one more
        category, for unknown values.
      min_probability: the smallest probability f of a category, above 0 and below 1 / size for
        every size.
    """

    sizes: Annotated[Sequence[Annotated[int, checks.AtLeast(2)]], checks.Filled("not be empty")]
    min_probability: Annotated[float, base.check_share] = 1e-4

    def __post_init__(self):
        super().__post_init__()
        where = self._where("min_probability")
        is_below = self.min_probability * max(self.sizes) < 1
        rule = f"be below 1 / {max(self.sizes)}, the largest of sizes"
        checks.require(is_below, where, rule, self.min_probability)

    def parameters(self, width: int) -> Sequence[tf.Tensor]:
        """Return the probabilities of the categories of each column, [R, K, size] each.

        Raises:
          UserError: the width of the tower differs from the sum of the sizes.
        """
        rule = f"add up to {width}, the width of the tower"
        total = sum(self.sizes)
        checks.require(width == total, self._where("sizes"), rule, f"{self.sizes}, {total}")
        shape, first = [self.num_starts, self.num_components, total], tf1.random_normal_initializer
        logits = tf1.get_variable("probabilities", shape, tf.float32, first(stddev=0.5))
        floor = self.min_probability
        return [
            floor + (1 - floor * size) * tf.nn.softmax(part)
            for part, size in zip(self._split(logits), self.sizes, strict=True)
        ]

    def _split(self, values: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(values, list(self.sizes), axis=-1)

    def log_densities(self, tower: tf.Tensor, parameters: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return `log p_k(h)`: tower [B, H] and probabilities [R, K, size] each -> [B, R, K].

        Raises:
          InvalidArgumentError: when the op runs, if the tower is not one-hot.
        """
        are_one_hot = [
            tf.reduce_all(tf.equal(part, 0) | tf.equal(part, 1), axis=1)
            & (tf.reduce_sum(part, axis=1) <= 1)
            for part in self._split(tower)
        ]
        valid = tf.stack(are_one_hot, axis=1)
        text = (
            f"head {self.name!r}: its tower must hold one-hot columns of the sizes "
            f"{list(self.sizes)}, and only zeros for a missing value"
        )
        with tf.control_dependencies([values.require(valid, valid, text)]):
            tower = tf.identity(tower)
        logs = tf.concat([tf.math.log(part) for part in parameters], axis=-1)
        # A one-hot column selects the logarithm of its category; zeros add 0.
        return tf.einsum("bc,rkc->brk", tower, logs)

    def draw_size(self, width: int) -> int:
        """Return the number of columns, as drawing a category takes one uniform number."""
        del width
        return len(self.sizes)

    def sample(
        self, chosen: tf.Tensor, drawn: tf.Tensor, parameters: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Return samples.

        One-hot components [B, S, K], uniform numbers [B, S, J] and probabilities [K, size] of each
        of the J columns -> category ids [B, S, J].
        """
        ids = []
        for index, probabilities in enumerate(parameters):
            ends = tf.einsum("bsk,kc->bsc", chosen, tf.cumsum(probabilities, axis=1)[:, :-1])
            # Inverse transform sampling: the id is the number of cumulative probabilities below the
            # uniform number.
            above = tf.cast(drawn[..., index : index + 1] > ends, tf.float32)
            ids.append(tf.reduce_sum(above, axis=-1))
        return tf.stack(ids, axis=-1)
