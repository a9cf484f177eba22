"""Joins requests that arrive at about the same time into a single call of the model.

batcher = batching.Batcher(
    max_batch_size=256, timeout_secs=0.001, threads=1, max_queue_rows=4096, hold=versions.hold
)
outputs = await batcher.predict(model, request)          # {output: [B, ...]} of this request

Only the calls of the model run in threads; everything else runs in the event loop. A request that
arrives alone runs at once. Requests that arrive together wait for more requests, until the timeout
is over and a thread is free. Joining requests may change the last bits of a prediction, because
TensorFlow multiplies matrices in another order if the number of rows differs.
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

# If no two requests have overlapped for `_CALM` times the timeout, a request does not wait for
# others.
_CALM = 10


# A queue hashes its requests by identity, because arrays have no hash.
@dataclasses.dataclass(eq=False)
class _Waiting:
    """A request in a queue, and the future that will hold the outputs of the request."""

    model: models.Model
    request: requests.Request
    future: asyncio.Future


class _Queue:
    """A queue of requests that one call of the model can answer, oldest first."""

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
        """Remove and return the oldest request, and more requests, up to `most_rows` rows."""
        items: list[_Waiting] = []
        room = most_rows
        while self.items:
            item = next(iter(self.items))
            room -= item.request.rows
            if items and room < 0:
                break
            self.remove(item)
            items.append(item)
        return items

    def stop_timer(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()


class Batcher:
    """Calls the model in a few threads, with one request or several joined requests at a time."""

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
        """Store the settings; threads start with the first requests.

        Args:
          max_batch_size: the largest number of rows that joined requests may have together.
          timeout_secs: how long a request waits for other requests.
          threads: the number of calls that run at the same time.
          max_queue_rows: the largest number of rows that may wait or be computed at a time.
          is_joining: False to run each request alone.
          hold: a function that returns a context, which keeps a model open during a call even if
            all clients of the call hang up.
          on_batch: a function that gets the number of rows of each call of the model.
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
          model: a model from `Versions.lease`; only requests to the same model are joined.
          request: inputs of B rows.

        Returns:
          {output: [B, ...]} for the rows of this request.

        Raises:
          RequestError: too many rows are in progress.
          InvalidArgumentError: TensorFlow refuses the values of the request.
        """
        # An empty request counts as one row. A request with more rows than the limit runs if no
        # other request is in progress.
        places = max(1, request.rows)
        if self._waiting_rows and self._waiting_rows + places > self._most_waiting:
            problem = f"{self._waiting_rows} rows are in progress, of at most {self._most_waiting}"
            raise failures.RequestError(failures.BUSY, problem)
        loop = asyncio.get_running_loop()
        item = _Waiting(model, request, loop.create_future())
        # A request without rows runs alone, because its outputs may still have values, which could
        # not be separated from the outputs of other requests.
        is_joined = self._is_joining and request.signature.is_by_row and bool(request.rows)
        # A request that runs alone gets a separate queue, with the request as the key.
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
            # Run at once: the batch is full, or no other request is expected.
            self._make_ready(key)
        elif queue.timer is None and key not in self._ready:
            queue.timer = loop.call_later(self._timeout, self._make_ready, key)

    def _drop_item(self, key: Hashable, item: _Waiting) -> None:
        """Remove a request from its queue if its client hung up or its time is over.

        If the server kept abandoned requests, they would pile up in the queue while a call of the
        model hangs.
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
            # Requests that remain in a queue have waited long enough, so the queue is ready again,
            # behind other queues.
            if queue.items:
                self._ready[key] = None
            else:
                del self._queues[key]
            self._call(batch)

    def _call(self, batch: Sequence[_Waiting]) -> None:
        self._free -= 1
        # If a client hangs up, its lease of the model ends while the call still runs. Hold the
        # model until the call ends.
        model_context = contextlib.ExitStack()
        model_context.enter_context(self._hold(batch[0].model))
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._pool, _run_batch, batch)
        call.add_done_callback(lambda done: self._finish(batch, model_context, done))
        self._on_batch(sum(item.request.rows for item in batch))

    def _finish(
        self, batch: Sequence[_Waiting], model_context: contextlib.ExitStack, call: asyncio.Future
    ) -> None:
        self._free += 1
        model_context.close()
        if call.cancelled():  # The server has stopped.
            return
        # `_run_batch` returns exceptions instead of raising them, so `result()` does not raise.
        for item, result in zip(batch, call.result(), strict=True):
            if item.future.done():
                continue  # The client hung up.
            if isinstance(result, BaseException):
                item.future.set_exception(result)
            else:
                item.future.set_result(result)
        self._start_calls()

    def close(self) -> None:
        """End each thread after its current call of the model."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _find_key(model: models.Model, request: requests.Request) -> Hashable:
    """Return a key that is equal for requests that one call of the model can answer."""
    shapes = []
    for name, array in sorted(request.inputs.items()):
        # Lists of different lengths can be joined, because `_join_arrays` pads lists to the
        # longest.
        start = 2 if name in request.signature.lengths else 1
        shapes.append((name, array.ndim, array.shape[start:]))
    return model, request.signature.name, tuple(request.outputs), tuple(shapes)


def _run_batch(batch: Sequence[_Waiting]) -> list[Any]:
    """Call the model; return the outputs or the exception for each request."""
    if len(batch) > 1:
        try:
            return _run_joined(batch)
        except source.list_refusals():
            pass  # A request has wrong values: run all alone, so that only this request fails.
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
    request = batch[0].request
    inputs = {
        name: _join_arrays(
            [item.request.inputs[name] for item in batch], name in request.signature.lengths
        )
        for name in request.inputs
    }
    outputs = batch[0].model.run(request.signature.name, inputs, request.outputs)
    ends = np.cumsum([item.request.rows for item in batch])
    # An output may have another number of rows than the inputs, even if the signature says that the
    # numbers are equal. An output with another number of rows cannot be split among the requests.
    if any(len(value) != ends[-1] for value in outputs.values()):
        return [_run_alone(item) for item in batch]
    return [
        {name: value[end - item.request.rows : end] for name, value in outputs.items()}
        for item, end in zip(batch, ends.tolist(), strict=True)
    ]


def _join_arrays(arrays: Sequence[np.ndarray], is_list: bool) -> np.ndarray:
    """Concatenate arrays [b, ...]; lists [b, L] are padded to the same length first."""
    if is_list and len({array.shape[1] for array in arrays}) > 1:
        width = max(array.shape[1] for array in arrays)
        arrays = [_pad_rows(array, width) for array in arrays]
    return np.concatenate(arrays)


def _pad_rows(array: np.ndarray, width: int) -> np.ndarray:
    # [b, L, ...] -> [b, width, ...]. The graph ignores the padding, because another input holds the
    # length of each list.
    padding = b"" if array.dtype == object else 0
    widths = [(0, 0), (0, width - array.shape[1]), *[(0, 0)] * (array.ndim - 2)]
    return np.pad(array, widths, constant_values=padding)
