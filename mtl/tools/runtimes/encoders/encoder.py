r"""Encodes raw features as the inputs of a model that takes ids; needs NumPy, but not TensorFlow.

encode = encoder.Encoder("models/adult/1795231775/portable/ids")
inputs = encode({"age": [39.0, 50.0], "job": ["cook", None], "tags": [["a", "b"], []]})
# {"age": float32 [2], "job/categorical_job": int64 [2],
#  "tags/categorical_tags": int64 [2, 2], "tags/length": int64 [2]}

An export holds a copy of encoder.py, so a client needs no other file of the project. encoder.h is
the same program in C++. encoder.py and encoder.h read encoder.txt, a file of lines whose parts are
separated by tabs:

feature  <name> <type> <shape: sizes with commas, or "list"> [<default>]
counts   <feature of counts> <list of lists>
input    <name> <feature> values
input    <name> <feature> length
input    <name> <feature> vocabulary <file> <number of categories> <places for unknown ones>
input    <name> <feature> hash <number of buckets>

Each line of a vocabulary file is a category. In encoder.txt and in vocabularies, a backslash, a tab
and the ends of lines are written as \\, \t, \n and \r.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

FILE = "encoder.txt"
HEADER = "mtl-encoder\t1"
LIST = "list"
VALUES, LENGTH, VOCABULARY, HASH = "values", "length", "vocabulary", "hash"

# FarmHash computes modulo 2**64, but Python's integers do not overflow.
_MASK = 2**64 - 1
# The constants of FarmHash, the hash of TensorFlow's hash buckets.
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNESCAPED = {escaped: plain for plain, escaped in _ESCAPES.items()}


class Feature(NamedTuple):
    """A raw feature.

    Attributes:
      dtype: "float32", "int64", "uint8", "bool" or "string".
      shape: the shape in one row; None for a list of any length.
      default: the value that replaces a missing value; None if the feature must have a value.
    """

    dtype: str
    shape: tuple[int, ...] | None
    default: str | None


class Input(NamedTuple):
    """An input of the model.

    Attributes:
      feature: the name of the feature that the input encodes.
      kind: "values" for values that stay unchanged, "length" for the lengths of lists, or
        "vocabulary" or "hash" for ids.
      size: the number of categories in the vocabulary, or the number of hash buckets.
      unknown: the number of ids for values that are not in the vocabulary.
      places: {value: id}, the vocabulary.
    """

    feature: str
    kind: str
    size: int = 0
    unknown: int = 0
    places: Mapping[bytes, int] = {}

    def encode(self, token: bytes) -> int:
        """Return the id of a value, which is a text or the digits of an integer."""
        if self.kind == HASH:
            return fingerprint(token) % self.size
        place = self.places.get(token)
        if place is not None:
            return place
        # As in `tf.lookup.StaticVocabularyTable`, the ids of unknown values follow the vocabulary.
        return self.size + (fingerprint(token) % self.unknown if self.unknown > 1 else 0)


class Encoder:
    """Encodes columns of raw features as inputs of a model.

    Attributes:
      features: {name: raw feature}.
      inputs: {name: input of the model}.
    """

    def __init__(self, directory: str):
        """Read encoder.txt and the vocabularies of a folder.

        Raises:
          OSError: a file is missing.
          ValueError: encoder.txt was written by another version, or a vocabulary is damaged.
        """
        self.features: dict[str, Feature] = {}
        self.inputs: dict[str, Input] = {}
        self._nested: dict[str, str] = {}  # {list of lists: feature with the counts per item}.
        first, *lines = _read_lines(os.path.join(directory, FILE))
        if first.decode() != HEADER:
            raise ValueError(f"{FILE} must start with {HEADER!r}, got {first.decode()!r}")
        for line in lines:
            # Keep bytes in names of features that are not UTF-8.
            text = line.decode(errors="surrogateescape")
            kind, *parts = (_unescape(part) for part in text.split("\t"))
            if kind == "feature":
                name, dtype, shape, *default = parts
                sizes = None if shape == LIST else tuple(map(int, filter(None, shape.split(","))))
                self.features[name] = Feature(dtype, sizes, default[0] if default else None)
            elif kind == "counts":
                self._nested[parts[1]] = parts[0]
            elif kind == "input":
                self.inputs[parts[0]] = _parse_input(directory, parts[1:])
            else:
                raise ValueError(f"{FILE} holds an unknown line: {kind!r}")

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the inputs of the model for B rows.

        Args:
          columns: {feature: B values}. A text is a str or bytes, and a list is a sequence. None
            stands for a missing value, and an absent column stands for missing values in all rows.
            The default of the feature replaces a missing value, and an empty list replaces a
            missing list.

        Returns:
          {input: array}. For B rows, an array of values or ids has the shape [B, ...]; ids are
          int64. Lists are padded to [B, L], L > 0, with zeros or empty texts; another input has the
          length of each list, int64 [B].

        Raises:
          ValueError: there is no column, a required feature is missing, a column is not a feature,
            columns differ in length, or a value does not have the type of its feature.
        """
        count = self._count_rows(columns)
        values = {
            name: _read_column(name, feature, columns.get(name, [None] * count))
            for name, feature in self.features.items()
        }
        self._drop_empty_texts(values)
        for name, feature in self.features.items():
            weights = f"{name}/weights"
            if weights in self.features and feature.shape is None and name not in self._nested:
                _check_weights(name, values[name], values[weights])
        return {
            name: self._encode(input_, values[input_.feature])
            for name, input_ in self.inputs.items()
        }

    def _count_rows(self, columns: Mapping[str, Any]) -> int:
        """Return the number of rows; fail if columns differ in length or are not features."""
        for name in columns:
            if name not in self.features:
                raise ValueError(f"unknown feature {name!r}; known are {', '.join(self.features)}")
        if not columns:
            raise ValueError("there must be at least one column")
        for name, column in columns.items():
            if isinstance(column, (str, bytes)):
                raise ValueError(f"feature {name!r} must have a value for each row, got {column!r}")
        counts = {name: len(column) for name, column in columns.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"columns must have the same number of rows, got {counts}")
        return next(iter(counts.values()))

    def _drop_empty_texts(self, values: dict[str, Any]) -> None:
        """Drop empty texts from lists in place, as training does."""
        for name, feature in self.features.items():
            if feature.shape is not None or feature.dtype != "string":
                continue
            counts = self._nested.get(name)
            if counts is not None:
                values[counts] = [
                    _count_texts(name, texts, row_counts)
                    for texts, row_counts in zip(values[name], values[counts], strict=True)
                ]
            values[name] = [[text for text in texts if text] for texts in values[name]]

    def _encode(self, input_: Input, values: Any) -> np.ndarray:
        feature = self.features[input_.feature]
        if input_.kind == LENGTH:
            return np.array([len(row) for row in values], np.int64)
        if input_.kind != VALUES:
            # Hash each value only once, because hashing in Python is slow, and values repeat.
            encode = _remember(input_.encode)
            tokens = _as_tokens(feature, values)
            if feature.shape is not None:
                ids = np.array([encode(token) for token in tokens.ravel()], np.int64)
                return ids.reshape(tokens.shape)
            values = [[encode(token) for token in row] for row in tokens]
        if feature.shape is not None:
            return values
        dtype = np.dtype(np.int64) if input_.kind != VALUES else _numpy_type(feature)
        # The padded lists have the shape [B, L], with L > 0 even if all lists are empty.
        padded = np.full([len(values), max([1, *map(len, values)])], b"", object)
        padded = padded if dtype.kind == "O" else np.zeros(padded.shape, dtype)
        for row, content in zip(padded, values, strict=True):
            row[: len(content)] = content
        return padded


