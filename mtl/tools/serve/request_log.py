"""Logs a sample of requests, with their rows and predictions, in Parquet files of limited size.

log = request_log.RequestLog("logs", share=0.1, without=["age"], most_bytes=2**30, on_loss=print)
log.add(answer)
log.close()                                      # writes the remaining rows

At least once a minute, a thread writes a file for each version, signature and set of inputs.
Readers see only complete files. The oldest files are deleted if all files together take too many
bytes.
"""

from __future__ import annotations

import datetime
import io
import logging
import os
import queue
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from mtl import checks
from mtl.deferred import tf
from mtl.files import atomic, storage
from mtl.tools import scoring
from mtl.tools.serve import engine, models, settings

_log = logging.getLogger("mtl.tools.serve")

# The number of requests that may wait until a thread writes them. Requests beyond this number are
# not logged, but counted.
_MOST_WAITING = 1000
_MOST_ROWS, _MOST_SECS = 20_000, 60.0
_NAME = re.compile(r"\d{8}T\d{6}-\d+-[\w.-]+-\d{6,}\.parquet")
_ALL_TASKS = ("serving_default", "lean", "raw")


class _Entry(NamedTuple):
    """An entry of the log: the time of a request in seconds since 1970, and its answer."""

    secs: float
    answer: engine.Answer


