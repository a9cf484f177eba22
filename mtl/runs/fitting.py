"""Fits columns, heads and samplers to the training split before the first step.

The statistics of the training split also hold the baselines of combined metrics.

fitting.fit_statistics(data, model, None, "runs/digits")     # one pass over the data
statistics = fitting.load_statistics("runs/digits")
"""

import os
from collections.abc import Iterator

from mtl import checks, transfer, types
from mtl import features as features_lib
from mtl import model as model_lib
from mtl.checkpoints import run_directory
from mtl.data import eager_pass, pipeline
from mtl.model import combined
from mtl.runs import diagnosis, plausibility
from mtl.transfer import refit


def load_statistics(model_dir: str) -> features_lib.Statistics:
    """Return the statistics that a run fitted to its training split; empty if there are no files.

    Raises:
      UserError: a file of the statistics is damaged.
    """
    return features_lib.load_statistics(os.path.join(model_dir, "statistics"))


def fit_statistics(
    data: pipeline.Pipeline,
    model: model_lib.MultiTaskModel,
    source: transfer.WarmStart | refit.Refit | None,
    model_dir: str,
    look: plausibility.Look | None = None,
) -> None:
    """Compute and write the statistics of the training split for a new run.

    `look` checks the batches that this pass over the data reads, and reads more batches only if
    necessary.

    Args:
      data: the pipeline.
      model: the model, whose columns and heads are fitted.
      source: the part that names another run, which supplies first values and maybe statistics;
        None if no other run supplies values.
      model_dir: the folder of the run.
      look: checks the labels and columns of the batches that the fit reads; None checks nothing.

    Raises:
      UserError: the run in `model_dir` was trained without statistics, or the split has a bad
        record.
    """
    directory = os.path.join(model_dir, "statistics")
    is_new = run_directory.find_latest(model_dir) is None
    label_parts = [part for part in (*model.heads, data.sampler) if part is not None]
    unfitted_parts = features_lib.missing_statistics([*model.columns, *label_parts], directory)
    if unfitted_parts and not is_new:
        features_lib.check_columns(model.columns, data.spec.features)  # Refuses misspelt names.
        rule = "hold a run with the same columns, heads and sampler, or no run"
        fix = f"It was trained without the statistics of {', '.join(unfitted_parts)}."
        checks.fail("--model_dir", rule, model_dir, fix)
    split = data.train_split
    with diagnosis.explain_run_errors(data, model, None, split):
        # One pass over the data computes the statistics and checks the labels.
        batches = _read(data, split)
        batches = look.look_at(batches) if look else batches
        features_lib.fit_columns(model.columns, batches, directory, label_parts, anew=is_new)
        if look:
            look.finish()
    features_lib.seal_statistics(directory)
    combined.keep_baselines(model.combined_metrics, directory, is_new)
    if source and is_new:
        source.take_statistics(directory, model.columns, model.heads)


def _read(data: pipeline.Pipeline, split: str) -> Iterator[tuple[types.Tensors, types.Tensors]]:
    """Yield the batches of a split; reading starts when the first batch is taken."""
    yield from eager_pass.read(data.in_large_batches(split), split)
