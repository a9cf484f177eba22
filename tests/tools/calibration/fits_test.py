"""Calibration against SciPy and scikit-learn, and whole runs that are calibrated and exported."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from scipy import optimize, special

from mtl import checks, heads, verbs
from mtl.heads import calibrated as calibrated_lib
from mtl.monitoring import doubts
from mtl.tools.calibration import fits as calibration
from mtl.transfer import refit
from tests import signatures, tiny

sklearn_isotonic = pytest.importorskip("sklearn.isotonic")
tf1 = tf.compat.v1

UNFIT = np.array([1.0, 0.0])
PLACES = np.zeros(400, np.int32)


def draw(num=400, seed=0, classes=None, slope=2.5, shift=0.4):
    """Logits that are too sure by a factor, and off by a shift."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2, num)
    if classes:
        logits = rng.normal(0, 1.5, (num, classes))
        targets = np.array([rng.choice(classes, p=special.softmax(row)) for row in logits])
        return calibration.Scored(slope * logits, targets.astype(float), weights)
    logits = rng.normal(0, 1.5, num)
    targets = (rng.uniform(size=num) < special.expit(logits)).astype(float)
    return calibration.Scored(slope * logits + shift, targets, weights)


@pytest.mark.parametrize("classes", [None, 3])
def test_the_temperature_has_the_least_cross_entropy(classes):
    rows = draw(classes=classes)

    def lose(scale):
        return calibration.mean_loss(rows._replace(logits=scale * rows.logits))

    wanted = optimize.minimize_scalar(lose, bounds=(0.01, 10), method="bounded")
    assert calibration.find_scale(rows) == pytest.approx(wanted.x, rel=1e-4)
    assert wanted.x == pytest.approx(1 / 2.5, rel=0.2)


def test_the_cross_entropy_is_that_of_probabilities():
    rows = draw(classes=3)
    shares = special.softmax(rows.logits, axis=1)[np.arange(400), rows.targets.astype(int)]
    wanted = np.average(-np.log(shares), weights=rows.weights)
    assert calibration.mean_loss(rows) == pytest.approx(wanted, rel=1e-9)
    binary = draw()
    shares = special.expit(np.where(binary.targets > 0, 1, -1) * binary.logits)
    wanted = np.average(-np.log(shares), weights=binary.weights)
    assert calibration.mean_loss(binary) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("logits", ["drawn", "separable"])
def test_platts_line_has_the_least_cross_entropy_of_his_targets(logits):
    rows = draw()
    if logits == "separable":
        rows = rows._replace(logits=np.where(rows.targets > 0, 3.0, -2.0))
    positive = (rows.weights * rows.targets).sum()
    negative = rows.weights.sum() - positive
    wanted = np.where(rows.targets > 0, (positive + 1) / (positive + 2), 1 / (negative + 2))

    def lose(line):
        found = line[0] * rows.logits + line[1]
        return (rows.weights * (np.logaddexp(0, found) - wanted * found)).sum()

    best = optimize.minimize(lose, [1.0, 0.0], method="Nelder-Mead", tol=1e-10)
    np.testing.assert_allclose(calibration.fit_line(*rows, UNFIT), best.x, rtol=1e-3)


def test_the_unit_of_the_weights_changes_nothing():
    rows, found = draw(), []
    head, old = heads.Binary(name="y"), refit.Classifier(np.ones([1, 1]), np.zeros(1))
    for unit in (1.0, 1e-3):
        part = calibration.Platt(source="x", tasks=["y"], split="held")
        given = (rows.logits[:, np.newaxis], rows.targets, unit * rows.weights, PLACES)
        found.append(part.fit(head, old, [refit.Rows(*given)]))
    np.testing.assert_allclose(found[0].kernel, found[1].kernel, rtol=1e-9)
    np.testing.assert_allclose(found[0].bias, found[1].bias, rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 5, 6, 8])
def test_lines_of_many_classes_are_counted(classes):
    rows = draw()
    logits, targets, weights = (np.stack([part] * classes, axis=1) for part in rows[:3])
    scored = type(rows)(logits, targets, weights)
    head = heads.MultiLabel(name="y", classes=classes)
    part = calibration.Platt(source="x", tasks=["y"], split="held")
    text = part.calibrate(head, scored).description
    assert text.count(" z ") == min(classes, 5)
    assert text.endswith(f" and {classes - 5} more") == (classes > 5)


def test_a_head_that_ranks_backwards_has_no_line():
    rows = draw(slope=-2.5)
    head, old = heads.Binary(name="y"), refit.Classifier(np.ones([1, 1]), np.zeros(1))
    part = calibration.Platt(source="x", tasks=["y"], split="held")
    with pytest.raises(checks.UserError, match="head 'y' must rank .* right order, got -0"):
        given = (rows.logits[:, np.newaxis], rows.targets, rows.weights, PLACES)
        part.fit(head, old, [refit.Rows(*given)])


