"""A funnel from its gin file to the served model: spaces, joint tasks, slices, replicas."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest

from mtl import auxiliary, checks, heads, verbs
from mtl.configs import config
from tests import tiny

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXPERIMENT = ROOT / "gin_configs" / "experiments" / "funnel.gin"
SMALL = [
    'funnel.Funnel.rows = {"train": 2000, "validation": 600}',
    "funnel.Funnel.click_bias = -0.5",
    "experiment.Run.train_steps = 30",
    "experiment.Run.checkpoint_steps = 30",
    "experiment.Run.summary_steps = 10",
    "serving.Serving.check_rows = 0",
    'model.MultiTaskModel.slices = {"market": ["DE"]}',
]
BEST = "order/auc@market=DE"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run from the gin file, its folder, and its metrics."""
    made = config.load([str(EXPERIMENT)], [*SMALL, f'checkpoints.Best.metric = "{BEST}"'])
    folder = tmp_path_factory.mktemp("funnel")
    metrics, _ = verbs.train(made, str(folder))
    return made, folder, metrics


@pytest.fixture(scope="module")
def predicted(trained):
    """{name: values} of the predictions for the validation split, and of fields of its rows."""
    made, folder, _ = trained
    found = list(verbs.predict(made, str(folder), keep=["market", "click", "order"]))
    return {name: np.array([row[name] for row in found]) for name in found[0]}


def test_the_probability_of_both_is_the_product(predicted):
    product = predicted["click/probability"] * predicted["order/probability"]
    np.testing.assert_allclose(predicted["click_and_order/probability"], product, rtol=1e-5)
    assert np.ptp(product) > 0


def test_metrics_are_over_the_space_of_each_task_and_each_slice(trained, predicted):
    _, _, metrics = trained
    click = predicted["click"] == 1
    for market in (None, "DE"):
        rows = (
            np.ones(len(click), bool) if market is None else predicted["market"] == market.encode()
        )
        suffix = "" if market is None else f"@market={market}"
        for task, label, own in (
            ("click", "click", rows),
            ("order", "order", rows & click),
            ("click_and_order", "order", rows),
        ):
            y, p = predicted[label][own], predicted[f"{task}/probability"][own].astype(np.float64)
            loss = -np.where(y == 1, np.log(p), np.log1p(-p)).mean()
            assert metrics[f"{task}/average_loss{suffix}"] == pytest.approx(loss, abs=1e-5)
            assert metrics[f"{task}/label_mean{suffix}"] == pytest.approx(y.mean(), abs=1e-6)
    both = metrics["click/average_loss"] + metrics["click_and_order/average_loss"]
    assert metrics["average_loss"] == pytest.approx(both, rel=1e-6)


def test_the_task_without_a_loss_is_trained_and_not_balanced(trained):
    _, folder, _ = trained
    tags = {tag for _, tag in tiny.scalars(folder)}
    assert "click_and_order/loss" in tags and "order/loss" not in tags
    values = tiny.variables(folder)
    assert np.abs(values["head/order/logits/bias"]).max() > 0
    assert not any(name.startswith("head/click_and_order") for name in values)


def test_a_metric_of_a_slice_chooses_the_best_checkpoint(trained):
    _, folder, metrics = trained
    best = json.loads((folder / "best" / "best.json").read_text())
    assert best["metric"] == BEST and best["value"] == pytest.approx(metrics[BEST])


def test_the_export_serves_all_three(trained):
    signature = tiny.served(trained[1], "serving_default")
    names = {name for name in signature.structured_outputs if name.endswith("/probability")}
    assert names == {f"{task}/probability" for task in ("click", "order", "click_and_order")}


