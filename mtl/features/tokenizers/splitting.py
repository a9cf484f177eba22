"""Cuts texts into words, in the graph.

words = splitting.split_words(texts, lowercase=True)     # strings [B] -> strings [B, (W)]
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from mtl.deferred import tf
from mtl.features import vocabulary
from mtl.features.tokenizers import characters


def split_words(texts: tf.Tensor, lowercase: bool) -> tf.RaggedTensor:
    """Clean texts, and cut texts into words.

    Spaces separate words, and each punctuation mark or ideograph is a word. Bytes that are not
    UTF-8 are dropped.

    Args:
      texts: the texts to cut, strings [B].
      lowercase: True converts letters to lower case, and removes accents.

    Returns:
      The words of each text, strings [B, (W)].
    """
    code_points = tf.strings.unicode_decode(texts, "UTF-8")
    points, rows = _clean_points(code_points.flat_values, code_points.value_rowids(), lowercase)
    kinds = _look_points_up("kinds", points, lowercase)
    # Insert a space in row -1 before the first character, which has no predecessor.
    before = tf.concat([[characters.SPACE], kinds[:-1]], 0)[: tf.size(kinds)]
    row_before = tf.concat([tf.constant([-1], rows.dtype), rows[:-1]], 0)[: tf.size(kinds)]
    # In a graph, `==` would compare tensors by identity.
    is_letter, was_letter = (tf.equal(values, characters.LETTER) for values in (kinds, before))
    begins = ~(is_letter & was_letter & tf.equal(rows, row_before))
    places = find_true(tf.not_equal(kinds, characters.SPACE))
    points, rows, begins = (tf.gather(values, places) for values in (points, rows, begins))
    starts = find_true(begins)
    letters = tf.RaggedTensor.from_row_starts(points, starts, validate=False)
    words = tf.strings.unicode_encode(letters, "UTF-8")
    return tf.RaggedTensor.from_value_rowids(
        words, tf.gather(rows, starts), nrows=code_points.nrows(), validate=False
    )


def _clean_points(
    points: tf.Tensor, rows: tf.Tensor, lowercase: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Clean N code points; return M clean code points, and the index of the text of each."""
    places = _look_points_up("row_of", points, lowercase)
    expansions = tf.gather(_make_constant("expansions", lowercase), places)  # [N, K]
    first = tf.where(tf.equal(places, 0), points, expansions[:, 0])
    width = expansions.shape[1]
    expansions = tf.concat([first[:, tf.newaxis], expansions[:, 1:]], axis=1)
    clean_points = tf.reshape(expansions, [-1])
    indices = find_true(clean_points >= 0)  # Drop the padding, which is -1.
    return tf.gather(clean_points, indices), tf.gather(rows, indices // width)


def _look_points_up(name: str, points: tf.Tensor, lowercase: bool) -> tf.Tensor:
    """Look up the entries of code points, int32 [N], in a paged table (see `characters.Paged`)."""
    page = tf.gather(_make_constant(f"{name}.page_of", lowercase), points // 256)
    return tf.gather(_make_constant(f"{name}.pages", lowercase), page * 256 + points % 256)


def _make_constant(name: str, lowercase: bool) -> tf.Tensor:
    """Create a constant of a table once in each graph."""

    def make() -> tf.Tensor:
        value = operator.attrgetter(name)(characters.read_tables(lowercase))
        return tf.constant(value.reshape(-1) if name.endswith(".pages") else value)

    return vocabulary.make_once((__name__, name, lowercase), make)


def find_true(mask: tf.Tensor) -> tf.Tensor:
    """Find the places at which a mask is True.

    To select from several tensors, one call of `find_true` and a `tf.gather` for each tensor need
    fewer ops than a `tf.boolean_mask` for each tensor.

    Args:
      mask: the mask to search, bool [N].

    Returns:
      The ascending indices, int64 [M].
    """
    return tf.reshape(tf.where(mask), [-1])


def cut_distinct(
    words: tf.RaggedTensor, cut: Callable[[tf.Tensor], tf.RaggedTensor]
) -> tf.RaggedTensor:
    """Cut words [B, (W)] into token ids [B, (L)], with each distinct word cut once.

    Args:
      words: the words of each text, strings [B, (W)].
      cut: a function from distinct words, [U], to the ids of their tokens, [U, (P)].
    """
    distinct, places = tf.unique(words.flat_values)
    tokens = tf.gather(cut(distinct), places)
    ends = tf.gather(tokens.row_splits, words.row_splits)
    return tf.RaggedTensor.from_row_splits(tokens.flat_values, ends, validate=False)