def test_a_class_of_one_kind_keeps_its_line():
    rows = draw()
    ones = np.ones_like(rows.targets)
    assert calibration.fit_line(rows.logits, ones, rows.weights, np.array([0.9, 0.2])) == (0.9, 0.2)


def test_knots_lie_on_the_isotonic_regression():
    rows = draw()
    fitted = sklearn_isotonic.IsotonicRegression().fit(
        rows.logits, rows.targets, sample_weight=rows.weights
    )
    given, calibrated = calibration.fit_knots(rows, 400)
    assert (np.diff(given) > 0).all() and (np.diff(calibrated) >= -1e-9).all()
    shares, wanted = special.expit(calibrated), fitted.predict(given)
    inner = (wanted > 0) & (wanted < 1)
    blocks = np.unique(fitted.predict(rows.logits))
    blocks = blocks[(blocks > 0) & (blocks < 1)]
    for block in blocks:  # Each block has a separate knot; logits are rounded to 0.001.
        assert np.abs(shares - block).min() < 2e-3
    assert inner.sum() >= len(blocks)


def test_blocks_that_are_most_alike_are_joined_first():
    blocks = [np.array(row) for row in ([0.0, 1, 2, 3], [0.1, 0.5, 0.52, 0.9], [1.0, 2, 2, 3])]
    joined = calibration._join(*(row.copy() for row in blocks), most=3)
    np.testing.assert_allclose(joined, [[0, 1.5, 3], [0.1, 0.51, 0.9], [1, 4, 3]])
    # .41^2 * 1 * 4 / 5 = .134 is less than .39^2 * 4 * 3 / 7 = .261, the rise of the squared error.
    joined = calibration._join(*blocks, most=2)
    np.testing.assert_allclose(joined, [[1.2, 3], [0.428, 0.9], [5, 3]])


@pytest.mark.parametrize("num_knots", [4, 7, 64])
def test_a_head_gets_as_many_knots_as_it_has(num_knots):
    given, calibrated = calibration.fit_knots(draw(), num_knots)
    assert given.shape == calibrated.shape == (num_knots,)
    assert (np.diff(given) > 0).all() and (np.diff(calibrated) >= -1e-9).all()
    assert np.isfinite(calibrated).all()


def test_logits_that_rank_backwards_have_one_block():
    rows = draw(slope=-2.5)
    given, calibrated = calibration.fit_knots(rows, 4)
    share = np.average(rows.targets, weights=rows.weights)
    np.testing.assert_allclose(special.expit(calibrated), share, rtol=1e-6)
    assert given[0] <= rows.logits.min() and given[-1] >= rows.logits.max()


def test_logits_that_differ_by_rounding_are_one():
    rng = np.random.default_rng(0)
    logits = rng.choice([-1.0, 0.5, 2.0], 300) + rng.normal(0, 1e-9, 300)
    targets = (rng.uniform(size=300) < special.expit(logits)).astype(float)
    given, _ = calibration.fit_knots(calibration.Scored(logits, targets, np.ones(300)), 8)
    assert np.diff(given).min() > 1e-3


@pytest.mark.parametrize(
    "values",
    [
        None,
        [[-2.0, -0.5], [0.0, 0.0], [1.0, 3.0]],
        [[-2.0, -0.5], [0.0, -0.5], [0.001, 6.0]],
    ],
)
def test_a_line_with_knots_is_interpolated_and_goes_on_with_a_slope_of_1(values):
    logits = np.linspace(-12, 12, 97, dtype="f")
    with tf.Graph().as_default(), tf1.Session() as session:
        with tf1.variable_scope("head/y"):
            bent = calibrated_lib.calibrate(tf.constant(logits[:, None]), 3, {}, {}, "")
        (variable,) = tf1.global_variables()
        assert variable.op.name == "head/y/knots"
        session.run(variable.initializer)
        if values:
            variable.load(np.array(values), session)
        found = session.run(bent)[:, 0]
    if not values:
        np.testing.assert_array_equal(found, logits)
        return
    given, shown = np.array(values).T
    wanted = np.interp(logits, given, shown)
    wanted += np.minimum(logits - given[0], 0) + np.maximum(logits - given[-1], 0)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def make(part=None, num_knots=0, slices=None, held=200, **settings):
    splits = {**tiny.SPLITS, "held": tiny.rows(held, seed=3)}
    made = tiny.make(splits=splits, **settings)
    own = {"knots": num_knots, "calibration_slices": slices or {}}
    sign = dataclasses.replace(made.model.heads[0], **own)
    model = dataclasses.replace(made.model, heads=[sign, *made.model.heads[1:]])
    return dataclasses.replace(made, model=model, refit=part)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "plain"
    tiny.train(make(), path)
    # Too sure, as networks are that trained for long.
    with tf.Graph().as_default(), tf1.Session() as session:
        values = tiny.variables(path)
        for name, value in values.items():
            factor = 4 if name in ("head/sign/logits/kernel", "head/kind/logits/kernel") else 1
            tf1.get_variable(name, initializer=np.asarray(value * factor, value.dtype))
        session.run(tf1.global_variables_initializer())
        latest = tf.train.latest_checkpoint(str(path))
        tf1.train.Saver().save(session, latest, write_state=False)
    return path


