"""Shows the layers of a model or the values of a tensor, or runs the model's code eagerly.

python -m launch.inspect --gin_file gin_configs/experiments/digits_shared_bottom.gin --summary
python -m launch.inspect --model_dir runs/digits --tensor network/trunk --split test --limit 4
python -m launch.inspect --model_dir runs/adult --tensor 'head/*' --rows new.csv --mode predict
python -m launch.inspect --model_dir runs/adult --eager --breakpoint
"""

from __future__ import annotations

import bdb
import functools
import sys

from absl import flags

from launch import app
from mtl import checks, deferred

with deferred.imports():
    from mtl import experiment as experiment_lib
    from mtl.files import atomic
    from mtl.tools import scoring
    from mtl.tools.debugging import (
        breakpoints,
        eager_pass,
        inspection,
        layers,
        layers_picture,
        values,
    )

CHECKPOINT = app.define_checkpoint()
SUMMARY = flags.DEFINE_boolean(
    "summary", False, "Show layers, parameters, FLOPs and tasks; the model need not be trained."
)
TENSOR = flags.DEFINE_string(
    "tensor",
    None,
    "The name of a tensor, an op or a variable, or a scope, for its last output. A pattern with * "
    "lists the names that match.",
)
EAGER = flags.DEFINE_boolean(
    "eager",
    False,
    "Run the Python code of the model eagerly, so that breakpoint() and print() see values, and "
    "compare the result with the graph.",
)
BREAKPOINT = flags.DEFINE_boolean(
    "breakpoint", False, "With --eager, stop in pdb at the first line of the network."
)
MODE = flags.DEFINE_string("mode", "eval", "The graph: eval, predict (as served) or train.")
ROWS = flags.DEFINE_string(
    "rows",
    None,
    "A file with the rows, instead of a split: CSV, JSON lines, Parquet or TFRecords.",
)
SPLIT = flags.DEFINE_string("split", None, "The split of the rows. (default: Pipeline.eval_split)")
LIMIT = flags.DEFINE_integer("limit", 4, "The number of rows, from row 0 on.")
OUTPUT = flags.DEFINE_string(
    "output", None, "A file .npz for the values, or .svg for a picture of the summary."
)


def main() -> None:
    """Print the layers, a tensor, or the result of an eager run, depending on the flags."""
    _check_flags()
    experiment, model_dir = app.load()
    if OUTPUT.value:
        files = [*app.GIN_FILE.value, *experiment.files_read]
        # Check the output before the graph is built.
        scoring.Protection(files=files, model_dir=model_dir).check(OUTPUT.value)
    if SUMMARY.value:
        _show_layers(experiment, model_dir)
        return
    # Read no labels in the mode predict, because rows for a served model have none.
    with_labels = MODE.value != "predict"
    if ROWS.value:
        batch = inspection.read_file(experiment, ROWS.value, LIMIT.value, with_labels)
    else:
        batch = inspection.read_split(experiment, SPLIT.value, LIMIT.value)
    show = _show_code if EAGER.value else _show_tensor
    show(experiment, model_dir, batch)


def _check_flags() -> None:
    """Fail unless exactly one of --summary, --tensor and --eager is set, and other flags fit."""
    modes = [f"--{flag.name}" for flag in (SUMMARY, TENSOR, EAGER) if flag.value]
    rule = "have one of --summary, --tensor and --eager"
    checks.require(len(modes) == 1, "launch.inspect", rule, ", ".join(modes) or None)
    _refuse_ignored()
    checks.one_of("--mode", MODE.value, inspection.MODES)
    checks.at_least("--limit", LIMIT.value, 1)
    has_both = ROWS.value and SPLIT.value
    checks.require(not has_both, "--split", "be left out with --rows", SPLIT.value)
    ending = ".svg" if SUMMARY.value else ".npz"
    is_named = OUTPUT.value is None or OUTPUT.value.endswith(ending)
    checks.require(is_named, "--output", f"end in {ending}", OUTPUT.value)


def _show_layers(experiment: experiment_lib.Experiment, model_dir: str) -> None:
    tree = inspection.summarize_model(experiment, model_dir)
    print(layers.draw_tree(tree, experiment.model.tasks))
    if OUTPUT.value:
        atomic.write(OUTPUT.value, layers_picture.draw(tree, experiment.model.tasks))


def _show_tensor(
    experiment: experiment_lib.Experiment, model_dir: str, batch: inspection.Batch
) -> None:
    context = inspection.open_graph(experiment, model_dir, batch, MODE.value, CHECKPOINT.value)
    with context as graph:
        if "*" in TENSOR.value:
            lines = graph.list_tensors(TENSOR.value)
            checks.require(bool(lines), "--tensor", "match a name", TENSOR.value)
            print("\n".join(" ".join(line) for line in lines))
            return
        name, value = graph.read(TENSOR.value)
    if OUTPUT.value:
        values.save(OUTPUT.value, {name: value})
        print(f"Wrote {name}, {value.dtype} {list(value.shape)}: {OUTPUT.value}", file=sys.stderr)
    else:
        print(f"{name}, {value.dtype} {list(value.shape)}")
        print(values.draw_table(value, batch.size))


def _show_code(
    experiment: experiment_lib.Experiment, model_dir: str, batch: inspection.Batch
) -> None:
    call = _call_under_pdb(experiment) if BREAKPOINT.value else eager_pass.CALL
    try:
        result = eager_pass.run_eagerly(
            experiment, model_dir, batch, MODE.value, CHECKPOINT.value, call
        )
    except bdb.BdbQuit:  # Quitting the debugger is not an error.
        print("Stopped.", file=sys.stderr)
        return
    if OUTPUT.value:
        values.save(OUTPUT.value, result.values)
        print(f"Wrote {len(result.values)} arrays: {OUTPUT.value}", file=sys.stderr)
    else:
        print(values.draw_fields(result.values, batch.size))
    print(f"Furthest from the graph: {result.deviation:.2g} at {result.furthest}", file=sys.stderr)


def _call_under_pdb(experiment: experiment_lib.Experiment) -> eager_pass.Call:
    # Take the function from the class: pdb needs its attribute `__code__`.
    network = type(experiment.model.network).__call__
    return functools.partial(breakpoints.call_under_pdb, stop_in=network)


def _refuse_ignored() -> None:
    """Fail for flags that have no effect together with the other flags."""
    ignored = []
    if SUMMARY.value:
        ignored = [(flag, "--summary") for flag in (MODE, ROWS, SPLIT, LIMIT, CHECKPOINT)]
    if TENSOR.value and "*" in TENSOR.value:
        ignored.append((OUTPUT, "a pattern"))
    if not EAGER.value:
        ignored.append((BREAKPOINT, "all but --eager"))
    for flag, beside in ignored:
        checks.require(not flag.present, f"--{flag.name}", f"be left out with {beside}", flag.value)


if __name__ == "__main__":
    app.run(main)
