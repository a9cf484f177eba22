"""Writes the results of a run to a single HTML file.

python -m launch.report --model_dir runs/digits
python -m launch.report --model_dir runs/digits --output digits.html --rows 0
"""

import os
import sys

from absl import flags

from launch import app
from mtl import checks, deferred

with deferred.imports():
    from mtl.tools import attached, scoring
    from mtl.tools.reports import report
    from mtl.tools.tracking import reporting

OUTPUT = flags.DEFINE_string(
    "output", None, "The file to write, which ends in .html. (default: report.html in --model_dir)"
)
ROWS = flags.DEFINE_integer(
    "rows",
    100_000,
    "The largest number of rows to read from the training and the evaluation split, for statistics "
    "of the data, confusion matrices, reliability, ROC and slices. 0 reads no rows, and saves "
    "seconds.",
)


def main() -> None:
    """Write the report of the run that the flags describe."""
    checks.at_least("--rows", ROWS.value, 0)
    checks.require(bool(app.MODEL_DIR.value), "--model_dir", "name the folder of a run", None)
    experiment, model_dir = app.load()
    output = OUTPUT.value or os.path.join(model_dir, "report.html")
    checks.require(output.endswith(".html"), "--output", "end in .html", output)
    files = [*app.GIN_FILE.value, *experiment.files_read]
    scoring.Protection(files=files, model_dir=model_dir, endings=("html",)).check(output)
    page = report.describe_run(experiment, model_dir, ROWS.value)
    size = report.write(output, page)
    # Send the report to the trackers of the run.
    trackers = attached.list_trackers(experiment)
    if trackers:
        with reporting.go_on(trackers, model_dir) as reporters:
            reporters.add_file(output)
    print(f"Report: {output}")
    print(f"  {size:,} bytes, {page.state}", file=sys.stderr)


if __name__ == "__main__":
    app.run(main)
