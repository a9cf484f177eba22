"""A model's code run eagerly on rows, against the graphs of the same run."""

import dataclasses

import numpy as np
import pytest

from mtl import checks, mixing, networks, verbs
from mtl.tools.debugging import eager_pass, inspection
from tests import tiny

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the tiny experiment with dropout, after 4 steps."""
    model_dir = str(tmp_path_factory.mktemp("eager") / "run")
    made = tiny.make(train_steps=4)
    trunk = networks.MLP(layers=[8], batch_norm=True, dropout=0.5)
    model = dataclasses.replace(made.model, network=networks.SharedBottom(trunk=trunk))
    made = dataclasses.replace(made, model=model)
    tiny.train(made, model_dir)
    return made, model_dir


@pytest.mark.parametrize("value, of_graph", [(np.nan, 1.0), (1.0, np.nan), (1.0, np.inf)])
def test_a_value_that_is_finite_on_one_side_alone_is_furthest(value, of_graph):
    # `max` would lose a NaN that is not the first difference.
    values = {"first": np.array([1.5]), "second": np.array([value])}
    passed = eager_pass._compare_values(
        values, {"first": np.array([1.0]), "second": np.array([of_graph])}
    )
    assert passed.deviation == np.inf and passed.furthest == "second"


def test_predictions_and_losses_are_those_of_the_graph(run):
    batch = inspection.read_split(run[0], "test", 5)
    passed = eager_pass.run_eagerly(*run, batch)
    assert passed.deviation < 1e-6
    predicted = [row for row, _ in zip(verbs.predict(*run), range(5), strict=False)]
    for name in predicted[0]:
        expected = [row[name] for row in predicted]
        found = passed.values[name]
        same = np.array_equal if found.dtype.kind != "f" else np.allclose
        assert same(found, expected), name
    losses = [passed.values[f"{task}/loss"] for task in tiny.LABELS]
    np.testing.assert_allclose(passed.values["loss"], np.sum(losses))


def test_a_training_pass_drops_out_and_normalises_as_the_next_step_does(run):
    batch = inspection.read_split(run[0], "train", 12)
    passed = eager_pass.run_eagerly(*run, batch, mode="train")
    assert passed.deviation < 1e-6
    assert set(passed.values) == {f"{task}/loss" for task in tiny.LABELS}
    plain = eager_pass.run_eagerly(*run, batch)
    assert any(abs(passed.values[name] - plain.values[name]) > 1e-3 for name in passed.values)


def test_code_that_computes_otherwise_eagerly_is_seen(run, monkeypatch):
    calls = []
    plain = networks.MLP.__call__

    def changed(self, inputs, training):
        calls.append(1)
        return plain(self, inputs, training) * (1.0 if len(calls) < 3 else 1.01)

    monkeypatch.setattr(networks.MLP, "__call__", changed)
    passed = eager_pass.run_eagerly(*run, inspection.read_split(run[0], "test", 5))
    assert len(calls) == 3 and passed.deviation > 1e-4


def test_mixed_rows_of_training_are_refused(run):
    made, model_dir = run
    model = dataclasses.replace(made.model, mixing=mixing.Mixup())
    made = dataclasses.replace(made, model=model)
    batch = inspection.read_split(made, "train", 4)
    with pytest.raises(checks.UserError, match=r"MultiTaskModel\.mixing must be None to run"):
        eager_pass.run_eagerly(made, model_dir, batch, mode="train")
