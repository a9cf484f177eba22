"""Parts of words by hash: a new spelling shares most of its parts with a known spelling.

features.Text.tokenizer = @tokenizers.CharacterNgrams()
tokenizers.CharacterNgrams.sizes = [3, 4, 5]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from mtl import checks, types
from mtl.deferred import tf
from mtl.features.tokenizers import splitting

_BEGIN, _END = ord("<"), ord(">")


@checks.dataclass
class CharacterNgrams(types.Tokenizer):
    """Makes tokens of the n-grams of the characters of each word, and of the word, by hash.

    P. Bojanowski et al., "Enriching Word Vectors with Subword Information" (fastText), TACL 2017,
    arXiv:1607.04606. A word stands between `<` and `>`: with the size 3, "where" is <wh, whe, her,
    ere, re> and <where>. Unlike in fastText, the whole word is hashed as well. `Words` says how a
    text is cut into words. This tokenizer needs no vocabulary. The n-grams of a word come by size,
    and then the word, unless an n-gram equals it.

    Attributes:
      sizes: the lengths of n-grams in characters, counting the two marks.
      num_buckets: hash buckets; several times the number of n-grams keeps collisions rare.
      lowercase: True makes letters small and removes their accents first.
    """

    sizes: Annotated[
        Sequence[checks.Count],
        checks.Filled("hold a size"),
        checks.Rule("hold each size once", lambda value: len(set(value)) == len(value)),
    ] = (3, 4, 5)
    num_buckets: Annotated[int, checks.AtLeast(2)] = 1 << 16
    lowercase: bool = True

    def __call__(self, texts: tf.Tensor, name: str, fitted: types.Statistics) -> tf.RaggedTensor:
        """Return the buckets of n-grams, strings [B] -> int64 [B, (L)]."""
        del name, fitted
        words = splitting.split_words(texts, self.lowercase)
        return splitting.cut_distinct(words, self._cut)

    def num_tokens(self, name: str, fitted: types.Statistics) -> int:
        """Return the number of buckets."""
        del name, fitted
        return self.num_buckets

    def _cut(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Return the buckets of each word, strings [U] -> int64 [U, (N)]."""
        framed_words = tf.strings.join([chr(_BEGIN), words, chr(_END)])
        letters = tf.strings.unicode_split(framed_words, "UTF-8")
        lengths = letters.row_lengths()
        # A word that is as long as one of the sizes is an n-gram already.
        is_apart = tf.reduce_all(tf.not_equal(lengths[:, tf.newaxis], list(self.sizes)), axis=1)
        whole = tf.RaggedTensor.from_row_lengths(
            tf.gather(framed_words, splitting.find_true(is_apart)),
            tf.cast(is_apart, tf.int64),
            validate=False,
        )
        ngrams = [tf.strings.ngrams(letters, size, separator="") for size in self.sizes]
        tokens = tf.concat([*ngrams, whole], axis=1)
        buckets = tf.strings.to_hash_bucket_fast(tokens.flat_values, self.num_buckets)
        return tokens.with_flat_values(buckets)
