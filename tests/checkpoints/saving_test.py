"""Early stopping: when the training ends, and which checkpoint is the last."""

import pytest

from mtl import verbs
from mtl.checkpoints import best, run_directory, saving
from mtl.runs import evaluation
from tests import tiny


@pytest.mark.medium
@pytest.mark.parametrize("shared", [False, True], ids=["one process", "several processes"])
def test_the_checkpoint_that_ends_a_run_is_its_last_one(tmp_path, monkeypatch, shared):
    """Several processes sum their votes; the sum over a single process stands for it here."""
    votes, steps = saving.Votes, []
    monkeypatch.setattr(saving, "Votes", lambda interruption, _: votes(interruption, shared))
    monkeypatch.setattr(best.BestKeeper, "should_stop", lambda _: 10 in steps)
    made = tiny.make(train_steps=20, checkpoint_steps=5)
    with tiny.without_exports(), monkeypatch.context() as patched:
        patched.setattr(
            evaluation.Evaluator,
            "__call__",
            lambda _, path: steps.append(run_directory.step_in_name(path)),
        )
        verbs.train(made, str(tmp_path))
    assert steps == [5, 10]
    assert max(tiny.checkpoint_steps(tmp_path)) == 10
