"""Computes the statistics of a table; threads read blocks ahead and add columns in parallel.

dataset = gathering.describe(tables.open_table("FILE", ["train.csv"]))
dataset.columns["age"].numbers.mean
"""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from mtl import checks
from mtl.tools.statistics import columns as columns_lib
from mtl.tools.statistics import facts, tables

# The number of blocks that are read ahead. A block may hold many megabytes.
_AHEAD = 2
# The assumed number of columns in JSON lines, whose columns are only known after a pass. The memory
# is divided among this number of columns.
_KEYS = 64
_LIST, _TEXT = "list", "text"
_EMPTY = ("",)  # In all formats, an empty text is a missing value, as in training.
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_NUMERIC = {
    facts.BOOL: (pa.types.is_boolean,),
    facts.INT: (pa.types.is_integer,),
    facts.FLOAT: (pa.types.is_floating, pa.types.is_decimal),
    facts.TIME: (pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
}

_Item = TypeVar("_Item")


def describe(
    table: tables.Table,
    marks: Collection[str] = (),
    left_out: Collection[str] = (),
    like: facts.Dataset | None = None,
) -> facts.Dataset:
    """Read all rows of a table, and return the statistics of its columns.

    Args:
      table: the table to read.
      marks: texts that mean a missing value, besides empty texts.
      left_out: names of columns that are not read.
      like: the statistics of another data set. Columns that hold texts or lists in `like` are also
        read as texts or lists here, even if their cells look like numbers.

    Raises:
      UserError: a file is malformed, or lacks a column of `left_out`.
    """
    # The columns of JSON lines are only known after a pass, so their names are checked below.
    for name in left_out if table.columns and like is None else ():
        checks.one_of("--leave_out", name, table.columns)
    collector = _Gathered(table, marks, left_out)
    for name, column in like.columns.items() if like and table.schema is None else ():
        steps = [_LIST] * column.is_list + [_TEXT] * (column.kind == facts.TEXT)
        collector.plans[name] = tuple(steps)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # If the kind of a column was guessed wrongly, another pass reads the column again.
        while collector.read(pool):
            pass
    dataset = collector.finish()
    for name in left_out if not table.columns and like is None else ():
        checks.one_of("--leave_out", name, [*dataset.columns, *collector.dropped])
    return dataset


class _Gathered:
    """Collects the statistics of a table's columns in one or several passes.

    Attributes:
      dropped: the names of columns that are left out.
      plans: {column: a sequence of "text" and "list"}, which says how the next pass reads the
        column. Each pass over the data may append one entry to the sequence of a column, at most up
        to ("text", "list", "text"), so the number of passes is finite.
    """

    def __init__(self, table: tables.Table, marks: Collection[str], left_out: Collection[str]):
        self._table, self._left_out = table, left_out
        self._marks = tuple(marks)
        self._limits = columns_lib.Limits.share(len(table.columns) or _KEYS)
        self.dropped: set[str] = set()
        self.plans: dict[str, tuple[str, ...]] = {}
        self._reasons: dict[str, str] = {}
        self._facts: dict[str, facts.Column] = {}
        self._files: dict[str, int] = {}
        self._open: Collection[str] | None = None
        if table.columns:
            self._open = [name for name in table.columns if name not in left_out]

    def read(self, pool: concurrent.futures.Executor) -> bool:
        """Read all columns that need a pass over the data; return True if some need one more."""
        current = {name: self._start_column(name) for name in self._open or ()}
        if self._facts and self._table.format == tables.JSON:
            current = {}  # In JSON, the first block shows which columns are lists.
        rows, files = 0, dict.fromkeys(self._table.paths, 0)
        for block in read_ahead(tables.read_blocks(self._table, self._open)):
            self._add_block(pool, block, current, rows)
            rows += block.rows
            files[block.path] += block.rows
        self._files = files
        self._keep_facts(pool, current)
        return bool(self._open)

    def _add_block(
        self,
        pool: concurrent.futures.Executor,
        block: tables.Block,
        current: dict[str, columns_lib.Base],
        rows: int,
    ) -> None:
        """Add a block that comes after `rows` rows; start columns that are new in this block."""
        block_columns = {
            n: values for n, values in block.columns.items() if n not in self._left_out
        }
        self.dropped.update(block.columns.keys() - block_columns.keys())
        for name in block_columns.keys() - current.keys():
            current[name] = self._start_column(name, block_columns[name].type)
            _add_gaps(current[name], rows)
        # Arrow and NumPy release Python's global interpreter lock, so threads work at the same
        # time.
        futures = [
            pool.submit(_add_to_column, block.path, n, current[n], values)
            for n, values in block_columns.items()
        ]
        # `result` raises an error of the thread.
        for future in futures:
            future.result()
        for name, column in current.items():
            _add_gaps(column, rows + block.rows - column.rows)
            if column.broken:
                self._reasons.setdefault(name, f"{block.path}: {column.reason}")

    def _start_column(self, name: str, kind: pa.DataType | None = None) -> columns_lib.Base:
        has_cells = self._table.holds_cells(name)
        if self._table.schema is not None and not has_cells:
            return start_typed(self._table.schema.field(name).type, self._limits)
        plan, limits = self.plans.get(name, ()), self._limits
        marks = (*_EMPTY, *self._marks)
        if _LIST in plan or (kind is not None and pa.types.is_list(kind)):
            is_text = _LIST in plan and plan[-1] == _TEXT
            inner = columns_lib.Text(limits) if is_text else columns_lib.Guessed(limits)
            return columns_lib.Listed(inner, marks, has_cells)
        kind_of_column = columns_lib.Text if _TEXT in plan else columns_lib.Guessed
        return kind_of_column(limits, marks, has_cells)

    def _keep_facts(
        self, pool: concurrent.futures.Executor, current: Mapping[str, columns_lib.Base]
    ) -> None:
        """Store the statistics of a pass, and plan the next pass."""
        names = list(current)
        finished_columns = pool.map(lambda name: current[name].finish(name), names)
        order = dict.fromkeys([*self._table.columns, *self._facts, *names])
        all_facts = {**self._facts, **dict(zip(names, finished_columns, strict=True))}
        self._facts = {name: all_facts[name] for name in order if name in all_facts}
        self._open = [name for name in names if current[name].broken]
        for name in self._open:
            column = current[name]
            self.plans[name] = (*self.plans.get(name, ()), column.broken)
            self._reasons.setdefault(name, f"{self._table.paths[-1]}: {column.reason}")

    def finish(self) -> facts.Dataset:
        """Return the statistics of all columns."""
        paths = self._table.paths
        text_columns = [name for name, plan in self.plans.items() if plan == (_TEXT,)]
        text_columns = [name for name in text_columns if name in self._reasons]
        rule = "Column {!r} is text, not a number or a time. {}."
        return facts.Dataset(
            name=", ".join(paths[:3]) + ", ..." * (len(paths) > 3),
            rows=sum(self._files.values()),
            columns=self._facts,
            files=self._files,
            notes=[rule.format(name, self._reasons[name]) for name in text_columns],
        )


def _add_to_column(path: str, name: str, column: columns_lib.Base, values: pa.Array) -> None:
    """Add the values of a block to a column.

    Raises:
      UserError: Arrow cannot read the values, or a field in JSON holds both lists and single
        values.
    """
    is_list = isinstance(column, columns_lib.Listed)
    if pa.types.is_list(values.type) and not is_list:
        column.broken, column.reason = _LIST, "it holds lists"
        return
    try:
        column.add(values)
    except (pa.ArrowException, ValueError) as error:
        where = f"{path}: column {name!r}"
        if not isinstance(error, pa.ArrowException):
            raise checks.UserError(f"{where} {error}.") from error
        reason = " ".join(str(error).split())
        raise checks.UserError(f"{where} cannot be read: {reason}") from error


def _add_gaps(column: columns_lib.Base, rows: int) -> None:
    """Add rows that lack the column, as JSON objects may."""
    if rows > 0 and not column.broken:
        # Count the rows instead of adding an array of nulls, which would take memory.
        column.rows += rows
        column.missing += rows


def start_typed(kind: pa.DataType, limits: columns_lib.Limits) -> columns_lib.Base:
    """Return an object that collects the statistics of a column with the given Arrow type.

    Args:
      kind: the Arrow type of the column.
      limits: the limits of memory.

    Returns:
      The object; for types whose values are not read, such as structs, the object only counts rows
      and missing values.
    """
    types = pa.types
    if types.is_dictionary(kind):
        return _Encoded(start_typed(kind.value_type, limits), kind.value_type)
    if isinstance(kind, _LISTS):
        inner = kind.value_type
        while isinstance(inner, _LISTS):
            inner = inner.value_type
        return columns_lib.Listed(start_typed(inner, limits))
    for name, is_kind in _NUMERIC.items():
        if any(is_one(kind) for is_one in is_kind):
            return columns_lib.Numeric(name, limits)
    texts = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary
    is_text = any(is_one(kind) for is_one in texts)
    return columns_lib.Text(limits, _EMPTY) if is_text else columns_lib.Base()


class _Encoded(columns_lib.Base):
    """Collects statistics of a column with a dictionary type."""

    def __init__(self, inner: columns_lib.Base, kind: pa.DataType):
        super().__init__()
        self._inner, self._kind = inner, kind

    def add(self, values: pa.Array) -> None:
        self._inner.add(values.cast(self._kind))
        self.rows, self.missing = self._inner.rows, self._inner.missing

    def finish(self, name: str) -> facts.Column:
        return self._inner.finish(name)


def read_ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield items that a thread reads ahead.

    Args:
      items: the items. If reading an item fails in the thread, this function yields the earlier
        items, and then raises the error.
    """
    item_queue: queue.Queue[tuple[str, Any]] = queue.Queue(_AHEAD)
    is_over = threading.Event()
    thread = threading.Thread(target=_read_into, args=(items, item_queue, is_over), daemon=True)
    thread.start()
    try:
        while True:
            event, item = item_queue.get()
            if event == "end":
                return
            if event == "error":
                raise item
            yield item
    finally:
        is_over.set()
        # The thread may wait for room in the queue, so empty the queue until the thread ends.
        while thread.is_alive():
            try:
                item_queue.get_nowait()
            except queue.Empty:
                thread.join(0.01)


def _read_into(
    items: Iterable[Any], item_queue: queue.Queue[tuple[str, Any]], is_over: threading.Event
) -> None:
    try:
        for item in items:
            item_queue.put(("item", item))
            if is_over.is_set():
                return
        item_queue.put(("end", None))
    except BaseException as error:  # `read_ahead` raises `error`.
        item_queue.put(("error", error))