def _count_texts(name: str, texts: Sequence[bytes], counts: Sequence[int]) -> list[int]:
    """Return the number of texts that are not empty for each item of a list of lists."""
    if sum(counts) != len(texts) or min(counts, default=0) < 0:
        raise ValueError(f"feature {name!r} holds {len(texts)} values, but its counts {counts}")
    ends = np.cumsum([0, *counts])
    return [sum(map(bool, texts[a:b])) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def _check_weights(name: str, rows: Sequence[Sequence[Any]], weights: Sequence[Any]) -> None:
    """Fail unless lists have a weight for each value, because other runtimes do not check it."""
    for values, list_weights in zip(rows, weights, strict=True):
        if len(values) != len(list_weights):
            rule = f"must have a weight for each value that is not empty, {len(values)}"
            raise ValueError(f"feature {name!r} {rule}, got {len(list_weights)}")


def _remember(encode: Callable[[bytes], int]) -> Callable[[bytes], int]:
    """Return a function like `encode` that computes the id of each token only once."""
    ids: dict[bytes, int] = {}

    def encode_once(token: bytes) -> int:
        if token not in ids:
            ids[token] = encode(token)
        return ids[token]

    return encode_once


def _as_tokens(feature: Feature, values: Any) -> Any:
    """Return texts unchanged, and integers as texts of digits."""
    if feature.dtype == "string":
        return values
    if feature.shape is None:
        return [[b"%d" % number for number in row] for row in values]
    tokens = np.array([b"%d" % number for number in values.ravel()], object)
    return tokens.reshape(values.shape)


def _numpy_type(feature: Feature) -> np.dtype:
    return np.dtype(object if feature.dtype == "string" else feature.dtype)


def _read_column(name: str, feature: Feature, column: Any) -> Any:
    """Return the values of a column as an array [B, ...]; for lists, return B sequences."""
    if feature.shape is None:
        return [_read_list(name, feature, row) for row in column]
    is_array = isinstance(column, np.ndarray) and column.dtype != object
    if not is_array and any(map(_is_missing, column)):
        column = [_fill(name, feature) if _is_missing(value) else value for value in column]
    values = _read_values(name, feature, column)
    shape = (len(column), *feature.shape)
    if values.shape == (0,):  # A column without rows does not show the shape of a row.
        values = values.reshape(shape)
    if values.shape != shape:
        raise ValueError(f"feature {name!r} must have shape {shape}, got {values.shape}")
    return values


def _read_list(name: str, feature: Feature, row: Any) -> list[Any]:
    values = _read_values(name, feature, () if _is_missing(row) else row)
    if isinstance(row, (str, bytes)) or values.ndim != 1:
        raise ValueError(f"feature {name!r} must be a list in each row, got {row!r}")
    return values.tolist()


def _is_missing(value: Any) -> bool:
    return value is None


def _fill(name: str, feature: Feature) -> Any:
    if feature.default is None or feature.shape is None:
        raise ValueError(f"feature {name!r} must be present, as it has no default")
    convert: Any = {"string": str, "float32": float}.get(feature.dtype, int)
    return np.full(feature.shape, convert(feature.default), object).tolist()


def _read_values(name: str, feature: Feature, values: Any) -> np.ndarray:
    if feature.dtype == "string":
        return _read_texts(name, values)
    array = np.asarray(values)
    kinds = {"float32": "fiub", "bool": "iub"}.get(feature.dtype, "iub")
    if array.size and array.dtype.kind not in kinds:
        raise ValueError(f"feature {name!r} must be {feature.dtype}, got {array.ravel()[:1]}")
    if feature.dtype != "float32" and array.size:
        least, most = {"uint8": (0, 255), "bool": (0, 1)}.get(feature.dtype, (-(2**63), 2**63 - 1))
        for value in (int(array.min()), int(array.max())):
            if not least <= value <= most:
                raise ValueError(f"feature {name!r} must be {feature.dtype}, got {value}")
    return array.astype(_numpy_type(feature))


def _read_texts(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values) if isinstance(values, np.ndarray) else np.array(values, object)
    texts = np.empty(array.size, object)
    for place, text in enumerate(array.ravel()):
        if not isinstance(text, (str, bytes)):
            raise ValueError(f"feature {name!r} must be string, got {text!r}")
        # Use an array of objects, because NumPy's type for bytes drops zero bytes at the end.
        texts[place] = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return texts.reshape(array.shape)


def _parse_input(directory: str, parts: Sequence[str]) -> Input:
    feature, kind, *rest = parts
    if kind == HASH:
        return Input(feature, kind, int(rest[0]))
    if kind != VOCABULARY:
        return Input(feature, kind)
    file, size, unknown = rest[0], int(rest[1]), int(rest[2])
    lines = _read_lines(os.path.join(directory, file))
    places = {_unescape_bytes(line): place for place, line in enumerate(lines)}
    if len(places) != size:
        raise ValueError(f"{file} must hold {size} different categories, got {len(places)}")
    return Input(feature, kind, size, unknown, places)


def _read_lines(path: str) -> list[bytes]:
    with open(path, "rb") as file:
        # Use `split`, because `splitlines` would also split at other characters, such as \r.
        return file.read().split(b"\n")[:-1]


def escape(text: str) -> str:
    """Replace tabs, ends of lines and backslashes by escapes, for a line of encoder.txt."""
    return re.sub(r"[\\\t\n\r]", lambda match: _ESCAPES[match[0]], text)


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda match: _UNESCAPED[match[0]], text)


