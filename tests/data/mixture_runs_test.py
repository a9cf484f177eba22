"""A run on a mixture goes on to the bit from the number of a step, and is evaluated by source."""

import dataclasses
import math
import shutil

import numpy as np
import pytest

from mtl import verbs
from mtl.data import mixture, moved_rates
from mtl.optimization import schedules
from tests import tiny

pytestmark = pytest.mark.slow

LABELS = {"first": ["sign"], "second": ["kind", "size"]}


def _make(batches, **run):
    made = tiny.make(**run)
    few = {"train": tiny.rows(40, seed=5), "test": tiny.rows(20, seed=6)}
    fall = schedules.Exponential(value=2.0, decay_rate=0.5, decay_steps=10)
    source = mixture.Mixture(
        sources={"first": made.data.source, "second": tiny.Rows(splits=few)},
        labels=LABELS,
        rates={"first": fall, "second": 1.0},
        batches=batches,
        name_field="source",
    )
    fields = dataclasses.replace(made.data.spec, labels={**tiny.SPEC.labels, "source": "string"})
    data = dataclasses.replace(made.data, source=source, spec=fields)
    model = dataclasses.replace(made.model, slices={"source": list(LABELS)})
    return dataclasses.replace(made, data=data, model=model)


@pytest.mark.parametrize("batches", ["mixed", "alternating"])
def test_a_run_goes_on_from_the_number_of_a_step(tmp_path, batches):
    made = _make(batches, train_steps=20, checkpoint_steps=10)
    whole, part = tmp_path / "whole", tmp_path / "part"
    expected = tiny.train(made, whole)
    tiny.copy_until(whole, part, 10)
    shutil.rmtree(part / "input")
    # A new source, as a new process has.
    found = tiny.train(_make(batches, train_steps=20, checkpoint_steps=10), part)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert np.isfinite(value).all(), name


@pytest.mark.parametrize("batches", ["mixed", "alternating"])
@pytest.mark.parametrize("rates", [{"first": 3, "second": 1}, moved_rates.ByLosses(every=8)])
def test_tensorboard_shows_the_epochs_of_each_source(tmp_path, batches, rates):
    for steps in (20, 40):  # The second run goes on.
        made = _make(batches, train_steps=steps)
        source = dataclasses.replace(made.data.source, rates=rates)
        made = dataclasses.replace(made, data=dataclasses.replace(made.data, source=source))
        tiny.train(made, tmp_path)
    scalars = tiny.scalars(tmp_path)
    epochs = {step: [scalars[step, f"epochs/{name}"] for name in LABELS] for step in (10, 20, 40)}
    for step, (first, second) in epochs.items():
        # The sources have 96 and 40 rows, and a batch has 16.
        assert 96 * first + 40 * second == pytest.approx(16 * step, rel=1e-5)
    if isinstance(rates, dict):
        # Alternating batches have their shares over blocks of 8 steps.
        assert epochs[20] == pytest.approx([2.5, 2.0], abs=0.21 if batches == "mixed" else 0.41)


def test_a_batch_without_labels_of_a_task_has_the_loss_nan(tmp_path):
    made = _make("alternating", train_steps=16, summary_steps=1, steps_per_call=1)
    source = dataclasses.replace(made.data.source, rates={"first": 1, "second": 1})
    made = dataclasses.replace(made, data=dataclasses.replace(made.data, source=source))
    tiny.train(made, tmp_path)
    shown, spec = tiny.scalars(tmp_path), made.data.spec
    order = source.order_rows("train", spec, batch_size=16, seed=made.run.seed, is_shuffled=True)
    is_first = order.take(np.arange(16), np.array([0])) < 96
    assert 0 < sum(is_first) < 16
    for step, of_first in enumerate(is_first, 1):
        losses = {task: shown[step, f"{task}/loss"] for task in tiny.LABELS}
        absent = {task for task, loss in losses.items() if math.isnan(loss)}
        assert absent == set(LABELS["second" if of_first else "first"])
        assert shown[step, "loss"] == pytest.approx(np.nansum(list(losses.values())), rel=1e-5)


def test_evaluations_tell_the_sources_apart(tmp_path):
    made = _make("mixed", train_steps=10)
    with tiny.without_exports():
        metrics, _ = verbs.train(made, str(tmp_path))
    assert metrics["sign/average_loss@source=first"] == metrics["sign/average_loss"]
    assert math.isnan(metrics["sign/average_loss@source=second"])
    assert metrics["size/mae@source=second"] == metrics["size/mae"]
    alone = verbs.evaluate(made, str(tmp_path), split="second/test")
    assert alone["size/mae"] == pytest.approx(metrics["size/mae"], rel=1e-6)
    assert math.isnan(alone["sign/average_loss"])
