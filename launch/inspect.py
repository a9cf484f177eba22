"""Shows the layers of a model, the values of a tensor in it, or runs its code eagerly on rows.

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
    "summary", False, "Show layers, parameters, FLOPs and tasks; needs no training."
)
TENSOR = flags.DEFINE_string(
    "tensor",
    None,
    "A tensor of the graph, an operation, a variable, or a scope, whose last output is taken. A "
    "pattern with * lists the names that match.",
)
EAGER = flags.DEFINE_boolean(
    "eager",
    False,
    "Run the Python code of the model eagerly, so that breakpoint() and print() see values, and "
    "compare it with the graph.",
)
BREAKPOINT = flags.DEFINE_boolean(
    "breakpoint", False, "Stop --eager in pdb at the first line of the network."
)
MODE = flags.DEFINE_string("mode", "eval", "The graph: eval, predict (as served) or train.")
ROWS = flags.DEFINE_string(
    "rows",
    None,
    "A file of CSV, JSON lines, Parquet or TFRecords with the rows, in place of a split.",
)
SPLIT = flags.DEFINE_string("split", None, "The split of the rows. (default: Pipeline.eval_split)")
LIMIT = flags.DEFINE_integer("limit", 4, "The number of rows, from row 0 on.")
OUTPUT = flags.DEFINE_string(
    "output", None, "A file .npz for the values, or .svg for a picture of the summary."
)


def main() -> None:
    """Print the layers, the tensors or the eager run that the flags choose."""
    _check_flags()
    experiment, model_dir = app.load()
    if OUTPUT.value:
        read = [*app.GIN_FILE.value, *experiment.files_read]
        # Before the graph is built.
        scoring.Protection(files=read, model_dir=model_dir).check(OUTPUT.value)
    if SUMMARY.value:
        _show_layers(experiment, model_dir)
        return
    # Served rows have no labels.
    with_labels = MODE.value != "predict"
    if ROWS.value:
        batch = inspection.read_file(experiment, ROWS.value, LIMIT.value, with_labels)
    else:
        batch = inspection.read_split(experiment, SPLIT.value, LIMIT.value)
    show = _show_code if EAGER.value else _show_tensor
    show(experiment, model_dir, batch)


def _check_flags() -> None:
    """Fail unless the flags choose exactly one thing to show, and go together."""
    asked = [f"--{flag.name}" for flag in (SUMMARY, TENSOR, EAGER) if flag.value]
    rule = "have one of --summary, --tensor and --eager"
    checks.require(len(asked) == 1, "launch.inspect", rule, ", ".join(asked) or None)
    _refuse_ignored()
    checks.one_of("--mode", MODE.value, inspection.MODES)
    checks.at_least("--limit", LIMIT.value, 1)
    both = ROWS.value and SPLIT.value
    checks.require(not both, "--split", "be left out with --rows", SPLIT.value)
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
    opened = inspection.open_graph(experiment, model_dir, batch, MODE.value, CHECKPOINT.value)
    with opened as graph:
        if "*" in TENSOR.value:
            found = graph.list_tensors(TENSOR.value)
            checks.require(bool(found), "--tensor", "match a name", TENSOR.value)
            print("\n".join(" ".join(line) for line in found))
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
        passed = eager_pass.run_eagerly(
            experiment, model_dir, batch, MODE.value, CHECKPOINT.value, call
        )
    # The user has left the debugger: this is not an error.
    except bdb.BdbQuit:
        print("Stopped.", file=sys.stderr)
        return
    if OUTPUT.value:
        values.save(OUTPUT.value, passed.values)
        print(f"Wrote {len(passed.values)} arrays: {OUTPUT.value}", file=sys.stderr)
    else:
        print(values.draw_fields(passed.values, batch.size))
    print(f"Furthest from the graph: {passed.deviation:.2g} at {passed.furthest}", file=sys.stderr)


def _call_under_pdb(experiment: experiment_lib.Experiment) -> eager_pass.Call:
    # pdb needs a `__code__`, which the function of the class has, but not the instance.
    network = type(experiment.model.network).__call__
    return functools.partial(breakpoints.call_under_pdb, stop_in=network)


def _refuse_ignored() -> None:
    """Refuse flags that have no effect with the chosen way to show."""
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
