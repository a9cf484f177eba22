"""Predicts the columns of a row after some of them were replaced.

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
    """`mean_d (x'_d - x_d)^2`, with x the encoded columns and x' the output of a decoder.

    Some columns of a row are replaced, the network runs again, and the decoder reads its
    representation. The mean covers all values of the columns, also of columns that stayed.
    Gradients do not go through x, but through the replaced inputs. So vectors of tokens learn to
    help predict other columns. J. Yoon, Y. Zhang, J. Jordon, M. van der Schaar, "VIME", NeurIPS
    2020, without its loss that predicts the replaced columns. With "zero" it is a denoising
    autoencoder (P. Vincent et al., ICML 2008). Other rows come from the same slice and replica.

    Attributes:
      share: the share of the columns of a row that are replaced, in (0, 1]; a `Numeric` field, an
        image or a vector of tokens is one column.
      replacement: "row" takes the column of another row, "zero" takes zeros.
      layers: units of the hidden layers of the decoder, with ReLU.
      columns: the columns that are replaced and predicted, by name; None for all.
    """

    name: str = "reconstruction"
    share: Annotated[float, representation.check_share, checks.positive] = 0.3
    replacement: Annotated[str, checks.OneOf(representation.REPLACEMENTS)] = "row"
    layers: Annotated[Sequence[int], trunk.check_sizes] = (64,)

    @property
    def are_rows_apart(self) -> bool:  # type: ignore[override]
        """True if the loss of a row reads only that row: with zeros as the replacement."""
        return self.replacement == "zero"

    def __call__(self, activations: types.Activations) -> tf.Tensor:
        """Return the mean squared error of each row's decoded columns, [B]."""
        inputs = activations.inputs
        columns = {name: inputs[name] for name in self.open_space(inputs).columns}
        # Otherwise the embeddings could shrink to make their own prediction easy.
        target = tf.stop_gradient(trunk.join_columns("Reconstruction", columns))
        corrupted = self._corrupt("corrupted", activations, self.share, self.replacement)
        hidden = self._read(activations.run(corrupted, draw=1))
        hidden = trunk.dense_layers(hidden, self.layers, "relu", 0.0, False, training=True)
        decoded = layers.dense(hidden, target.shape[1], "decoded")
        return tf.reduce_mean(tf.square(decoded - target), 1)
