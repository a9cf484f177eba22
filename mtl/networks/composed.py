"""Trunks that combine other trunks, in parallel or in sequence.

networks.SharedBottom.trunk = @networks.Parallel()
networks.Parallel.trunks = [@networks.FM(), @deep/networks.MLP()]    # DeepFM

networks.Stacked.trunks = [@networks.FM(), @networks.MLP()]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.networks import trunk


@checks.dataclass
class Parallel:
    """Runs several trunks on the same columns, and concatenates their outputs.

    Attributes:
      trunks: the trunks that read the same columns; variables in `parallel_<i>`.
    """

    trunks: Annotated[Sequence[trunk.Trunk], trunk.check_trunks]

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Build the trunks, {column: [B, ...]} -> [B, sum of H], or maps [B, H, W, sum of C].

        Raises:
          UserError: some trunks return vectors and others maps, or the sizes of maps differ.
        """
        outputs = []
        for index, part in enumerate(self.trunks):
            with tf1.variable_scope(f"parallel_{index}"):
                outputs.append(part(inputs, training))
        shapes = [tuple(output.shape[1:]) for output in outputs]
        is_same = len({shape[:-1] for shape in shapes}) == 1
        rule = "return only vectors, or only maps of the same height and width"
        checks.require(is_same, "Parallel.trunks", rule, shapes)
        return tf.concat(outputs, axis=-1)


@checks.dataclass
class Stacked:
    """Runs several trunks in sequence; only the first trunk reads the columns.

    Attributes:
      trunks: the trunks in order; variables in `stacked_<i>`.
    """

    trunks: Annotated[Sequence[trunk.Trunk], trunk.check_trunks]

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Build the trunks, {column: [B, ...]} -> [B, H of the last trunk]."""
        hidden = inputs
        for index, part in enumerate(self.trunks):
            with tf1.variable_scope(f"stacked_{index}"):
                hidden = {"inputs": part(hidden, training)}
        return hidden["inputs"]
