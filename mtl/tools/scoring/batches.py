"""Defines batches of rows, and processes several batches in parallel without changing their order.

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
"""The values of a column in B rows."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive rows of a file, before they are parsed. An empty file gives a chunk without rows.

    Attributes:
      path: the path of the file.
      numbers: the number of each row in the file. Lines are counted from 1, but records and rows of
        tables from 0.
      rows: lines of text, serialized tf.Examples, or an Arrow table.
    """

    path: str
    numbers: Sequence[int]
    rows: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """The parsed rows of a chunk.

    Attributes:
      examples: B serialized tf.Examples.
      kept: {field: B values} for fields that are written beside the predictions, such as ids.
    """

    examples: Sequence[bytes] | np.ndarray
    kept: Mapping[str, Values]


class RefusedError(Exception):
    """A model refuses a batch, because an example has wrong values."""


class Model(Protocol):
    """A model that computes predictions from serialized tf.Examples."""

    identity: str
    """The name and version of the model, for a note that is written beside its predictions."""
    digest: str
    """Checksums that distinguish models with equal names; "" for a model on a server."""

    def __call__(self, examples: Sequence[bytes] | np.ndarray) -> dict[str, np.ndarray]:
        """Return predictions for examples. Implementations are thread-safe.

        Args:
          examples: B serialized tf.Examples.

        Returns:
          {output: [B, ...]}.

        Raises:
          RefusedError: an example is malformed.
          UserError: the model cannot be reached.
        """


def kept(name: str, row: Mapping[str, Any]) -> Any:
    """Return the value of a field that is written beside the predictions of a row.

    Args:
      name: the name of the field, from `--keep`.
      row: the values of the row, {field: value}.

    Raises:
      ValueError: the row lacks the field.
    """
    if name not in row:
        near = checks.nearest(name, list(row))
        raise ValueError(f"--keep must name a field of every row, got {name!r}. {near}".rstrip("."))
    return row[name]


def in_order(
    items: Iterable[Item], work: Callable[[Item], Result], concurrency: int
) -> Generator[Result, None, None]:
    """Apply a function to items in several threads; yield the results in the order of the items.

    If `items` raises a UserError, the results of all earlier items are yielded before the error.

    Args:
      items: the arguments of `work`, one for each call. The calling thread iterates over the items.
      work: the function, which runs in worker threads.
      concurrency: the number of threads.
    """
    pool = futures.ThreadPoolExecutor(concurrency)
    pending: collections.deque[futures.Future] = collections.deque()
    try:
        for future in _submit_items(items, work, pool):
            pending.append(future)
            # Submit one item more than threads, so that all threads stay busy while the caller
            # writes a result.
            if len(pending) > concurrency + 1:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # If the caller stops early, cancel the items that no thread has begun.
        pool.shutdown(cancel_futures=True)


def _submit_items(
    items: Iterable[Item], work: Callable[[Item], Result], pool: futures.Executor
) -> Iterator[futures.Future]:
    try:
        for item in items:
            yield pool.submit(work, item)
    except checks.UserError as error:
        # The error is yielded as a failed future, so that the caller first gets the results of
        # earlier items, and then raises the error.
        failed_future: futures.Future = futures.Future()
        failed_future.set_exception(error)
        yield failed_future
