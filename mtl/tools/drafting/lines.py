"""Reads delimited files: checks each line, and returns columns of text.

dialect = lines.read_dialect(lines.find_files("TABLE", "part-*.csv.gz"))
dialect.delimiter, dialect.columns                       # ";", ("age", "country", "clicked")
for path, table in lines.read_blocks(dialect): ...       # a pa.Table of strings

Lines and values follow the rules of `mtl.data.csv`, which reads the same files in training.
"""

import collections
import dataclasses
import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from mtl import checks
from mtl.data import csv_columns, partitions
from mtl.files import remote
from mtl.tools.drafting import columns as columns_lib

# If several delimiters fit equally well, the first one is chosen.
_DELIMITERS = ",;\t|"
_NAMES = {",": "','", ";": "';'", "\t": "tabs", "|": "'|'"}
# The number of lines of a file that decide its delimiter and its header.
_FIRST_LINES = 200
_BLOCK_BYTES = 1 << 24
# The largest number of bytes in a line. Without this limit, a file without line feeds would fill
# the memory.
_MOST_LINE_BYTES = 1 << 26
# Control characters, except tabs and line ends, show that a file is binary.
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_NO_TEXT = {
    b"PAR1": "Parquet",
    b"PK\x03\x04": "a ZIP file, such as a spreadsheet",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x1f\x8b": "gzip",
}
_READ_ERRORS = (OSError, EOFError, zlib.error)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """The format of the files of a table: delimiter, columns and more.

    Attributes:
      paths: the paths of the files, in order.
      delimiter: the character between two values.
      columns: the names of the columns.
      has_header: True if the first line of each file contains the names of the columns.
      comment: lines that start with this text are skipped; "" skips no line.
      list_delimiter: the character between two values of a list; "" if a draft has to find it.
      time_forms: {column: the form of its times, as in `features.TimeParts.form`}, set by the user.
      sheet: the sheet of a spreadsheet; "" for the first sheet that is not hidden.
      is_arrow: True if `arrow.Arrow` reads the files, which then have no delimiter.
      is_json: True if `json_lines.JsonLines` reads the files, which then have no delimiter.
      numbers: the columns whose type in the files is a number.
      floats: the columns whose type in the files can hold fractions.
      lists: {column: "string" or "int64"}, the type of the values in columns of lists. The type is
        "string with weights" or "int64 with weights" for maps and for similar types.
      unreadable: {column: type} for columns that a draft cannot use.
    """

    paths: tuple[str, ...]
    delimiter: str
    columns: tuple[str, ...]
    has_header: bool = True
    comment: str = ""
    list_delimiter: str = ""
    time_forms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sheet: str = ""
    is_arrow: bool = False
    is_json: bool = False
    numbers: Sequence[str] = ()
    floats: Sequence[str] = ()
    lists: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unreadable: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def source(self) -> str:
        """The name in gin of the part that reads the files."""
        if self.is_json:
            return "json_lines.JsonLines"
        return "arrow.Arrow" if self.is_arrow else "csv.Csv"

    def ask_missing(self, *texts: str) -> str:
        """Return the flags that turn texts into missing values; for JSON, advice to write null."""
        if self.is_json:
            return "write null."
        # Use "=", because argparse would read -999 as a flag.
        return " ".join(f"--missing={t}" if t[:1] == "-" else f"--missing {t!r}" for t in texts)

    @property
    def delimiter_name(self) -> str:
        """The name of the delimiter for a message, such as "tabs"."""
        return _NAMES.get(self.delimiter, repr(self.delimiter))


