"""Finds lottery tickets: prunes a run in rounds, and trains again from early weights in each round.

for ticket in tickets.train_tickets(source, experiment, "runs/digits", "runs/tickets", 5, 100):
    print(ticket.name, ticket.sparsity, ticket.metrics)

The method is by Frankle and Carbin, "The Lottery Ticket Hypothesis: Finding Sparse, Trainable
Neural Networks", 2019, arXiv:1803.03635. A lottery ticket is a pruned network whose remaining
weights go back to their initial values, or to their values after a few training steps (Frankle et
al., "Linear Mode Connectivity and the Lottery Ticket Hypothesis", 2020, arXiv:1912.05671). A ticket
is useful only if it beats two control networks: one keeps as many weights in each layer at random
places, and the other keeps the same weights as the ticket but starts from other initial values.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import checks
from mtl import experiment as experiment_lib
from mtl.checkpoints import run_directory, training_files
from mtl.checkpoints import settings as settings_lib
from mtl.data import files
from mtl.deferred import tf
from mtl.files import checksums
from mtl.runs import training
from mtl.sparsity import criteria, pruning
from mtl.tools import attached
from mtl.tools.pruning import finished_pruning

_log = logging.getLogger(__name__)

SHUFFLED, REINITIALISED = "shuffled", "reinitialised"
CONTROLS = (SHUFFLED, REINITIALISED)
FILE = "tickets.json"
"""The name of the file with the settings of a search, in the folder of its rounds."""

_OTHER_SEED = 1_000_003  # Seeds of two runs rarely differ by 1,000,003.


class Ticket(NamedTuple):
    """A sparse network after its training.

    Attributes:
      name: the name of the folder of the run that trained the network.
      model_dir: the path of the folder of the run that trained the network.
      sparsity: the share of pruned weights, in [0, 1].
      metrics: the metrics of the last evaluation.
    """

    name: str
    model_dir: str
    sparsity: float
    metrics: Mapping[str, Any]


def train_tickets(  # noqa: PLR0913  Callers name the arguments.
    source: experiment_lib.Experiment,
    experiment: experiment_lib.Experiment,
    model_dir: str,
    output_dir: str,
    rounds: int,
    step: int,
    controls: Sequence[str] = (),
    rows: int = 1024,
    on_start: Callable[[str], None] = lambda folder: None,
) -> Iterator[Ticket]:
    """Prune a run in rounds, and yield the trained network of each round.

    Each round cuts the same share of the remaining weights. A second call skips rounds that are
    finished, and continues a round that was interrupted; its settings must be the same.

    Args:
      source: the experiment of the finished run.
      experiment: `source` with a `pruning` that sets the sparsity after the last round.
      model_dir: the folder of the finished run.
      output_dir: the folder that gets a subfolder for each round.
      rounds: the number of rounds.
      step: each round starts from the weights of this step; 0 means the initial weights. To get the
        weights, the first steps of the run are repeated.
      controls: the control networks of `CONTROLS` that every round trains besides its ticket.
      rows: the number of training rows from which pruning criteria compute their scores.
      on_start: a function that gets the folder of each new run before the run trains.

    Raises:
      UserError: a setting does not fit, or `finished_pruning.choose_cut` fails.
    """
    _check_settings(source, experiment.model.pruning, step, model_dir)
    flags = {"--rounds": rounds, "--rewind_to": step, "--rows": rows}
    _require_same(flags, model_dir, experiment.model.pruning, output_dir)
    start = _take_first_steps(source, os.path.join(output_dir, "start"), step)
    before = model_dir
    for number in range(1, rounds + 1):
        name = f"round_{number}"
        find_progress = functools.partial(_find_progress, share=number / rounds)
        folder = os.path.join(output_dir, name)
        _log.info("Round %d of %d, in %s", number, rounds, folder)
        # If the folder has a checkpoint, an interrupted call has already cut the weights.
        if run_directory.find_latest(folder) is None:
            with run_directory.hold_checkpoint(before, "latest") as held:
                cut = finished_pruning.choose_cut(experiment, before, held, rows, find_progress)
            _write_cut(experiment, start, cut.masks, folder)  # Early weights with later masks.
        yield _train_ticket(experiment, folder, name, on_start)
        for control in controls:
            target = os.path.join(output_dir, f"{name}_{control}")
            _log.info("Control of this round, %s, in %s", control, target)
            if run_directory.find_latest(target) is None:
                latest = run_directory.checkpoint_path(folder, "latest")
                masks, weights = finished_pruning.read_masks(experiment, folder, latest), start
                if control == SHUFFLED:
                    masks = _shuffle_masks(masks, experiment.run.seed + number)
                else:
                    weights = _draw_anew(source, output_dir)
                _write_cut(experiment, weights, masks, target)
            yield _train_ticket(experiment, target, f"{name}_{control}", on_start)
        before = folder  # The next round cuts more weights of this round's ticket.


def _check_settings(
    source: experiment_lib.Experiment,
    parts: Sequence[pruning.Pruning],
    step: int,
    model_dir: str,
) -> None:
    """Fail unless `parts` can prune in rounds, and the first steps of the run can be repeated."""
    finished_pruning.require_parts(parts)
    for part in parts:
        rule = "keep the weights as they are, since rounds go back to early weights"
        # SparseGpt changes the remaining weights; going back to early
        # weights would undo the change.
        fits = not isinstance(part.criterion, criteria.SparseGpt)
        checks.require(fits, "Pruning.criterion", rule, part.criterion)
    rule = f"be below the steps of the run, {source.run.train_steps}"
    checks.require(0 <= step < source.run.train_steps, "--rewind_to", rule, step)
    paths = files.named_by(source.data.source, source.data.train_split, connects=True)
    fix = "Rounds repeat the first steps of the run."
    training_files.require_unchanged(paths, model_dir, fix)


def _require_same(
    flags: Mapping[str, int], model_dir: str, parts: Sequence[pruning.Pruning], output_dir: str
) -> None:
    """Record the settings of a search; fail if the folder holds rounds with other settings."""
    search = {
        **flags,
        "the step of --model_dir": run_directory.step_of(model_dir),
        "the settings of Pruning": settings_lib.canonical_text(parts),
    }
    record = os.path.join(output_dir, FILE)
    if not tf.io.gfile.exists(record):  # The search is new, or an old version of mtl began it.
        tf.io.gfile.makedirs(output_dir)
        checksums.write_json(record, search)
        return
    before = checksums.read_json(record, "Choose another folder.")
    for setting, value in search.items():
        where = f"{setting} of a search that goes on in {output_dir}"
        rule, fix = f"stay {before[setting]!r}", "Choose another --output_dir."
        checks.require(before[setting] == value, where, rule, value, fix)


class _Start(NamedTuple):
    folder: str
    path: str


def _find_progress(part: pruning.Pruning, share: float) -> float:
    """Return the share of its final sparsity that a `Pruning` has after a share of the rounds."""
    sparsity = part.final_sparsity
    # Each round keeps the same share of the weights, so (1 - sparsity) **
    # share of all weights remain.
    return (1 - (1 - sparsity) ** share) / sparsity


def _take_first_steps(source: experiment_lib.Experiment, folder: str, step: int) -> _Start:
    """Repeat the first steps of a run exactly, and return the checkpoint of `step`."""
    # Fill in the length of schedules from the whole run, because the short run has fewer steps.
    model = source.model.fill_schedules(source.run.train_steps)
    steps = max(step, 1)  # A run has at least one step; it saves step 0 before the first step.
    run = dataclasses.replace(
        source.run,
        train_steps=steps,
        checkpoint_steps=steps,
        checkpoint_secs=None,
        # Keep two checkpoints: step 0 and the last step.
        keep_checkpoints=2,
    )
    short = dataclasses.replace(source, model=model, run=run)
    training.Training(
        short, folder, on_start=lambda: None, observers=attached.list_observers(short)
    ).run()
    return _Start(folder, run_directory.checkpoint_path(folder, f"{folder}/model.ckpt-{step}"))


def _draw_anew(source: experiment_lib.Experiment, output_dir: str) -> _Start:
    """Return the first checkpoint of a run with another seed and thus other initial weights."""
    run = dataclasses.replace(source.run, seed=(source.run.seed + _OTHER_SEED) % 2**31)
    reseeded = dataclasses.replace(source, run=run)
    return _take_first_steps(reseeded, os.path.join(output_dir, "start_reinitialised"), 0)


def _write_cut(
    experiment: experiment_lib.Experiment,
    start: _Start,
    masks: finished_pruning.Arrays,
    folder: str,
) -> None:
    cut = finished_pruning.Cut(masks, {})
    finished_pruning.write_run(experiment, start.folder, start.path, cut, folder, is_served=False)


def _train_ticket(
    experiment: experiment_lib.Experiment,
    folder: str,
    name: str,
    on_start: Callable[[str], None],
) -> Ticket:
    observers = attached.list_observers(experiment)
    run = training.Training(experiment, folder, lambda: on_start(folder), observers=observers)
    metrics, _ = run.run()
    masks = finished_pruning.load_masks(run_directory.checkpoint_path(folder, "latest"))
    return Ticket(name, folder, finished_pruning.Cut(masks, {}).sparsity, metrics)


def _shuffle_masks(masks: finished_pruning.Arrays, seed: int) -> dict[str, np.ndarray]:
    """Return masks with the same number of zeros in each layer, at random places."""
    rng = np.random.default_rng(seed)
    return {name: rng.permutation(m.reshape([-1])).reshape(m.shape) for name, m in masks.items()}
