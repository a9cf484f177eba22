"""Rates of a mixture that follow the losses: the decisions, what waits for them, and resumption."""

import dataclasses
import threading

import numpy as np
import pytest

from mtl import checks, heads, types, verbs
from mtl.data import mixture, moved_rates, shares
from mtl.runs import loss_rates
from tests import tiny
from tests.data import mixture_runs_test

_EVERY = 8


def _make(rates=None, batches="mixed", **run):
    made = mixture_runs_test._make(batches, **run)
    rates = rates or moved_rates.ByLosses(every=_EVERY)
    source = dataclasses.replace(made.data.source, rates=rates)
    data = dataclasses.replace(made.data, source=source)
    return dataclasses.replace(made, data=data)


def test_shares_wait_for_a_decision_and_follow_it():
    decisions = moved_rates.Decisions()
    made = moved_rates.MovedShares(decisions, [1.0, 1.0], size=4, every=10)
    decisions.publish(np.ones([2, 2]))
    sources, _ = made.deal(0, 40)
    assert np.bincount(sources).tolist() == [20, 20]
    dealt = []
    waiting = threading.Thread(target=lambda: dealt.append(made.deal(80, 120)[0]))
    waiting.start()
    waiting.join(0.2)
    assert not dealt and waiting.is_alive()
    decisions.publish(np.array([[1, 1], [1, 1], [3, 1], [1, 1]]))
    waiting.join(10)
    assert np.bincount(dealt[0]).tolist() == [30, 10]
    # The same as of rates that were known from the start.
    plan = np.repeat([[1, 1], [1, 1], [3, 1], [1, 1]], 10, axis=0)
    known = shares.Scheduled(lambda first, stop: plan[first:stop], 2, 4, at_once=10)
    np.testing.assert_array_equal(dealt[0], known.deal(80, 120)[0])


def test_an_input_without_a_training_fails_instead_of_waiting_for_ever():
    decisions = moved_rates.Decisions()
    decisions.publish(np.ones([2, 2]))
    decisions.close()
    with pytest.raises(checks.UserError, match="be read by the training that decides them"):
        decisions.wait(2, 2)


def _require_closed(made):
    """Fail if the input still waits for decisions after the training has ended."""
    decisions = made.data.source.rates.decisions
    assert decisions.is_closed
    # The coordinator of the session closed the decisions, as its thread has ended.
    assert not any(thread.name == "loss rates" for thread in threading.enumerate())