def find_files(flag: str, pattern: str) -> tuple[str, ...]:
    """Return the file at a path, or the sorted files that match a pattern.

    Args:
      flag: the name of the setting, for error messages.
      pattern: a path, a folder of Parquet or ORC files, or a glob pattern, local or in remote
        storage; "~" is the home folder.

    Raises:
      UserError: no file matches, or a match is an empty file or a folder of other files.
    """
    if remote.is_remote(pattern):
        matches = tuple(partitions.expand(flag, remote.find(flag, pattern, folders=True)))
        for path in matches:
            checks.require(remote.look(path).size > 0, path, "hold a row", "an empty file")
        return matches
    path = os.path.expanduser(pattern.removeprefix("file://"))
    local_paths = [path] if os.path.exists(path) else sorted(glob.glob(path))
    if not local_paths:
        folder, name = os.path.split(path)
        has_folder = os.path.isdir(folder or ".")
        fix = checks.nearest(name, os.listdir(folder or ".")) if has_folder else ""
        fix = fix if has_folder else f"There is no folder {folder!r}."
        checks.fail(flag, "name existing files", pattern, fix)
    matches = tuple(partitions.expand(flag, local_paths))
    for path in matches:
        checks.require(os.path.getsize(path) > 0, path, "hold a row", "an empty file")
    return matches


def read_dialect(
    paths: Sequence[str],
    delimiter: str | None = None,
    columns: Sequence[str] = (),
    comment: str = "",
) -> Dialect:
    """Find the format of the files in the first 200 lines of the first file.

    Args:
      paths: the paths of the files.
      delimiter: the character between two values; None finds it among comma, semicolon, tab and |.
      columns: the names of the columns, if the files have no header.
      comment: lines that start with this text are skipped; "" skips no line.

    Raises:
      UserError: the file is binary, lacks a delimiter, a header or rows, or repeats a column's
        name.
    """
    path = paths[0]
    first = _read_first(path, comment)
    checks.require(bool(first), path, "hold a row", "blank lines")
    number, line = first[0]
    is_json = line.startswith(("{", "[{")) or line.strip() in ("[", "{")
    fix = "A name that ends in .jsonl says that each line holds an object. For others, "
    fix += "pandas.read_json reads it, and DataFrame.to_parquet writes a table."
    checks.require(not is_json, path, "be a table", f"JSON: {line[:40]}", fix)
    if not columns:  # Training skips line 1 as the header, even if line 1 is blank.
        _require_first(path, first)
        rule, fix = "be the header", f"tail -n +{number} OLD > NEW drops all earlier lines."
        checks.require(number == 1, f"{path} line 1", rule, f"the header in line {number}", fix)
    delimiter = delimiter or _find_delimiter(path, [line for _, line in first])
    rows = [_split(line, delimiter) for _, line in first]
    if columns:
        names = list(columns)
        rule = f"have a name for each of {len(rows[0])} columns of {path}"
        checks.require(len(names) == len(rows[0]), "--columns", rule, len(names))
    else:
        names, where = rows[0], f"{path} line {number}"
        is_repeated = names in rows[1:]
        fix = (
            "Were files with headers joined? Name the files by a glob, such as --data 'part-*.csv'."
        )
        checks.require(not is_repeated, path, "hold its header once", ",".join(names), fix)
        _require_header(where, names, rows[1:])
        checks.require(len(first) > 1, path, "hold a row below its header", "the header alone")
    repeated_names = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    where = "--columns" if columns else f"{path} line {number}"
    checks.require(not repeated_names, where, "name each column once", repeated_names)
    return Dialect(
        paths=tuple(paths),
        delimiter=delimiter,
        columns=tuple(names),
        has_header=not columns,
        comment=comment,
    )


def _require_first(path: str, first: Sequence[tuple[int, str]]) -> None:
    """Fail if comments or a title stand before the header."""
    later = _skip_remarks(first) or _find_header(first)
    fix = f"Is line {later} the header? Then tail -n +{later} OLD > NEW drops all earlier lines."
    checks.require(not later, f"{path} line 1", "be the header", first[0][1][:60], fix)


def _skip_remarks(first: Sequence[tuple[int, str]]) -> int:
    """Return the line number of a header below lines that start with #; 0 for a header in line 1.

    The last line with # is the header if it has as many cells as the next line, as in #chrom,start.
    """
    texts = [line for _, line in first]
    count = next((i for i, line in enumerate(texts) if not line.startswith("#")), 0)
    if not count:
        return 0
    widths = {
        len(_split(texts[count], delimiter)) - len(_split(texts[count - 1], delimiter))
        for delimiter in _DELIMITERS
    }
    place = count - 1 if widths == {0} else count
    return first[place][0] if place else 0