def test_the_lines_of_the_page_make_the_experiment(tmp_path):
    page = (ROOT / "docs" / "funnels.md").read_text()
    blocks = re.findall(r"^```gin\n(.*?)^```$", page, re.M | re.S)
    esmm, branch, calibrator, seconds = (
        next(block for block in blocks if name in block)
        for name in ("heads.Joint.name", "order_at_once", "Calibrator", "WeightedLogistic")
    )
    names = ("auxiliary", "heads", "model")
    head = "from __gin__ import dynamic_registration\n"
    head += "".join(f"from mtl import {name}\n" for name in names)
    path = tmp_path / "page.gin"
    path.write_text(f'{head}include "{EXPERIMENT}"\n{esmm}{calibrator}{seconds}')
    tasks = ["click", "order", "click_and_order"]
    kinds = "@click/heads.Binary(), @order/heads.Binary(), @heads.Joint()"
    kinds += ", @seconds/heads.WeightedLogistic(), @ordered/heads.Binary()"
    more = f"model.MultiTaskModel.heads = [{kinds}]"
    made = config.load([str(path)], [more]).model
    assert made.loss_names == ("click", "click_and_order", "seconds", "ordered", "calibrator")
    assert made.heads[:3] == config.load([str(EXPERIMENT)], SMALL).model.heads[:3]
    assert [head.name for head in made.heads][:3] == tasks
    own = [
        f'{name}/heads.Binary.name = "{name}"'
        for name in ("cart", "order_from_cart", "order_at_once")
    ]
    binary = ", ".join(f"@{line.partition('.')[0]}.Binary()" for line in own)
    kinds = f"@heads.Joint(), @click/heads.Binary(), {binary}"
    own += [f"model.MultiTaskModel.heads = [{kinds}]", branch.strip()]
    path.write_text(f'{head}include "{EXPERIMENT}"\n')
    assert config.load([str(path)], own).model.heads[0].composes == [
        *("click", "cart", "order_from_cart", "order_at_once")
    ]


@pytest.mark.slow
def test_slices_and_replicas_train_as_the_whole_batch(tmp_path):
    losses = [
        auxiliary.InversePropensity(task="order", propensity="click"),
        auxiliary.Calibrator(after={"click": "click_and_order"}),
    ]

    def make(**run):
        made = config.load([str(EXPERIMENT)], SMALL)
        model = dataclasses.replace(made.model, auxiliary_losses=losses, slices={})
        run = dataclasses.replace(made.run, **run)
        return dataclasses.replace(made, model=model, run=run)

    values = tiny.assert_trains_in_parts(make, tmp_path, train_steps=3)
    assert "head/order/logits/kernel" in values


def test_a_task_that_nothing_teaches_is_refused():
    made = config.load([str(EXPERIMENT)], SMALL)
    click, order, joint = made.model.heads
    with pytest.raises(checks.UserError) as caught:
        dataclasses.replace(made.model, heads=[click, order])
    told = "hold a loss that trains the task 'order', whose head has no loss, got ['click']"
    assert told in str(caught.value)
    shown = dataclasses.replace(joint, has_loss=False)  # It has nothing to learn.
    order = dataclasses.replace(order, has_loss=True)
    assert dataclasses.replace(made.model, heads=[click, order, shown]).loss_names == (
        "click",
        "order",
    )
    wrong = dataclasses.replace(joint, of=["click", "orders"])
    with pytest.raises(checks.UserError) as caught:
        dataclasses.replace(made.model, heads=[click, order, wrong])
    assert "must be one of click, order, got 'orders'. Did you mean 'order'?" in str(caught.value)
    number = heads.Regression(name="order")
    with pytest.raises(checks.UserError) as caught:
        dataclasses.replace(made.model, heads=[click, number, joint])
    assert "must have a head Binary, got 'order'. It is Regression." in str(caught.value)


def test_a_slice_of_no_field_is_refused():
    with pytest.raises(checks.UserError) as caught:
        config.load([str(EXPERIMENT)], ['model.MultiTaskModel.slices = {"markt": ["DE"]}'])
    assert "MultiTaskModel.slices must be one of" in str(caught.value)
    assert "Did you mean 'market'?" in str(caught.value)