class RequestLog:
    """A log of requests in a folder; implements `engine.Log`."""

    def __init__(
        self,
        folder: str,
        *,
        share: float,
        without: Sequence[str],
        most_bytes: int,
        on_loss: Callable[[], None] = lambda: None,
    ):
        """Start the thread that writes the files.

        Args:
          folder: the folder for the files of the log.
          share: the share of requests that is logged, from 0 to 1.
          without: the names of features, predictions and tasks that are not logged.
          most_bytes: the largest size of all files in bytes.
          on_loss: a function that the log calls for each request that it cannot store.
        """
        self._folder, self._share, self._without = folder, share, frozenset(without)
        self._most_bytes, self._on_loss = most_bytes, on_loss
        self._waiting: queue.Queue[_Entry | None] = queue.Queue(_MOST_WAITING)
        self._count, self._last_reason = 0, ""
        self._random = random.Random()
        self._thread = threading.Thread(
            target=self._write_entries, name="mtl_request_log", daemon=True
        )
        self._thread.start()

    def add(self, answer: engine.Answer) -> None:
        """Add an answer to the log if the sample includes it, without waiting for the disk."""
        # The sample consists of whole requests, so the rows of a request stay together.
        if not answer.request.rows or self._random.random() >= self._share:
            return
        try:
            self._waiting.put_nowait(_Entry(time.time(), answer))
        except queue.Full:
            self._on_loss()

    def close(self) -> None:
        """Write the remaining answers, and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _write_entries(self) -> None:
        entries: list[_Entry] = []
        rows, until = 0, time.monotonic() + _MOST_SECS
        is_open = True
        while is_open:
            try:
                entry = self._waiting.get(timeout=max(0.0, until - time.monotonic()))
                is_open = entry is not None
                if entry is not None:
                    entries.append(entry)
                    rows += entry.answer.request.rows
            except queue.Empty:
                pass
            if rows >= _MOST_ROWS or not is_open or time.monotonic() >= until:
                self._write(entries)
                entries, rows, until = [], 0, time.monotonic() + _MOST_SECS

    def _write(self, entries: Sequence[_Entry]) -> None:
        groups: dict[Any, list[_Entry]] = {}
        for entry in entries:
            groups.setdefault(_find_group(entry.answer), []).append(entry)
        for group in groups.values():
            lost_entries = group
            try:
                self._write_file(group)
                lost_entries = []  # All rows are on disk, so a later error loses no request.
                self._remove_oldest()
            except Exception as error:  # The server must continue without its log.
                self._warn_once(f"{getattr(error, 'strerror', None) or error}")
                for _ in lost_entries:
                    self._on_loss()

    def _warn_once(self, reason: str) -> None:
        line = " ".join(reason.split())
        if line != self._last_reason:
            _log.warning("The request log in %s cannot be written: %s.", self._folder, line)
        self._last_reason = line

    def _write_file(self, entries: Sequence[_Entry]) -> None:
        answer = entries[0].answer
        signature = re.sub(r"[^\w.-]", "_", answer.request.signature.name)
        start = datetime.datetime.fromtimestamp(entries[0].secs, datetime.timezone.utc)
        self._count += 1
        # File names begin with the time, so that `_remove_oldest` can sort files by name.
        name = f"{start:%Y%m%dT%H%M%S}-{answer.model.number}-{signature}-{self._count:06}.parquet"
        table = make_table(entries, self._without)
        # Write atomically, so that readers and `_remove_oldest` see only complete files.
        with io.BytesIO() as buffer:
            parquet.write_table(table, buffer)
            atomic.write(os.path.join(self._folder, name), buffer.getvalue())

    def _remove_oldest(self) -> None:
        """Remove the oldest files of this log until all others together fit into `_most_bytes`."""
        paths = [p for p in storage.listed(self._folder) if _NAME.fullmatch(os.path.basename(p))]
        total = sum(os.path.getsize(path) for path in paths)
        for path in paths:
            if total <= self._most_bytes:
                return
            total -= os.path.getsize(path)
            os.remove(path)


def open_log(
    config: settings.Settings, model: models.Model, on_loss: Callable[[], None]
) -> RequestLog | None:
    """Return the log that the settings describe; None if they ask for no log.

    Args:
      config: the settings of the server.
      model: the model; the settings may leave some of its features, predictions and tasks out of
        the log.
      on_loss: a function that the log calls for each request that it cannot store.

    Raises:
      UserError: the folder cannot be written, or a name to leave out is not a feature, a prediction
        or a task of the model.
    """
    if not config.request_log:
        return None
    folder, where = config.request_log, "--request_log"
    rule = "be a folder of this machine"
    checks.require(storage.is_local(folder), where, rule, folder)
    is_free = os.path.isdir(folder) or not os.path.lexists(folder)
    checks.require(is_free, where, "be a folder", folder)
    storage.require_possible(where, folder, "a folder", folder)
    names = _list_names(model)
    for name in config.request_log_without:
        checks.one_of("--request_log_without", name, names)
    with storage.writing(where, "a folder", folder):
        # The rows of clients may be confidential: only the user that runs the server may read them.
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return RequestLog(
        folder,
        share=config.request_log_share,
        without=config.request_log_without,
        most_bytes=config.request_log_bytes,
        on_loss=on_loss,
    )


def _list_names(model: models.Model) -> list[str]:
    """Return the names of the features, predictions and tasks of a model."""
    names = set(model.spec.feature_fields if model.spec else ())
    for key, signature in model.signatures.items():
        if not signature.takes_examples:
            names.update(signature.inputs)
        if key in _ALL_TASKS:
            names.update(signature.outputs)
            names.update(name.partition("/")[0] for name in signature.outputs if "/" in name)
    return sorted(names)


def _find_group(answer: engine.Answer) -> Any:
    """Return a key that is the same for all answers whose rows fit into one table."""
    request = answer.request
    return (
        answer.model.number,
        request.signature.name,
        tuple(sorted(request.inputs)),
        tuple(sorted(answer.outputs)),
    )


def make_table(entries: Sequence[_Entry], without: frozenset[str]) -> pa.Table:
    """Return a table with the inputs and predictions of requests.

    Args:
      entries: requests of the same version and signature, with the same inputs and outputs.
      without: the names of features, predictions and tasks that are not logged.

    Returns:
      A table with a row for each row of the requests, and the columns `time` (UTC), `version`,
      `signature`, `input/<name>` and `prediction/<name>`. Lists have no padding.
    """
    answers = [entry.answer for entry in entries]
    first_answer = answers[0]
    signature = first_answer.request.signature
    secs = np.repeat([entry.secs for entry in entries], [a.request.rows for a in answers])
    # Convert seconds to milliseconds in UTC.
    times = pa.array((secs * 1000).astype(np.int64), pa.timestamp("ms", "UTC"))
    count = len(secs)
    columns: dict[str, Any] = {
        "time": times,
        "version": pa.array(np.full(count, first_answer.model.number)),
        "signature": pa.array([signature.name] * count, pa.string()),
    }
    for name, values in _read_inputs(answers):
        if name not in without and _base_name(name) not in without:
            columns[f"input/{name}"] = _make_column(values)
    for name in first_answer.outputs:
        if not _is_left_out(signature, name, without):
            values = np.concatenate([answer.outputs[name] for answer in answers])
            columns[f"prediction/{name}"] = _make_column(values)
    return pa.table(columns)


def _base_name(name: str) -> str:
    """Return the feature that an input belongs to, such as `tags` for `tags/values_per_item`."""
    return name.rpartition("/")[0] or name


def _make_column(values: Any) -> pa.Array:
    table: Any = scoring.find_maker("parquet")({"values": values}).rows
    return table.column(0)


def _read_inputs(answers: Sequence[engine.Answer]) -> Iterator[tuple[str, Any]]:
    """Yield the name of each feature, and the values of the feature in all rows."""
    first_answer = answers[0]
    signature = first_answer.request.signature
    if signature.takes_examples:
        (name,) = signature.inputs
        arrays = [answer.request.inputs[name] for answer in answers]
        yield from _read_examples(np.concatenate(arrays).tolist(), first_answer.model)
        return
    lengths = signature.lengths
    for name in first_answer.request.inputs:
        arrays = [answer.request.inputs[name] for answer in answers]
        if name in lengths and lengths[name] in first_answer.request.inputs:
            rows = [answer.request.inputs[lengths[name]] for answer in answers]
            yield name, _cut_lists(arrays, rows)
        elif name not in lengths.values():
            yield name, np.concatenate(arrays)


def _cut_lists(arrays: Sequence[np.ndarray], lengths: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the lists of all rows as arrays of different lengths, without padding."""
    # The arrays cannot be concatenated, because the lists of each request are padded to another
    # length.
    return [
        row[:length]
        for array, row_lengths in zip(arrays, lengths, strict=True)
        for row, length in zip(array, row_lengths, strict=True)
    ]


def _read_examples(
    serialized: Sequence[bytes], model: models.Model
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the features of tf.Examples that the model reads; None stands for a missing feature."""
    rows: list[Mapping[str, Any]] = [
        tf.train.Example.FromString(example).features.feature for example in serialized
    ]
    names = sorted({name for row in rows for name in row})
    for name in names:
        if model.spec is None or name in model.spec.feature_fields:
            yield name, [_read_feature(row[name]) if name in row else None for row in rows]


def _read_feature(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def _is_left_out(signature: models.Signature, name: str, without: frozenset[str]) -> bool:
    """Return True if the log leaves out a prediction, because of its task or its name."""
    kind, _, rest = signature.name.rpartition("/")
    if signature.method != models.PREDICT:
        # Classes and scores reveal all predictions of their task.
        return any(entry.partition("/")[0] == kind for entry in without)
    is_of_all = rest in _ALL_TASKS
    full_name = name if is_of_all else f"{rest}/{name}"
    return bool({name, full_name, full_name.partition("/")[0]} & without)
