r"""Prunes a finished run in one step, or in rounds that each train again from an early step.

The run in --model_dir does not change. The pruned run and its masks are written to --output_dir;
launch.train can continue the pruned run. Bindings of --gin_file and --gin_param override the
settings of the run.

    python -m launch.prune --model_dir runs/digits --output_dir runs/digits_half \
        --gin_file gin_configs/sparsity/finished.gin --gin_param 'Pruning.sparsity = 0.5'

    python -m launch.prune --model_dir runs/digits --output_dir runs/tickets --rounds 5 \
        --gin_file gin_configs/sparsity/tickets.gin --controls shuffled,reinitialised
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from launch import app
from mtl import checks, deferred
from mtl.configs import config

with deferred.imports():
    from mtl import experiment, verbs
    from mtl.checkpoints import run_directory
    from mtl.monitoring import summary
    from mtl.tools.pruning import tickets

CHECKPOINT = app.define_checkpoint()
OUTPUT_DIR = flags.DEFINE_string(
    "output_dir", None, "The folder of the pruned run; with --rounds, of the runs of all rounds."
)
ROWS = flags.DEFINE_integer(
    "rows",
    1024,
    "The number of training rows that Wanda, Taylor, Snip and SparseGpt read.",
)
ROUNDS = flags.DEFINE_integer(
    "rounds",
    0,
    "The number of rounds, for lottery tickets. Each round cuts an equal share of the remaining "
    "weights, and trains again. 0 cuts once, and trains nothing.",
)
REWIND_TO = flags.DEFINE_integer(
    "rewind_to", 0, "With --rounds, the step of the run from which each round starts again."
)
CONTROLS = flags.DEFINE_list(
    "controls",
    [],
    "With --rounds, additional runs of each round for comparison: with shuffled masks (shuffled), "
    "with new first weights (reinitialised), or both, with a comma.",
)


def main() -> None:
    """Prune the run that the flags describe, and print its metrics before and after."""
    model_dir, output_dir = app.MODEL_DIR.value, OUTPUT_DIR.value
    checks.require(bool(model_dir), "--model_dir", "name the folder of a run", model_dir)
    checks.require(bool(output_dir), "--output_dir", "name a folder for the result", output_dir)
    # Refuse to write into the folder of the run, which must not change.
    is_same = os.path.realpath(output_dir) == os.path.realpath(model_dir)
    checks.require(not is_same, "--output_dir", "be another folder than --model_dir", output_dir)
    cluster = os.environ.get("TF_CONFIG")
    checks.require(not cluster, "TF_CONFIG", "be unset, as a single process prunes a run", cluster)
    checks.at_least("--rows", ROWS.value, 1)
    checks.at_least("--rounds", ROUNDS.value, 0)
    checks.at_least("--rewind_to", REWIND_TO.value, 0)
    for control in CONTROLS.value:
        checks.one_of("--controls", control, tickets.CONTROLS)
    file = config.saved_in(model_dir)
    # Load the run with the settings of its training, without the bindings of the flags.
    source = config.load([file], (), app.trusted())
    load = functools.partial(config.load, [file, *app.GIN_FILE.value], trusted=app.trusted())
    if ROUNDS.value:
        rule = "be latest with --rounds"
        checks.require(CHECKPOINT.value == "latest", "--checkpoint", rule, CHECKPOINT.value)
        # Before any round trains, fail if the run has no checkpoint.
        run_directory.checkpoint_path(model_dir, CHECKPOINT.value)
        _find_tickets(source, load(app.GIN_PARAM.value), model_dir, output_dir)
    else:
        for flag in (REWIND_TO, CONTROLS):
            fits = not flag.value
            checks.require(fits, f"--{flag.name}", "come with --rounds", flag.value)
        # Protect the checkpoint, which a training in another process could delete.
        with run_directory.hold_checkpoint(model_dir, CHECKPOINT.value) as path:
            # Let the pruned run end at the step of the checkpoint, so that launch.train needs a
            # larger Run.train_steps to continue.
            last = f"Run.train_steps = {run_directory.step_saved(path)}"
            target = load([*app.GIN_PARAM.value, last])
            # Keep the length of schedules, so that schedules keep their values at this step.
            model = target.model.fill_schedules(source.run.train_steps)
            target = dataclasses.replace(target, model=model)
            _prune_at_once(source, target, model_dir, output_dir, path)


def _prune_at_once(
    source: experiment.Experiment,
    target: experiment.Experiment,
    model_dir: str,
    output_dir: str,
    path: str,
) -> None:
    save = functools.partial(config.save, output_dir)
    metrics, sparsity = verbs.prune(target, model_dir, output_dir, path, ROWS.value, save)
    before = verbs.evaluate(source, model_dir, checkpoint=path)
    print(f"Cut {100 * sparsity:.1f}% of the prunable weights. Held-out metrics:\n")
    print(_make_table(target, {path: before, output_dir: metrics}))
    print("\nNext:")
    step = target.run.train_steps
    print(
        f"  python -m launch.train --model_dir {shlex.quote(output_dir)} "
        f"--gin_param 'Run.train_steps = {step + max(1, step // 4)}'"
    )
    print(f"  python -m launch.export --model_dir {shlex.quote(output_dir)}")


def _find_tickets(
    source: experiment.Experiment, target: experiment.Experiment, model_dir: str, output_dir: str
) -> None:
    rows: dict[str, Mapping[str, Any]] = {"all weights": verbs.evaluate(source, model_dir)}
    for ticket in tickets.train_tickets(
        source,
        target,
        model_dir,
        output_dir,
        ROUNDS.value,
        REWIND_TO.value,
        CONTROLS.value,
        ROWS.value,
        config.save,
    ):
        rows[f"{ticket.name}, {100 * ticket.sparsity:.1f}% cut"] = ticket.metrics
    print(f"Held-out metrics of the runs in {output_dir}:\n")
    print(_make_table(target, rows))


def _make_table(target: experiment.Experiment, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the main metrics and the metric of `Best`, with a row for each run."""
    metrics: Sequence[str] = target.model.find_main_metrics(next(iter(rows.values())))
    names = list(dict.fromkeys([*metrics, target.best.metric]))
    return summary.compare_metrics(rows, names)


if __name__ == "__main__":
    app.run(main)
