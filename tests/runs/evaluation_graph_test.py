"""Checkpoints that share the graph in which they are evaluated."""

import dataclasses

import pytest

from mtl import checks, verbs
from mtl.optimization import optimizers, update
from mtl.runs import evaluation_graph
from mtl.variables import averaging
from tests import tiny

pytestmark = pytest.mark.medium


def _make(**run):
    """With averages, which that of step 0 has none of: every checkpoint is restored its own way."""
    made = tiny.make(**run)
    average = averaging.ExponentialAverage(decay=0.9)
    moved = update.Update(optimizer=optimizers.LazyAdam(learning_rate=0.01), average=average)
    return dataclasses.replace(made, model=dataclasses.replace(made.model, update=moved))


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """A folder with checkpoints of steps 0, 4 and 8."""
    directory = tmp_path_factory.mktemp("run")
    tiny.train(_make(train_steps=8, checkpoint_steps=4), directory)
    return str(directory)


def test_each_checkpoint_has_the_metrics_of_a_graph_of_its_own(trained_run):
    made = _make()
    graph = evaluation_graph.EvaluationGraph(made, trained_run)
    expected = {
        step: verbs.evaluate(made, trained_run, checkpoint=f"{trained_run}/model.ckpt-{step}")
        for step in (0, 8)
    }
    assert {*graph.metrics, "global_step"} == set(expected[8])
    for step in (8, 0, 8):
        found = graph.evaluate(f"{trained_run}/model.ckpt-{step}", [])
        assert found == pytest.approx(expected[step], rel=0, abs=0, nan_ok=True)


def test_a_checkpoint_of_another_model_is_refused(trained_run, tmp_path):
    other = tiny.make(network=tiny.networks.SharedBottom(trunk=tiny.networks.MLP(layers=[9])))
    tiny.train(other, tmp_path)
    graph = evaluation_graph.EvaluationGraph(_make(), trained_run)
    with pytest.raises(checks.UserError, match="has shape"):
        graph.evaluate(f"{tmp_path}/model.ckpt-0", [])
