"""A fast reader of CSV files, based on Arrow, that reads values like `csv.Csv`.

for block in csv_columns.read_split(source, "train", spec.fields):  # {field: packed values}

`Csv.decode` takes several times as long as this reader. If Arrow might read a file differently from
`Csv.decode`, `read_split` raises an error. The caller of `read_split` catches the error, and reads
the file with `Csv.decode`, which names a bad line.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from mtl import spec as spec_lib
from mtl import types
from mtl.data import columns, files, packed

# A file is parsed in chunks of `_CHUNK` bytes, so a large file takes no more memory than a chunk.
_CHUNK = 1 << 24
_MARK = b"\xef\xbb\xbf"
_BLANK = re.compile(rb"(?m)^[ \t]+\n")


class Settings(columns.Cells, Protocol):
    """The settings of `csv.Csv` that this reader needs."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns; empty if each file has a header."""

    @property
    def delimiter(self) -> str:
        """The character between two values."""

    @property
    def comment(self) -> str:
        """The text at the start of lines to drop; "" drops no lines."""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""

    def check_split(self, split: str) -> list[str]:
        """Check each file of a split, and return the paths."""


def read_split(
    source: Settings, split: str, fields: Mapping[str, spec_lib.Field]
) -> Iterator[dict[str, packed.Values]]:
    """Yield {field: values} of all rows of a split, one chunk of a file at a time.

    Args:
      source: the source of the CSV files, with its settings.
      split: the name of the split, such as "train".
      fields: {name: field}.

    Raises:
      DecodeOnlyError: Arrow might read some rows differently from `Csv.decode`.
    """
    for path in source.check_split(split):
        for chunk in read_chunks(path, skip=0 if source.columns else 1):
            values = _read_chunk(source, chunk, fields)
            if values is None:
                raise types.DecodeOnlyError
            yield values


def read_chunks(path: str, skip: int) -> Iterator[bytes]:
    """Yield a file in chunks of whole lines.

    Args:
      path: the file, which is decompressed if its name ends in ".gz".
      skip: the number of lines to leave out at the start of the file.

    Yields:
      Lines, each with a line feed at its end. A chunk may be empty.
    """
    with files.open_binary(path) as file:
        for _ in range(skip):
            file.readline()
        line_start = b""
        while piece := file.read(_CHUNK):
            lines, line_feed, line_start = (line_start + piece).rpartition(b"\n")
            yield lines + line_feed
        # The last line may lack a line feed.
        yield line_start + b"\n"


def _read_chunk(
    source: Settings, chunk: bytes, fields: Mapping[str, spec_lib.Field]
) -> dict[str, packed.Values] | None:
    has_nested = any(map(operator.attrgetter("is_nested"), fields.values()))
    if has_nested or not source.delimiter.isascii():
        return None
    text = _drop_lines(source, chunk.replace(b"\r", b""))
    if b"\0" in text or text.startswith(_MARK) or not are_quotes_whole(text, source.delimiter):
        return None
    names = {name: field.column for name, field in fields.items()}
    table = _parse(source, text, list(dict.fromkeys(names.values())))
    if table is None:
        return None
    values = columns.read_columns(table, names, fields, source, fills_texts=False)
    return values if len(values) == len(fields) else None


def _drop_lines(source: Settings, text: bytes) -> bytes:
    """Drop comments, and blank lines that Arrow would read as rows."""
    if source.comment:
        start = re.escape(source.comment.encode())
        text = re.sub(rb"(?m)^" + start + rb".*\n", b"", text)
    if source.delimiter in " \t" or len(source.names) == 1:
        text = _BLANK.sub(b"", text)
    return text


def are_quotes_whole(text: bytes, delimiter: str) -> bool:
    """Return True if all quotes enclose whole values, and no value contains a line break.

    `Csv.decode` refuses quotes inside of a value, but Arrow would keep them in the value.

    Args:
      text: whole lines of a file.
      delimiter: the character between two values, in ASCII.
    """
    if b'"' not in text:
        return True
    content = np.frombuffer(b"\n%b\n" % text, np.uint8)
    places = np.flatnonzero(content == ord('"'))
    breaks = np.flatnonzero(content == ord("\n"))
    are_closed = np.searchsorted(places, breaks) % 2 == 0
    if not are_closed.all():
        return False
    is_allowed = np.zeros(256, bool)
    is_allowed[[ord(delimiter), *b'"\n\r']] = True
    before, behind = content[places[::2] - 1], content[places[1::2] + 1]
    return bool(is_allowed[before].all() and is_allowed[behind].all())


def _parse(source: Settings, text: bytes, names: list[str]) -> Any:
    """Return some columns as texts; None if a line has too few or too many values."""
    from pyarrow import csv as arrow_csv

    if not text.strip():
        return pa.table({name: pa.array([], pa.string()) for name in names})
    try:
        return arrow_csv.read_csv(
            pa.BufferReader(text),
            arrow_csv.ReadOptions(column_names=source.names),
            arrow_csv.ParseOptions(delimiter=source.delimiter),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=names,
                null_values=[],
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, UnicodeError):
        return None
