"""Integrated gradients: exact where the model is linear, and beside NumPy where it is not."""

import numpy as np
import pytest
import tensorflow as tf

from mtl.tools.explaining import attributions, opened, outputs, rows

NO_ROWS = rows.Rows("test", {}, {})


def explain(by_hand, build, encoded, steps, baseline=None, place=0):
    """Attributions of the first row of {column: [N, D]}; build({column: [B, D]}) -> [B, K]."""

    def add(made):
        logits = made.logits["task"]
        names = [f"class {k}" for k in range(logits.shape[1])]
        output = outputs.Output("task", names, "probability", logits, "logit", logits)
        return attributions.build_gradients(output, made.inputs)

    made = by_hand(build, {name: value.shape[1] for name, value in encoded.items()}, add)
    baseline = baseline or attributions.make_baseline(encoded, "mean")
    return attributions.explain_row(
        made, made.extra, NO_ROWS, encoded, baseline, row=0, place=place, steps=steps
    )


def columns(seed, *sizes):
    drawing = np.random.default_rng(seed)
    return {
        f"c{k}": drawing.normal(size=(5, size)).astype(np.float32) for k, size in enumerate(sizes)
    }


def test_a_linear_model_is_told_exactly(by_hand):
    encoded = columns(1, 3, 2)
    weights = {"c0": np.array([1.0, -2, 3], np.float32), "c1": np.array([0.5, 4], np.float32)}

    def build(inputs):
        parts = [tf.linalg.matvec(inputs[name], weights[name]) for name in inputs]
        return tf.stack([tf.add_n(parts) + 7.0, -parts[0]], 1)

    found = explain(by_hand, build, encoded, steps=1)
    for name, each in encoded.items():
        expected = (each[0] - each.mean(0, dtype=np.float64)) * weights[name]
        np.testing.assert_allclose(found.details[name], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.columns[name], expected.sum(), rtol=1e-5, atol=1e-6)
    assert abs(found.residual) < 1e-5 and found.is_complete
    other = explain(by_hand, build, encoded, steps=1, place=1)
    assert other.name == "class 1" and other.columns["c1"] == 0


def test_a_small_mlp_is_told_as_numpy_does(by_hand):
    encoded, drawing = columns(2, 3, 2), np.random.default_rng(3)
    first = drawing.normal(size=(5, 4)).astype(np.float32)
    last = drawing.normal(size=(4, 1)).astype(np.float32)

    def build(inputs):
        return tf.tanh(tf.concat([inputs["c0"], inputs["c1"]], 1) @ first) @ last

    def value(x):
        return (np.tanh(x @ first.astype(np.float64)) @ last.astype(np.float64))[..., 0]

    x = np.concatenate([encoded["c0"][0], encoded["c1"][0]]).astype(np.float64)
    start = np.concatenate([encoded[name].mean(0, dtype=np.float64) for name in encoded])
    shares = (np.arange(40) + 0.5) / 40
    path, small = start + shares[:, np.newaxis] * (x - start), 1e-5
    slopes = [
        (value(path + small * unit) - value(path - small * unit)).mean() / (2 * small)
        for unit in np.eye(5)
    ]
    found = explain(by_hand, build, encoded, steps=40)
    told = np.concatenate([found.details["c0"], found.details["c1"]])
    np.testing.assert_allclose(told, (x - start) * slopes, rtol=1e-4, atol=1e-5)
    assert found.value == pytest.approx(value(x), rel=1e-5)
    assert found.start == pytest.approx(value(start), rel=1e-5)
    assert found.is_complete
    # Some 16 rows go through at once here: a path of more points is cut.
    coarse = explain(by_hand, build, encoded, steps=2)
    assert abs(found.residual) < 0.1 * abs(coarse.residual)


def test_a_jump_is_not_complete_and_is_said_to_be_not(by_hand):
    encoded = columns(4, 2)

    def build(inputs):
        # Between the baseline and the row.
        middle = (encoded["c0"][0, 0] + encoded["c0"][:, 0].mean()) / 2
        jump = tf.cast(inputs["c0"][:, :1] > middle, tf.float32)
        return 5 * jump + inputs["c0"][:, :1]

    found = explain(by_hand, build, encoded, steps=64)
    assert abs(found.residual) > 4 and not found.is_complete


def test_a_column_that_is_made_of_another_one_stands_alone():
    encoded = columns(6, 2)
    encoded["made"] = 3 * encoded["c0"]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first = tf.compat.v1.placeholder(tf.float32, [None, 2])
        inputs = {"c0": first, "made": 3 * first}
        logits = inputs["c0"][:, :1] + inputs["made"][:, 1:] ** 2
        made = opened.Opened(session, {}, {}, {}, inputs, {"task": logits}, 16)
        output = outputs.Output("task", ["x"], "value", logits, "value", logits)
        built = attributions.build_gradients(output, inputs)
        baseline = attributions.make_baseline(encoded, "zeros")
        found = attributions.explain_row(made, built, NO_ROWS, encoded, baseline, 0, 0, steps=50)
    np.testing.assert_allclose(found.columns["c0"], encoded["c0"][0, 0], rtol=1e-5)
    np.testing.assert_allclose(found.columns["made"], encoded["made"][0, 1] ** 2, rtol=1e-5)
    assert found.is_complete


def test_zeros_are_a_baseline_and_columns_without_influence_are_left_out(by_hand):
    encoded = columns(5, 2, 2)
    zeros = attributions.make_baseline(encoded, "zeros")
    assert all(not value.any() and value.shape == (2,) for value in zeros.values())
    found = explain(by_hand, lambda own: own["c0"][:, :1] ** 2, encoded, 128, zeros)
    assert list(found.columns) == ["c0"] and found.start == 0
    np.testing.assert_allclose(found.columns["c0"], encoded["c0"][0, 0] ** 2, rtol=1e-5)


def test_the_largest_logit_is_explained_or_the_class_that_is_asked_for():
    values = np.array([[0.1, 0.5], [3.0, -1.0]])
    assert attributions.choose_places(values, ["a", "b"], None).tolist() == [1, 0]
    assert attributions.choose_places(values, ["a", "b"], "b").tolist() == [1, 1]


@pytest.mark.medium
def test_predictions_of_a_run_are_told_completely(run, held, open_run):
    def add(made):
        said = {
            task: outputs.describe_output(head, made.logits[task])
            for task, head in made.heads.items()
        }
        return {task: attributions.build_gradients(one, made.inputs) for task, one in said.items()}

    with open_run(add) as made:
        encoded = made.encode(held.features)
        baseline = attributions.make_baseline(encoded, "mean")
        logits = made.predict(held.features)
        for task in ("first", "second", "kind"):
            found = attributions.explain_row(
                made, made.extra[task], held, encoded, baseline, row=5, place=0, steps=200
            )
            assert found.is_complete and set(found.columns) == set(encoded)
            assert abs(found.residual) < 0.02
            assert found.value == pytest.approx(float(logits[task][5, 0]), abs=1e-5)
    assert set(encoded) == {
        *(f"numeric_{name}" for name in ("a", "b", "noise", "number")),
        "categorical_word",
        "clicks",
    }
