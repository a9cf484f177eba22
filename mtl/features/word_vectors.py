"""Vectors of words from a file, as the initial values of a table.

features.Categorical.word_vectors = "glove.6B.50d.txt"
features.Categorical.dimension = 50

A line of the file is a word and its numbers, separated by spaces. The first line may hold two whole
numbers instead: the number of words, and the length of the vectors. GloVe (J. Pennington, R.
Socher, C. Manning, EMNLP 2014), word2vec and fastText use these text formats.

The file is read once, when the run starts. The vectors of the vocabulary's tokens then lie in
`<model_dir>/statistics`, and a continued run does not need the file.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.features import vocabulary

_log = logging.getLogger(__name__)

_VALUES = "vectors"
_GREATEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(kw_only=True)
class WordVectors(types.Accumulator):
    """Finds the vectors of a vocabulary, once the vocabulary is complete.

    Attributes:
      where: the setting that names the file.
      path: the file.
      dimension: the length of the vectors.
      column: the name of the vocabulary's statistics.
      given: the tokens or the file of a vocabulary from the settings; None if it is learned.
    """

    where: str = dataclasses.field(repr=False)
    path: str = dataclasses.field(repr=False)
    dimension: int
    column: str = dataclasses.field(repr=False)
    given: Sequence[str] | str | None = dataclasses.field(repr=False)

    def update(self, fields: types.Tensors) -> None:
        """Do nothing: batches hold no vectors."""

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Write the vectors of the vocabulary's tokens, and return their file and number.

        Raises:
          UserError: the file does not hold vectors of this length, or knows none of the tokens.
        """
        learned_path = os.path.join(directory, f"vocabulary_{self.column}.txt")
        tokens_or_path = learned_path if self.given is None else self.given
        if isinstance(tokens_or_path, str):
            tokens = vocabulary.read_file(f"the vocabulary of {self.column}", tokens_or_path)
        else:
            tokens = [token.encode() for token in tokens_or_path]
        vectors = read_vectors(self.where, self.path, self.dimension, tokens)
        num_found = int(np.isfinite(vectors[:, 0]).sum())
        rule = f"hold a vector of a token of {self.column}"
        fix = "Its words may be written in another way, such as with capital letters."
        checks.require(num_found > 0, self.where, rule, self.path, fix)
        share = f"{num_found} of {len(tokens)} tokens, {num_found / len(tokens):.0%},"
        _log.info("features/%s: %s start from %s", self.column, share, self.path)
        file = f"word_vectors_{self.column}"
        tf.raw_ops.SaveV2(
            prefix=os.path.join(directory, file),
            tensor_names=[_VALUES],
            shape_and_slices=[""],
            tensors=[tf.constant(vectors)],
        )
        return {"vectors": file, "size": len(tokens), "found": num_found}


def key(column: str) -> str:
    """Return the name of the statistics of a column's or table's word vectors."""
    return f"{column}/word_vectors"


def check(where: str, path: str | None, dimension: int | None) -> None:
    """Fail unless `path` is None, or a path for a column with an embedding."""
    if path is not None:
        checks.is_a(where, path, str, "be the path of a file of vectors or None")
        rule = "be None if the column has no embedding"
        checks.require(dimension is not None, where, rule, path)


def make_initializer(
    fitted: types.Statistics, column: str, stddev: float
) -> Callable[..., tf.Tensor]:
    """Return an initialiser that starts the table from the known vectors.

    Args:
      fitted: the statistics, which name the file of the vectors.
      column: the column.
      stddev: other rows come from a normal distribution of this standard deviation, cut off at two
        standard deviations.
    """
    entry = fitted.for_column(key(column))
    prefix, size = fitted.path(entry["vectors"]), entry["size"]
    initialize_others = tf1.truncated_normal_initializer(stddev=stddev)

    def initialize(shape, dtype=tf.float32, partition_info=None):
        random_rows = initialize_others(shape, dtype=dtype, partition_info=partition_info)
        first = partition_info.var_offset[0] if partition_info else 0
        count = max(0, min(size - first, shape[0]))
        if count == 0:
            return random_rows
        part = f"{size} {shape[1]} {first},{count}:0,{shape[1]}"
        # Savers use this op, too; servers may refuse an op that reads arbitrary files.
        (vectors,) = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=[_VALUES], shape_and_slices=[part], dtypes=[tf.float32]
        )
        # The file holds 32-bit vectors, but a table may have 16 bits.
        vectors = tf.cast(tf.ensure_shape(vectors, [count, shape[1]]), dtype)
        start_rows = tf.where(tf.math.is_nan(vectors), random_rows[:count], vectors)
        return tf.concat([start_rows, random_rows[count:]], axis=0)

    return initialize


def read_vectors(where: str, path: str, dimension: int, tokens: Sequence[bytes]) -> np.ndarray:
    """Return the vectors of tokens, float32 [V, dimension]; NaN for tokens that the file lacks.

    The first line of a repeated word counts.

    Args:
      where: the setting that names the file, for the error.
      path: the file.
      dimension: the number of numbers in each line.
      tokens: V tokens in UTF-8.

    Raises:
      UserError: a line of the file is wrong.
    """
    exists = tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)
    checks.require(exists, where, "be an existing file", path)
    places = {token: place for place, token in enumerate(tokens)}
    vectors = np.full([len(tokens), dimension], np.nan, np.float32)
    for number, line in _read_lines(where, path, dimension):
        word, values = _split_line(where, path, dimension, number, line)
        # Remove it, so that a later line of the same word does not count.
        place = places.pop(word, None)
        if place is not None:
            vectors[place] = _parse_numbers(where, path, number, values)
    return vectors


def _split_line(
    where: str, path: str, dimension: int, number: int, line: bytes
) -> tuple[bytes, bytes]:
    """Return the word and the numbers of a line."""
    spaces = line.count(b" ")
    word, _, values = line.partition(b" ")
    fits = spaces >= dimension
    if spaces > dimension:  # Words may hold spaces, but a further number is an error.
        # The last `dimension` parts are numbers, and the word is the rest.
        *words, values = line.split(b" ", spaces - dimension + 1)
        word = b" ".join(words)
        fits = not (b"." in words[-1] and _is_number(words[-1]))
    rule = f"hold a word and {dimension} numbers (dimension) in each line"
    fix = f"In line {number} of {path}."
    checks.require(fits and word != b"", where, rule, line[:80].decode(errors="replace"), fix)
    return word, values


def _parse_numbers(where: str, path: str, number: int, values: bytes) -> list[float]:
    parts = values.split(b" ")
    fits = all(map(_is_number, parts)) and all(abs(float(part)) <= _GREATEST for part in parts)
    excerpt = values[:80].decode(errors="replace")
    fix = f"In line {number} of {path}."
    checks.require(fits, where, "hold finite numbers behind each word", excerpt, fix)
    return [float(part) for part in parts]


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_lines(where: str, path: str, dimension: int) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of vectors, after a check of the first line."""
    with tf.io.gfile.GFile(path, "rb") as file:
        for number, line in enumerate(iter(file.readline, b""), 1):
            line = line.rstrip(b" \r\n")
            if number == 1:
                parts = line.split(b" ")
                is_header = len(parts) == 2 and all(part.isdigit() for part in parts)
                width = int(parts[1]) if is_header else len(parts) - 1
                rule = f"hold vectors of {dimension} numbers (dimension)"
                checks.require(width == dimension, where, rule, width, f"In line 1 of {path}.")
                if is_header:
                    continue
            yield number, line
