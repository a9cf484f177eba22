"""Says in one line why a run ended: a bad record, a damaged checkpoint, a failed assertion.

with diagnosis.explain_run_errors(data, model, "runs/a/model.ckpt-500", "train", "test"):
    estimator.train(...)
"""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from mtl import checks
from mtl import model as model_lib
from mtl.checkpoints import run_directory
from mtl.data import pipeline, source

# Bad records, damaged checkpoints and our own assertions raise these errors.
RUN_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.OutOfRangeError,
    UnicodeDecodeError,
    *pipeline.FILE_ERRORS,
)


@contextlib.contextmanager
def explain_run_errors(
    data: pipeline.Pipeline,
    model: model_lib.MultiTaskModel,
    checkpoint: str | None,
    *splits: str,
) -> Iterator[None]:
    """Turn errors that a user can fix, in these splits or the checkpoint, into a UserError."""
    try:
        yield
    except RUN_ERRORS as error:
        if checkpoint:
            run_directory.require_intact(checkpoint)
        heads = [*model.heads, *model.heads_of_losses]
        problems = (data.diagnose(error, split, heads, model.columns) for split in splits)
        asserted = re.search(r"assertion failed: \[(.+?)\]", source.error_text(error))
        message = next(filter(None, problems), None) or (asserted and asserted.group(1))
        if message:
            raise checks.UserError(message) from error
        raise
