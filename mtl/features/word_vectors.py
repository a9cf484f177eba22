"""Reads pretrained word vectors from a file, as initial values of an embedding table.

features.Categorical.word_vectors = "glove.6B.50d.txt"
features.Categorical.dimension = 50

Each line of the file holds a word and the numbers of its vector, separated by spaces. The first
line may instead hold the number of words, and the length of the vectors. GloVe (Pennington et al.,
EMNLP 2014), word2vec and fastText write such lines of a word and its vector.

The file of vectors is read once, when a new run starts. The run saves the vectors of its vocabulary
in `<model_dir>/statistics`, so a continued run does not need the file.
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
    """An accumulator that reads the vectors of a vocabulary after the pass over the training split.

    Attributes:
      where: the setting that names the file.
      path: the path of the file with the word vectors.
      dimension: the length of the vectors.
      column: the name under which the statistics hold the vocabulary.
      given: the tokens, or the file, of the vocabulary in the settings; None if the vocabulary is
        learned.
    """

    where: str = dataclasses.field(repr=False)
    path: str = dataclasses.field(repr=False)
    dimension: int
    column: str = dataclasses.field(repr=False)
    given: Sequence[str] | str | None = dataclasses.field(repr=False)

    def update(self, fields: types.Tensors) -> None:
        """Do nothing, because word vectors come from a file, and not from batches."""

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Write the vectors of the vocabulary; return the file name and the number of vectors.

        Raises:
          UserError: the vectors in the file have another length, or the file lacks all tokens.
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
        fix = "The file may write words in another way, such as with capital letters."
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
    """Return the name under which the statistics hold the word vectors of a column or table."""
    return f"{column}/word_vectors"


def check(where: str, path: str | None, dimension: int | None) -> None:
    """Fail unless a setting for word vectors suits the embedding of a column.

    Args:
      where: the name of the setting, used in error messages.
      path: the value of the setting, which is the path of a file of vectors; None is always valid.
      dimension: the length of the embedding's vectors; None without an embedding.

    Raises:
      UserError: `path` is not a text, or is set for a column without an embedding.
    """
    if path is not None:
        checks.is_a(where, path, str, "be the path of a file of vectors or None")
        rule = "be None if the column has no embedding"
        checks.require(dimension is not None, where, rule, path)


def make_initializer(
    fitted: types.Statistics, column: str, stddev: float
) -> Callable[..., tf.Tensor]:
    """Return an initializer that copies the saved word vectors into a table.

    Args:
      fitted: the statistics, which name the file of the saved vectors.
      column: the column or table.
      stddev: the standard deviation of the rows without a saved vector, which are drawn from a
        normal distribution that is truncated at two standard deviations.
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
        # Read with the op of checkpoint savers, because servers may refuse ops that read arbitrary
        # files.
        (vectors,) = tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=[_VALUES], shape_and_slices=[part], dtypes=[tf.float32]
        )
        # The file holds 32-bit numbers, but the table may have 16-bit numbers.
        vectors = tf.cast(tf.ensure_shape(vectors, [count, shape[1]]), dtype)
        start_rows = tf.where(tf.math.is_nan(vectors), random_rows[:count], vectors)
        return tf.concat([start_rows, random_rows[count:]], axis=0)

    return initialize


def read_vectors(where: str, path: str, dimension: int, tokens: Sequence[bytes]) -> np.ndarray:
    """Read the vectors of tokens, float32 [V, dimension]; NaN for tokens that the file lacks.

    If the file has several lines for a word, the first line counts.

    Args:
      where: the setting that names the file, used in error messages.
      path: the path of the file with the word vectors.
      dimension: the length of a vector.
      tokens: V tokens in UTF-8.

    Raises:
      UserError: the file does not exist, or a line is malformed.
    """
    exists = tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)
    checks.require(exists, where, "be an existing file", path)
    places = {token: place for place, token in enumerate(tokens)}
    vectors = np.full([len(tokens), dimension], np.nan, np.float32)
    for number, line in _read_lines(where, path, dimension):
        word, values = _split_line(where, path, dimension, number, line)
        # Remove the word, so that later lines of the same word do not count.
        place = places.pop(word, None)
        if place is not None:
            vectors[place] = _parse_numbers(where, path, number, values)
    return vectors


def _split_line(
    where: str, path: str, dimension: int, number: int, line: bytes
) -> tuple[bytes, bytes]:
    """Split a line into the word and the numbers."""
    spaces = line.count(b" ")
    word, _, values = line.partition(b" ")
    fits = spaces >= dimension
    if spaces > dimension:  # A word may contain spaces, but an additional number is an error.
        # The last `dimension` parts of the line are numbers, and the first parts are the word.
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
    """Yield (line number, line) for each line with a vector; check the first line."""
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
