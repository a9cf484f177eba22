"""Keeps the record of a clip audit: a row for each visit of a sample, and a row for each batch.

record = visits.Record("runs/digits/clip_audit/training", settings)
record.add(step, ids, examples, batch)       # after every batch
record.save(step)                            # rows since the last call, as separate files
visits, batches = visits.read("runs/digits/clip_audit/training")
"""

from __future__ import annotations

import collections
import os
import re
from typing import Protocol

import numpy as np

from mtl.deferred import tf
from mtl.tools.clip_audit import tables

# The names of files with records, which are removed if their steps are trained again.
_FILE = re.compile(r"(visits|batches)-(\d+)\.parquet")


class Settings(Protocol):
    """The settings that decide the thresholds of an audit; see `ClipAudit`."""

    @property
    def percentile(self) -> float: ...

    @property
    def window(self) -> int: ...

    @property
    def max_norm(self) -> float | None: ...


class Trailing:
    """Computes the threshold for the next batch: a percentile of the norms in the last batches."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._batches: collections.deque[np.ndarray] = collections.deque(maxlen=settings.window)

    def threshold(self) -> float:
        """Return the threshold for the next batch; NaN before the first batch."""
        if self._settings.max_norm is not None:
            return self._settings.max_norm
        # There is no threshold before the first batch, or if no batch had a finite norm.
        if not any(map(len, self._batches)):
            return np.nan
        return float(np.percentile(np.concatenate(self._batches), self._settings.percentile))

    def add(self, values: np.ndarray) -> None:
        """Add the norms of a batch, which then count for the thresholds of the next batches.

        Args:
          values: the norms, [N]. Norms that are not finite are skipped.
        """
        # A single NaN would make every percentile NaN for a whole window of batches.
        self._batches.append(values[np.isfinite(values)])


class Record:
    """Collects rows in memory until `save` writes them to `<directory>/parts`.

    Args:
      directory: the folder of the audit.
      settings: the settings that decide the thresholds.
      last_step: rows of later steps are removed, because training repeats these steps. If
        `last_step` is None, all rows are removed.
    """

    def __init__(self, directory: str, settings: Settings, last_step: int | None = None):
        self._directory = os.path.join(directory, "parts")
        self._of_examples, self._of_batches = Trailing(settings), Trailing(settings)
        tf.io.gfile.makedirs(self._directory)
        for name in tf.io.gfile.listdir(self._directory):
            match = _FILE.fullmatch(name)
            # A killed run may have saved visits of steps after its last checkpoint.
            if match and (last_step is None or int(match.group(2)) > last_step):
                tf.io.gfile.remove(os.path.join(self._directory, name))
        self._visits: list[dict[str, np.ndarray]] = []
        self._batches: list[dict[str, np.ndarray]] = []
        self._number = self._restore_batches(settings.window)

    def _restore_batches(self, window: int) -> int:
        """Read the last saved batches, to compute thresholds; return how many batches are saved."""
        # `read` expects the folder of the audit, and appends `parts` itself.
        visits, batches = read(os.path.dirname(self._directory))
        if not batches:
            return 0
        # Only the last `window` batches decide the next threshold.
        first = len(batches["norm"]) - window
        for number, norm in zip(batches["batch"], batches["norm"], strict=True):
            if number >= first:
                self._of_examples.add(visits["norm"][visits["batch"] == number])
                self._of_batches.add(np.array([norm]))
        return len(batches["norm"])

    def add(
        self,
        step: int,
        ids: np.ndarray,
        examples: dict[str, np.ndarray],
        batch: dict[str, np.ndarray],
    ) -> None:
        """Add the measurements of the batch at a global step.

        Args:
          step: the global step before the batch trains the model.
          ids: the ids of the samples, [B] integers or bytes.
          examples: {column: [B]}, including `norm`.
          batch: {column: a number that describes the whole batch}, including `norm`.
        """
        # TensorFlow passes strings as objects, which Parquet would store as bytes.
        if ids.dtype.kind == "O":
            # Escape invalid UTF-8: a replacement character could make two ids equal.
            ids = np.array([value.decode(errors="backslashreplace") for value in ids])
        number = np.full(len(ids), self._number)
        self._visits.append({"id": ids, "batch": number, **examples})
        row = {
            "batch": self._number,
            "step": step,
            "rows": len(ids),
            # The thresholds come from earlier batches, so a batch does not raise its threshold.
            "threshold": self._of_batches.threshold(),
            "example_threshold": self._of_examples.threshold(),
            **batch,
        }
        self._batches.append({name: np.array([value]) for name, value in row.items()})
        self._of_examples.add(examples["norm"])
        self._of_batches.add(np.array([batch["norm"]]))
        self._number += 1

    def save(self, step: int) -> None:
        """Write the rows since the last call to new files.

        Args:
          step: the global step, which is part of the names of the files.
        """
        for name, rows in (("visits", self._visits), ("batches", self._batches)):
            if rows:
                # Nine digits make the order of names equal to the order of steps.
                path = os.path.join(self._directory, f"{name}-{step:09d}.parquet")
                tables.write_parquet(path, tables.join_tables(rows))
                rows.clear()


def are_there(directory: str) -> bool:
    """Return True if a folder holds measures of samples that an audit has saved."""
    return bool(_list_parts(os.path.join(directory, "parts")))


def _list_parts(parts: str) -> list[str]:
    # Sort the names, because object stores list files in any order.
    return sorted(tf.io.gfile.listdir(parts)) if tf.io.gfile.isdir(parts) else []


def read(directory: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Read the visits (samples in batches) and the batches that an audit has saved.

    Visits have the columns `id`, `batch` and all columns of `measures.Measured.examples`. Batches
    have the columns `batch`, `step`, `rows`, `threshold`, `example_threshold` and all columns of
    `measures.Measured.batch`. The columns `threshold` and `example_threshold` of a batch are
    computed from previous batches.

    Args:
      directory: the folder of the audit.

    Returns:
      The table of visits and the table of batches, {column: [rows]}; {} for both if nothing was
      saved.
    """
    parts = os.path.join(directory, "parts")
    names = _list_parts(parts)
    both_tables = [
        tables.join_tables(
            [tables.read_parquet(os.path.join(parts, n)) for n in names if n.startswith(kind)]
        )
        # The files of visits and of batches are both sorted by step, so the numbers of batches
        # match.
        for kind in ("visits-", "batches-")
    ]
    return both_tables[0], both_tables[1]
