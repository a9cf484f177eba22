"""Explains in one line why a run ended: a bad record, a damaged checkpoint or a failed assertion.

with diagnosis.explain_run_errors(data, model, "runs/a/model.ckpt-500", "train", "test"):
    estimator.train(...)
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from mtl import checks
from mtl import model as model_lib
from mtl.checkpoints import run_directory
from mtl.data import pipeline, source
from mtl.deferred import tf


def list_run_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of bad records, damaged checkpoints and assertions in the graph."""
    return (
        tf.errors.InvalidArgumentError,
        tf.errors.DataLossError,
        tf.errors.OutOfRangeError,
        UnicodeDecodeError,
        *pipeline.list_file_errors(),
    )


@contextlib.contextmanager
def explain_run_errors(
    data: pipeline.Pipeline,
    model: model_lib.MultiTaskModel,
    checkpoint: str | None,
    *splits: str,
) -> Iterator[None]:
    """Turn an error that a user can fix into a UserError.

    Args:
      data: the pipeline, which finds the bad record.
      model: the model, whose heads and columns check the record.
      checkpoint: the checkpoint that code in the `with` block reads; None if the code reads none.
      *splits: the splits that code in the `with` block reads.

    Raises:
      UserError: the checkpoint is damaged, a record is bad, or an assertion in the graph failed.
    """
    try:
        yield
    except list_run_errors() as error:
        # A damaged checkpoint can raise any of these errors, so check it first.
        if checkpoint:
            run_directory.require_intact(checkpoint)
        heads = [*model.heads, *model.heads_of_losses]
        # Use a generator: each diagnosis reads a split record by record, and the first problem is
        # enough.
        problems = (data.diagnose(error, split, heads, model.columns) for split in splits)
        assertion = re.search(r"assertion failed: \[(.+?)\]", source.error_text(error))
        message = next(filter(None, problems), None) or (assertion and assertion.group(1))
        if message:
            raise checks.UserError(message) from error
        raise
