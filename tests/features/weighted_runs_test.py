"""Lists with weights through training, checkpoint, evaluation, export and all ways to predict."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

import mtl
from mtl import features, heads, networks, spec, verbs
from mtl.data import csv, pipeline
from mtl.optimization import optimizers
from mtl.tools import scoring
from mtl.tools.explaining import inputs
from tests import tiny

TOPICS, WEIGHTS = "topics", "topics/weights"
SPEC = spec.Spec(
    features={"x": "float32", TOPICS: ("string", (None,)), WEIGHTS: ("float32", (None,))},
    labels={"y": "float32"},
)


def _draw_rows(count, seed):
    """Rows whose label is the weighted mean of their topics' numbers."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        keys = random.choice(12, random.integers(0, 5), replace=False)
        weights = random.integers(0, 8, len(keys)) / 4
        label = (keys * weights).sum() / max(weights.sum(), 0.25)
        pairs = {f"t{key}": float(w) for key, w in zip(keys, weights, strict=True)}
        rows.append({"x": float(random.normal()), TOPICS: pairs, "y": float(label)})
    return rows


ROWS = {"train": _draw_rows(96, 1), "test": _draw_rows(40, 2)}


def _write_csv(path, rows):
    cells = ["|".join(f"{key}:{weight}" for key, weight in row[TOPICS].items()) for row in rows]
    lines = [f"{row['x']},{cell},{row['y']}" for row, cell in zip(rows, cells, strict=True)]
    path.write_text("\n".join([f"x,{TOPICS},y", *lines, ""]))


