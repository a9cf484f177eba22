"""Reconstruction: predicts the columns of a row from a corrupted copy of the row.

model.MultiTaskModel.auxiliary_losses = [@auxiliary.Reconstruction()]
auxiliary.Reconstruction.share = 0.3
auxiliary.Reconstruction.layers = [64]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.auxiliary import representation
from mtl.deferred import tf
from mtl.networks import trunk


@checks.dataclass
class Reconstruction(representation.OfCorruption):
    """`mean_d (x'_d - x_d)^2`: a decoder predicts the encoded columns x of a corrupted row.

    Some columns of a row are replaced, and the network takes a second forward pass. The decoder
    reads the representation of the second pass, and its output is x'. The mean covers all values of
    the columns, replaced or not. Gradients do not go through the target x, but through the inputs
    of the second pass, so that embeddings learn to predict other columns. J. Yoon, Y. Zhang, J.
    Jordon, M. van der Schaar, "VIME", NeurIPS 2020, without the paper's loss that predicts which
    columns are replaced. With the replacement "zero", the loss trains a denoising autoencoder
    (Vincent et al., ICML 2008). The columns of other rows come from rows of the same micro-batch
    and replica.

    Attributes:
      share: the share of the columns of a row that are replaced, in (0, 1]; a `Numeric` field, an
        image or a vector of tokens is one column.
      replacement: the new value of a replaced column: "row" takes the value of this column in
        another row, and "zero" takes 0.
      layers: the units of the hidden layers of the decoder, with ReLU.
      columns: the names of the columns that are replaced and predicted; None for all columns.
    """

    name: str = "reconstruction"
    share: Annotated[float, representation.check_share, checks.positive] = 0.3
    replacement: Annotated[str, checks.OneOf(representation.REPLACEMENTS)] = "row"
    layers: Annotated[Sequence[int], trunk.check_sizes] = (64,)

    @property
    def are_rows_apart(self) -> bool:  # type: ignore[override]
        """True for the replacement "zero": the loss of a row does not depend on other rows."""
        return self.replacement == "zero"

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Compute the mean squared error of each row's decoded columns, [B]."""
        inputs = activations.inputs
        columns = {name: inputs[name] for name in self.open_space(inputs).columns}
        # With a gradient through the target, embeddings could shrink to make their prediction easy.
        target = tf.stop_gradient(trunk.join_columns("Reconstruction", columns))
        corrupted = self._corrupt("corrupted", activations, self.share, self.replacement)
        hidden = self._read(activations.run(corrupted, draw=1))
        hidden = trunk.dense_layers(hidden, self.layers, "relu", 0.0, False, training=True)
        decoded = layers.dense(hidden, target.shape[1], "decoded")
        return tf.reduce_mean(tf.square(decoded - target), 1)
