"""A tokenizer that hashes character n-grams, which similar spellings have in common.

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
    """Hashes the character n-grams of each word, and the whole word, to tokens.

    P. Bojanowski et al., "Enriching Word Vectors with Subword Information" (fastText), TACL 2017,
    arXiv:1607.04606. The marks `<` and `>` enclose each word: with the size 3, "where" gives <wh,
    whe, her, ere, re> and <where>. Unlike in fastText, the whole word is also hashed. Texts are cut
    into words as in `Words`. This tokenizer needs no vocabulary. The tokens of a word are its
    n-grams, sorted by size, and then the whole word, unless the word equals an n-gram.

    Attributes:
      sizes: the lengths of n-grams in characters, including the marks `<` and `>`.
      num_buckets: the number of hash buckets; several times the number of n-grams keeps collisions
        rare.
      lowercase: True first converts letters to lower case and removes accents.
    """

    sizes: Annotated[
        Sequence[checks.Count],
        checks.Filled("hold a size"),
        checks.Rule("hold each size once", lambda value: len(set(value)) == len(value)),
    ] = (3, 4, 5)
    num_buckets: Annotated[int, checks.AtLeast(2)] = 1 << 16
    lowercase: bool = True

    def __call__(self, texts: tf.Tensor, name: str, fitted: types.Statistics) -> tf.RaggedTensor:
        """Return the buckets of the n-grams of strings [B], int64 [B, (L)]."""
        del name, fitted
        words = splitting.split_words(texts, self.lowercase)
        return splitting.cut_distinct(words, self._cut)

    def num_tokens(self, name: str, fitted: types.Statistics) -> int:
        """Return the number of buckets."""
        del name, fitted
        return self.num_buckets

    def _cut(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Return the buckets of the n-grams of words [U], int64 [U, (N)]."""
        framed_words = tf.strings.join([chr(_BEGIN), words, chr(_END)])
        letters = tf.strings.unicode_split(framed_words, "UTF-8")
        lengths = letters.row_lengths()
        # A word whose length equals one of the sizes is already among the n-grams.
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
