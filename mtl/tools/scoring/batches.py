"""Rows on their way from a file through a model to a file, several batches at a time.

for path, block in batches.in_order(reader.chunks(paths), score, concurrency=4): ...
"""

import collections
import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from mtl import checks

Values: TypeAlias = Sequence[Any] | np.ndarray
"""Of one column, B rows."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """Unparsed rows that follow each other in a file. An empty file has a chunk without rows.

    Attributes:
      path: the file.
      numbers: the numbers of the lines, from 1, or of the records or rows, from 0.
      rows: lines of text, serialized tf.Examples, or a table of Arrow.
    """

    path: str
    numbers: Sequence[int]
    rows: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of a chunk, parsed.

    Attributes:
      examples: serialized tf.Examples [B].
      kept: {name: B values} of fields that are written beside the predictions, such as ids.
    """

    examples: Sequence[bytes] | np.ndarray
    kept: Mapping[str, Values]


class RefusedError(Exception):
    """A model refuses a batch because of its examples."""


class Model(Protocol):
    """A model that predicts from serialized examples."""

    identity: str
    """What makes its predictions, to tell them from those of another model or version."""
    digest: str
    """What another model under the same name would not share; "" where only its server knows."""

    def __call__(self, examples: Sequence[bytes] | np.ndarray) -> dict[str, np.ndarray]:
        """Turn serialized tf.Examples [B] into {output: [B, ...]}; from several threads at a time.

        Raises:
          RefusedError: an example is malformed.
          UserError: the model cannot be reached.
        """


def kept(name: str, row: Mapping[str, Any]) -> Any:
    """Return the value that comes back with the predictions of a row.

    Args:
      name: the field, as `--keep` names it.
      row: {field: value}.

    Raises:
      ValueError: the row lacks the value.
    """
    if name not in row:
        near = checks.nearest(name, list(row))
        raise ValueError(f"--keep must name a field of every row, got {name!r}. {near}".rstrip("."))
    return row[name]


def in_order(
    items: Iterable[Item], work: Callable[[Item], Result], concurrency: int
) -> Generator[Result, None, None]:
    """Yield the result of `work` for each item, in order; `concurrency` items run at a time.

    A UserError of `items` is raised after the results of all earlier items.

    Args:
      items: the items, which are taken in this thread.
      work: runs in other threads.
      concurrency: how many items are at work at a time.
    """
    pool = futures.ThreadPoolExecutor(concurrency)
    pending: collections.deque[futures.Future] = collections.deque()
    try:
        for future in _submit_items(items, work, pool):
            pending.append(future)
            # One item waits, to keep all workers busy while the caller writes a result.
            if len(pending) > concurrency + 1:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # Also if the caller stops early: items that have not begun are of no use then.
        pool.shutdown(cancel_futures=True)


def _submit_items(
    items: Iterable[Item], work: Callable[[Item], Result], pool: futures.Executor
) -> Iterator[futures.Future]:
    try:
        for item in items:
            yield pool.submit(work, item)
    except checks.UserError as error:
        # Raised at once, it would overtake the results of items that are still at work.
        failed: futures.Future = futures.Future()
        failed.set_exception(error)
        yield failed
