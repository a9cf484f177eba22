"""Patterns of neighbouring events, by convolutions over their order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.histories import padded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution(types.HistoryEncoder):
    """h = the maximum of relu(convolution) over places, for each filter: [B, (L), D] -> [B, H].

    Y. Kim, "Convolutional Neural Networks for Sentence Classification", EMNLP 2014,
    arXiv:1408.5882. Unlike in the paper, zeros stand before and behind the events: a history that
    is shorter than a filter has an output, too. Without events h is zeros.

    Attributes:
      filters: the filters of each size.
      sizes: how many neighbouring events a filter sees; H = filters times the number of sizes. The
        kernel of size s lies in `size_<s>`.
    """

    filters: int = 32
    sizes: Sequence[int] = (1, 2, 3)

    def __post_init__(self):
        checks.whole("Convolution.filters", self.filters, 1)
        checks.is_a("Convolution.sizes", self.sizes, (list, tuple), "be a list of sizes")
        checks.require(len(self.sizes) > 0, "Convolution.sizes", "hold a size", self.sizes)
        for size in self.sizes:
            checks.whole("Convolution.sizes", size, 1)
        is_each_once = len(set(self.sizes)) == len(self.sizes)
        checks.require(is_each_once, "Convolution.sizes", "hold each size once", self.sizes)

    def __call__(self, events: tf.RaggedTensor, target: tf.Tensor | None) -> tf.Tensor:
        """Convolve events, [B, (L), D] -> [B, H]."""
        del target
        values, is_event = padded.pad_events(events)
        found = []
        for size in self.sizes:
            before = (size - 1) // 2
            around = tf.pad(values, [[0, 0], [before, size - 1 - before], [0, 0]])
            # A product, not a convolution op: its bits do not depend on the padding of rows.
            places = tf.shape(values)[1]
            windows = tf.concat([around[:, i : i + places] for i in range(size)], axis=2)
            made = layers.dense(windows, self.filters, f"size_{size}", tf.nn.relu)
            # A ReLU's output is at least 0: zeros at places without events never win.
            found.append(tf.where(is_event[:, :, tf.newaxis], made, tf.zeros_like(made)))
        return tf.reduce_max(tf.concat(found, axis=2), axis=1)