def escape_bytes(token: bytes) -> bytes:
    """Return a category as a line of a vocabulary, with escapes."""
    # Latin-1 has a character for each byte, so bytes that are not UTF-8 do not change.
    return escape(token.decode("latin-1")).encode("latin-1")


def _unescape_bytes(line: bytes) -> bytes:
    return _unescape(line.decode("latin-1")).encode("latin-1") if b"\\" in line else line


def describe(lines: Iterable[Sequence[str]]) -> bytes:
    """Return the content of encoder.txt for lines, each a sequence of parts."""
    text = "\n".join([HEADER, *("\t".join(map(escape, line)) for line in lines)])
    return text.encode(errors="surrogateescape") + b"\n"


def fingerprint(data: bytes) -> int:
    """Return the FarmHash Fingerprint64 of bytes, which TensorFlow's hash buckets use."""
    size = len(data)
    if size <= 16:
        return _hash_to_16(data, size)
    if size <= 32:
        return _hash_to_32(data, size)
    return _hash_to_64(data, size) if size <= 64 else _hash_long(data, size)


def _fetch(data: bytes, place: int, size: int = 8) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _rotate(value: int, shift: int) -> int:
    value &= _MASK
    return (value >> shift | value << (64 - shift)) & _MASK


def _mix(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _join(first: int, second: int, factor: int) -> int:
    """Hash two 64-bit numbers to a 64-bit number."""
    mixed = _mix(((first ^ second) & _MASK) * factor)
    return _mix(((second & _MASK) ^ mixed) * factor) * factor & _MASK


def _hash_to_16(data: bytes, size: int) -> int:
    factor = _K2 + size * 2
    if size >= 8:
        first, second = _fetch(data, 0) + _K2, _fetch(data, size - 8)
        third = _rotate(second, 37) * factor + first
        return _join(third, (_rotate(first, 25) + second) * factor, factor)
    if size >= 4:
        return _join(size + (_fetch(data, 0, 4) << 3), _fetch(data, size - 4, 4), factor)
    if size > 0:
        # Of 1 to 3 bytes, use the first, the middle and the last byte, which may coincide.
        low = data[0] + (data[size >> 1] << 8)
        high = size + (data[size - 1] << 2)
        return _mix(low * _K2 & _MASK ^ high * _K0 & _MASK) * _K2 & _MASK
    return _K2


def _hash_to_32(data: bytes, size: int) -> int:
    factor = _K2 + size * 2
    a, b = _fetch(data, 0) * _K1, _fetch(data, 8)
    c, d = _fetch(data, size - 8) * factor, _fetch(data, size - 16) * _K2
    first = _rotate(a + b, 43) + _rotate(c, 30) + d
    return _join(first, a + _rotate(b + _K2, 18) + c, factor)


def _hash_to_64(data: bytes, size: int) -> int:
    factor = _K2 + size * 2
    a, b = _fetch(data, 0) * _K2, _fetch(data, 8)
    c, d = _fetch(data, size - 8) * factor, _fetch(data, size - 16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d
    z = _join(y, a + _rotate(b + _K2, 18) + c, factor)
    e, f = _fetch(data, 16) * factor, _fetch(data, 24)
    g, h = (y + _fetch(data, size - 32)) * factor, (z + _fetch(data, size - 24)) * factor
    first = _rotate(e + f, 43) + _rotate(g, 30) + h
    return _join(first, e + _rotate(f + a, 18) + g, factor)


def _hash_32_bytes(data: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    """Hash 32 bytes with two seeds."""
    # This function is WeakHashLen32WithSeeds of FarmHash.
    w, x, y, z = (_fetch(data, place + step) for step in (0, 8, 16, 24))
    a += w
    b = _rotate(b + a + z, 21)
    c = a
    a += x + y
    return a + z & _MASK, b + _rotate(a, 44) + c & _MASK


def _hash_long(data: bytes, size: int) -> int:
    # The seed of FarmHash's Fingerprint64 is 81.
    x, y = 81, 81 * _K1 + 113
    z = _mix(y * _K2 + 113) * _K2
    v, w = (0, 0), (0, 0)
    x = x * _K2 + _fetch(data, 0)
    whole = (size - 1) // 64 * 64
    # The last 64 bytes, which may overlap with the block before, use another factor.
    for place in (*range(0, whole, 64), size - 64):
        is_last = place == size - 64 and place + 64 > whole
        factor, times = _K1, 1
        if is_last:
            factor, times = _K1 + ((z & 0xFF) << 1), 9
            w = w[0] + ((size - 1) & 63), w[1]
            v = v[0] + w[0], v[1]
            w = w[0] + v[0], w[1]
        x = _rotate(x + y + v[0] + _fetch(data, place + 8), 37) * factor
        y = _rotate(y + v[1] + _fetch(data, place + 48), 42) * factor
        x ^= w[1] * times
        y += v[0] * times + _fetch(data, place + 40)
        z = _rotate(z + w[0], 33) * factor
        v = _hash_32_bytes(data, place, v[1] * factor, x + w[0])
        w = _hash_32_bytes(data, place + 32, z + w[1], y + _fetch(data, place + 16))
        x, z = z & _MASK, x & _MASK
        y &= _MASK
    first = _join(v[0], w[0], factor) + _mix(y) * _K0 + z
    return _join(first, _join(v[1], w[1], factor) + x, factor)