def _count_rows(folder, every=_EVERY, count=32):
    """The decided factors of a run, {interval: factors}."""
    log_factors = tiny.variables(folder)["mixture/log_factors"]
    return np.exp(log_factors[: count // every + 2])


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["mixed", "alternating"])
def test_a_run_decides_by_its_losses_and_goes_on_to_the_bit(batches, tmp_path):
    settings = {"batches": batches, "train_steps": 32, "checkpoint_steps": 12}
    made = _make(**settings)
    expected = tiny.train(made, tmp_path / "whole")
    _require_closed(made)
    factors = _count_rows(tmp_path / "whole")
    assert (factors[:3] == 1).all()  # Other intervals are compared with interval 0.
    assert factors[3:].min() > 0 and np.abs(factors[3:] - 1).max() > 1e-3
    for step in (12, 24):  # Step 12 is within an interval, and step 24 ends an interval.
        part = tmp_path / f"part_{step}"
        tiny.copy_until(tmp_path / "whole", part, step)
        # Another process has a new source, and a second training of this process has the same one.
        found = tiny.train(_make(**settings) if step == 12 else made, part)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
def test_decisions_are_means_of_ratios_of_losses(tmp_path):
    """An independent computation from the losses that TensorBoard shows, one step each."""
    power = 2.0
    rates = moved_rates.ByLosses(every=_EVERY, power=power)
    made = _make(rates, train_steps=24, summary_steps=1, steps_per_call=1)
    folder = tmp_path / "run"
    tiny.train(made, folder)
    shown = tiny.scalars(folder)
    labels = {task: [] for task in tiny.LABELS}
    order = made.data.source.order_rows(
        "train", made.data.spec, batch_size=16, seed=made.run.seed, is_shuffled=True
    )
    rows = order.take(np.arange(24), np.arange(16)).reshape(24, 16)
    first = len(tiny.SPLITS["train"]["x"])
    kind = tiny.rows(40, seed=5)["kind"]
    for step in range(24):
        is_first = rows[step] < first
        labels["sign"].append(is_first.sum())
        labels["size"].append((~is_first).sum())
        labels["kind"].append((kind[rows[step][~is_first] - first] >= 0).sum())
    means = {}
    for task, counts in labels.items():
        losses = np.nan_to_num([shown[step + 1, f"{task}/loss"] for step in range(24)])
        parts = [slice(i * _EVERY, (i + 1) * _EVERY) for i in range(3)]
        means[task] = [np.average(losses[p], weights=counts[p]) for p in parts]
    factors = _count_rows(folder, count=24)
    for interval in (1, 2):
        ratio = {task: of[interval] / of[0] for task, of in means.items()}
        expected = [ratio["sign"] ** power, ((ratio["kind"] + ratio["size"]) / 2) ** power]
        np.testing.assert_allclose(factors[interval + 2], expected, rtol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: _at(made, rates=moved_rates.ByLosses(every=3)), "ByLosses.every must be at"),
        (lambda made: _at(made, labels={**_LABELS, "second": []}), "Mixture.labels must give the"),
        (
            lambda made: dataclasses.replace(
                made, run=dataclasses.replace(made.run, train_steps=10_000)
            ),
            "ByLosses.every must be at least 10, as a run decides 1,022 times at most, got 8",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(change, message, tmp_path):
    with pytest.raises(checks.UserError, match=message):
        verbs.train(change(_make(train_steps=32)), str(tmp_path))


_LABELS = mixture_runs_test.LABELS


def _at(made, **settings):
    source = dataclasses.replace(made.data.source, **settings)
    return dataclasses.replace(made, data=dataclasses.replace(made.data, source=source))


@pytest.mark.slow
def test_a_loss_below_0_is_refused_in_a_line(tmp_path):
    made = _make(train_steps=32)
    density = heads.MixtureDensity(name="size", num_components=1)
    spread = dataclasses.replace(made.model, heads=[*made.model.heads[:2], density])
    splits = made.data.source.sources["second"].splits
    narrow = {split: {**rows, "size": rows["size"] * 1e-4} for split, rows in splits.items()}
    sources = {**made.data.source.sources, "second": tiny.Rows(splits=narrow)}
    made = dataclasses.replace(_at(made, sources=sources), model=spread)
    with pytest.raises(checks.UserError, match="must follow losses above 0"):
        tiny.train(made, tmp_path)
    _require_closed(made)


@pytest.mark.parametrize("rates", [[1, 2], "fast", {"clicks": -1}])
def test_rates_are_a_map_or_a_part(rates):
    with pytest.raises(checks.UserError, match="Mixture.rates"):
        mixture.Mixture(sources={"clicks": tiny.Rows(splits=tiny.SPLITS)}, rates=rates)


@pytest.mark.medium
@pytest.mark.parametrize("names", [["first", "second"], ["second", "first"], ["second"]])
def test_factors_are_those_of_the_sources_of_the_split(names):
    """`Mixture.splits` may order the sources in another way, or leave one to evaluations."""
    rates = moved_rates.ByLosses(every=_EVERY)
    made = _at(_make(train_steps=32), splits={"train": names}, rates=rates)
    run = types.ObservedRun(experiment=made, model_dir="run", place=made.distribution.find_place())
    tasks = loss_rates.observe(run).tasks
    assert tasks == {name: mixture_runs_test.LABELS[name] for name in names}
    order = made.data.source.order_rows(
        "train", made.data.spec, batch_size=16, seed=1, is_shuffled=True
    )
    assert list(tasks) == list(order.count_epochs(8)) == names
