"""What an evaluator doubts before it evaluates."""

import dataclasses

import pytest

from mtl import checkpoints, heads
from mtl.monitoring import doubts
from mtl.runs import evaluation
from tests import tiny


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
    assert ("best one is the first" in line) == doubted
    # With another metric, or another head, an earlier doubt is taken back.
    told = tiny.make(best=checkpoints.Best(metric="sign/auc"))
    evaluation.Evaluator(told, str(tmp_path), None)
    assert not doubts.read_all_doubts(str(tmp_path))
