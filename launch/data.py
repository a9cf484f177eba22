"""Describes the columns of tables or of a run's splits, and compares two data sets.

python -m launch.data train.csv                             # or Parquet, JSON lines, ORC, Feather
python -m launch.data train.csv --against 'new-*.csv' --fail_above 0.1 --output drift.html
python -m launch.data train.parquet --statistics train.pb --schema schema.pbtxt
python -m launch.data --gin_file train.gin                  # labels and unknown values, too
python -m launch.data --model_dir runs/adult --input new.csv
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from absl import flags

from launch import app
from mtl import checks, deferred
from mtl.files import atomic, storage

with deferred.imports():
    from mtl.tools import scoring
    from mtl.tools.statistics import drift, facts, gathering, metadata, page, runs, tables, tell

AGAINST = flags.DEFINE_multi_string(
    "against", [], "Files or globs of new rows to compare with the files. Repeatable."
)
INPUT = flags.DEFINE_multi_string(
    "input",
    [],
    "Files or globs of new rows to compare with the training split of a run, read as in "
    "launch.evaluate, but labels may be missing. Repeatable.",
)
INPUT_FORMAT = flags.DEFINE_string(
    "input_format",
    "auto",
    "The format of --input, if the names of the files do not show it: csv, jsonl, parquet or "
    "tfrecord.",
)
SPLITS = flags.DEFINE_list(
    "splits", [], "The splits of a run. (default: the training and the evaluation split)"
)
FAIL_ABOVE = flags.DEFINE_float(
    "fail_above",
    None,
    "Exit with code 1 and a line if a field drifts: it is missing, has another type, or differs "
    "by more than this value and by more than chance explains.",
)
OUTPUT = flags.DEFINE_string(
    "output", None, "A page, which ends in .html, with a picture of each column."
)
SCHEMA = flags.DEFINE_string(
    "schema", None, "A file for tensorflow-metadata's Schema, .pb (binary) or .pbtxt (text)."
)
STATISTICS = flags.DEFINE_string(
    "statistics",
    None,
    "A file for tensorflow-metadata's DatasetFeatureStatisticsList, .pb (binary) or .pbtxt (text).",
)
MOST = flags.DEFINE_integer("most", 50, "The largest number of columns in a table, or 0 for all.")
MISSING = flags.DEFINE_multi_string(
    "missing", [], "A text that marks a missing value in the files. Repeatable."
)
LEAVE_OUT = flags.DEFINE_list("leave_out", [], "Columns to leave out, such as an id.")
DELIMITER = flags.DEFINE_string(
    "delimiter", None, "The separator of values in CSV; detected if it is , ; tab or |."
)
COLUMNS = flags.DEFINE_list("columns", [], "The names of the columns of CSV without a header.")
COMMENT = flags.DEFINE_string("comment", "", "Lines of CSV that start with this text are ignored.")

# Differences above this value count as drift, unless --fail_above is set.
_THRESHOLD = 0.1
_WIDTH = 120
_PAGE, _TEXT, _BINARY = ".html", ".pbtxt", ".pb"
_OF_FILES = (AGAINST, MISSING, DELIMITER, COLUMNS, COMMENT)
_OF_RUNS = (INPUT, SPLITS)


def main(arguments: list[str]) -> None:
    """Describe or compare the data that the arguments or the flags name.

    Args:
      arguments: files or globs; [] for the splits of a run.
    """
    _check_flags(arguments)
    is_compared = bool(AGAINST.value or INPUT.value)
    read = _read_run if app.GIN_FILE.value or app.MODEL_DIR.value else _read_files
    datasets = read(arguments)
    # If standard output is not a terminal, lines have `_WIDTH` characters.
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    threshold = _THRESHOLD if FAIL_ABOVE.value is None else FAIL_ABOVE.value
    comparison = drift.compare(*datasets) if is_compared else None
    if comparison is not None:
        print(tell.compare(comparison, MOST.value, width, threshold))
    else:
        print("\n\n".join(tell.describe(dataset, MOST.value, width) for dataset in datasets))
    # Write the page first: if fields have drifted, the process exits afterwards.
    _write_outputs(datasets, comparison, threshold)
    if comparison is not None and FAIL_ABOVE.value is not None:
        _end_on_drift(comparison.list_failures(threshold), threshold)


def _check_flags(arguments: Sequence[str]) -> None:
    """Fail if flags exclude each other or have wrong values, before any row is read."""
    is_run = bool(app.GIN_FILE.value or app.MODEL_DIR.value)
    rule = "name files, or come with --gin_file or --model_dir"
    checks.require(bool(arguments) != is_run, "the arguments", rule, list(arguments))
    for flag in _OF_FILES if is_run else _OF_RUNS:
        rule = "be left out for a run" if is_run else "come with --gin_file or --model_dir"
        checks.require(not flag.value, f"--{flag.name}", rule, flag.value)
    checks.at_least("--most", MOST.value, 0)
    if FAIL_ABOVE.value is not None:
        checks.rate("--fail_above", FAIL_ABOVE.value)
        rule = "come with --against or --input"
        is_compared = bool(AGAINST.value or INPUT.value)
        checks.require(is_compared, "--fail_above", rule, FAIL_ABOVE.value)
    _check_endings()


def _check_endings() -> None:
    of_metadata = (_BINARY, _TEXT)
    for flag, endings in ((OUTPUT, (_PAGE,)), (SCHEMA, of_metadata), (STATISTICS, of_metadata)):
        path = flag.value
        if path is not None:
            where = f"--{flag.name}"
            fits = path.endswith(endings)
            checks.require(fits, where, f"end in {' or '.join(endings)}", path)
            storage.require_possible(where, os.path.dirname(path), "a file", path)


def _find_outputs() -> dict[str, str]:
    return {f"--{flag.name}": flag.value for flag in (OUTPUT, SCHEMA, STATISTICS) if flag.value}


def _read_files(arguments: Sequence[str]) -> list[facts.Dataset]:
    delimiter = _read_delimiter()
    sources = {"the files": arguments, "--against": AGAINST.value}
    open_tables = [
        tables.open_table(where, patterns, delimiter, COLUMNS.value, COMMENT.value)
        for where, patterns in sources.items()
        if patterns
    ]
    # Compare files by their identity, because two paths may name the same file.
    inputs = {atomic.identity(path) for table in open_tables for path in table.paths}
    for where, path in _find_outputs().items():
        is_free = atomic.identity(path) not in inputs
        checks.require(is_free, where, "not be an input", path, "Name another file.")
    datasets: list[facts.Dataset] = []
    for table in open_tables:
        # Read new rows with the types of the first files.
        first = datasets[0] if datasets else None
        datasets.append(gathering.describe(table, MISSING.value, LEAVE_OUT.value, first))
    return datasets


def _read_delimiter() -> str | None:
    """Return the separator of values in CSV; None if it should be detected."""
    delimiter = DELIMITER.value
    if delimiter is None:
        return None
    # Accept \t and tab, because a tab character is hard to type in a shell.
    delimiter = "\t" if delimiter in ("\\t", "tab") else delimiter
    is_one = len(delimiter) == 1 and delimiter not in '"\r\n'
    checks.require(is_one, "--delimiter", "be one character, not a quote", delimiter)
    return delimiter


def _read_run(arguments: Sequence[str]) -> list[facts.Dataset]:
    del arguments
    experiment, model_dir = app.load()
    files = [*app.GIN_FILE.value, *experiment.files_read, *INPUT.value]
    for where, path in _find_outputs().items():
        endings = ("html", "pb", "pbtxt")
        guard = scoring.Protection(files=files, model_dir=model_dir, where=where, endings=endings)
        guard.check(path)
    if INPUT.value:
        patterns, kind = INPUT.value, INPUT_FORMAT.value
        return runs.describe_input(experiment, model_dir, patterns, kind, LEAVE_OUT.value)
    return runs.describe_splits(experiment, model_dir, SPLITS.value, LEAVE_OUT.value)


def _write_outputs(
    datasets: Sequence[facts.Dataset], comparison: drift.Compared | None, threshold: float
) -> None:
    if OUTPUT.value:
        page.write(OUTPUT.value, datasets, comparison, threshold)
        print(f"Page: {OUTPUT.value}", file=sys.stderr)
    if STATISTICS.value:
        content = metadata.write_statistics(datasets, STATISTICS.value.endswith(_TEXT))
        _write_file("--statistics", STATISTICS.value, content)
    if SCHEMA.value:
        content = metadata.write_schema(datasets[0], SCHEMA.value.endswith(_TEXT))
        _write_file("--schema", SCHEMA.value, content)


def _write_file(where: str, path: str, content: bytes) -> None:
    with storage.writing(where, "a file", path):
        atomic.write(path, content)
    print(f"{where.removeprefix('--').capitalize()}: {path}", file=sys.stderr)


def _end_on_drift(failures: Sequence[str], threshold: float) -> None:
    """End the process with exit code 1 and one line if fields have drifted."""
    if failures:
        line = f"Drift above {threshold:g} in {len(failures)} fields: {'. '.join(failures)}."
        print(checks.UserError(line), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    app.run_on_files(main)
