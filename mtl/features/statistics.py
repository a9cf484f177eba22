"""Saves and loads the statistics that columns learn from the training split.

statistics.save_statistics(accumulators, directory)      # statistics.json, vocabulary_<column>.txt
statistics.seal_statistics(directory)                    # adds the checksums that old runs lack
fitted = statistics.load_statistics(directory)
fitted.for_column("numeric_age")                         # {"mean": [38.6], "stddev": [13.6], ...}
"""

from __future__ import annotations

import dataclasses
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from mtl import checks, types
from mtl.deferred import tf
from mtl.files import checksums, storage
from mtl.variables import row_names

_FILE = "statistics.json"
_FIX = "Copy the file back, or start again in another --model_dir."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics(types.Statistics):
    """The statistics of the training split, which columns read when the graph is built.

    Attributes:
      directory: the folder of the files.
      entries: {column: values that the accumulator of the column saved}.
    """

    directory: str
    entries: Mapping[str, Mapping[str, Any]]

    def for_column(self, column: str) -> Mapping[str, Any]:
        """Return the statistics of a column.

        Raises:
          UserError: the column was not fitted.
        """
        if tf.io.gfile.exists(self.path(_FILE)):
            fix = f"The statistics in {self.directory!r} belong to other columns."
        else:
            fix = f"{self.path(_FILE)} is missing: it was lost, or the run has other columns."
        checks.require(column in self.entries, f"features.{column}", "be fitted", "nothing", fix)
        return self.entries[column]

    def holds(self, name: str, accumulator: types.Accumulator) -> bool:
        """Return True if statistics exist that were fitted with the settings of an accumulator.

        Args:
          name: the column or table.
          accumulator: the accumulator, whose `repr` shows its settings.
        """
        return self.entries.get(name, {}).get("fitted") == repr(accumulator)

    def path(self, name: str) -> str:
        """Return the path of a file in the folder of the statistics."""
        return os.path.join(self.directory, name)


def save_statistics(fitted: Mapping[str, types.Accumulator], directory: str) -> None:
    """Write statistics to a new folder, which is renamed to `directory` when it is complete.

    Args:
      fitted: {column: accumulator}, after the accumulators have processed all batches.
      directory: the folder of the statistics; earlier files in the folder are removed.
    """
    temporary = f"{directory.rstrip('/')}.{uuid.uuid4().hex}.tmp"
    tf.io.gfile.makedirs(temporary)
    try:
        entries = {
            column: {**accumulator.save(temporary, column), "fitted": repr(accumulator)}
            for column, accumulator in fitted.items()
        }
        _write_entries(entries, temporary)
        if tf.io.gfile.exists(directory):
            tf.io.gfile.rmtree(directory)
        # Sync before the rename, so that a crash cannot leave empty files under the final name.
        storage.sync([*storage.listed(temporary), temporary])
        tf.io.gfile.rename(temporary, directory)
        storage.sync([os.path.dirname(directory.rstrip("/")) or "."])
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)


def load_statistics(directory: str) -> Statistics:
    """Read the files of `save_statistics`; without files, return empty statistics.

    Raises:
      UserError: a file is damaged.
    """
    path = os.path.join(directory, _FILE)
    if not tf.io.gfile.exists(path):
        return Statistics(directory=directory, entries={})
    entries = checksums.read_json(path, _FIX)
    for column, entry in entries.items():
        if not isinstance(entry, Mapping):
            raise checksums.describe_damage(path, f"{column!r} holds no statistics", _FIX)
        if "file" in entry:
            _require_intact(os.path.join(directory, entry["file"]), entry)
    return Statistics(directory=directory, entries=entries)


def _require_intact(vocabulary: str, entry: Mapping[str, Any]) -> None:
    checksums.require(vocabulary, entry.get(checksums.KEY), _FIX)
    # Statistics of earlier versions record the number of lines in place of a checksum.
    if checksums.KEY not in entry:
        with tf.io.gfile.GFile(vocabulary, "rb") as file:
            num_lines = len(row_names.split_lines(file.read()))
        if num_lines != entry.get("size"):
            problem = f"it holds {num_lines} of {entry.get('size')} categories"
            raise checksums.describe_damage(vocabulary, problem, _FIX)


def seal_statistics(directory: str) -> None:
    """Add checksums to the statistics of an earlier version, which lack checksums.

    Args:
      directory: the folder of the statistics; a folder without statistics stays unchanged.

    Raises:
      UserError: a file is damaged.
    """
    entries = load_statistics(directory).entries
    path = os.path.join(directory, _FILE)
    if any("file" in entry and checksums.KEY not in entry for entry in entries.values()):
        _write_entries(entries, directory)
    checksums.seal(path, _FIX)


def list_fitted(columns: Sequence[types.Column]) -> list[str]:
    """List the names under which columns have statistics: columns or tables."""
    return [name for column in columns for name in column.accumulators()]


def list_differing(names: Sequence[str], source: str, directory: str) -> list[str]:
    """List the columns or tables whose statistics differ from those of another run.

    Args:
      names: the columns or tables.
      source: the folder of the other run's statistics; if it has no statistics, nothing differs.
      directory: the folder of this run's statistics.
    """
    other, current = load_statistics(source), load_statistics(directory)
    is_known = bool(other.entries)
    return [n for n in names if is_known and _write_entry(other, n) != _write_entry(current, n)]


def _write_entry(statistics: Statistics, name: str) -> str:
    """Return the statistics of a column as text, in which NaN is equal to NaN."""
    entry = dict(statistics.entries.get(name, {}))
    entry.pop(checksums.KEY, None)  # Earlier versions wrote no checksum.
    content = checksums.of_file(statistics.path(entry["file"])) if "file" in entry else ""
    return json.dumps([entry, content], sort_keys=True)


def adopt_statistics(
    names: Sequence[str],
    source: str,
    directory: str,
    fix: str = "Copy the settings of its column or head from the other run.",
) -> None:
    """Copy the statistics of some columns from another run.

    Args:
      names: the columns or tables.
      source: the folder of the other run's statistics.
      directory: the folder of this run's statistics.
      fix: the advice if the settings differ.

    Raises:
      UserError: the run in `source` has no statistics of one of the names, or fitted them with
        other settings.
    """
    other, current = load_statistics(source), load_statistics(directory)
    for name in names:
        is_same = other.entries.get(name, {}).get("fitted") == current.for_column(name)["fitted"]
        rule = f"have equal settings in {source}"
        checks.require(is_same, f"features.{name}", rule, other.entries.get(name), fix)
        entry = other.for_column(name)
        vectors = entry.get("vectors")  # Word vectors lie in several files.
        paths = storage.listed(source, f"{vectors}.") if vectors else []
        paths += [other.path(entry["file"])] if "file" in entry else []
        for path in paths:
            copy = current.path(os.path.basename(path))
            tf.io.gfile.copy(path, copy, overwrite=True)
            storage.sync([copy])
    entries = {**current.entries, **{name: other.for_column(name) for name in names}}
    _write_entries(entries, directory)


def _write_entries(entries: Mapping[str, Any], directory: str) -> None:
    for entry in entries.values():
        if "file" in entry:
            entry[checksums.KEY] = checksums.of_file(os.path.join(directory, entry["file"]))
    checksums.write_json(os.path.join(directory, _FILE), entries)
