r"""Evaluates a trained model on a whole split, and prints the metrics of every task.

    python -m launch.evaluate --model_dir runs/digits --checkpoint best

With --attacked, Experiment.attack changes the inputs to increase the loss:

    python -m launch.evaluate --model_dir runs/digits --attacked \
        --gin_file runs/digits/config.gin --gin_file gin_configs/auxiliary/attack.gin

With --input, the command evaluates files with labels, such as last week's rows, instead of a split:

    python -m launch.evaluate --model_dir runs/adult --input 'new/*.csv'

With --curves, the command also writes ROC, precision and recall, reliability, histograms and
confusion matrices of tasks with classes as SVG and CSV to <model_dir>/curves.
"""

import dataclasses

from absl import flags

from launch import app
from mtl import checks, deferred

with deferred.imports():
    from mtl import verbs
    from mtl.monitoring import summary
    from mtl.tools import scoring

CHECKPOINT = app.define_checkpoint()
ATTACKED = flags.DEFINE_bool(
    "attacked", False, "Let Experiment.attack change the inputs to increase the loss."
)
CURVES = flags.DEFINE_bool("curves", False, "Write curves of each task to <model_dir>/curves.")
SPLIT = flags.DEFINE_string("split", None, "The split to evaluate. (default: Pipeline.eval_split)")
INPUT = flags.DEFINE_multi_string(
    "input",
    [],
    "Files or globs with labels to evaluate instead of a split, all of one format: CSV, JSON "
    "lines, Parquet, ORC, Feather or TFRecords. Repeatable.",
)
INPUT_FORMAT = flags.DEFINE_string(
    "input_format",
    "auto",
    "The format of --input, if the names of the files do not show it: csv, jsonl, parquet or "
    "tfrecord.",
)


def main() -> None:
    """Evaluate the run that the flags describe, and print a table."""
    patterns = INPUT.value
    rule = "be left out with --input"
    checks.require(not patterns or SPLIT.value is None, "--split", rule, SPLIT.value)
    experiment, model_dir = app.load()
    split = SPLIT.value
    if patterns:
        data, split = scoring.open_files(experiment.data, patterns, INPUT_FORMAT.value)
        # Treat the files as another split of the run's data, and keep all other settings of the
        # data.
        experiment = dataclasses.replace(experiment, data=data)
    settings = (split, CHECKPOINT.value, ATTACKED.value, CURVES.value)
    metrics = verbs.evaluate(experiment, model_dir, *settings)
    print(summary.metrics_table(metrics))


if __name__ == "__main__":
    app.run(main)
