"""Joins requests that come at about the same time into one call of the model.

batcher = batching.Batcher(
    max_batch_size=256, timeout_secs=0.001, threads=1, max_queue_rows=4096, hold=held.hold
)
outputs = await batcher.predict(model, request)          # {output: [B, ...]} of this request

All of it runs in the event loop, except for the calls of the model. A request of a lone client runs
at once. Others wait for each other: up to the timeout, or longer while all threads are busy. A
joined batch may change the last bits of a prediction, as the kernels of a product depend on the
number of rows.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from mtl.data import source
from mtl.tools.serve import failures, models, requests

# A client counts as lone if so many timeouts have passed since requests met.
_CALM = 10


# By identity: items are keys of a queue, and the arrays in them have no hash.
@dataclasses.dataclass(eq=False)
class _Waiting:
    """A request in a queue, and the future of its outputs."""

    model: models.Model
    request: requests.Request
    future: asyncio.Future


class _Queue:
    """Requests that can be joined, the first one first."""

    def __init__(self) -> None:
        self.items: collections.OrderedDict[_Waiting, None] = collections.OrderedDict()
        self.rows = 0
        self.timer: asyncio.TimerHandle | None = None

    def add(self, item: _Waiting) -> None:
        """Append a request."""
        self.items[item] = None
        self.rows += item.request.rows

    def remove(self, item: _Waiting) -> None:
        """Remove a request."""
        del self.items[item]
        self.rows -= item.request.rows

    def take(self, most_rows: int) -> list[_Waiting]:
        """Remove and return requests of at most so many rows, or a single larger one."""
        taken: list[_Waiting] = []
        left = most_rows
        while self.items:
            item = next(iter(self.items))
            left -= item.request.rows
            if taken and left < 0:
                break
            self.remove(item)
            taken.append(item)
        return taken

    def stop_timer(self) -> None:
        """Wait for no more requests."""
        if self.timer is not None:
            self.timer.cancel()


class Batcher:
    """Runs requests, joined or one by one, in a few threads."""

    def __init__(
        self,
        *,
        max_batch_size: int,
        timeout_secs: float,
        threads: int,
        max_queue_rows: int,
        is_joining: bool = True,
        hold: Callable[[models.Model], contextlib.AbstractContextManager[Any]],
        on_batch: Callable[[int], None] = lambda rows: None,
    ):
        """Start no thread yet.

        Args:
          max_batch_size: the most rows of joined requests.
          timeout_secs: how long a request waits for others.
          threads: how many calls run at a time.
          max_queue_rows: the most rows that wait.
          is_joining: False to run each request alone.
          hold: keeps a model open during a call, which outlives a client that is gone.
          on_batch: gets the number of rows of each call.
        """
        self._most_rows, self._timeout = max_batch_size, timeout_secs
        self._free, self._most_waiting = threads, max_queue_rows
        self._is_joining, self._hold, self._on_batch = is_joining, hold, on_batch
        self._pool = futures.ThreadPoolExecutor(threads, thread_name_prefix="mtl_predict")
        self._queues: dict[Hashable, _Queue] = {}
        self._ready: collections.OrderedDict[Hashable, None] = collections.OrderedDict()
        self._waiting_rows = 0
        self._in_work = 0
        self._crowded_until = 0.0

    async def predict(
        self, model: models.Model, request: requests.Request
    ) -> dict[str, np.ndarray]:
        """Return the outputs of a request.

        Args:
          model: a leased model; requests are joined only for the same one.
          request: inputs of B rows.

        Returns:
          {output: [B, ...]} of this request alone.

        Raises:
          RequestError: too many rows wait.
          InvalidArgumentError: TensorFlow refuses the values of this request.
        """
        # A request that alone is larger than the bound runs if nothing else is in work.
        # An empty request takes a place too.
        places = max(1, request.rows)
        if self._waiting_rows and self._waiting_rows + places > self._most_waiting:
            told = f"{self._waiting_rows} rows are in work, of at most {self._most_waiting}"
            raise failures.RequestError(failures.BUSY, told)
        loop = asyncio.get_running_loop()
        item = _Waiting(model, request, loop.create_future())
        # Without rows, the parts of a joined output could not be told apart.
        is_joined = self._is_joining and request.signature.is_by_row and bool(request.rows)
        # A request is its own key if it runs alone: no other request can have it.
        key = _find_key(model, request) if is_joined else item
        self._waiting_rows += places
        self._in_work += 1
        try:
            self._enqueue_item(loop, key, item)
            return await item.future
        finally:
            self._in_work -= 1
            self._waiting_rows -= places
            self._drop_item(key, item)

    def _enqueue_item(self, loop: asyncio.AbstractEventLoop, key: Hashable, item: _Waiting) -> None:
        queue = self._queues.setdefault(key, _Queue())
        queue.add(item)
        is_full = queue.rows >= self._most_rows
        if self._in_work > 1:
            self._crowded_until = loop.time() + _CALM * self._timeout
        is_lone = loop.time() >= self._crowded_until
        if key is item or is_full or is_lone or not self._timeout:
            # It is full, or nobody would come to join it.
            self._make_ready(key)
        elif queue.timer is None and key not in self._ready:
            queue.timer = loop.call_later(self._timeout, self._make_ready, key)

    def _drop_item(self, key: Hashable, item: _Waiting) -> None:
        """Remove a request that still waits: its client is gone, or its time is over.

        While a call of the model hangs, such requests would pile up.
        """
        queue = self._queues.get(key)
        if queue is not None and item in queue.items:
            queue.remove(item)
            if not queue.items:
                queue.stop_timer()
                del self._queues[key]
                self._ready.pop(key, None)

    def _make_ready(self, key: Hashable) -> None:
        self._queues[key].stop_timer()
        self._ready[key] = None
        self._start_calls()

    def _start_calls(self) -> None:
        """Start calls while a thread is free and a queue is ready."""
        while self._free and self._ready:
            key, _ = self._ready.popitem(last=False)
            queue = self._queues[key]
            batch = queue.take(self._most_rows)
            # The rest has waited already: it is ready at once, behind the other queues.
            if queue.items:
                self._ready[key] = None
            else:
                del self._queues[key]
            self._call(batch)

    def _call(self, batch: Sequence[_Waiting]) -> None:
        self._free -= 1
        # Clients may hang up, and their leases end, while the call still runs in its thread.
        held = contextlib.ExitStack()
        held.enter_context(self._hold(batch[0].model))
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._pool, _run_batch, batch)
        running.add_done_callback(lambda done: self._finish(batch, held, done))
        self._on_batch(sum(item.request.rows for item in batch))

    def _finish(
        self, batch: Sequence[_Waiting], held: contextlib.ExitStack, done: asyncio.Future
    ) -> None:
        self._free += 1
        held.close()
        if done.cancelled():  # The server has stopped.
            return
        # `_run_batch` returns exceptions, so the result itself raises nothing.
        for item, result in zip(batch, done.result(), strict=True):
            if item.future.done():
                continue  # Its client is gone.
            if isinstance(result, BaseException):
                item.future.set_exception(result)
            else:
                item.future.set_result(result)
        self._start_calls()

    def close(self) -> None:
        """Let the threads end after their calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _find_key(model: models.Model, request: requests.Request) -> Hashable:
    """Return a value that two requests share if they can be joined."""
    shapes = []
    for name, array in sorted(request.inputs.items()):
        # Lists are padded to the longest one.
        start = 2 if name in request.signature.lengths else 1
        shapes.append((name, array.ndim, array.shape[start:]))
    return model, request.signature.name, tuple(request.outputs), tuple(shapes)


