"""Answers requests of all protocols, with limits, versions, joined batches and a request log.

core = engine.Engine("adult", versions, settings, metrics.Metrics("adult"))
response = await core.predict("adult", None, parse, write, size=len(body))
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

# The largest number of bytes that the event loop itself parses or writes. Larger requests and
# answers are converted in another thread, so that the event loop stays responsive.
_MOST_AT_ONCE = 64 * 2**10


class Answer(NamedTuple):
    """The outputs of a request.

    Attributes:
      model: the version of the model that computed the outputs.
      request: the request that the outputs answer.
      outputs: {output: [B, ...]}.
    """

    model: models.Model
    request: requests.Request
    outputs: Mapping[str, np.ndarray]


class Log(Protocol):
    """Stores the rows of requests and their predictions."""

    def add(self, answer: Answer) -> None:
        """Store an answer, unless it is not in the log's random sample or the log is too busy."""


class Engine:
    """Answers requests to one model. The HTTP server and the gRPC server share an engine."""

    def __init__(
        self,
        name: str,
        model_versions: versions.Versions,
        config: settings.Settings,
        counts: metrics.Metrics,
        log: Log | None = None,
    ):
        self.name, self.versions, self.settings, self.metrics = name, model_versions, config, counts
        self.guard = access.Guard(config.token_file)
        self.is_stopping = False
        self._log = log
        # Use separate threads to parse large requests, so that parsing does not wait for calls of
        # the model.
        self._parsers = futures.ThreadPoolExecutor(2, thread_name_prefix="mtl_parse")
        self._batcher = batching.Batcher(
            max_batch_size=config.max_batch_size,
            timeout_secs=config.batch_timeout_micros / 1e6,
            threads=config.num_threads,
            max_queue_rows=config.max_queue_rows,
            is_joining=config.batching,
            hold=model_versions.hold,
            on_batch=counts.note_batch,
        )

    @property
    def is_ready(self) -> bool:
        """True if the server answers requests."""
        return not self.is_stopping and self.versions.newest is not None

    def require_model(self, name: str) -> None:
        """Fail unless the model with this name is served.

        Raises:
          RequestError: the served model has another name.
        """
        if name != self.name:
            near = checks.nearest(name, [self.name])
            problem = f"no model {name!r} is served, only {self.name!r}. {near}".rstrip()
            raise failures.RequestError(failures.NOT_FOUND, problem)

    async def predict(
        self,
        name: str,
        version: int | None,
        parse: Callable[[models.Model], requests.Request],
        write: Callable[[Answer], Result],
        size: int,
        timeout_secs: float | None = None,
    ) -> Result:
        """Parse a request, compute its predictions, and convert them into a result.

        Args:
          name: the name of the model in the request.
          version: the version; None for the newest.
          parse: a function from the model to the parsed request.
          write: a function that converts an `Answer` into the result.
          size: the size of the request in bytes.
          timeout_secs: the seconds until the deadline of the client; None without a deadline.

        Returns:
          The result of `write`.

        Raises:
          RequestError: the model or version is not served, too many rows wait, or the time is over.
          UserError: the request is wrong.
        """
        self.require_model(name)
        limit = self.settings.timeout_secs
        # gRPC clients send a deadline. After the deadline, nobody would read the answer.
        secs = limit if timeout_secs is None else min(limit, timeout_secs)
        with self.versions.lease(version) as model:
            try:
                work = self._predict_batch(model, parse, write, size)
                return await asyncio.wait_for(work, secs)
            # Before Python 3.11, asyncio.TimeoutError differs from the built-in TimeoutError.
            except asyncio.TimeoutError as error:
                problem = f"the request takes longer than {secs:g} seconds"
                raise failures.RequestError(failures.LATE, problem) from error

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
        # Count the bytes of the outputs, because a short request may have a long answer.
        size = max(size, sum(value.nbytes for value in outputs.values()))
        return await self._run_aside(size, lambda: write(answer))

    async def _run_aside(self, size: int, work: Callable[[], Result]) -> Result:
        """Return the result of `work`; use another thread if it handles many bytes (`size`)."""
        if size <= _MOST_AT_ONCE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._parsers, work)

    def close(self) -> None:
        """End the threads once they have finished their work."""
        self._batcher.close()
        self._parsers.shutdown(wait=False, cancel_futures=True)
