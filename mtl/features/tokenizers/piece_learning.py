"""Learns a vocabulary of word pieces from the training split, with the library `tokenizers`.

gathered = piece_learning.Pieces(source="title", read=read, size=8000, min_count=2, lowercase=True)
gathered.update(features)                                # for each batch
gathered.save(directory, "text_title")                   # {"file": ..., "size": 800, "longest": 9}

The accumulator counts the same words into which the graph cuts texts. Among equally frequent pairs,
the library `tokenizers` chooses by the order of the single characters, which comes from a randomly
seeded hash map. This module passes the characters in a fixed order, so that equal counts always
give equal pieces.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mtl import checks, types, versions
from mtl.deferred import tf
from mtl.features.tokenizers import greedy, splitting

# A text for the library repeats a word at most this number of times.
_COPIES = 1000


@dataclasses.dataclass(kw_only=True)
class Pieces(types.Accumulator):
    """An accumulator that counts the words of a field, and learns pieces from the counts.

    Attributes:
      source: a description of the texts.
      read: a function from features to strings, [N].
      size: the largest number of pieces.
      min_count: the least number of times that a character, or a pair, must occur to become a
        piece.
      lowercase: True converts to lower case, as in `splitting.split_words`.
    """

    source: str
    read: Callable[[types.Tensors], tf.Tensor] = dataclasses.field(repr=False)
    size: int
    min_count: int
    lowercase: bool

    def __post_init__(self):
        self._counts: collections.Counter[bytes] = collections.Counter()

    def update(self, fields: types.Tensors) -> None:
        """Count the words of a batch.

        Raises:
          UserError: the library `tokenizers` is not installed.
        """
        _import_library()  # Fail at the first batch, not after the pass over the data.
        words = splitting.split_words(self.read(fields), self.lowercase)
        self._counts.update(words.flat_values.numpy().tolist())

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Learn the pieces, and write them with one piece per line.

        Returns:
          {"file": the name of the file, "size": the number of pieces, "longest": the result of
          `find_longest`}.

        Raises:
          UserError: no character occurs `min_count` times, or the library `tokenizers` is not
            installed.
        """
        counts = {word.decode(): count for word, count in self._counts.items()}
        pieces = learn_pieces(counts, self.size, self.min_count)
        rule = f"hold a character that occurs {self.min_count} times (min_count)"
        fix = "Lower min_count, or leave the field out."
        checks.require(len(pieces) > 0, f"features.{column}", rule, 0, fix)
        name = f"vocabulary_{column}.txt"
        with tf.io.gfile.GFile(os.path.join(directory, name), "wb") as file:
            file.write(b"".join(piece + b"\n" for piece in pieces))
        return {"file": name, "size": len(pieces), "longest": find_longest(pieces)}


def learn_pieces(counts: Mapping[str, int], size: int, min_count: int) -> list[bytes]:
    """Learn at most `size` pieces that occur `min_count` times or more, and return them by id.

    Args:
      counts: {word: number of occurrences}.
      size: the largest number of pieces.
      min_count: the least number of times that a character, or a pair, must occur to become a
        piece.
    """
    words = {word: n for word, n in counts.items() if len(word) <= greedy.MOST_CHARACTERS}
    singles = _count_singles(words)
    ranking = sorted(singles, key=lambda piece: (-singles[piece], len(piece), piece))
    alphabet = [piece for piece in ranking if singles[piece] >= min_count][:size]
    letters = set(alphabet)
    words = {word: n for word, n in words.items() if letters.issuperset(_list_singles(word))}
    library = _import_library()
    # The library `tokenizers` also counts every character as the beginning of a word.
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_count,
        show_progress=False,
        special_tokens=alphabet,
        continuing_subword_prefix=greedy.INSIDE.decode(),
    )
    learner = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    learner.train_from_iterator(_repeat(words), trainer)
    places = learner.get_vocab()
    return [piece.encode() for piece in sorted(places, key=places.__getitem__)]


def find_longest(pieces: Iterable[bytes]) -> int:
    """Return the number of characters of the longest piece, not counting the mark `##`.

    Args:
      pieces: at least one piece, in UTF-8.
    """
    return max(len(piece.removeprefix(greedy.INSIDE).decode(errors="replace")) for piece in pieces)


def _list_singles(word: str) -> Iterator[str]:
    """Yield the characters of a word, and the marked forms of later characters, such as `##a`."""
    yield from word
    yield from (f"{greedy.INSIDE.decode()}{character}" for character in word[1:])


def _count_singles(words: Mapping[str, int]) -> dict[str, int]:
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for piece in _list_singles(word):
            counts[piece] += count
    return counts


def _repeat(words: Mapping[str, int]) -> Iterator[str]:
    """Yield texts in which each word occurs as often as it was counted."""
    for word, count in words.items():
        for _ in range(count // _COPIES):
            yield " ".join([word] * _COPIES)
        yield " ".join([word] * (count % _COPIES))


def _import_library() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        rule = "name a file, because the library `tokenizers` is not installed"
        fix = f"{versions.how_to_get('text')} brings it."
        checks.fail("WordPiece.vocabulary", rule, None, fix)
