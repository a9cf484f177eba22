"""Writes the log of a run as JSON lines, for other programs.

with json_log.append_to("runs/digits/log.jsonl"): ...

    {"time": "2026-11-24T16:10:00.123+00:00", "level": "INFO", "message": "step 100 of ...",
     "step": 100, "loss": 0.52, "losses": {"income": 0.31, ...}, "examples_per_sec": 41000.0, ...}

NaN and infinity become null, because JSON has no such numbers.
"""

import contextlib
import datetime
import json
import logging
import math
import os
from collections.abc import Iterator
from typing import Any

from mtl import checks, deferred

with deferred.imports():
    import numpy as np


class Handler(logging.FileHandler):
    """Appends log records as JSON, with additional values {name: value} in `record.fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line of a log record."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        line = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": checks.mask(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        # Set `allow_nan=False`, so that an unexpected NaN fails now, and not in a program that
        # reads the log.
        return json.dumps(_simplify_value(line), ensure_ascii=False, allow_nan=False)


@contextlib.contextmanager
def append_to(path: str) -> Iterator[None]:
    """Append the log lines of `mtl`, and the numbers of the progress bar, to a file.

    If the folder of the file does not exist, it is created.

    Raises:
      UserError: the file cannot be written, or is not a JSON log.
    """
    logger = logging.getLogger("mtl")
    try:
        _require_own(path)
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        handler = Handler(path, encoding="utf-8")
    except OSError as error:
        raise checks.UserError(f"--json_log cannot be written: {error}.") from error
    level = logger.level
    # Include the level DEBUG: if there is a progress bar, lines about steps have this level.
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    except checks.UserError as error:
        # Write the error to the log, because the terminal shows the error without a log record.
        line = str(error).splitlines()[0]
        handler.handle(logger.makeRecord(logger.name, logging.ERROR, "", 0, line, (), None))
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def _require_own(path: str) -> None:
    """Fail if a file exists and is not a JSON log; for example, it may hold data of the run."""
    if not os.path.isfile(path) or not os.path.getsize(path):
        return
    with open(path, "rb") as file:
        # Read only the first line, because logs may be large.
        first = file.readline()
    try:
        line = json.loads(first)
    except ValueError:
        line = None
    is_own = isinstance(line, dict) and line.keys() >= {"time", "level", "message"}
    checks.require(is_own, "--json_log", "be a new file or an older JSON log", path)


def _simplify_value(value: Any) -> Any:
    """Convert a value to types of JSON: NumPy values to Python values, and NaN to null."""
    if isinstance(value, dict):
        return {str(name): _simplify_value(item) for name, item in value.items()}
    if isinstance(value, (np.generic, np.ndarray)):
        return _simplify_value(value.tolist())
    if isinstance(value, list):
        return [_simplify_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