def _run_batch(batch: Sequence[_Waiting]) -> list[Any]:
    """Return the outputs of each request, or the exception that it gets."""
    if len(batch) > 1:
        try:
            return _run_joined(batch)
        except source.list_refusals():
            pass  # A single request is at fault; the others must not suffer.
        except Exception as error:
            return [error] * len(batch)
    return [_run_alone(item) for item in batch]


def _run_alone(item: _Waiting) -> Any:
    request = item.request
    try:
        return item.model.run(request.signature.name, request.inputs, request.outputs)
    except Exception as error:
        return error


def _run_joined(batch: Sequence[_Waiting]) -> list[dict[str, np.ndarray]]:
    first = batch[0].request
    joined = {
        name: _join_arrays(
            [item.request.inputs[name] for item in batch], name in first.signature.lengths
        )
        for name in first.inputs
    }
    outputs = batch[0].model.run(first.signature.name, joined, first.outputs)
    ends = np.cumsum([item.request.rows for item in batch])
    # The shapes of a signature promise rows, but only the outputs show whether a graph keeps to it.
    if any(len(value) != ends[-1] for value in outputs.values()):
        return [_run_alone(item) for item in batch]
    return [
        {name: value[end - item.request.rows : end] for name, value in outputs.items()}
        for item, end in zip(batch, ends.tolist(), strict=True)
    ]


def _join_arrays(arrays: Sequence[np.ndarray], is_list: bool) -> np.ndarray:
    """Concatenate arrays [b, ...]; the rows of lists [b, L] are padded to the longest one."""
    if is_list and len({array.shape[1] for array in arrays}) > 1:
        width = max(array.shape[1] for array in arrays)
        arrays = [_pad_rows(array, width) for array in arrays]
    return np.concatenate(arrays)


def _pad_rows(array: np.ndarray, width: int) -> np.ndarray:
    # [b, L, ...] -> [b, width, ...]: the input with the lengths tells padding from values.
    padding = b"" if array.dtype == object else 0
    widths = [(0, 0), (0, width - array.shape[1]), *[(0, 0)] * (array.ndim - 2)]
    return np.pad(array, widths, constant_values=padding)