def _find_header(first: Sequence[tuple[int, str]]) -> int:
    """Return the line number of the header below a title; 0 if there is no title."""
    tables = [[_split(line, delimiter) for _, line in first] for delimiter in _DELIMITERS]
    if any(_has_columns(list(map(len, rows))) for rows in tables):
        return 0
    starts = list(map(_skip_title, tables))
    return next((first[start][0] for start in starts if start), 0)


def _has_columns(widths: Sequence[int]) -> bool:
    """Return True if the first line has several columns, and most lines have equally many."""
    return widths[0] > 1 and widths.count(widths[0]) > len(widths) / 2


def _skip_title(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of title lines (with one cell) above a table; 0 if no table follows."""
    widths = list(map(len, rows))
    start = next((i for i, width in enumerate(widths) if width > 1), 0)
    is_rest = len({*widths[start:]}) == 1 and start <= len(widths) / 2
    return start if is_rest and all(rows[start]) else 0


def with_files(dialect: Dialect, paths: Sequence[str]) -> Dialect:
    """Return a format that differs only in its files: `paths` are added."""
    return dataclasses.replace(dialect, paths=(*dialect.paths, *paths))


def _read_first(path: str, comment: str) -> list[tuple[int, str]]:
    """Return (line number, line) for the first lines, without blank lines and comments."""
    first = []
    try:
        with _open(path) as file:
            number = 0
            while line := _read_line(path, file, number := number + 1):
                if number == 1:
                    _require_text(path, line)
                # Spreadsheets write a byte order mark, which is not part of
                # the first column's name.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace")
                text = text.rstrip("\n").replace("\r", "")
                if text.strip(" \t") and not (comment and text.startswith(comment)):
                    first.append((number, text))
                if len(first) == _FIRST_LINES:
                    break
    except _READ_ERRORS as error:
        _fail_to_read(path, error)
    return first


def _require_text(path: str, start: bytes) -> None:
    kind = next((kind for mark, kind in _NO_TEXT.items() if start.startswith(mark)), "binary")
    if kind == "binary" and start.count(b"\0") > len(start) // 4:
        kind = "UTF-16 without a mark"
    is_text = not _CONTROL.search(start) and kind == "binary"
    fix = "Write it anew as CSV in UTF-8."
    if kind.startswith("UTF-16"):
        fix = "iconv -f UTF-16 -t UTF-8 OLD > NEW writes it as UTF-8."
    elif kind == "gzip":
        fix = f"A name that ends in .gz says so: mv {path} {path}.gz"
    checks.require(is_text, path, "be text in UTF-8", f"{kind}: {start[:8]!r}", fix)
    is_split = b"\r" not in start.rstrip(b"\r\n")
    fix = r"Old Macs wrote carriage returns alone: tr '\r' '\n' < OLD > NEW"
    checks.require(is_split, f"{path} line 1", "end in a line feed", start[:60], fix)


def _read_line(path: str, file: IO[bytes], number: int) -> bytes:
    """Return a line with its line break, or b"" at the end of the file; fail if it is huge."""
    line = file.readline(_MOST_LINE_BYTES + 1)
    _require_short(path, line, number)
    return line


def _require_short(path: str, line: bytes, number: int) -> None:
    rule, where = f"have at most {_MOST_LINE_BYTES:,} bytes", f"{path} line {number}"
    fix = "A table has a line feed after each row."
    checks.require(len(line) <= _MOST_LINE_BYTES, where, rule, line[:60], fix)


def _read_block(path: str, file: IO[bytes], start: int) -> bytes | None:
    """Return the lines of the next block, without the last line feed; None at the end."""
    text = file.read(_BLOCK_BYTES)
    if text and not text.endswith(b"\n"):
        line = file.readline(_MOST_LINE_BYTES + 1)
        if len(line) > _MOST_LINE_BYTES:  # Count the lines only for the error: counting takes time.
            _require_short(path, line, start + text.count(b"\n"))
        text += line
    return text.removesuffix(b"\n") if text else None


def _open(path: str) -> Any:
    copy = remote.copy_here(path)
    return gzip.open(copy) if path.endswith(".gz") else open(copy, "rb")


def _fail_to_read(path: str, error: Exception) -> None:
    rule = "be a whole gzip file" if path.endswith(".gz") else "be readable"
    checks.fail(path, rule, str(error))


def _split(line: str, delimiter: str) -> list[str]:
    """Return the trimmed cells of a line, even if quotes stand in wrong places."""
    return [cell.strip() for cell in _cut(line, delimiter)] if line else []


def _cut(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    end = re.escape(delimiter)
    pattern = re.compile(rf'"([^"]*(?:""[^"]*)*)(?:"([^{end}]*)|$)|([^{end}]*)')
    cells, start = [], 0
    while start <= len(line):
        match = pattern.match(line, start)
        assert match is not None  # The pattern also matches an empty text.
        quoted, behind, plain = match.groups()
        cells.append(plain if quoted is None else quoted.replace('""', '"') + (behind or ""))
        start = match.end() + 1
    return cells


def _find_delimiter(path: str, lines: Sequence[str]) -> str:
    """Return the delimiter with which the most lines have as many cells as the first line."""
    # (share of lines with as many cells as the first line, this number of cells)
    best, score = "", (0.0, 0)
    for delimiter in _DELIMITERS:
        widths = [len(_split(line, delimiter)) for line in lines]
        share = widths.count(widths[0]) / len(widths) if widths[0] > 1 else 0.0
        # If two delimiters are equally good, keep the first of `_DELIMITERS`.
        if share and (share, widths[0]) > score:
            best, score = delimiter, (share, widths[0])
    if not best:
        listed = ", ".join(_NAMES.values())
        fix = "Is it another character? Then set --delimiter."
        checks.fail(f"{path} line 1", f"hold columns between {listed}", lines[0], fix)
    return best


def _require_header(where: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Fail if the first line looks like a row: it has numbers, or values that rows repeat."""
    rule, fix = "name the columns", f"Name all {len(names)} of them with --columns 'a,b,...'."
    checks.require(any(names), where, rule, ",".join(names), fix)
    numbers = [name for name in names if re.fullmatch(columns_lib.FLOAT, name)]
    # Consecutive whole numbers, such as years, may be names of columns. Numbers that are not
    # consecutive may be names only if another name is a word, and all cells below this word are
    # numbers.
    is_odd = bool(numbers) and not _is_run(numbers) and not _stands_above(names, rows)
    if is_odd or _count_repeated(names, rows) > 1:
        listed = ", ".join(names[:4]) + ", ..." * (len(names) > 4)
        checks.fail(where, rule, listed, f"It looks like a row. {fix}")


def _is_run(numbers: Sequence[str]) -> bool:
    """Return True if the texts are at least two consecutive whole numbers."""
    whole = [int(number) for number in numbers if number.isdigit()]
    return len(whole) == len(numbers) > 1 and whole == [whole[0] + i for i in range(len(whole))]


def _stands_above(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the name of some column is a word, and all cells below it are numbers."""
    below = zip(*rows, strict=False)
    return any(
        not re.fullmatch(columns_lib.FLOAT, name)
        and name not in columns_lib.MARKS_OF_NUMBERS
        and all(re.fullmatch(columns_lib.FLOAT, cell) for cell in cells)
        for name, cells in zip(names, below, strict=False)
    )


def _count_repeated(names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return how many columns with few distinct values have their own name as a value."""
    below = [set(cells) for cells in zip(*rows, strict=False)]
    return sum(
        name in cells and name != "" and len(cells) < len(rows) / 2
        for name, cells in zip(names, below, strict=False)
    )


def read_blocks(dialect: Dialect) -> Iterator[tuple[str, pa.Table]]:
    """Yield (path, table) for each block of about 16 MiB.

    A table contains the rows of the block as columns of trimmed text.

    Args:
      dialect: the format of the files, from `read_dialect`.

    Raises:
      UserError: a line has a wrong number of columns, a misplaced quote or bad UTF-8.
    """
    for path in dialect.paths:
        _require_same_header(path, dialect)
        start = 1
        try:
            with _open(path) as file:
                while (text := _read_block(path, file, start)) is not None:
                    table = _read_plain(text, dialect, is_first=start == 1)
                    table = _read_lines(path, text, start, dialect) if table is None else table
                    start += text.count(b"\n") + 1
                    if len(table):
                        yield path, table
        except _READ_ERRORS as error:
            _fail_to_read(path, error)


def _require_same_header(path: str, dialect: Dialect) -> None:
    if dialect.has_header and path != dialect.paths[0]:
        first = _read_first(path, dialect.comment)[:1]
        names = [name for _, line in first for name in _split(line, dialect.delimiter)]
        rule = f"be the header {dialect.delimiter.join(dialect.columns)!r}, as in the first file"
        got = dialect.delimiter.join(names)
        checks.require(tuple(names) == dialect.columns, f"{path} line 1", rule, got)


def _read_plain(text: bytes, dialect: Dialect, is_first: bool) -> pa.Table | None:
    """Parse correct lines by Arrow, several times as fast as `_read_lines`.

    The result is None if a line may be malformed, or if Arrow would parse it in another way than
    `_read_lines`.
    """
    if not _may_be_plain(text, dialect):
        return None
    text = text.partition(b"\n")[2] if is_first and dialect.has_header else text
    if not text.strip(b" \t\r\n"):
        return _empty_table(dialect)
    if not csv_columns.are_quotes_whole(text, dialect.delimiter):
        return None
    try:
        # Use small blocks, which several threads of Arrow parse in parallel.
        table = _parse(text, dialect, 1 << 20, has_blank=True)
    except pa.ArrowInvalid:
        return None
    table = _trim(table) if _stand_outside(text, dialect) else table
    return None if _has_empty_row(table, dialect) else table


def _may_be_plain(text: bytes, dialect: Dialect) -> bool:
    """Return False if Arrow would read comments or lone carriage returns as rows."""
    is_simple = not dialect.comment and len(dialect.columns) > 1 and dialect.delimiter.isascii()
    is_simple &= b"\0" not in text
    return is_simple and (b"\r" not in text or text.count(b"\r") == text.count(b"\r\n"))


def _list_spaces(text: bytes, dialect: Dialect) -> list[int]:
    """Return the bytes of a text that are white space, except the delimiter."""
    return [space for space in b" \t\v\f" if space in text and chr(space) != dialect.delimiter]


def _stand_outside(text: bytes, dialect: Dialect) -> bool:
    """Return True if white space stands at the beginning or the end of a value."""
    spaces = _list_spaces(text, dialect)
    if not spaces:
        return False
    # Line feeds on both sides mark the ends of the first and the last value.
    content = np.frombuffer(b"\n%b\n" % text, np.uint8)
    is_end = np.zeros(256, bool)
    is_end[[ord(dialect.delimiter), *spaces, *b'"\n\r']] = True
    for space in spaces:
        places = np.flatnonzero(content == space)
        if is_end[content[places - 1]].any() or is_end[content[places + 1]].any():
            return True
    return False


def _has_empty_row(table: pa.Table, dialect: Dialect) -> bool:
    """Return True if a row may come from a line of white space, which must be skipped."""
    if dialect.delimiter not in " \t":
        return False
    is_empty = pc.equal(table.column(0), "")
    for column in table.columns[1:]:
        is_empty = pc.and_(is_empty, pc.equal(column, ""))
    return pc.any(is_empty).as_py()


def _read_lines(path: str, text: bytes, start: int, dialect: Dialect) -> pa.Table:
    """Parse lines one by one, and return their rows; fail at a malformed line."""
    numbers, rows = _check(path, text.split(b"\n"), start, dialect)
    return _to_table(path, numbers, rows, dialect) if rows else _empty_table(dialect)


def _empty_table(dialect: Dialect) -> pa.Table:
    columns = [pa.chunked_array([[]], pa.string())] * len(dialect.columns)
    return pa.Table.from_arrays(columns, list(dialect.columns))


def _check(
    path: str, lines: Sequence[bytes], start: int, dialect: Dialect
) -> tuple[list[int], list[bytes]]:
    """Return the line numbers and the bytes of the lines that contain a row."""
    delimiter, breaks = dialect.delimiter.encode(), len(dialect.columns) - 1
    comment = dialect.comment.encode()
    cell = rb'(?:"(?:[^"]|"")*"|[^"%b]*)' % re.escape(delimiter)
    whole = re.compile(cell + rb"(?:%b%b){%d}" % (re.escape(delimiter), cell, breaks))
    numbers, rows = [], []
    for number, line in enumerate(lines, start):
        line = line.replace(b"\r", b"")
        if number == 1 and dialect.has_header:
            continue
        fits = whole.fullmatch(line) if b'"' in line else line.count(delimiter) == breaks
        is_dropped = not line.strip(b" \t") or (comment and line.startswith(comment))
        if is_dropped:
            continue
        if b"\0" in line:
            fix = r"tr -d '\0' < OLD > NEW drops them."
            checks.fail(f"{path} line {number}", "be text without NUL bytes", line[:60], fix)
        if not fits:
            _explain_line(f"{path} line {number}", line.decode(errors="replace"), dialect)
        numbers.append(number)
        rows.append(line)
    return numbers, rows


def _explain_line(where: str, line: str, dialect: Dialect) -> None:
    """Fail with a message that says why a line is malformed."""
    expected, quotes = len(dialect.columns), line.count('"')
    cells = _split(line, dialect.delimiter)
    if quotes % 2:
        fix = "A value cannot hold a line break. Write a quote inside a value twice."
        checks.fail(where, "close its quotes", line[:60], fix)
    if quotes and len(cells) == expected:
        fix = 'Write "a ""b"" c" for a "b" c, without a space before the first quote.'
        checks.fail(where, "have its quotes around whole values", line[:60], fix)
    is_remark = re.match(r"[^\w\s\"'+.-]", line) and len(cells) == 1
    fix = f"Is it a comment? Then set --comment {line[0]!r}." if is_remark else ""
    checks.fail(where, f"have {expected} columns", f"{len(cells)}: {line[:60]}", fix)


def _to_table(
    path: str, numbers: Sequence[int], rows: Sequence[bytes], dialect: Dialect
) -> pa.Table:
    text = b"\n".join(rows) + b"\n"
    try:
        # Parse a single block, because Arrow refuses a line that is longer than a block.
        return _trim(_parse(text, dialect, len(text) + 1, has_blank=False))
    except pa.ArrowInvalid:
        for number, row in zip(numbers, rows, strict=True):
            _require_utf8(f"{path} line {number}", row)
        raise


def _parse(text: bytes, dialect: Dialect, block_bytes: int, has_blank: bool) -> pa.Table:
    """Return the cells of lines as texts; threads parse blocks of `block_bytes` in parallel.

    If `has_blank` is True, empty lines are skipped. If `has_blank` is False, an empty line is a row
    with "" in its only column.
    """
    names = list(map(str, range(len(dialect.columns))))  # Column names may be odd or empty.
    table = arrow_csv.read_csv(
        pa.BufferReader(text),
        arrow_csv.ReadOptions(column_names=names, block_size=block_bytes),
        arrow_csv.ParseOptions(delimiter=dialect.delimiter, ignore_empty_lines=has_blank),
        arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )
    return table.rename_columns(list(dialect.columns))


def _trim(table: pa.Table) -> pa.Table:
    columns = [pc.ascii_trim_whitespace(column) for column in table.columns]
    return pa.Table.from_arrays(columns, table.column_names)


def _require_utf8(where: str, row: bytes) -> None:
    try:
        row.decode()
    except UnicodeDecodeError as error:
        got = row[max(error.start - 10, 0) : error.start + 10]
        fix = "Is it latin-1? iconv -f latin1 -t utf-8 OLD > NEW"
        checks.fail(where, "be UTF-8", got, fix)
