"""Permutation importance beside scikit-learn's, and intervals that hold the truth."""

import numpy as np
import pytest
from sklearn import inspection, metrics, utils

from mtl import checks, verbs
from mtl.tools.explaining import importance, inputs, rows, scores
from tests.tools.explaining import conftest

FIELDS = ("a", "b", "noise")


@pytest.fixture(scope="module")
def found(run, held):
    """Importance of all inputs and a group: 5 orders."""
    experiment, folder = run
    listed = inputs.list_inputs(experiment.data.spec, experiment.model.columns, [])
    chosen = inputs.choose_inputs(listed, [], [["a", "word"]])
    orders = importance.draw_orders(held.size, 5, seed=3)
    opening = conftest.open_model(run, held, conftest.add_scores)
    with opening as made:
        return importance.measure(made, made.extra, held, chosen, orders)


def of(found, name, task, metric=None):
    """(drop, low, high) of an input and the first metric of a task, or of another one."""
    i = [one.name for one in found.inputs].index(name)
    m = next(
        place
        for place, one in enumerate(found.metrics)
        if one.task == task and metric in (None, one.name)
    )
    return found.drop[i, m], found.low[i, m], found.high[i, m]


@pytest.mark.medium
def test_rows_as_they_are_have_the_metrics_of_the_evaluation_to_the_last_digit(run, found):
    evaluated = verbs.evaluate(*run, "test")
    for metric, value in zip(found.metrics, found.base, strict=True):
        assert np.float32(value) == evaluated[f"{metric.task}/{metric.name}"], metric
    assert [(one.task, one.name) for one in found.metrics] == [
        ("first", "auc"),
        ("first", "average_loss"),
        ("second", "rmse"),
        ("second", "average_loss"),
        ("kind", "accuracy"),
        ("kind", "average_loss"),
    ]


@pytest.mark.medium
def test_a_field_matters_to_the_task_that_needs_it_and_noise_to_none(found):
    for name, task in (("a", "first"), ("b", "second"), ("items + times", "kind")):
        _, low, _ = of(found, name, task)
        assert low > 0.05
        for other in {"first", "second", "kind"} - {task}:
            drop, low, high = of(found, name, other)
            assert low <= 0 <= high or abs(drop) < 0.03
    for task in ("first", "second", "kind"):
        drop, low, high = of(found, "noise", task)
        assert low <= 0 <= high and abs(drop) < 0.03
    assert of(found, "a + word", "first")[0] > of(found, "a", "first")[0]
    assert [one.name for one in found.inputs].count("unread") == 0


@pytest.mark.medium
def test_what_a_model_does_not_look_at_changes_no_bit(run, held, open_run):
    opening = open_run(conftest.add_scores)
    with opening as made:
        orders = importance.draw_orders(held.size, 2, seed=1)
        unread = [inputs.Input("unread", ("unread",))]
        found = importance.measure(made, made.extra, held, unread, orders)
    assert not found.drop.any() and not found.error.any()


class _Model:
    """The run as scikit-learn sees it: numbers of three fields in, a score out."""

    def __init__(self, made, held, task):
        self.made, self.held, self.task = made, held, task

    def fit(self, given, labels):
        raise AssertionError

    def predict(self, given):
        fields = {name: given[:, k].astype(np.float32) for k, name in enumerate(FIELDS)}
        return self.made.predict({**self.held.features, **fields})[self.task][:, 0]


def _orders_of_sklearn(num_rows, repeats, seed):
    """The orders that permutation_importance draws for every column."""
    drawing = np.random.RandomState(utils.check_random_state(seed).randint(2**31))
    places, order, found = np.arange(num_rows), np.arange(num_rows), []
    for _ in range(repeats):
        drawing.shuffle(places)
        order = order[places]  # It permutes what it has permuted.
        found.append(order)
    return np.stack(found)


@pytest.mark.medium
@pytest.mark.parametrize("task,score", [("first", metrics.roc_auc_score), ("second", None)])
def test_it_is_that_of_scikit_learn(held, open_run, task, score):
    def rmse(labels, values):
        return -np.sqrt(np.mean((labels - values) ** 2))

    score = score or rmse
    given = np.stack([held.features[name] for name in FIELDS], 1).astype(np.float64)
    with open_run(conftest.add_scores) as made:
        expected = inspection.permutation_importance(
            _Model(made, held, task),
            given,
            held.labels[task],
            scoring=lambda own, x, y: score(y, own.predict(x)),
            n_repeats=3,
            random_state=7,
        )
        orders = _orders_of_sklearn(held.size, 3, 7)
        chosen = [inputs.Input(name, (name,)) for name in FIELDS]
        found = importance.measure(made, made.extra, held, chosen, orders)
    first = [one.task for one in found.metrics].index(task)
    np.testing.assert_allclose(found.drop[:, first], expected.importances_mean, atol=1e-6)


def _simulate(seed, num_rows, repeats):
    """(change, error) of the squared error of y = x + e, where x and where noise is permuted."""
    drawing = np.random.default_rng(seed)
    x, other, noise = drawing.normal(size=(3, num_rows))
    y = x + noise

    def score(predicted, places):
        return np.array([np.mean((predicted["y"] - y)[places] ** 2)])

    orders = importance.draw_orders(num_rows, repeats, seed)
    paired = importance.Paired(score, {"y": x + 0.3 * other}, orders)
    matters = paired.compare([{"y": x[order] + 0.3 * other} for order in orders])
    not_at_all = paired.compare([{"y": x + 0.3 * other[order]} for order in orders])
    return [(change[0], error[0]) for change, error in (matters, not_at_all)]


@pytest.mark.medium
def test_intervals_hold_the_truth_in_95_of_100_samples():
    found = np.array([_simulate(seed, 120, 3) for seed in range(200)])  # [S, 2, 2]
    # E (x' - x - e)^2 - E e^2 of x, x' of variance 1; a field that y does not know changes nothing.
    truth = np.array([2.0, 0.0])
    reach = importance._QUANTILE * found[:, :, 1]
    covered = (np.abs(found[:, :, 0] - truth) <= reach).mean(0)
    assert (covered >= 0.92).all() and (covered < 1).all()
    # Rather too wide than too narrow, and not by much.
    ratio = found[:, :, 1].mean(0) / found[:, :, 0].std(0)
    assert (ratio > 0.93).all() and (ratio < 1.5).all()


def test_inputs_are_ranked_by_the_share_of_the_largest_drop_of_a_task():
    own = [scores.Metric("x", "auc", True), scores.Metric("y", "rmse", False)]
    own.insert(1, scores.Metric("x", "average_loss", False))
    drop = np.array([[0.1, 9, 5.0], [0.2, 0, 10.0], [np.nan, 99, 9.0], [-0.3, 0, -20.0]])
    chosen = [inputs.Input(name, (name,)) for name in "abcd"]
    found = importance.Importance(chosen, own, np.zeros(3), drop, np.zeros(drop.shape))
    assert importance.rank_inputs(found) == [1, 2, 0, 3]


def test_too_few_rows_are_refused():
    few = rows.Rows("test", {"a": np.zeros(39)}, {})
    with pytest.raises(checks.UserError, match="split 'test' must have at least 40 rows, got 39"):
        importance.require_rows(few)
