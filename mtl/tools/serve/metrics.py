"""Counts requests, errors, rows and times for Prometheus.

counts = metrics.Metrics("adult")
with counts.measure("rest", "predict") as outcome:
    outcome.code = "OK"
counts.write(newest=1795231775)                      # the text that Prometheus reads
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator

import prometheus_client as prometheus

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_SECS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


@dataclasses.dataclass
class Outcome:
    """The outcome of a request.

    Attributes:
      code: the gRPC name of the answer's status code. The code stays "CANCELLED" if the client
        hangs up.
    """

    code: str = "CANCELLED"


class Metrics:
    """The Prometheus metrics of a server."""

    def __init__(self, model: str):
        # The global registry would also report metrics of the Python process.
        self._registry = prometheus.CollectorRegistry()
        labels = ("model", "protocol", "method")
        self._model = model
        self._requests = prometheus.Counter(
            "mtl_requests", "Answered requests.", (*labels, "code"), registry=self._registry
        )
        self._secs = prometheus.Histogram(
            "mtl_request_seconds",
            "Seconds from the header of a request to the end of its answer.",
            labels,
            buckets=_SECS,
            registry=self._registry,
        )
        self._open = prometheus.Gauge(
            "mtl_open_requests", "Requests in progress.", ("model",), registry=self._registry
        ).labels(model)
        self._batches = prometheus.Histogram(
            "mtl_batch_rows",
            "Rows of each call of the model.",
            ("model",),
            buckets=_ROWS,
            registry=self._registry,
        ).labels(model)
        self._version = prometheus.Gauge(
            "mtl_model_version", "The newest version.", ("model",), registry=self._registry
        ).labels(model)
        self._unlogged = prometheus.Counter(
            "mtl_unlogged_requests",
            "Requests that could not be written to the request log.",
            ("model",),
            registry=self._registry,
        ).labels(model)

    @contextlib.contextmanager
    def measure(self, protocol: str, method: str) -> Iterator[Outcome]:
        """Count a request, and measure its time until the end of the context.

        The caller sets `code` of the yielded outcome before the context ends.

        Args:
          protocol: "rest", "open_inference" or "grpc".
          method: the name of the called method, such as "predict". Prometheus stores a time series
            for each name, so there must be few names.
        """
        outcome, start = Outcome(), time.perf_counter()
        self._open.inc()
        try:
            yield outcome
        finally:
            self._open.dec()
            labels = (self._model, protocol, method)
            self._requests.labels(*labels, outcome.code).inc()
            self._secs.labels(*labels).observe(time.perf_counter() - start)

    def note_batch(self, rows: int) -> None:
        """Count a call of the model, with the number of its rows."""
        self._batches.observe(rows)

    def note_unlogged(self) -> None:
        """Count a request that could not be logged."""
        self._unlogged.inc()

    def write(self, newest: int | None) -> bytes:
        """Return all metrics in the text format of Prometheus.

        Args:
          newest: the number of the newest loaded version; None if no version is loaded.
        """
        # Version numbers are seconds since 1970, which fit into the float64 of a gauge.
        self._version.set(newest or 0)
        return prometheus.generate_latest(self._registry)
