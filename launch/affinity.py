r"""Proposes which tasks to train together, by the affinities of tasks that a run has measured.

python -m launch.train --gin_file my.gin --gin_file gin_configs/balancing/affinity.gin \
    --model_dir runs/all
python -m launch.affinity --model_dir runs/all --models 2
python -m launch.affinity --model_dir runs/all --models 2 --overlap --tasks income,age,sex
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from absl import flags

from launch import app
from mtl import checks, deferred
from mtl.configs import config, gin_files

with deferred.imports():
    from mtl import experiment as experiment_lib
    from mtl import heads, model
    from mtl.monitoring import event_files
    from mtl.tools import affinity
    from mtl.tools.drawing import affinity_picture, pictures
    from mtl.tools.reports import grouping

_HEADS = "heads"

MODELS = flags.DEFINE_integer("models", 2, "The largest number of models to train.")
TASKS = flags.DEFINE_list("tasks", [], "The tasks to group, with commas. (default: all)")
OVERLAP = flags.DEFINE_bool(
    "overlap",
    False,
    "Let a model also train tasks of another model, if they improve its tasks.",
)


def main() -> None:
    """Print the best groups for the run that the flags describe, and the next commands."""
    model_dir = app.MODEL_DIR.value
    checks.require(bool(model_dir), "--model_dir", "name the folder of a run", model_dir)
    experiment, model_dir = app.load()
    # Leave out heads without a loss, because they have no gradient, and therefore no affinity.
    tasks = [head.name for head in experiment.model.heads_with_loss]
    for task in TASKS.value:
        checks.one_of("--tasks", task, tasks)
    checks.unique("--tasks", TASKS.value)
    # Keep the order of tasks in the run, which may differ from the order in the flag.
    tasks = [task for task in tasks if not TASKS.value or task in TASKS.value]
    curves = event_files.read_record(model_dir).curves
    pairs = affinity_picture.group(curves)
    fix = "Train with gin_configs/balancing/affinity.gin."
    rule = "be a run that has measured affinities"
    checks.require(bool(pairs), "--model_dir", rule, model_dir, fix)
    affinities = grouping.Measured.from_pairs(pairs, tasks)
    proposals = grouping.propose(affinities, MODELS.value, OVERLAP.value)
    picture, table = pictures.write(model_dir, curves, [affinity_picture])
    steps = affinities.steps
    print(f"{len(steps)} measurements, steps {steps[0]} to {steps[-1]}: {table}, {picture}\n")
    print(f"Groups for at most {MODELS.value} models:\n")
    print(grouping.describe(affinities, proposals))
    print("\nNext:")
    for number, group in enumerate(proposals[0].groups, 1):
        names = grouping.name_tasks(affinities, group.trained)
        print(f"  {_suggest_training(experiment, model_dir, number, names)}")
    for task in affinities.find_harmful_steps():
        reason = "TaskAffinity.learning_rate is too large to measure affinities"
        print(f"Warning: steps of {task!r} raise its own loss: {reason}.", file=sys.stderr)


def _suggest_training(
    experiment: experiment_lib.Experiment, model_dir: str, number: int, tasks: Sequence[str]
) -> str:
    """Return a command that trains only some of the tasks of a run."""
    # The command reads the config.gin of the run, and adds only bindings that differ.
    saved = config.saved_in(model_dir)
    bindings = gin_files.read([saved, *app.GIN_FILE.value], app.GIN_PARAM.value, app.trusted())
    folder = f"{model_dir.rstrip('/')}_{number}"
    command = ["python", "-m", "launch.train", "--gin_file", saved, "--model_dir", folder]
    listed = _list_heads(experiment, bindings, tasks)
    for param in [*filter(None, [listed]), *_list_params(experiment, bindings, tasks)]:
        command += ["--gin_param", param]
    line = " ".join(map(shlex.quote, command))
    # If Python code builds the heads, only the user knows how to build them for some tasks.
    hint = f"  # and bind MultiTaskModel.{_HEADS} to the heads of {', '.join(tasks)}"
    return line if listed else f"{line}{hint}"


def _list_params(
    experiment: experiment_lib.Experiment,
    bindings: Sequence[gin_files.Binding],
    tasks: Sequence[str],
) -> list[str]:
    """Return the bindings of a run with only some of the tasks, except for the heads."""
    params = []
    for binding in bindings:
        # The suggested run combines gradients like the measured run, but does not measure
        # affinities.
        if binding.target is affinity.TaskAffinity and binding.parameter == "surgery":
            params.append(f"MultiTaskModel.surgery = {binding.value!r}")
    task, _, metric = experiment.best.metric.partition("/")
    if metric and task not in tasks:
        # Replace the metric if it belongs to a task that the suggested run does not train.
        params.append('Best.metric = "average_loss"')
        params += ["Best.higher_is_better = None"] * (experiment.best.higher_is_better is not None)
    return params


def _list_heads(
    experiment: experiment_lib.Experiment,
    bindings: Sequence[gin_files.Binding],
    tasks: Sequence[str],
) -> str | None:
    """Return the binding for the heads of some tasks; None if the gin files do not list heads."""
    found = _find_bindings(bindings, model.MultiTaskModel, _HEADS)
    if len(found) != 1:  # Code of the user may build the model.
        return None
    binding = _follow_macro(found[0], bindings)
    named = list(binding.value) if isinstance(binding.value, (list, tuple)) else []
    blocks = _find_bindings(bindings, heads.Block, "tasks")
    if len(named) == 1 and len(blocks) == 1:
        return f"{blocks[0].name} = {list(tasks)!r}"
    if blocks or len(named) != len(experiment.model.tasks):
        return None
    head_of = dict(zip(experiment.model.tasks, named, strict=True))
    return f"{binding.name} = [{', '.join(repr(head_of[task]) for task in tasks)}]"


def _follow_macro(
    binding: gin_files.Binding, bindings: Sequence[gin_files.Binding]
) -> gin_files.Binding:
    """Return the binding of the macro that is the value of a binding; else the binding itself."""
    if not isinstance(binding.value, gin_files.Macro):
        return binding
    name = binding.value.name
    return next(b for b in _find_bindings(bindings, None, "") if b.name == name)


def _find_bindings(
    bindings: Sequence[gin_files.Binding], target: type | None, parameter: str
) -> list[gin_files.Binding]:
    """Return the bindings of a parameter; if `target` is None, return all macros.

    Args:
      bindings: all bindings of the gin files.
      target: the class that has the parameter.
      parameter: the name of the parameter; "" for macros.
    """
    last = {binding.key: binding for binding in bindings}.values()  # Later bindings win.
    return [b for b in last if b.target is target and b.parameter == parameter]


if __name__ == "__main__":
    app.run(main)
