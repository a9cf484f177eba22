"""From texts to their words, in the graph: all characters of a batch at once.

words = splitting.split_words(texts, lowercase=True)     # strings [B] -> strings [B, (W)]
"""

import operator
from collections.abc import Callable

import tensorflow as tf

from mtl.features import vocabulary
from mtl.features.tokenizers import characters


def split_words(texts: tf.Tensor, lowercase: bool) -> tf.RaggedTensor:
    """Clean texts and cut them at spaces; a punctuation mark or an ideograph is a word of its own.

    Bytes that are no UTF-8 are left out.

    Args:
      texts: strings [B].
      lowercase: whether letters become small and lose their accents.

    Returns:
      Strings [B, (W)].
    """
    decoded = tf.strings.unicode_decode(texts, "UTF-8")
    points, rows = _clean(decoded.flat_values, decoded.value_rowids(), lowercase)
    kinds = _read("kinds", points, lowercase)
    # Before the first character there is neither a letter nor a row.
    before = tf.concat([[characters.SPACE], kinds[:-1]], 0)[: tf.size(kinds)]
    row_before = tf.concat([tf.constant([-1], rows.dtype), rows[:-1]], 0)[: tf.size(kinds)]
    # In a graph `==` compares objects.
    is_letter, was_letter = (tf.equal(each, characters.LETTER) for each in (kinds, before))
    begins = ~(is_letter & was_letter & tf.equal(rows, row_before))
    is_kept = tf.not_equal(kinds, characters.SPACE)
    kept = find_true(is_kept)
    points, rows, begins = (tf.gather(each, kept) for each in (points, rows, begins))
    starts = find_true(begins)
    letters = tf.RaggedTensor.from_row_starts(points, starts, validate=False)
    words = tf.strings.unicode_encode(letters, "UTF-8")
    return tf.RaggedTensor.from_value_rowids(
        words, tf.gather(rows, starts), nrows=decoded.nrows(), validate=False
    )


def _clean(points: tf.Tensor, rows: tf.Tensor, lowercase: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the code points [M] that N become, and their rows."""
    places = _read("row_of", points, lowercase)
    made = tf.gather(_constant("expansions", lowercase), places)  # [N, K]
    first = tf.where(tf.equal(places, 0), points, made[:, 0])
    made, width = tf.concat([first[:, tf.newaxis], made[:, 1:]], axis=1), made.shape[1]
    made = tf.reshape(made, [-1])
    there = find_true(made >= 0)
    return tf.gather(made, there), tf.gather(rows, there // width)


def _read(name: str, points: tf.Tensor, lowercase: bool) -> tf.Tensor:
    """Look code points up in a table of pages, int32 [N] -> [N]."""
    page = tf.gather(_constant(f"{name}.page_of", lowercase), points // 256)
    return tf.gather(_constant(f"{name}.pages", lowercase), page * 256 + points % 256)


def _constant(name: str, lowercase: bool) -> tf.Tensor:
    """Return a table as a constant, of which a graph has one."""

    def make() -> tf.Tensor:
        value = operator.attrgetter(name)(characters.read_tables(lowercase))
        return tf.constant(value.reshape(-1) if name.endswith(".pages") else value)

    return vocabulary.make_once((__name__, name, lowercase), make)


def find_true(mask: tf.Tensor) -> tf.Tensor:
    """Return where a mask is true, bool [N] -> int64 [M].

    Gathered by it, several tensors take fewer ops than `tf.boolean_mask` does for one.
    """
    return tf.reshape(tf.where(mask), [-1])


def cut_distinct(
    words: tf.RaggedTensor, cut: Callable[[tf.Tensor], tf.RaggedTensor]
) -> tf.RaggedTensor:
    """Cut words into tokens, each different word once: strings [B, (W)] -> ids [B, (L)].

    Args:
      words: of each row.
      cut: from different words, [U], to the ids of their tokens, [U, (P)].
    """
    distinct, places = tf.unique(words.flat_values)
    tokens = tf.gather(cut(distinct), places)
    ends = tf.gather(tokens.row_splits, words.row_splits)
    return tf.RaggedTensor.from_row_splits(tokens.flat_values, ends, validate=False)
