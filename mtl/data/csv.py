"""Text files with one example in each line; files that end in ".gz" are decompressed.

csv.Csv.files = {"train": "data/part-*.csv.gz", "test": ("data/a.csv", "data/b.csv")}
csv.Csv.columns = ("age", "workclass", "income")            # else each file has a header
csv.Csv.missing = ("", "?")
csv.Csv.rename = {"city": "Home town"}                       # {field: its column}

Write a list as a|b|c. Write a list of lists as a;b|c||d, which has four items; the third item is
empty. Write a list with weights as a:0.3|b:0.7.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import csv_columns, files, packed, source, weighted_lists, written_numbers
from mtl.deferred import tf
from mtl.spec import literals

# Extensions of the names of files with delimited text.
ENDINGS = (".csv", ".tsv", ".txt", ".data", ".dat", ".tab", ".psv")
# An error about fields that are decoded together names at most `_LISTED` fields.
_LISTED = 3


@checks.dataclass
class Csv(types.Source):
    """A source that reads delimited text.

    At the first use of a compressed file, the process reads the whole file to check that it is
    complete. TFRecord is the better format for files of many gigabytes.

    Spaces around a value and blank lines are dropped. If tabs separate the values, a line of tabs
    is also blank. Put double quotes around a value that contains the delimiter, without spaces
    outside of the quotes. A value cannot hold a line break. Numbers such as 1000 and 1e3 are valid,
    but 1,000, 1_000 and 0x3E8 are errors; see `mtl.spec.literals`.

    Attributes:
      files: {split: path or paths}, each a file or a glob.
      data_dir: the folder in which relative paths start; "" is the current folder.
      columns: the names of the columns in order; if empty, the first line of each file is a header.
      delimiter: the character between two values.
      list_delimiter: the character between the values of a list or an array, and between the
        items of a list of lists. Write the values of an array row by row.
      item_delimiter: the character between values in an item of a list of lists. Write an item
        without values as an empty text, or as `item_delimiter` alone.
      weight_delimiter: the character between a value and its weight in a list with weights.
        `weight_delimiter` has no effect on weights in a separate column.
      missing: texts that mark an absent value. The default of the field replaces an absent value;
        without a default, a list becomes empty, and a label becomes a missing label. An empty cell
        of a list label is an empty list; another text of `missing` marks a missing label. In a
        scalar string feature without a default, an empty text is a value, which columns treat as an
        unknown category. Apart from lists, labels and empty texts of scalar string features, an
        absent value in a field without a default is an error.
      comment: the text at the start of lines to drop; "" drops no lines.
      missing_in: {field: further texts that mark an absent value of this field}.
      rename: {field: column}, if the column has another name than the field.
      number_forms: {field: the number 1.5 or 1234.5 in the format of the file}, for a field of
        single numbers with a decimal comma, separators of thousands or a unit: "1,5", "1.234,5",
        "$1,234.5", "1.5%" or "1.5 km". If the example has a unit, every number needs this unit,
        which is dropped: 45.3% becomes 45.3. The numbers (12.5) and 12.5- are negative. If the
        example number in `number_forms` begins with "<", limits such as <0.5 and 10+ are read as
        the numbers 0.5 and 10.
    """

    files: files.Files
    data_dir: str = ""
    columns: checks.Names = ()
    delimiter: str = ","
    list_delimiter: str = "|"
    missing: Sequence[str] = ("",)
    comment: str = ""
    # The repr leaves out these settings, because a resumed run compares the repr with the saved
    # repr, which lacks the settings if an older version saved it.
    item_delimiter: str = dataclasses.field(default=";", repr=False)
    weight_delimiter: Annotated[str, weighted_lists.check_delimiter] = dataclasses.field(
        default=":", repr=False
    )
    missing_in: Annotated[Mapping[str, Sequence[str]], written_numbers.check_marks] = (
        dataclasses.field(default_factory=dict, repr=False)
    )
    number_forms: Annotated[Mapping[str, str], written_numbers.check_forms] = dataclasses.field(
        default_factory=dict, repr=False
    )
    rename: Annotated[Mapping[str, str], checks.Map("map fields to columns")] = dataclasses.field(
        default_factory=dict, repr=False
    )

    def __post_init__(self):
        for name in ("delimiter", "list_delimiter", "item_delimiter"):
            value = getattr(self, name)
            is_character = isinstance(value, str) and len(value) == 1 and value not in '"\r\n'
            checks.require(is_character, f"Csv.{name}", "be one character, not a quote", value)
        differ = self.delimiter != self.list_delimiter
        checks.require(differ, "Csv.list_delimiter", "differ from delimiter", self.list_delimiter)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the lines of a split.

        Raises:
          UserError: the split does not exist, or `check_split` refuses a file.
        """
        # Read line by line, because a checkpoint of the input stores the current block. If a block
        # had a bad line, the bad line would stay in the checkpoint after you correct the file.
        paths = self.check_split(split)
        lines = files.read_line_by_line(paths, 0 if self.columns else 1, self._dropped)
        return lines.unbatch()

    def blocks(self, split: str) -> tf.data.Dataset:
        """Return the lines of a split, such as "train", as batches of lines."""
        return files.read_lines(self.check_split(split), 0 if self.columns else 1, self._dropped)

    def check_split(self, split: str) -> list[str]:
        """Check the files of a split, and return their paths.

        Raises:
          UserError: a compressed file is truncated; or a file is not text, has another header than
            the first file or, with `columns`, starts with a byte order mark.
        """
        paths = self._find(split)
        for path in paths:
            files.check_whole(path)
            self._check_start(path)
        return paths

    def read_values(self, split: str, spec: spec_lib.Spec) -> Iterator[Mapping[str, packed.Values]]:
        """Yield {field: values} of all rows of a split, in blocks of rows.

        Raises:
          DecodeOnlyError: only `decode` can read some of the values.
        """
        return csv_columns.read_split(self, split, self._mark_parts(spec.fields))

    def estimate_bytes(self, split: str) -> int:
        """Estimate the memory that the rows take by the size of the files."""
        return files.estimate_bytes(self._find(split))

    def shard(self, split: str, num_shards: int, shard: int) -> Csv | None:
        """Return a source that reads every `num_shards`-th file; None if there are fewer files."""
        return files.shard(self, split, self._find(split), num_shards, shard)

    def _find(self, split: str) -> list[str]:
        return files.find("Csv.files", self.files, split, self.data_dir)

    @functools.cached_property
    def _dropped(self) -> str:
        """A pattern that matches blank lines and comments, for TensorFlow and Python."""
        comment = f"|{re.escape(self.comment)}.*" if self.comment else ""
        return rf"[ \t\r]*{comment}"

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the columns, after `rename`."""
        columns = set(self.rename.values())
        is_unique = len(columns) == len(self.rename)
        checks.require(is_unique, "Csv.rename", "give each column once", dict(self.rename))
        for name in self.rename:
            is_free = name not in self._header or name in columns
            rule = "name a field that no column is called; rename that column, too"
            checks.require(is_free, "Csv.rename", rule, name)
        return source.name_columns(self._header, self.rename)

    @functools.cached_property
    def _header(self) -> list[str]:
        """The original names of the columns, from the setting or the header of the first file."""
        if self.columns:
            return list(self.columns)
        return self._read_header(self._find(next(iter(self.files)))[0])

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    def _read_header(self, path: str) -> list[str]:
        files.check_whole(path)
        files.check_text(path)
        with files.open_binary(path) as lines:
            # "utf-8-sig" drops a byte order mark in front of the first name.
            header = lines.readline().decode("utf-8-sig", errors="replace")
        names, problem = self._split_line(header)
        checks.require(not problem and any(names), f"{path} line 1", "name the columns", header)
        checks.unique(f"{path} line 1", names)
        return names

    def _check_start(self, path: str) -> None:
        """Fail if a file has another header than the first, or a byte order mark before a value."""
        if self.columns:
            files.check_text(path, may_have_mark=False)
            return
        header = self._read_header(path)
        rule = f"be the header {self.delimiter.join(self._header)!r}, as in the first file"
        text = self.delimiter.join(header)
        checks.require(header == self._header, f"{path} line 1", rule, text)

    def _mark_parts(self, fields: Mapping[str, spec_lib.Field]) -> Mapping[str, spec_lib.Field]:
        """Return the fields, with `part_of` set for lists whose weights are in the same column."""
        if not spec_lib.find_weighted(fields):
            return fields
        return weighted_lists.mark_parts(fields, [*self.names, *self.rename])

    def _list_positions(
        self, fields: Mapping[str, spec_lib.Field], spec: spec_lib.Spec
    ) -> dict[str, int]:
        """Return {field: column index}; a field that counts items uses the column of the items."""
        return {name: self._find_position(fields[spec.counted.get(name, name)]) for name in fields}

    def _find_position(self, field: spec_lib.Field) -> int:
        if field.is_nested:
            where, delimiters = "Csv.item_delimiter", (self.delimiter, self.list_delimiter)
            rule = "differ from delimiter and list_delimiter where items have several values"
            checks.require(self.item_delimiter not in delimiters, where, rule, self.item_delimiter)
        self.find_form(field)  # This call fails early if the field cannot have a number form.
        name = field.column
        if name in self.rename:
            checks.one_of(f"Csv.rename[{name!r}]", self.rename[name], self._header)
        where = f"Csv.columns for the field {name!r}"
        if not self.columns and name not in self._positions:
            self._check_delimiter(name)
            path = self._find(next(iter(self.files)))[0]
            where = f"{path}: the column of field {name!r}"
        checks.one_of(where, name, self._positions)
        return self._positions[name]

    def _check_delimiter(self, name: str) -> None:
        """Fail with a hint if the header contains the name between other delimiters."""
        for delimiter in ",;\t| ":
            for column in self.names:
                parts = [part.strip(literals.SPACES + '"') for part in column.split(delimiter)]
                if delimiter != self.delimiter and len(parts) > 1 and name in parts:
                    rule = f"separate the columns of the header {column!r}"
                    fix = f"Did you mean {delimiter!r}?"
                    checks.fail("Csv.delimiter", rule, self.delimiter, fix)

    def decode(
        self, batch: tf.Tensor, spec: spec_lib.Spec, with_labels: bool
    ) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Turn lines [B] into the values of fields, {name: [B, ...]}."""
        fields = self._mark_parts(spec.fields if with_labels else spec.feature_fields)
        positions = self._list_positions(fields, spec)
        # Decode all cells as texts, because for `decode_csv`, only "" marks an absent value.
        cells = tf.io.decode_csv(batch, [[""]] * len(self.names), self.delimiter)
        values: dict[str, tf.Tensor | tf.RaggedTensor] = {}
        for group in self._list_alike(fields.values()):
            texts = [cells[positions[field.name]] for field in group]
            # Fields of one type are decoded together, so that many columns make a small graph.
            group_values = self._decode(tf.strings.strip(tf.stack(texts)), _in_one(group))
            values |= zip([field.name for field in group], tf.unstack(group_values), strict=True)
        for name, field in fields.items():
            if field.is_nested:
                counts = spec_lib.counts_name(name)
                values[name], values[counts] = self._decode_items(cells[positions[name]], field)
            elif name not in values and name not in spec.counted:
                values[name] = self._decode(tf.strings.strip(cells[positions[name]]), field)
        return spec.require_weights(values) if spec.weighted else values

    def _list_alike(self, fields: Iterable[spec_lib.Field]) -> list[list[spec_lib.Field]]:
        """Return groups of two or more scalar fields that differ only in their names."""
        kinds: dict[tuple[str, str], list[spec_lib.Field]] = {}
        for field in fields:
            has_settings = field.name in self.missing_in or field.name in self.number_forms
            if not field.shape and not has_settings:
                # The key of `kinds` has the default as a text, because NaN is not equal to itself.
                kinds.setdefault((field.dtype, repr(field.default)), []).append(field)
        return [group for group in kinds.values() if len(group) > 1]

    def _decode_items(
        self, cells: tf.Tensor, field: spec_lib.Field
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Split cells [B] into values [B, (N)], and count the values of each item, [B, (L)]."""
        cells = tf.strings.strip(cells)
        cells = self._fill(cells, self._find_absent(cells, field), field)
        items = tf.strings.split(cells, self.list_delimiter)
        # An empty text is an empty list, but `split` turns an empty text into one empty part.
        items = tf.ragged.boolean_mask(
            items, items.with_values(tf.gather(tf.not_equal(cells, ""), items.value_rowids()))
        )
        parts = _strip_parts(tf.strings.split(items.flat_values, self.item_delimiter))
        parts = tf.ragged.boolean_mask(parts, tf.not_equal(parts, ""))
        ends = tf.gather(parts.row_splits, items.row_splits)
        values = _to_numbers(parts.flat_values, field)
        return (
            tf.RaggedTensor.from_row_splits(values, ends, validate=False),
            items.with_values(parts.row_lengths()),
        )

    def _decode(self, cells: tf.Tensor, field: spec_lib.Field) -> tf.Tensor | tf.RaggedTensor:
        is_absent = self._find_absent(cells, field)
        cells = self._fill(cells, is_absent, field)
        if not field.shape:
            return _to_numbers(cells, field)
        parts = _strip_parts(tf.strings.split(cells, self.list_delimiter))
        if field.is_ragged:
            # An empty text is an empty list, but `split` turns an empty text into one part.
            parts = tf.ragged.boolean_mask(parts, tf.not_equal(parts, ""))
            lists = parts.with_flat_values(_to_numbers(parts.flat_values, field))
            has_default = field.default is not None
            return source.append_value(lists, is_absent, field.default) if has_default else lists
        values = _to_numbers(_require_size(parts, field), field)
        return tf.reshape(values, [-1, *field.shape])

    def _find_absent(self, cells: tf.Tensor, field: spec_lib.Field) -> tf.Tensor:
        """Return True for each cell without a value."""
        is_absent = tf.zeros_like(cells, tf.bool)
        for mark in self.list_marks(field):
            is_absent |= tf.equal(cells, mark)
        return is_absent

    def _fill(self, cells: tf.Tensor, is_absent: tf.Tensor, field: spec_lib.Field) -> tf.Tensor:
        """Replace absent values by the default or an empty list, or let the op fail."""
        form = self.find_form(field)
        if form:  # Defaults are plain numbers already.
            cells = _to_plain(cells, form)
        if field.is_ragged or field.default is not None:
            default = [] if field.is_ragged else [_to_text(field.default)] * field.size
            return tf.where(is_absent, self.list_delimiter.join(default), cells)
        message = f"field {field.name!r} must be present, as it has no default"
        present = tf.compat.v1.assert_equal(is_absent, False, message=message)
        with tf.control_dependencies([present]):
            return tf.identity(cells)

    def list_marks(self, field: spec_lib.Field) -> list[str]:
        """Return the texts that mark an absent value of a field.

        Args:
          field: the field. For a field of a single text without a default, the empty text is a
            value, and does not mark a gap. For a list of labels, the empty text is an empty list.
        """
        is_text = field.dtype == "string" and not field.shape and field.is_required
        is_label_list = field.is_ragged and field.default is not None and not field.part_of
        marks = (*self.missing, *self.missing_in.get(field.column, ()))
        return [mark for mark in marks if mark or not (is_text or is_label_list)]

    def find_form(self, field: spec_lib.Field) -> written_numbers.Form | None:
        """Return the form in which the file writes the numbers of a field; None for plain values.

        If a list and its weights share one column, the form extracts either the values or the
        weights from a text such as a:0.3|b:0.7.

        Raises:
          UserError: `number_forms` names the field, but the field does not hold single numbers.
        """
        example = self.number_forms.get(field.name)
        if example is None:
            return weighted_lists.find_form(field, self) if field.part_of else None
        where = f"Csv.number_forms[{field.name!r}]"
        kind = f"{field.dtype} {field.shape}" if field.shape else field.dtype
        is_number = not field.shape and field.dtype != "string"
        checks.require(is_number, where, "name a field of single numbers", kind)
        return written_numbers.read_form(where, example)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each line of a split."""
        parse = self.parser(spec)
        for path in self._find(split):
            for number, line in self.lines(path):
                problem_or_values = line if isinstance(line, str) else parse(line)
                yield f"{path} line {number}", problem_or_values

    def lines(self, path: str) -> Iterator[tuple[int, bytes | str]]:
        """Yield the lines of a file that hold an example.

        Args:
          path: one of the files of a split.

        Yields:
          Pairs of the line number, from 1, and the line as bytes. If the file cannot be read
          further, the last element has an error message, a str, in place of the line.

        Raises:
          UserError: the file is not text, or has another header than the first file.
        """
        self._check_start(path)
        pattern, number = re.compile(self._dropped.encode()), 0
        try:
            with files.open_binary(path) as lines:
                for number, line in enumerate(lines, start=1):
                    # Like TensorFlow's CSV reader, drop every "\r".
                    line = line.rstrip(b"\n").replace(b"\r", b"")
                    if not pattern.fullmatch(line) and (self.columns or number > 1):
                        yield number, line
        except files.list_read_errors() as error:
            yield number + 1, source.unreadable(error)

    def parser(self, spec: spec_lib.Spec) -> Callable[[bytes], dict[str, Any] | str]:
        """Return a function that parses single lines.

        Args:
          spec: the fields to read.

        Returns:
          A function from a line to {name: value}, or to an error message, a str.

        Raises:
          UserError: the files lack the column of a field, or a setting does not suit a field.
        """
        fields = self._mark_parts(spec.fields)
        positions = self._list_positions(fields, spec)
        return lambda line: self._scan_line(line, spec, fields, positions)

    def _scan_line(
        self,
        line: bytes,
        spec: spec_lib.Spec,
        fields: Mapping[str, spec_lib.Field],
        positions: Mapping[str, int],
    ) -> dict[str, Any] | str:
        cells, problem = self._split_line(line.decode(errors="replace"))
        if problem:
            return problem
        if len(cells) != len(self.names):
            return f"must have {len(self.names)} columns, got {len(cells)}."

        def read(field: spec_lib.Field) -> Sequence[Any] | None:
            cell = cells[positions[field.name]]
            if field.name in spec.counted:
                return [len(parts) for parts in self._split_items(cell, field)]
            if fields[field.name].part_of:
                weighted_lists.check_bytes(line, cell)
            return self._read_parts(cell, fields[field.name])

        return spec.example(read)

    def read_cell(self, text: str, field: spec_lib.Field) -> list[Any] | None:
        """Split the text of a cell into the texts of its values.

        Args:
          text: the text between two delimiters of a line.
          field: the field that gets the values of the cell.

        Returns:
          The texts of the values; for a list of lists, the texts of each item. None if the value is
          absent, and [] for an absent list of lists.

        Raises:
          ValueError: a value in a list with weights lacks a weight.
        """
        cell = text.strip(literals.SPACES)
        return self._split_items(cell, field) if field.is_nested else self._read_parts(cell, field)

    def _split_items(self, cell: str, field: spec_lib.Field) -> list[list[str]]:
        """Split a cell that holds a list of lists into the values of each item."""
        items = [] if cell in ("", *self.list_marks(field)) else cell.split(self.list_delimiter)
        return [_drop_empty(_split_text(item, self.item_delimiter)) for item in items]

    def _read_parts(self, cell: str, field: spec_lib.Field) -> list[str] | None:
        """Return the values in a cell; None if the value is absent."""
        if cell in self.list_marks(field):
            return None
        form = self.find_form(field)
        if field.part_of:
            weighted_lists.check_text(cell, self)
        return self._split(written_numbers.to_plain(form, cell) if form else cell, field)

    def _split(self, cell: str, field: spec_lib.Field) -> list[str]:
        if field.is_nested:
            return [part for item in self._split_items(cell, field) for part in item]
        if not field.shape:
            return [cell]
        parts = _split_text(cell, self.list_delimiter)
        return _drop_empty(parts) if field.is_ragged else parts

    def _split_line(self, line: str) -> tuple[list[str], str]:
        """Split a line into values like `tf.io.decode_csv`; also return an error message or ""."""
        cells: list[str] = []
        start, line = 0, line.rstrip("\r\n")
        while start <= len(line):
            match = self._cell.match(line, start)
            if match is None:
                text = line[start : start + 40]
                return (
                    cells,
                    f"column {len(cells) + 1} must have its quotes around it, got {text!r}.",
                )
            quoted, plain = match.groups()
            cell = plain if quoted is None else quoted.replace('""', '"')
            cells.append(cell.strip(literals.SPACES))
            start = match.end() + 1
        return cells, ""

    @functools.cached_property
    def _cell(self) -> re.Pattern:
        """A pattern that matches a quoted value with doubled quotes inside, or a plain value."""
        end = re.escape(self.delimiter)
        return re.compile(rf'"((?:[^"]|"")*)"(?={end}|$)|([^"{end}]*)(?={end}|$)')


def _in_one(fields: Sequence[spec_lib.Field]) -> spec_lib.Field:
    """Return a field that stands for all fields of a group, with a name that lists all names."""
    names = ", ".join(field.name for field in fields[:_LISTED])
    ending = f" or {len(fields) - _LISTED} more" if len(fields) > _LISTED else ""
    return dataclasses.replace(fields[0], name=names + ending)


def _to_text(default: Any) -> str:
    return str(int(default)) if isinstance(default, bool) else str(default)


def _to_plain(texts: tf.Tensor, form: written_numbers.Form) -> tf.Tensor:
    """Rewrite numbers in the format `form` as plain numbers; append `form.mark` to other texts."""
    plain = texts
    for pattern, replacement in form.rewrites:
        plain = tf.strings.regex_replace(plain, pattern, replacement)
    marked_texts = tf.strings.join([texts, form.mark])
    return tf.where(tf.strings.regex_full_match(texts, form.pattern), plain, marked_texts)


def _require_size(parts: tf.RaggedTensor, field: spec_lib.Field) -> tf.Tensor:
    message = f"field {field.name!r} must hold {field.size} values"
    size = tf.constant(field.size, tf.int64)
    full = tf.compat.v1.assert_equal(parts.row_lengths(), size, message=message)
    with tf.control_dependencies([full]):
        return tf.identity(parts.flat_values)


def _split_text(text: str, delimiter: str) -> list[str]:
    """Split a text, and drop the spaces around its parts."""
    return [part.strip(literals.SPACES) for part in text.split(delimiter)]


def _drop_empty(parts: Sequence[str]) -> list[str]:
    return [part for part in parts if part]


def _strip_parts(parts: tf.RaggedTensor) -> tf.RaggedTensor:
    """Drop the spaces around the parts of texts that were split at a delimiter."""
    return parts.with_flat_values(tf.strings.strip(parts.flat_values))


def _to_numbers(texts: tf.Tensor, field: spec_lib.Field) -> tf.Tensor:
    """Convert texts to the type of a field; the op fails if a text does not suit the type."""
    if field.dtype == "string":
        return texts
    texts = tf.strings.strip(texts)  # The values of a list may have spaces around them.
    if field.dtype == "float32":
        return _to_floats(texts, field)
    if field.dtype in literals.TRUTH_TYPES:
        texts = _replace_truth(texts)
    # Rewrite +5 and 5.0 as 5, because TensorFlow 2.15 refuses +5, and every version refuses 5.0.
    texts = tf.strings.regex_replace(texts, r"^(?:\+?([0-9]+)|(-[0-9]+))(?:\.0*)?$", r"\1\2")
    return dataclasses.replace(field, shape=()).cast(tf.strings.to_number(texts, tf.int64))


def _replace_truth(texts: tf.Tensor) -> tf.Tensor:
    for word, number in literals.TRUTH.items():
        texts = tf.strings.regex_replace(texts, f"^{word}$", number)
    return texts


def _to_floats(texts: tf.Tensor, field: spec_lib.Field) -> tf.Tensor:
    """Convert texts to float32; the op fails if `literals` does not define a text as a number."""

    def read_truth() -> tuple[tf.Tensor, tf.Tensor]:
        plain = _replace_truth(texts)
        return plain, _all_match(plain, literals.FLOAT)

    are_floats = _all_match(texts, literals.FLOAT)
    # Most files of floats contain no words such as true, so `tf.cond` skips the replacement of
    # words by numbers.
    texts, are_floats = tf.cond(are_floats, lambda: (texts, are_floats), read_truth)
    numbers = tf.strings.to_number(texts, tf.float32)
    # A number that becomes infinite is too large, unless its text says infinity.
    infinite = tf.boolean_mask(texts, tf.math.is_inf(numbers))
    are_numbers = are_floats & _all_match(infinite, literals.INFINITE)
    message = f"field {field.name!r} must be float32"
    with tf.control_dependencies([tf.compat.v1.assert_equal(are_numbers, True, message=message)]):
        return tf.identity(numbers)


def _all_match(texts: tf.Tensor, pattern: str) -> tf.Tensor:
    """Return a tensor that is True if all texts [N] match a pattern.

    One match against the joined texts is much faster than N matches, one for each text. A text with
    a line break may match as two texts, but TensorFlow refuses such a text as a number.
    """
    text = tf.strings.reduce_join(texts, separator="\n")
    return tf.strings.regex_full_match(text, rf"(?:{pattern}(?:\n{pattern})*)?")
