"""A tokenizer that uses bytes as tokens.

features.Text.tokenizer = @tokenizers.Bytes()
"""

from __future__ import annotations

import dataclasses

from mtl import types
from mtl.deferred import tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bytes(types.Tokenizer):
    """Turns each byte of a UTF-8 text into a token, with 256 ids and without a vocabulary.

    A letter outside of ASCII takes two to four tokens. Texts are not normalised.
    """

    def __call__(self, texts: tf.Tensor, name: str, fitted: types.Statistics) -> tf.RaggedTensor:
        """Return the bytes of strings [B], int64 [B, (L)]."""
        del name, fitted
        # Join all texts into one text, because `decode_raw` needs texts of equal length.
        text = tf.strings.reduce_join(texts, axis=0)
        values = tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int64)
        lengths = tf.cast(tf.strings.length(texts), tf.int64)
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)

    def num_tokens(self, name: str, fitted: types.Statistics) -> int:
        """Return 256, the number of byte values."""
        del name, fitted
        return 256
