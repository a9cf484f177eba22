r"""Evaluates a trained model on a whole split, and prints every task's metrics.

    python -m launch.evaluate --model_dir runs/digits --checkpoint best

With --attacked, Experiment.attack changes the inputs such that the loss becomes large:

    python -m launch.evaluate --model_dir runs/digits --attacked \
        --gin_file runs/digits/config.gin --gin_file gin_configs/auxiliary/attack.gin

With --input it evaluates files with labels, such as last week's rows, in place of a split:

    python -m launch.evaluate --model_dir runs/adult --input 'new/*.csv'

With --curves, it writes ROC, precision and recall, reliability, histograms and confusion of every
task with classes as SVG and CSV to <model_dir>/curves.
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
    "attacked", False, "Let Experiment.attack move the inputs to raise the loss."
)
CURVES = flags.DEFINE_bool("curves", False, "Write curves of each task to <model_dir>/curves.")
SPLIT = flags.DEFINE_string("split", None, "The split to evaluate. (default: Pipeline.eval_split)")
INPUT = flags.DEFINE_multi_string(
    "input",
    [],
    "In place of a split: files or globs with labels, all CSV, JSON lines, Parquet, ORC, Feather "
    "or TFRecords. Repeatable.",
)
INPUT_FORMAT = flags.DEFINE_string(
    "input_format",
    "auto",
    "csv, jsonl, parquet or tfrecord, if the names of the files do not say it.",
)


def main() -> None:
    """Evaluate the run that the flags describe, and print a table."""
    given = INPUT.value
    rule = "be left out with --input"
    checks.require(not given or SPLIT.value is None, "--split", rule, SPLIT.value)
    experiment, model_dir = app.load()
    split = SPLIT.value
    if given:
        data, split = scoring.open_files(experiment.data, given, INPUT_FORMAT.value)
        # The files are a further split of the run's data: everything else stays.
        experiment = dataclasses.replace(experiment, data=data)
    chosen = (split, CHECKPOINT.value, ATTACKED.value, CURVES.value)
    metrics = verbs.evaluate(experiment, model_dir, *chosen)
    print(summary.metrics_table(metrics))


if __name__ == "__main__":
    app.run(main)