@pytest.mark.medium
@pytest.mark.parametrize(
    "kind, tasks, num_knots",
    [
        (calibration.Temperature, ["sign", "kind"], 0),
        (calibration.Platt, ["sign"], 0),
        (calibration.Isotonic, ["sign"], 16),
    ],
)
def test_a_calibrated_run_is_a_plain_one(kind, tasks, num_knots, source, tmp_path):
    """It is evaluated, and its export compared with the Estimator before it is published."""
    part = kind(source=str(source), tasks=tasks, split="held")
    made = make(part, num_knots, check_rows=20)
    metrics, steps = verbs.train(made, str(tmp_path))
    assert steps == 0
    assert list((tmp_path / "export" / "latest").iterdir())
    before = verbs.evaluate(make(), str(source), split="held")
    after = verbs.evaluate(made, str(tmp_path), split="held")
    for task in tasks:
        assert after[f"{task}/average_loss"] < before[f"{task}/average_loss"]
    assert after["sign/calibration_error"] < before["sign/calibration_error"]
    if kind is not calibration.Isotonic:
        assert after["sign/auc"] == before["sign/auc"]
        names = {name for name, _ in tf.train.list_variables(str(source))}
        assert names >= set(tiny.variables(tmp_path))
    # All other variables equal the variables of the source, to the bit.
    old, new = tiny.variables(source), tiny.variables(tmp_path)
    own = {f"head/{task}/logits/{name}" for task in tasks for name in ("kernel", "bias")}
    for name in set(new) - own - {"global_step", "head/sign/knots"}:
        np.testing.assert_array_equal(old[name], new[name])


