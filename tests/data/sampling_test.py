import dataclasses
import math
import pathlib
import types

import gin
import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, experiment, features, heads, spec
from mtl.data import csv, label_counts, pipeline, sampling
from mtl.heads import softmax
from tests import tiny

tf1 = tf.compat.v1
COUNTS = {0: 600, 1: 300, 2: 60, 3: 30, 4: 10}
N = np.array(list(COUNTS.values()))
SPEC = spec.Spec(features={"x": "int64"}, labels={"y": "int64", "name": "string"})


def make(sampler, **settings):
    """1,000 rows with a class, and 50 without, mixed."""
    y = np.random.default_rng(0).permutation(np.repeat([*COUNTS, -1], [*N, 50]))
    names = np.array([b"ant", b"bee", b"cat", b"dog", b"emu", b""], object)[y]
    rows = {"x": np.arange(len(y)), "y": y, "name": names}
    settings = {"batch_size": 50, "shuffle_buffer": 2000, **settings}
    return pipeline.Pipeline(
        source=tiny.Rows(splits={"train": rows}), spec=SPEC, sampler=sampler, **settings
    )


def statistics(data, tmp_path, label="y"):
    batches = data.dataset("train", training=False, seed=0)
    column = features.Numeric(names=["x"])
    features.fit_columns([column], batches, str(tmp_path / "fitted"), [data.sampler])
    fitted = features.load_statistics(str(tmp_path / "fitted"))
    known = dict(zip(["ant", "bee", "cat", "dog", "emu"], N, strict=True))
    assert label_counts.read_counts(fitted, label) == (COUNTS if label == "y" else known)
    return fitted


def draw(data, fitted, epochs, seed=1, **settings):
    dataset = data.dataset("train", training=True, seed=seed, statistics=fitted, **settings)
    batches = list(dataset.take(epochs * 21).as_numpy_iterator())
    x = np.concatenate([f["x"] for f, _ in batches])
    return x, np.concatenate([labels["y"] for _, labels in batches])


def shares(y):
    return np.bincount(y[y >= 0], minlength=5) / (y >= 0).sum()


@pytest.mark.medium
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("label", ["y", "name"])
def test_classes_come_up_as_the_formula_says(exponent, label, tmp_path):
    data = make(sampling.Power(label=label, exponent=exponent))
    x, y = draw(data, statistics(data, tmp_path, label), 40)
    expected = N**exponent / (N**exponent).sum()
    # 40 passes: the standard error of a share is below 0.002.
    np.testing.assert_allclose(shares(y), expected, atol=0.008)
    # A pass draws about as many rows as there are, those without a label once.
    np.testing.assert_allclose((y == -1).sum() / 40, 50, rtol=0.02)
    seen = np.bincount(x[y == 0], minlength=1050)
    times = 40 * expected[0] * 1000 / 600
    assert seen[seen > 0].mean() == pytest.approx(times, rel=0.03)


@pytest.mark.medium
def test_progressive_goes_from_instances_to_classes(tmp_path):
    data = make(sampling.Progressive(label="y", epochs=10))
    fitted = statistics(data, tmp_path)
    _, y = draw(data, fitted, 12)
    by_pass = [shares(part) for part in np.array_split(y, 12)]
    for epoch, found in enumerate(by_pass):
        t = min(epoch / 10, 1)
        expected = (1 - t) * N / 1000 + t / 5
        np.testing.assert_allclose(found, expected, atol=0.05)
    # A run that goes on does not begin the schedule anew: 105 steps are 5 passes.
    _, later = draw(data, fitted, 1, start_step=105)
    np.testing.assert_allclose(shares(later), 0.5 * N / 1000 + 0.1, atol=0.05)


@pytest.mark.medium
def test_the_seed_decides_and_passes_differ(tmp_path):
    data = make(sampling.Power(label="y"), cache=True)
    fitted = statistics(data, tmp_path)
    draws = [draw(data, fitted, 2, seed=seed)[0].tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0][:1000] != draws[0][1000:2000]


