"""An evaluator warns of a useless best metric, of empty slices, and of metrics that are NaN."""

import dataclasses
import types
from unittest import mock

import numpy as np
import pytest

from mtl import checkpoints, heads, verbs
from mtl.checkpoints import run_directory
from mtl.distribution import heartbeat
from mtl.monitoring import doubts
from mtl.runs import evaluation, members, training
from tests import tiny
from tests.checkpoints import leftovers_test


@pytest.mark.parametrize("requested", [False, True])
def test_a_request_to_stop_ends_a_pass_after_a_batch(requested):
    interruption = mock.Mock(requested=requested)
    passing = evaluation._Passing(interruption)
    passing.after_run(None, None)
    assert interruption.leave.call_count == requested
    assert passing.describe("model.ckpt-1", "test").endswith("'test': 1 batches")


@pytest.mark.parametrize(
    "own, best, doubted",
    [
        ([heads.Score(name="usual")], {}, True),
        ([heads.Score(name="usual")], {"metric": "usual/score_mean"}, False),
        ([heads.Score(name="usual"), heads.Binary(name="sign")], {}, False),
        ([heads.GaussianMixture(name="usual")], {}, False),
    ],
)
def test_a_best_that_no_head_tells_apart_is_doubted(own, best, doubted, tmp_path):
    made = tiny.make(best=checkpoints.Best(**best))
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, heads=own))
    evaluation.Evaluator(made, str(tmp_path), None)
    (line, *_) = [*doubts.read_all_doubts(str(tmp_path)), ""]
    assert ("best checkpoint is the first" in line) == doubted
    # With another metric, or another head, an earlier doubt is taken back.
    told = tiny.make(best=checkpoints.Best(metric="sign/auc"))
    evaluation.Evaluator(told, str(tmp_path), None)
    assert not doubts.read_all_doubts(str(tmp_path))


@pytest.mark.medium
def test_an_empty_slice_and_a_metric_that_is_no_number_are_told_once(tmp_path, caplog):
    one_class = {**tiny.SPLITS["test"], "sign": np.ones(48, np.int64)}
    made = tiny.make(
        splits={**tiny.SPLITS, "test": one_class},
        best=checkpoints.Best(metric="sign/auc", patience=2),
        checkpoint_steps=10,
    )
    model = dataclasses.replace(made.model, slices={"word": ["red", "Red"]})
    with tiny.without_exports():
        metrics, _ = verbs.train(dataclasses.replace(made, model=model), str(tmp_path))
    assert metrics["global_step"] == 20
    told = doubts.read_all_doubts(str(tmp_path))
    (empty,) = [line for line in told if "MultiTaskModel.slices" in line]
    (ends,) = [line for line in told if "Best.metric" in line]
    assert empty.startswith("Split 'test' holds no labelled row of word=Red, which")
    assert ends.startswith("Best.metric 'sign/auc' is NaN at step 10 on split 'test'")
    assert ends.endswith("and Best.patience ends the run after 2 of them in a row.")
    assert caplog.text.count("Best.metric 'sign/auc' is NaN") == 1


def test_a_chief_that_goes_on_leaves_what_waits_to_the_process_that_evaluates(tmp_path, caplog):
    """Otherwise, the chief would evaluate only the last checkpoint, and take it for the best."""
    caplog.set_level("INFO")
    paths = [str(tmp_path / f"model.ckpt-{step}") for step in (8, 9, 10)]
    for path in paths:
        leftovers_test.write(path)
        run_directory.add_checkpoint(path, keep=1, evaluated=0)
    evaluator = evaluation.Evaluator(tiny.make(), str(tmp_path), None)
    done = types.SimpleNamespace(
        wait_for=lambda *given: None, read_phase=lambda other: heartbeat.DONE
    )
    found, chief = [], types.SimpleNamespace(_is_evaluated_beside=True)

    def note(self, path):
        found.append(path)
        evaluator.keeper._write({**evaluator.keeper._goal, "last_step": int(path[-2:].strip("-"))})

    with mock.patch.object(evaluation.Evaluator, "__call__", note):
        evaluator.catch_up(is_evaluated_beside=True)
        assert training.Training._measure_last(chief, evaluator, 10) == {}
        members.tell_what_waits(evaluated=evaluator.keeper.last_step, last=10)
        assert "Checkpoints after step 0, up to 10, wait for evaluator-0." in caplog.text
        assert found == []
        members.evaluate_all(evaluator, str(tmp_path), done, None)
        assert found == paths
        caplog.clear()
        members.tell_what_waits(evaluated=evaluator.keeper.last_step, last=10)
        assert not caplog.text
        evaluator.keeper._write({**evaluator.keeper._goal, "last_step": 9})
        evaluator.catch_up()
        assert found[3:] == paths[-1:]
