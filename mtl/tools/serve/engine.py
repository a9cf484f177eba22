"""Answers checked requests of all protocols: limits, versions, batches and the log.

made = engine.Engine("adult", held, settings, metrics.Metrics("adult"))
written = await made.predict("adult", None, parse, write, size=len(body))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from mtl import checks
from mtl.tools.serve import (
    access,
    batching,
    failures,
    metrics,
    models,
    requests,
    settings,
    versions,
)

Result = TypeVar("Result")

# Larger texts are parsed and written in another thread, so that the event loop can serve others.
_MOST_AT_ONCE = 64 * 2**10


class Answer(NamedTuple):
    """The outputs of a request.

    Attributes:
      model: the version that computed them.
      request: the request.
      outputs: {output: [B, ...]}.
    """

    model: models.Model
    request: requests.Request
    outputs: Mapping[str, np.ndarray]


class Log(Protocol):
    """Keeps rows and predictions."""

    def add(self, answer: Answer) -> None:
        """Take an answer, or leave it out."""


class Engine:
    """One model, and what its servers share."""

    def __init__(
        self,
        name: str,
        held: versions.Versions,
        made: settings.Settings,
        counts: metrics.Metrics,
        log: Log | None = None,
    ):
        self.name, self.versions, self.settings, self.metrics = name, held, made, counts
        self.guard = access.Guard(made.token_file)
        self.is_stopping = False
        self._log = log
        # Apart from the threads of the model, so that a large body does not wait behind calls.
        self._parsers = futures.ThreadPoolExecutor(2, thread_name_prefix="mtl_parse")
        self._batcher = batching.Batcher(
            max_batch_size=made.max_batch_size,
            timeout_secs=made.batch_timeout_micros / 1e6,
            threads=made.num_threads,
            max_queue_rows=made.max_queue_rows,
            is_joining=made.batching,
            hold=held.hold,
            on_batch=counts.note_batch,
        )

    @property
    def is_ready(self) -> bool:
        """True if requests are answered."""
        return not self.is_stopping and self.versions.newest is not None

    def require_model(self, name: str) -> None:
        """Fail unless the model of this name is served.

        Raises:
          RequestError: it is another one.
        """
        if name != self.name:
            near = checks.nearest(name, [self.name])
            told = f"no model {name!r} is served, only {self.name!r}. {near}".rstrip()
            raise failures.RequestError(failures.NOT_FOUND, told)

    async def predict(
        self,
        name: str,
        version: int | None,
        parse: Callable[[models.Model], requests.Request],
        write: Callable[[Answer], Result],
        size: int,
        timeout_secs: float | None = None,
    ) -> Result:
        """Return the written predictions for a request.

        Args:
          name: the model that the client names.
          version: the version; None for the newest.
          parse: makes the request for a model.
          write: makes the result of the answer.
          size: the bytes of the request.
          timeout_secs: the time that the client leaves, if it says so.

        Raises:
          RequestError: see `failures`.
          UserError: the request is wrong.
        """
        self.require_model(name)
        most = self.settings.timeout_secs
        # gRPC clients send their deadline; work beyond it would reach nobody.
        secs = most if timeout_secs is None else min(most, timeout_secs)
        with self.versions.lease(version) as model:
            try:
                work = self._predict_batch(model, parse, write, size)
                return await asyncio.wait_for(work, secs)
            # Before Python 3.11 it is not the built-in TimeoutError.
            except asyncio.TimeoutError as error:
                told = f"the request takes longer than {secs:g} seconds"
                raise failures.RequestError(failures.LATE, told) from error

    async def _predict_batch(
        self,
        model: models.Model,
        parse: Callable[[models.Model], requests.Request],
        write: Callable[[Answer], Result],
        size: int,
    ) -> Result:
        request = await self._run_aside(size, lambda: parse(model))
        outputs = await self._batcher.predict(model, request)
        answer = Answer(model, request, outputs)
        if self._log is not None:
            self._log.add(answer)
        # A short request may have a long answer.
        size = max(size, sum(value.nbytes for value in outputs.values()))
        return await self._run_aside(size, lambda: write(answer))

    async def _run_aside(self, size: int, work: Callable[[], Result]) -> Result:
        """Return the result of `work`; for many bytes it runs in another thread."""
        if size <= _MOST_AT_ONCE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._parsers, work)

    def close(self) -> None:
        """Let the threads end."""
        self._batcher.close()
        self._parsers.shutdown(wait=False, cancel_futures=True)