def _make(folder, *columns, check_rows=0, **run):
    for split, rows in ROWS.items():
        _write_csv(folder / f"{split}.csv", rows)
    source = csv.Csv(files={split: f"{split}.csv" for split in ROWS}, data_dir=str(folder))
    topics = features.Categorical(names=[TOPICS], dimension=4, min_count=1)
    made = tiny.make(
        columns=[
            features.Numeric(names=["x"]),
            *(columns or [features.Weighted(lookups=[topics])]),
        ],
        check_rows=check_rows,
        **run,
    )
    model = dataclasses.replace(made.model, heads=[heads.Regression(name="y")])
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=16)
    return dataclasses.replace(made, data=data, model=model)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has exported, and compared its export with the Estimator."""
    folder = tmp_path_factory.mktemp("weighted")
    made = _make(folder, check_rows=32, train_steps=8)
    return mtl.train(made, folder / "model"), folder


def _score(trained, path):
    """Return the values of `y` that `launch.predict --input` writes for a file."""
    model, folder = trained
    reader = scoring.Reader(spec=SPEC, settings=model.experiment.data.source)
    output = folder / "out.jsonl"
    output.unlink(missing_ok=True)
    plan = scoring.plan_shards(reader.find([str(path)]), str(output))
    with verbs.open_scorer(model.experiment, model.model_dir) as scorer:
        scoring.score_shards(plan, reader, scorer)
    rows = map(json.loads, output.read_text().splitlines())
    return np.array([row["y/value"] for row in rows], np.float32)


@pytest.mark.slow
def test_every_way_to_predict_gives_the_same_bits(trained, tmp_path):
    model, folder = trained
    rows = ROWS["test"]
    expected = _score(trained, folder / "test.csv")
    assert len(np.unique(expected)) > len(rows) / 2

    lines = [json.dumps({"x": row["x"], TOPICS: row[TOPICS]}) for row in rows]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    table = {"x": [row["x"] for row in rows]}
    maps = pa.array([list(row[TOPICS].items()) for row in rows], pa.map_(pa.string(), pa.float32()))
    parquet.write_table(pa.table({**table, TOPICS: maps}), str(tmp_path / "in.parquet"))
    aligned = {TOPICS: [list(row[TOPICS]) for row in rows]}
    aligned[WEIGHTS] = [list(row[TOPICS].values()) for row in rows]
    columns = {**table, **aligned}
    examples = [
        SPEC.serialize(dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]
    with tf.io.TFRecordWriter(str(tmp_path / "in.tfrecord")) as writer:
        for example in examples:
            writer.write(example)
    for name in ("in.jsonl", "in.parquet", "in.tfrecord"):
        np.testing.assert_array_equal(_score(trained, tmp_path / name), expected, err_msg=name)

    with mtl.load(model.model_dir) as loaded:
        forms = (
            [row[TOPICS] for row in rows],
            ["|".join(map("{}:{}".format, *_zip(r))) for r in rows],
        )
        for form in forms:
            found = loaded.predict({**table, TOPICS: form})["y/value"]
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(loaded.predict(columns)["y/value"], expected)

    found = tiny.served(model.model_dir)(examples=tf.constant(examples))["y/value"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def _zip(row):
    return list(row[TOPICS]), list(row[TOPICS].values())


def _pad(lists, fill, dtype):
    padded = np.full([len(lists), max(map(len, lists))], fill, dtype)
    for own, values in zip(padded, lists, strict=True):
        own[: len(values)] = values
    return tf.constant(padded)


@pytest.mark.slow
def test_a_request_holds_two_lists_of_equal_length(trained):
    model, _ = trained
    raw = tiny.served(model.model_dir, "raw")
    rows = ROWS["test"][:8]
    lengths = tf.constant([len(row[TOPICS]) for row in rows], tf.int64)
    given = {
        "x": tf.constant([row["x"] for row in rows], tf.float32),
        TOPICS: _pad([list(row[TOPICS]) for row in rows], b"", object),
        f"{TOPICS}/length": lengths,
        WEIGHTS: _pad([list(row[TOPICS].values()) for row in rows], 9, np.float32),
        f"{WEIGHTS}/length": lengths,
    }
    found = raw(**given)["y/value"]
    expected = model.predict([{"x": row["x"], TOPICS: row[TOPICS]} for row in rows])["y/value"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    shorter = {**given, f"{WEIGHTS}/length": tf.maximum(lengths - 1, 0)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="a weight for each value of topics"):
        raw(**shorter)


@pytest.mark.slow
def test_a_bad_row_ends_each_verb_in_one_line(trained, tmp_path):
    model, folder = trained
    path = tmp_path / "in.csv"
    path.write_text(f"x,{TOPICS}\n1,a:1\n2,a:1|b\n")
    says = f"in.csv line 3: field '{TOPICS}' must have a number as the weight of each value"
    with pytest.raises(mtl.checks.UserError, match=says):
        _score(trained, path)
    with pytest.raises(mtl.checks.UserError, match=f"the data row 0: field '{TOPICS}' must have"):
        model.predict({"x": [1.0], TOPICS: [{"a": None}]})
    with pytest.raises(mtl.checks.UserError, match="weights of at least 0 for a mean"):
        model.predict({"x": [1.0], TOPICS: [{"a": -1.0}]})
    made = _make(tmp_path)
    text = (tmp_path / "train.csv").read_text()
    (tmp_path / "train.csv").write_text(f"{text}1,t1:-1,2\n")
    says = "train.csv line 98: features.weighted_categorical_topics must read weights of at least 0"
    with pytest.raises(mtl.checks.UserError, match=says):
        tiny.train(made, tmp_path / "model")


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit_with_a_table_that_grows(tmp_path):
    growing = features.Growing(names=[TOPICS], capacity=16, dimension=4)
    column = features.Weighted(lookups=[growing])
    values = tiny.assert_goes_on(lambda **run: _make(tmp_path, column, **run), tmp_path, 4)
    keys = values["features/growing_topics/keys"]
    assert (keys != 0).sum() == 12


@pytest.mark.thorough
@pytest.mark.slow
def test_slices_and_replicas_train_as_the_whole_batch_does(tmp_path):
    # Without dropout and batch norm, which see each slice alone.
    network = networks.SharedBottom(trunk=networks.MLP(layers=[8], activation="tanh"))

    def make(**run):
        optimizer = optimizers.SGD(learning_rate=0.05)
        return _make(tmp_path, optimizer=optimizer, network=network, **run)

    tiny.assert_trains_in_parts(make, tmp_path, 5)


def test_a_list_and_its_weights_are_explained_as_one_input(tmp_path):
    made = _make(tmp_path)
    found = inputs.list_inputs(SPEC, made.model.columns, list(SPEC.features))
    assert [one.name for one in found] == ["x", f"{TOPICS} + {WEIGHTS}"]
