"""Explains a trained model: importance of fields, single predictions, dependence, gradients.

python -m launch.explain --model_dir runs/adult --checkpoint best
python -m launch.explain --model_dir runs/adult --rows 0,17 --class income='>50K' --output why.html
python -m launch.explain --model_dir runs/adult --tasks income --group age,education --output out/
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable

from absl import flags

from launch import app
from mtl import checks, deferred
from mtl.deferred import tf
from mtl.files import storage
from mtl.tools.explaining import settings

with deferred.imports():
    from mtl.checkpoints import run_directory
    from mtl.tools import scoring
    from mtl.tools.explaining import describe, explanation, tables
    from mtl.tools.reports import report

_log = logging.getLogger("mtl.tools.explaining")

_DEFAULTS = settings.Settings()
_PAGE = "explain.html"
# The seconds between two progress lines on standard error.
_SECONDS = 3.0

CHECKPOINT = app.define_checkpoint()
SPLIT = flags.DEFINE_string("split", None, "The split of the rows. (default: Pipeline.eval_split)")
LIMIT = flags.DEFINE_integer("limit", _DEFAULTS.limit, "The number of random rows of the split.")
OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "A page that ends in .html, or a folder, which also gets the tables as CSV. (default: the "
    "folder explained in --model_dir)",
)
TASKS = flags.DEFINE_list("tasks", [], "The tasks, with commas between them. (default: all)")
FIELDS = flags.DEFINE_list("fields", [], "The fields to permute. (default: all)")
GROUP = flags.DEFINE_multi_string(
    "group", [], "Fields, with commas between them, to permute together as well. Repeatable."
)
REPEATS = flags.DEFINE_integer(
    "repeats", _DEFAULTS.repeats, "The number of permutations of each field."
)
ROWS = flags.DEFINE_list(
    "rows",
    [str(row) for row in _DEFAULTS.rows],
    "The numbers of the rows to explain, from 0 on.",
)
CLASS = flags.DEFINE_multi_string(
    "class",
    [],
    "TASK=CLASS: the class to explain, instead of the class with the largest logit. Repeatable.",
)
STEPS = flags.DEFINE_integer(
    "steps", _DEFAULTS.steps, "The number of points of integrated gradients."
)
BASELINE = flags.DEFINE_string(
    "baseline", _DEFAULTS.baseline, "The baseline: mean (of the encoded rows) or zeros."
)
DEPENDENCE = flags.DEFINE_list(
    "dependence", [], "The fields for partial dependence. (default: the most important fields)"
)
BATCHES = flags.DEFINE_integer(
    "batches", _DEFAULTS.batches, "The number of batches for a comparison of gradients, or 0."
)


def main() -> None:
    """Write the page, and the tables, that the flags describe."""
    checks.require(bool(app.MODEL_DIR.value), "--model_dir", "name the folder of a run", None)
    explanation_settings = _read_settings()
    experiment, model_dir = app.load()
    output = OUTPUT.value or os.path.join(model_dir, "explained")
    is_page = output.endswith(".html")
    folder = os.path.dirname(output) if is_page else output
    _check_output(output, folder, is_page)
    paths = [output] if is_page else [os.path.join(folder, n) for n in (_PAGE, *tables.NAMES)]
    files = [*app.GIN_FILE.value, *experiment.files_read]
    # The output may be in the folder of the run, but must not replace files of the run.
    guard = scoring.Protection(files=files, model_dir=model_dir, endings=("html", "csv"))
    for path in paths:
        guard.check(path)
    # Check that the folder is writable before the long computation.
    run_directory.require_writable("--output", folder or ".")
    results = explanation.explain_run(experiment, model_dir, explanation_settings, _tell_progress())
    report.write(paths[0], describe.describe(results))
    print(f"Explained: {paths[0]}")
    for path in () if is_page else tables.write_tables(folder, results):
        print(f"  {path}", file=sys.stderr)
    for line in results.left_out:
        print(f"  Left out: {line}", file=sys.stderr)


def _check_output(output: str, folder: str, is_page: bool) -> None:
    is_free = not folder or not tf.io.gfile.exists(folder) or tf.io.gfile.isdir(folder)
    # A name with an ending, such as "why.htm", is probably a misspelt page, and not a folder.
    is_named = is_page or output.endswith("/") or not os.path.splitext(output)[1]
    fits = is_free and (is_named or tf.io.gfile.isdir(output))
    checks.require(fits, "--output", "end in .html or be a folder", output)
    if not is_page:
        storage.require_possible("--output", folder, "a folder", output)


def _read_settings() -> settings.Settings:
    classes = {}
    for text in CLASS.value:
        task, sign, name = text.partition("=")
        checks.require(bool(sign and task), "--class", "be TASK=CLASS", text)
        classes[task] = name
    for row in ROWS.value:
        checks.require(row.strip().isdecimal(), "--rows", "hold numbers of rows, from 0 on", row)
    return settings.Settings(
        checkpoint=CHECKPOINT.value,
        split=SPLIT.value,
        limit=LIMIT.value,
        tasks=TASKS.value,
        fields=FIELDS.value,
        groups=[[name.strip() for name in group.split(",")] for group in GROUP.value],
        repeats=REPEATS.value,
        # Remove repeated rows, and keep the order in the flag.
        rows=list(dict.fromkeys(map(int, ROWS.value))),
        classes=classes,
        steps=STEPS.value,
        baseline=BASELINE.value,
        dependence=DEPENDENCE.value,
        batches=BATCHES.value,
    )


def _tell_progress() -> Callable[[str], None]:
    """Return a function that logs progress, with at most one line in `_SECONDS`."""
    # Start the clock now, so that a short computation logs nothing.
    last = time.monotonic()

    def tell(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS:
            last = time.monotonic()
            _log.info("Explaining: %s", line)

    return tell


if __name__ == "__main__":
    app.run(main)