@pytest.mark.medium
def test_shards_draw_from_their_own_records(tmp_path):
    data = make(sampling.Power(label="y"), batch_size=25)
    fitted = statistics(data, tmp_path)
    drawn = [draw(data, fitted, 4, num_shards=2, shard=i) for i in range(2)]
    assert not set(drawn[0][0]) & set(drawn[1][0])
    both = np.concatenate([y for _, y in drawn])
    np.testing.assert_allclose(shares(both), [0.2] * 5, atol=0.05)


@pytest.mark.medium
def test_in_a_graph_and_in_a_loop_inside_it(tmp_path):
    data = make(sampling.Power(label="name"))
    fitted = statistics(data, tmp_path, "name")
    expected = draw(data, fitted, 1)[0][: 4 * 50]
    with tf.Graph().as_default(), tf1.Session() as session:
        dataset = data.dataset("train", training=True, seed=1, statistics=fitted)
        iterator = tf1.data.make_initializable_iterator(dataset)

        def step(index, total):
            drawn, _ = iterator.get_next()
            return index + 1, total + tf.reduce_sum(drawn["x"])

        _, total = tf.while_loop(
            lambda i, _: i < 4, step, [0, tf.constant(0, tf.int64)], parallel_iterations=1
        )
        session.run(iterator.initializer)
        assert session.run(total) == expected.sum()


def test_lists_of_any_length_are_resampled():
    lengths = tf.ragged.constant([[1], [2, 2], [3, 3, 3], []], row_splits_dtype=tf.int64)

    class Source:
        def decode(self, batch, spec, with_labels):
            return {"y": tf.constant([0, 0, 0, 1], tf.int64)}

    records = tf.data.Dataset.from_tensor_slices({"tags": lengths})
    sampler = sampling.Power(label="y")
    field = SPEC.label_fields["y"]
    drawn = sampler(records, Source(), field, {0: 3, 1: 1}, 1, tf.constant(0, tf.int64))
    found = [element["tags"].numpy().tolist() for element in drawn]
    assert found.count([]) == 2 and all(tags in ([1], [2, 2], [3, 3, 3], []) for tags in found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("class_balanced", sampling.Power(label="y", exponent=0.0)),
        ("square_root", sampling.Power(label="y", exponent=0.5)),
        ("progressive", sampling.Progressive(label="y", epochs=30)),
    ],
)
def test_gin_files(name, expected):
    gin.clear_config()
    path = pathlib.Path(__file__).parents[2] / "gin_configs" / "sampling" / f"{name}.gin"
    kind = type(expected).__name__
    gin.parse_config([*path.read_text().splitlines(), f'sampling.{kind}.label = "y"'])
    built = gin.query_parameter("pipeline.Pipeline.sampler").scoped_configurable_fn()
    gin.clear_config()
    assert built == expected


@pytest.mark.parametrize("name", ["margin", "weights"])
def test_a_balanced_loss_and_a_balanced_sampler_correct_twice(name):
    objective = {
        "margin": softmax.CrossEntropy(margin=softmax.LogitAdjustment()),
        "weights": softmax.CrossEntropy(class_weights=softmax.EffectiveNumber()),
    }[name]
    made = tiny.make()
    head = heads.MultiClass(name="kind", classes=3, objective=objective)

    def build(exponent, label="kind"):
        sampler = sampling.Power(label=label, exponent=exponent)
        data = pipeline.Pipeline(source=made.data.source, spec=tiny.SPEC, sampler=sampler)
        model = dataclasses.replace(made.model, heads=[head])
        return experiment.Experiment(data=data, model=model, run=made.run)

    build(1.0)
    build(0.0, label="sign")
    for exponent in (0.0, 0.5):
        with pytest.raises(checks.UserError, match="correct the imbalance twice"):
            build(exponent)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (sampling.Power, {"exponent": 2}, r"Power.exponent must be in \[0, 1\], got 2"),
        (sampling.Power, {"label": "z"}, "Power.label must be one of y, name, got 'z'"),
        (sampling.Progressive, {"epochs": 0}, "Progressive.epochs must be at least 1"),
    ],
)
def test_wrong_settings(kind, settings, message):
    with pytest.raises(checks.UserError, match=message):
        make(kind(**{"label": "y", **settings}))


