"""Shows the layers of a model, or the values of a tensor within it for some rows.

python -m launch.inspect --gin_file gin_configs/experiments/digits_shared_bottom.gin --summary
python -m launch.inspect --model_dir runs/digits --tensor network/trunk --split test --limit 4
python -m launch.inspect --model_dir runs/adult --tensor 'head/*' --rows new.csv --mode predict
"""

import sys

from absl import flags

from launch import app
from mtl import checks, scoring
from mtl.debugging import layers, layers_picture, values
from mtl.files import atomic
from mtl.runs import inspection

CHECKPOINT = app.define_checkpoint()
SUMMARY = flags.DEFINE_boolean(
    "summary", False, "Whether to show layers, parameters, FLOPs and tasks; needs no training."
)
TENSOR = flags.DEFINE_string(
    "tensor",
    None,
    "A tensor of the graph, an operation, a variable, or a scope, whose last output is taken. A "
    "pattern with * lists the names that match.",
)
MODE = flags.DEFINE_string("mode", "eval", "The graph: eval, predict (that is served) or train.")
ROWS = flags.DEFINE_string(
    "rows", None, "A file of CSV, JSON lines or TFRecords with the rows, in place of a split."
)
SPLIT = flags.DEFINE_string("split", None, "The split of the rows. (default: Pipeline.eval_split)")
LIMIT = flags.DEFINE_integer("limit", 4, "How many rows, from the first on.")
OUTPUT = flags.DEFINE_string(
    "output", None, "A file .npz for the values, or .svg for a picture of the summary."
)


def main() -> None:
    """Print what the flags ask for."""
    is_one = SUMMARY.value != bool(TENSOR.value)
    checks.require(is_one, "launch.inspect", "have one of --summary and --tensor", TENSOR.value)
    _refuse_ignored()
    checks.one_of("--mode", MODE.value, inspection.MODES)
    checks.at_least("--limit", LIMIT.value, 1)
    both = ROWS.value and SPLIT.value
    checks.require(not both, "--split", "be left out with --rows", SPLIT.value)
    ending = ".svg" if SUMMARY.value else ".npz"
    is_named = OUTPUT.value is None or OUTPUT.value.endswith(ending)
    checks.require(is_named, "--output", f"end in {ending}", OUTPUT.value)
    experiment, model_dir = app.load()
    if OUTPUT.value:
        read = [*app.GIN_FILE.value, *experiment.files_read]
        scoring.Protection(files=read, model_dir=model_dir).check(OUTPUT.value)
    if SUMMARY.value:
        tree = inspection.summarize_model(experiment, model_dir)
        print(layers.draw_tree(tree, experiment.model.tasks))
        if OUTPUT.value:
            atomic.write(OUTPUT.value, layers_picture.draw(tree, experiment.model.tasks))
        return
    with_labels = MODE.value != "predict"
    if ROWS.value:
        batch = inspection.read_file(experiment, ROWS.value, LIMIT.value, with_labels)
    else:
        batch = inspection.read_split(experiment, SPLIT.value, LIMIT.value)
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


def _refuse_ignored() -> None:
    """Refuse flags that do nothing beside --summary or beside a pattern."""
    ignored: tuple[flags.FlagHolder, ...] = ()
    if SUMMARY.value:
        rule, ignored = "be left out with --summary", (MODE, ROWS, SPLIT, LIMIT, CHECKPOINT)
    elif "*" in TENSOR.value:
        rule, ignored = "be left out with a pattern, which lists names", (OUTPUT,)
    for flag in ignored:
        checks.require(not flag.present, f"--{flag.name}", rule, flag.value)


if __name__ == "__main__":
    app.run(main)
