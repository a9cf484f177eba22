"""Cuts words into the longest pieces of a vocabulary, in the graph.

ids = greedy.cut_words(words, table, greedy.Pieces(size=8000, longest=12, unknown=8000))

First, a loop over lengths finds the longest piece that begins at each character. A second loop
starts at the first character of each word, and jumps from the end of a piece to the next piece. The
loops process all words of a batch at once.
"""

from __future__ import annotations

from typing import NamedTuple

from mtl.deferred import tf
from mtl.features.tokenizers import splitting

# Words with more characters are unknown, as in BERT.
MOST_CHARACTERS = 100
INSIDE = b"##"


class Pieces(NamedTuple):
    """The properties of a vocabulary of pieces.

    Attributes:
      size: the number of pieces.
      longest: the number of characters of the longest piece, not counting the mark `##`.
      unknown: the id of a word that cannot be cut.
    """

    size: int
    longest: int
    unknown: int


class _Letters(NamedTuple):
    """Describes where each of M characters stands in its word.

    Attributes:
      word_of: the index of the word of each character, int64.
      first, end: the indices of the first characters of that word and of the next word, int64.
      begins, ends: the byte offsets in the word at which a character begins and ends, int64.
    """

    word_of: tf.Tensor
    first: tf.Tensor
    end: tf.Tensor
    begins: tf.Tensor
    ends: tf.Tensor


def cut_words(
    words: tf.Tensor, table: tf.lookup.StaticVocabularyTable, pieces: Pieces
) -> tf.RaggedTensor:
    """Cut words, strings [U], into the ids of pieces, int64 [U, (P)].

    Args:
      words: words that are not empty.
      table: maps pieces to ids, and all other texts to the id `pieces.size`.
      pieces: describes the vocabulary of the table.
    """
    unknown = tf.constant(pieces.unknown, tf.int64)
    is_long = tf.strings.length(words, unit="UTF8_CHAR") > MOST_CHARACTERS
    # Look up whole words first, because most words are single pieces.
    whole = tf.where(is_long, unknown, table.lookup(words))
    is_done = is_long | (whole < pieces.size)
    done, rest = splitting.find_true(is_done), splitting.find_true(~is_done)
    tokens = _cut_others(tf.gather(words, rest), table, pieces)
    # Join the tokens of whole words and of cut words, and restore the original order of the words.
    values = tf.concat([tf.gather(whole, done), tokens.flat_values], axis=0)
    behind = tf.size(done, tf.int64)
    splits = tf.concat([tf.range(behind), behind + tokens.row_splits], axis=0)
    all_tokens = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    places = tf.math.invert_permutation(tf.concat([done, rest], axis=0))
    return tf.gather(all_tokens, places)


def _cut_others(
    words: tf.Tensor, table: tf.lookup.StaticVocabularyTable, pieces: Pieces
) -> tf.RaggedTensor:
    """Cut words that are not single pieces, strings [N], into ids, int64 [N, (P)]."""
    points, begins = tf.strings.unicode_decode_with_offsets(words, "UTF-8")
    letters = _describe_letters(words, points.row_splits, begins)
    ids, lengths = _find_longest(words, letters, table, pieces)
    is_piece, is_cut = _follow_pieces(points.row_splits, lengths)
    is_cut = tf.gather(is_cut, letters.word_of)
    # If a word cannot be cut, its first character yields the unknown token.
    is_first = tf.equal(tf.range(tf.size(ids, tf.int64)), letters.first)
    is_token = tf.where(is_cut, is_piece, is_first)
    ids = tf.where(is_cut, ids, tf.constant(pieces.unknown, tf.int64))
    tokens = splitting.find_true(is_token)
    return tf.RaggedTensor.from_value_rowids(
        tf.gather(ids, tokens),
        tf.gather(letters.word_of, tokens),
        nrows=points.nrows(),
        validate=False,
    )


def _describe_letters(words: tf.Tensor, row_splits: tf.Tensor, begins: tf.RaggedTensor) -> _Letters:
    word_of = begins.value_rowids()
    first, end = tf.gather(row_splits, word_of), tf.gather(row_splits, word_of + 1)
    size = tf.gather(tf.cast(tf.strings.length(words), tf.int64), word_of)
    place = tf.range(tf.size(word_of, tf.int64))
    following = tf.concat([begins.flat_values[1:], size[-1:]], axis=0)
    ends = tf.where(place + 1 < end, following, size)
    return _Letters(word_of, first, end, begins.flat_values, ends)


def _find_longest(
    words: tf.Tensor,
    letters: _Letters,
    table: tf.lookup.StaticVocabularyTable,
    pieces: Pieces,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ids and lengths of the longest pieces that begin at each character, int64 [M].

    If no piece begins at a character, its id and its length are 0.
    """
    count = tf.size(letters.word_of, tf.int64)

    def look_up(length, places, ids, lengths):
        is_within = places + length <= tf.gather(letters.end, places)
        places = tf.gather(places, splitting.find_true(is_within))
        begin = tf.gather(letters.begins, places)
        end = tf.gather(letters.ends, places + length - 1)
        texts = tf.strings.substr(
            tf.gather(words, tf.gather(letters.word_of, places)), begin, end - begin
        )
        is_first = tf.equal(places, tf.gather(letters.first, places))
        # In the vocabulary, pieces inside of a word have a mark, but pieces at the start have none.
        mark = tf.where(is_first, b"", INSIDE)
        piece_ids = table.lookup(tf.strings.join([mark, texts]))
        hits = splitting.find_true(piece_ids < pieces.size)
        at = tf.gather(places, hits)[:, tf.newaxis]
        ids = tf.tensor_scatter_nd_update(ids, at, tf.gather(piece_ids, hits))
        longest = tf.fill(tf.shape(hits), length)
        return length + 1, places, ids, tf.tensor_scatter_nd_update(lengths, at, longest)

    none = tf.zeros(tf.expand_dims(count, 0), tf.int64)
    any_number = tf.TensorShape([None])
    _, _, ids, lengths = tf.while_loop(
        lambda length, places, *_: (length <= pieces.longest) & (tf.size(places) > 0),
        look_up,
        (tf.constant(1, tf.int64), tf.range(count), none, none),
        shape_invariants=(tf.TensorShape([]), any_number, any_number, any_number),
    )
    return ids, lengths


def _follow_pieces(row_splits: tf.Tensor, lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Follow the pieces of each word; return masks of piece starts and of words that can be cut.

    The mask of piece starts has an entry for each of M characters, and the mask of words an entry
    for each of N words.
    """
    ends = row_splits[1:]
    # Append a length of 0 behind the last word.
    lengths_and_end = tf.concat([lengths, tf.zeros([1], tf.int64)], axis=0)

    def find_steps(places: tf.Tensor) -> tf.Tensor:
        return tf.where(places < ends, tf.gather(lengths_and_end, places), tf.zeros_like(places))

    def advance(places, is_piece):
        step = find_steps(places)
        at = tf.gather(places, splitting.find_true(step > 0))
        marks = tf.ones_like(at, tf.bool)
        return places + step, tf.tensor_scatter_nd_update(is_piece, at[:, tf.newaxis], marks)

    places, is_piece = tf.while_loop(
        lambda places, _: tf.reduce_any(find_steps(places) > 0),
        advance,
        (row_splits[:-1], tf.zeros_like(lengths, tf.bool)),
    )
    return is_piece, tf.equal(places, ends)
