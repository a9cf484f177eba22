"""Convolutions over the sequence of events, which detect patterns of adjacent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.histories import padded


@checks.dataclass
class Convolution(types.HistoryEncoder):
    """Convolutions over the sequence of events, with max-pooling: [B, (L), D] -> [B, H].

    The encoder is from Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP
    2014, arXiv:1408.5882. Unlike in the paper, zeros pad both ends of the sequence, so even a
    history that is shorter than a kernel has an output. The output for a row without events is 0.

    Attributes:
      filters: the number of filters of each kernel size.
      sizes: the kernel sizes, each a number of adjacent events. The output width H is `filters`
        times the number of sizes. The variables of the kernel of size s are in `size_<s>`.
    """

    filters: checks.Count = 32
    sizes: Annotated[
        Sequence[checks.Count],
        checks.Filled("hold a size"),
        checks.Rule("hold each size once", lambda value: len(set(value)) == len(value)),
    ] = (1, 2, 3)

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Convolve events, [B, (L), D] -> [B, H]."""
        del target
        values, is_event = padded.pad_events(events)
        outputs = []
        for size in self.sizes:
            before = (size - 1) // 2
            around = tf.pad(values, [[0, 0], [before, size - 1 - before], [0, 0]])
            # Unlike a convolution, a matrix product gives bit-identical results for any padding.
            places = tf.shape(values)[1]
            windows = tf.concat([around[:, i : i + places] for i in range(size)], axis=2)
            filtered = layers.dense(windows, self.filters, f"size_{size}", tf.nn.relu)
            # Outputs of ReLU are at least 0, so zeros for padding do not change the maximum.
            outputs.append(tf.where(is_event[:, :, tf.newaxis], filtered, tf.zeros_like(filtered)))
        return tf.reduce_max(tf.concat(outputs, axis=2), axis=1)