def test_missing_labels_of_floats_are_not_classes():
    counter = label_counts.LabelCounts(label="y")
    counter.update({"y": tf.constant([1.0, math.nan, 0.0, math.nan, 1.0])})
    counter.update({"y": tf.constant([math.nan, 1.0])})
    assert counter.save("", "") == {"values": [0.0, 1.0], "counts": [1, 3], "rows": 7}


@pytest.mark.medium
def test_the_default_of_a_label_is_its_class_also_in_a_stream(tmp_path):
    rows = [f"{x},{'0' * (x < 20)}" for x in range(100)]
    (tmp_path / "a.csv").write_text("x,y\n" + "\n".join(rows) + "\n")
    data = pipeline.Pipeline(
        source=csv.Csv(files={"train": str(tmp_path / "a.csv")}),
        spec=spec.Spec(features={"x": "int64"}, labels={"y": "int64"}, defaults={"y": 1}),
        sampler=sampling.Power(label="y"),
        batch_size=100,
        shuffle_buffer=200,
    )
    batches = data.dataset("train", training=False, seed=0)
    column = features.Numeric(names=["x"])
    features.fit_columns([column], batches, str(tmp_path / "fitted"), [data.sampler])
    fitted = features.load_statistics(str(tmp_path / "fitted"))
    drawn = data.dataset("train", training=True, seed=1, statistics=fitted).take(4)
    labels = np.concatenate([labels["y"] for _, labels in drawn])
    # A fifth of the rows have class 0, and it is due half of the draws; the standard error is 0.02.
    np.testing.assert_allclose(labels.mean(), 0.5, atol=0.08)


def test_a_stream_without_labels_is_an_error(tmp_path):
    rows = {"x": np.arange(9), "y": np.full(9, -1), "name": np.full(9, b"", object)}
    data = dataclasses.replace(
        make(sampling.Power(label="y")), source=tiny.Rows(splits={"train": rows})
    )
    batches = data.dataset("train", training=False, seed=0)
    column = features.Numeric(names=["x"])
    features.fit_columns([column], batches, str(tmp_path / "fitted"), [data.sampler])
    fitted = features.load_statistics(str(tmp_path / "fitted"))
    message = "label 'y' of the training split must be in a row, for Power, got 0"
    with pytest.raises(checks.UserError, match=message):
        data.dataset("train", training=True, seed=1, statistics=fitted)


@pytest.mark.medium
def test_a_pass_of_a_schedule_has_the_rows_without_a_label_too(tmp_path):
    y = np.random.default_rng(0).permutation(np.repeat([0, 1, -1], [180, 20, 200]))
    rows = {"x": np.arange(400), "y": y, "name": np.full(400, b"", object)}
    sampler = sampling.Progressive(label="y", epochs=10)
    data = dataclasses.replace(make(sampler), source=tiny.Rows(splits={"train": rows}))
    batches = data.dataset("train", training=False, seed=0)
    column = features.Numeric(names=["x"])
    features.fit_columns([column], batches, str(tmp_path / "fitted"), [sampler])
    fitted = features.load_statistics(str(tmp_path / "fitted"))
    # 40 steps of 50 rows are 5 passes, and t is 1/2.
    later = data.dataset("train", training=True, seed=1, statistics=fitted, start_step=40).take(8)
    labels = np.concatenate([labels["y"] for _, labels in later])
    share = (labels == 1).sum() / (labels >= 0).sum()
    np.testing.assert_allclose(share, 0.5 * 0.1 + 0.5 * 0.5, atol=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"missing": [9]},
            r"Power.missing must hold 9, got \[-1\]. Head 'y' takes it for a missing",
        ),
        (
            {"classes": ["-1", "1"]},
            r"Power.missing must leave out -1, got \[-1\]. Head 'y' names it",
        ),
    ],
)
def test_sampler_and_head_agree_about_missing_labels(settings, message):
    """A mark that the sampler does not know would be drawn as often as a class."""
    head = heads.MultiClass(name="y", **{"classes": 3, **settings})
    experiment = types.SimpleNamespace(model=types.SimpleNamespace(heads=[head]))
    with pytest.raises(checks.UserError, match=message):
        sampling.Power(label="y", missing=[-1]).check_experiment(experiment)
    sampling.Power(label="other").check_experiment(experiment)
    sampling.Power(label="y", missing=[9]).check_experiment(experiment)