@pytest.mark.medium
@pytest.mark.parametrize(
    "kind, settings, message",
    [
        (calibration.Platt, {"split": "test"}, "Platt.split must be another split than"),
        (calibration.Platt, {"split": "train"}, "Platt.split must be another split than"),
        (calibration.Platt, {"tasks": []}, "Platt.tasks must name a task"),
        (calibration.Platt, {"tasks": ["sing"]}, "Platt.tasks must be one of .*mean 'sign'"),
        (
            calibration.Platt,
            {"tasks": ["kind"]},
            "a task with a Binary or MultiLabel head, got 'MultiCl",
        ),
        (
            calibration.Temperature,
            {"tasks": ["size"]},
            "must name a task with a Binary or .*Regression",
        ),
        (calibration.Isotonic, {}, "knots of task 'sign' must be above 0 with Isotonic, got 0"),
        (calibration.Temperature, {"knots": 4}, "be 0 with Temperature, got 4. Isotonic computes"),
        (calibration.Platt, {"source": "no"}, "source must be a checkpoint, or a model_dir"),
    ],
)
def test_mistakes(kind, settings, message, source, tmp_path):
    num_knots = settings.get("knots", 0)
    given = {name: value for name, value in settings.items() if name != "knots"}
    with pytest.raises(checks.UserError, match=message):
        part = kind(**{"source": str(source), "tasks": ["sign"], "split": "held", **given})
        verbs.train(make(part, num_knots), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


SLICES = {"word": ["red", "pink"]}


@pytest.mark.medium
@pytest.mark.parametrize("kind", [calibration.Platt, calibration.Isotonic])
@pytest.mark.always
def test_each_slice_has_a_fit_of_its_own(kind, source, tmp_path):
    """Served from the feature of the row; slices with few rows, and all others, share one fit."""
    plain = make(held=900)
    before = {n: np.array(v) for n, v in _predict(plain, source).items()}
    num_knots = 16 if kind is calibration.Isotonic else 0
    part = kind(source=str(source), tasks=["sign"], split="held")
    made = make(part, num_knots, SLICES, held=900, check_rows=40)
    verbs.train(made, str(tmp_path))
    (told,) = doubts.read_doubts(str(tmp_path), "refit")
    assert told.startswith("sign where word=pink uses the calibration of all rows: split 'held' mu")
    found = _predict(made, tmp_path)["probability"]
    rows = plain.data.source.splits["held"]
    logits, targets = special.logit(np.float64(before["probability"])), rows["sign"]
    is_red = rows["word"] == b"red"
    assert 100 < is_red.sum() < 800
    for chosen, fitted in ((is_red, is_red), (~is_red, np.ones(900, bool))):
        given = calibration.Scored(logits[fitted], targets[fitted] * 1.0, np.ones(fitted.sum()))
        if num_knots:
            at, shown = calibration.fit_knots(given, num_knots)
            wanted = np.interp(logits[chosen], at, shown)  # None lies beyond the knots.
        else:
            slope, shift = calibration.fit_line(*given, UNFIT)
            wanted = slope * logits[chosen] + shift
        inner = (before["probability"][chosen] > 1e-4) & (before["probability"][chosen] < 0.9999)
        np.testing.assert_allclose(found[chosen][inner], special.expit(wanted)[inner], atol=2e-3)
    # The served model reads the feature.
    (export,) = (tmp_path / "export" / "latest").iterdir()
    served = signatures.load(export, "raw")
    asked = {name: tf.constant(rows[name][:50]) for name in ("x", "word")}
    answer = served(**asked)["sign/probability"].numpy()
    np.testing.assert_allclose(answer, found[:50], atol=1e-6)


def _predict(made, model_dir):
    rows = verbs.predict(made, str(model_dir), split="held")
    return {"probability": np.array([row["sign/probability"] for row in rows])}


def test_a_slice_whose_rows_rank_backwards_has_the_fit_of_all():
    rows, turned = draw(300, seed=1), draw(200, seed=2, slope=-2.5)
    logits, targets, weights = (np.concatenate(pair) for pair in zip(rows, turned, strict=True))
    places = np.repeat([1, 0], [300, 200])
    head = heads.Binary(name="y", calibration_slices={"x": [1]})
    old = refit.Classifier(np.ones([1, 1]), np.zeros(1))
    part = calibration.Temperature(source="x", tasks=["y"], split="held")
    new = part.fit(head, old, [refit.Rows(logits[:, np.newaxis], targets, weights, places)])
    assert (new.kernel, new.bias) == (old.kernel, old.bias)
    scale = calibration.find_scale(calibration.Scored(logits, targets, weights))
    np.testing.assert_allclose(new.behind["lines"], [[[scale], [0]]] * 2)
    (told,) = new.doubts
    assert told.startswith("y where x=1 uses the calibration of all rows: head 'y' must be right")


def test_a_class_that_a_slice_knows_nothing_of_has_the_line_of_all_rows():
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 2, (600, 3))
    targets = (rng.random((600, 3)) < special.expit(0.5 * logits + 0.3)) * 1.0
    places = np.repeat([0, 1], 300)
    targets[:300, 2] = 0
    head = heads.MultiLabel(name="y", classes=3, calibration_slices={"x": [1]})
    old, rows = (
        refit.Classifier(np.eye(3), np.zeros(3)),
        [logits, targets, np.ones((600, 3)), places],
    )
    part = calibration.Platt(source="x", tasks=["y"], split="held")
    own, whole = part.fit(head, old, [refit.Rows(*rows)]).behind["lines"]
    for number in range(3):
        every = [logits[:, number], targets[:, number], np.ones(600), UNFIT]
        np.testing.assert_allclose(whole[:, number], calibration.fit_line(*every))
        first = [column[:300] for column in every[:3]]
        wanted = whole[:, 2] if number == 2 else calibration.fit_line(*first, UNFIT)
        np.testing.assert_allclose(own[:, number], wanted)


@pytest.mark.parametrize("kind", [heads.MultiClass, heads.MultiLabel])
def test_each_row_is_moved_by_the_line_of_its_slice(kind):
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype("f")
    lines = np.arange(18.0).reshape(3, 2, 3)
    head = kind(name="y", classes=3, calibration_slices={"x": [7, (5, None)]})
    with tf.Graph().as_default(), tf1.Session() as session:
        moved = head.calibrate(tf.constant(logits), {"x": tf.constant([7, 6, 2, 5], tf.int64)})
        (variable,) = tf1.global_variables()
        session.run(variable.initializer)
        np.testing.assert_array_equal(session.run(moved), logits)
        variable.load(lines, session)
        slopes, shifts = lines[[0, 1, 2, 1]].swapaxes(0, 1)
        np.testing.assert_allclose(session.run(moved), logits * slopes + shifts, rtol=1e-6)


def test_slices_of_what_is_no_feature_are_refused():
    with pytest.raises(
        checks.UserError, match="calibration_slices of task 'sign' must be one of x"
    ):
        make(slices={"kind": [1]})


def test_one_knot_is_no_line():
    with pytest.raises(checks.UserError, match="knots of task 'y' must be 0 or at least 4, got 1"):
        heads.Binary(name="y", knots=1)
