"""Shows runs side by side: settings that differ, metrics, seeds, curves, speed and size.

python -m launch.compare runs/a runs/b runs/c
python -m launch.compare runs/a runs/b --csv runs.csv --html runs.html
python -m launch.compare --runs runs --metric income/auc
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from absl import flags

from launch import app
from mtl import checks, deferred
from mtl.configs import config
from mtl.files import storage

with deferred.imports():
    from mtl.tools import scoring
    from mtl.tools.reports import comparison, comparison_text, record

MODEL_DIRS = flags.DEFINE_list(
    "model_dirs", [], "The folders of the runs, with commas between them, instead of arguments."
)
RUNS = flags.DEFINE_string(
    "runs", None, "A folder of runs, which are sorted by --metric, instead of single folders."
)
METRIC = flags.DEFINE_string("metric", None, "The metric to sort by, such as income/auc.")
CSV = flags.DEFINE_string("csv", None, "A file for the comparison as CSV, a line for each run.")
HTML = flags.DEFINE_string("html", None, "A file for the comparison as a page, with curves.")

_FILE = "config.gin"
_WIDTH = 100
# The largest number of metrics that an error lists.
_MOST_NAMES = 20


def _check_endings() -> None:
    for flag, ending in ((CSV, ".csv"), (HTML, ".html")):
        if flag.value:
            fits = flag.value.endswith(ending)
            checks.require(fits, f"--{flag.name}", f"end in {ending}", flag.value)


def main(arguments: list[str]) -> None:
    """Compare the runs that the arguments and flags name, and print tables.

    Args:
      arguments: the folders of the runs.

    Raises:
      UserError: a folder is not a run, or a flag is wrong.
    """
    _check_endings()
    folders = _find_folders([*arguments, *MODEL_DIRS.value])
    if RUNS.value:
        checks.require(METRIC.value is not None, "--metric", "come with --runs", None)
    else:
        checks.require(METRIC.value is None, "--metric", "come with --runs", METRIC.value)
    # Read all runs before printing, so that an error in a folder comes before any table.
    runs = dict(zip(comparison_text.iterate_names(folders), map(_read_run, folders), strict=True))
    _protect_runs(runs)
    runs = _with_metric(runs) if RUNS.value else runs
    # Runs with different tasks can be sorted by a metric of one task, but not by a metric of
    # several tasks.
    if not RUNS.value or HTML.value or "/" not in METRIC.value:
        comparison.require_same_tasks(runs)
    result = comparison.compare(runs)
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    if RUNS.value:
        print(comparison_text.rank(result, METRIC.value, width))
        order = comparison.sort_by(result, METRIC.value)
    else:
        print(comparison_text.describe(result, width))
        order = list(runs)
    if CSV.value:
        comparison_text.write_csv(CSV.value, result)
        print(f"CSV: {CSV.value}", file=sys.stderr)
    if HTML.value:
        # Import jinja2 with these modules only if a page is written.
        from mtl.tools.reports import comparison_page, report

        report.write(HTML.value, comparison_page.describe(result, order))
        print(f"Page: {HTML.value}", file=sys.stderr)


def _find_folders(folders: Sequence[str]) -> list[str]:
    """Return the folders of the runs.

    Raises:
      UserError: --runs has no run, there are fewer than two folders, or a folder is named twice.
    """
    if RUNS.value:
        checks.require(not folders, "--runs", "come without single folders", folders)
        storage.require_path("--runs", RUNS.value)
        paths = [os.path.join(RUNS.value, name) for name in _list_names(RUNS.value)]
        # Leave out folders that are not runs.
        run_paths = [path for path in paths if storage.exists(os.path.join(path, _FILE))]
        checks.require(bool(run_paths), "--runs", f"hold folders with a {_FILE}", RUNS.value)
        return run_paths
    # Compare real paths, because "runs/a" and "runs/a/" are the same run.
    real_paths = [os.path.realpath(folder) for folder in folders]
    pairs = zip(folders, real_paths, strict=True)
    repeated = [folder for folder, path in pairs if real_paths.count(path) > 1]
    checks.require(not repeated, "the folders", "be named once each", repeated)
    fix = "Or set --runs FOLDER and --metric TASK/METRIC."
    checks.require(len(folders) > 1, "the folders", "be two runs or more", list(folders), fix)
    return list(folders)


def _list_names(folder: str) -> list[str]:
    return [os.path.basename(path) for path in storage.listed(folder)]


def _read_run(folder: str) -> record.Run:
    storage.require_path("the folder", folder)
    if not storage.exists(os.path.join(folder, _FILE)):
        parent, name = os.path.split(folder.rstrip("/"))
        hint = checks.nearest(name, _list_names(parent or "."))
        checks.fail("the folder", f"hold the {_FILE} of a run", folder, hint)
    return record.read_run(config.load([config.saved_in(folder)], (), app.trusted()), folder)


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _with_metric(runs: dict[str, record.Run]) -> dict[str, record.Run]:
    """Leave out runs without the metric that --metric names, and print the names of these runs.

    Raises:
      UserError: no run has this metric.
    """
    metrics_by_run = {name: run.metrics for name, run in runs.items()}
    names = sorted(set[str]().union(*metrics_by_run.values()))
    if METRIC.value not in names:
        fix = checks.nearest(METRIC.value, names) or f"There are: {_list_some(names)}."
        rule = f"be a metric of a run in {RUNS.value}"
        checks.fail("--metric", rule, METRIC.value, fix)
    absent = [run for run, metrics in metrics_by_run.items() if METRIC.value not in metrics]
    if absent:
        print(f"Without {METRIC.value}: {', '.join(absent)}.", file=sys.stderr)
    return {name: run for name, run in runs.items() if name not in absent}


def _protect_runs(runs: dict[str, record.Run]) -> None:
    """Refuse outputs that would replace files that a run needs."""
    for run in runs.values():
        for flag in (CSV, HTML):
            if flag.value:
                scoring.Protection(
                    files=run.experiment.files_read,
                    model_dir=run.model_dir,
                    where=f"--{flag.name}",
                    # Only files with this ending may be replaced in the folder of a run.
                    endings=(flag.name,),
                ).check(flag.value)


if __name__ == "__main__":
    app.run_on_folders(main)
