"""Bytes as tokens.

features.Text.tokenizer = @tokenizers.Bytes()
"""

from __future__ import annotations

import dataclasses

from mtl import types
from mtl.deferred import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bytes(types.Tokenizer):
    """Makes a token of each byte of the UTF-8 text: 256 ids, and no vocabulary to learn.

    Letters of other alphabets take two to four tokens each. Nothing is normalised.
    """

    def __call__(self, texts: tf.Tensor, name: str, fitted: types.Statistics) -> tf.RaggedTensor:
        """Return the bytes, strings [B] -> int64 [B, (L)]."""
        del name, fitted
        # `decode_raw` needs texts of equal length, so join all texts into one text.
        text = tf.strings.reduce_join(texts, axis=0)
        values = tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int64)
        lengths = tf.cast(tf.strings.length(texts), tf.int64)
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)

    def num_tokens(self, name: str, fitted: types.Statistics) -> int:
        """Return 256."""
        del name, fitted
        return 256
