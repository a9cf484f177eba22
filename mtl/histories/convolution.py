"""Patterns of neighbouring events, by convolutions over their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.histories import padded


@checks.dataclass
class Convolution(types.HistoryEncoder):
    """h = the maximum of relu(convolution) over places, for each filter: [B, (L), D] -> [B, H].

    Y. Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP 2014,
    arXiv:1408.5882. Unlike in the paper, zeros stand before and behind the events: a history that
    is shorter than a filter has an output, too. Without events h is zeros.

    Attributes:
      filters: the number of filters of each size.
      sizes: the numbers of neighbouring events that a filter sees; H = filters times the number of
        sizes. The kernel of size s lies in `size_<s>`.
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
            # The bits of a matrix product do not depend on the padding of rows, unlike a
            # convolution.
            places = tf.shape(values)[1]
            windows = tf.concat([around[:, i : i + places] for i in range(size)], axis=2)
            filtered = layers.dense(windows, self.filters, f"size_{size}", tf.nn.relu)
            # A ReLU's output is at least 0: zeros at places without events never win.
            outputs.append(tf.where(is_event[:, :, tf.newaxis], filtered, tf.zeros_like(filtered)))
        return tf.reduce_max(tf.concat(outputs, axis=2), axis=1)
