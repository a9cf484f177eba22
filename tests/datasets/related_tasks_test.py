import numpy as np
import pytest

from mtl import checks, spec
from mtl.data import pipeline
from mtl.datasets import related_tasks

ROWS = {"train": 2500, "validation": 30, "test": 7}


def read(split="train", dimension=5, **settings):
    source = related_tasks.RelatedTasks(dimension=dimension, **{"rows": ROWS, **settings})
    names = dict.fromkeys(related_tasks.TASKS, "float32")
    made = spec.Spec(features={"x": ("float32", (dimension,))}, labels=names)
    data = pipeline.Pipeline(source=source, spec=made, batch_size=1000)
    batches = list(data.dataset(split, training=False, seed=0).as_numpy_iterator())
    merged = [{**features, **labels} for features, labels in batches]
    return {name: np.concatenate([batch[name] for batch in merged]) for name in merged[0]}


@pytest.mark.parametrize("correlation", [-1.0, 0.0, 0.6, 1.0])
def test_weights_have_the_length_and_the_cosine_that_are_set(correlation):
    source = related_tasks.RelatedTasks(correlation=correlation, scale=3.0, dimension=7)
    expected = 9 * np.array([[1, correlation], [correlation, 1]])
    np.testing.assert_allclose(source.weights.T @ source.weights, expected, atol=1e-12)


def test_labels_are_those_of_the_equation():
    values = read(noise=0.0, num_sines=3, scale=2.0)
    weights = related_tasks.RelatedTasks(dimension=5, scale=2.0).weights
    sums = values["x"].astype(float) @ weights
    expected = sums + np.sin(sums) + np.sin(2 * sums + 1) + np.sin(3 * sums + 4)
    labels = np.stack([values["first"], values["second"]], 1)
    np.testing.assert_allclose(labels, expected, atol=2e-5)


def test_inputs_are_standard_normal_and_noise_has_its_deviation():
    values, exact = read(noise=0.5), read(noise=0.0)
    np.testing.assert_array_equal(values["x"], exact["x"])
    assert values["x"].mean() == pytest.approx(0, abs=0.03)
    assert values["x"].std() == pytest.approx(1, abs=0.03)
    noise = [values[task] - exact[task] for task in related_tasks.TASKS]
    assert np.std(noise) == pytest.approx(0.5, abs=0.02)
    assert np.corrcoef(noise)[0, 1] == pytest.approx(0, abs=0.06)


def test_rows_depend_on_seed_split_and_number_alone():
    values = read()
    for name, again in read(rows={"train": 1200}).items():
        np.testing.assert_array_equal(again, values[name][:1200])
    others = (read("validation"), read("test"), read(seed=1), read(correlation=1.0))
    assert [len(other["x"]) for other in others] == [30, 7, 2500, 2500]
    inputs = [values["x"][0], *(other["x"][0] for other in others[:3]), values["x"][1000]]
    assert len({tuple(row) for row in inputs}) == 5
    np.testing.assert_array_equal(others[3]["x"], values["x"])
    np.testing.assert_array_equal(others[3]["first"], values["first"])


def test_a_scan_draws_the_same_rows():
    source = related_tasks.RelatedTasks(dimension=5, rows=ROWS)
    made = spec.Spec(features={"x": ("float32", (5,))}, labels={"second": "float32"})
    (*_, (location, row)) = source.scan("test", made)
    values = read("test")
    assert location == "RelatedTasks split 'test' row 6"
    assert row == {"x": values["x"][6].tolist(), "second": values["second"][6]}


def test_mistakes_are_one_line():
    for settings, message in (
        ({"correlation": 1.5}, r"correlation must be in \[-1, 1\], got 1.5"),
        ({"dimension": 1}, "dimension must be at least 2, got 1"),
        ({"noise": -0.1}, "noise must be at least 0"),
        ({"scale": 0}, "scale must be above 0"),
        ({"rows": {"tset": 5}}, "rows must be one of .* Did you mean 'test'"),
        ({"rows": {"test": 0}}, r"rows\['test'\] must be at least 1"),
    ):
        with pytest.raises(checks.UserError, match=f"RelatedTasks.{message}"):
            related_tasks.RelatedTasks(**settings)
    with pytest.raises(checks.UserError, match="split must be one of .* Did you mean 'test'"):
        read("tset")
    source = related_tasks.RelatedTasks(dimension=4, rows=ROWS)
    for features, message in (
        ({"x": ("float32", (5,))}, r"'x' must have shape \(4,\), got \(5,\)"),
        ({"z": "float32"}, "'z' must be one of"),
        ({"x": ("int64", (4,))}, "'x' must be float32"),
    ):
        wrong = spec.Spec(features=features, labels={"first": "float32"})
        with pytest.raises(checks.UserError, match=message):
            pipeline.Pipeline(source=source, spec=wrong).dataset("test", training=False, seed=0)
