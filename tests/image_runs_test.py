"""Whole runs on encoded images: from files and from TFRecords, augmented, mixed and stopped."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import (
    checkpoints,
    checks,
    experiment,
    features,
    from_python,
    heads,
    mixing,
    model,
    networks,
    serving,
    spec,
    verbs,
)
from mtl.data import csv, image_files, pipeline, tfrecord
from mtl.features import augmentations
from mtl.optimization import optimizers, update
from tests import tiny

pytestmark = pytest.mark.medium

SPEC = spec.Spec(features={"photo": "string"}, labels={"kind": "int64", "light": "float32"})
PARTS = [
    augmentations.Flip(),
    augmentations.Crop(padding=2),
    augmentations.Cutout(size=3),
    augmentations.ColorJitter(brightness=0.3, hue=0.1),
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A folder with images, and rows of them as CSV and as TFRecords; a label of 12 is missing."""
    folder, rng = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    (folder / "photos").mkdir()
    for split, count in (("train", 48), ("test", 16)):
        lines = ["photo,kind,light\n"]
        with tf.io.TFRecordWriter(str(folder / f"{split}.tfrecord")) as records:
            for number in range(count):
                kind = int(rng.integers(3))
                pixels = rng.integers(0, 120, [8, 7, 3]).astype(np.uint8)
                pixels[2:6, 2:5, kind] += 100
                encoded = tf.io.encode_png(pixels).numpy()
                (folder / "photos" / f"{split}_{number}.png").write_bytes(encoded)
                kind = -1 if number % 12 == 5 else kind
                light = float(np.float32(pixels.mean() / 255))
                lines.append(f"{split}_{number}.png,{kind},{light!r}\n")
                feature = {
                    "photo": tf.train.Feature(bytes_list={"value": [encoded]}),
                    "kind": tf.train.Feature(int64_list={"value": [kind]}),
                    "light": tf.train.Feature(float_list={"value": [light]}),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                records.write(example.SerializeToString())
        (folder / f"{split}.csv").write_text("".join(lines))
    return folder


def _make(rows, kind="csv", **run):
    names = {split: f"{split}.{kind}" for split in ("train", "test")}
    if kind == "csv":
        source = image_files.ImageFiles(
            source=csv.Csv(files=names, data_dir=str(rows)),
            fields=["photo"],
            folder=str(rows / "photos"),
        )
    else:
        source = tfrecord.TfRecord(files=names, data_dir=str(rows))
    column = features.Image(
        names=["photo"], shape=(8, 7, 3), normalization="z_score", augmentations=PARTS
    )
    return experiment.Experiment(
        data=pipeline.Pipeline(source=source, spec=SPEC, batch_size=8),
        model=model.MultiTaskModel(
            columns=[column],
            network=networks.SharedBottom(trunk=networks.MLP(layers=[8], dropout=0.1)),
            heads=[
                heads.MultiClass(name="kind", classes=3),
                heads.Regression(name="light"),
            ],
            update=update.Update(optimizer=optimizers.LazyAdam(learning_rate=0.01)),
            mixing=mixing.CutMix(rate=0.5),
        ),
        run=experiment.Run(**{"train_steps": 24, "checkpoint_steps": 24, **run}),
        best=checkpoints.Best(),
        serving=serving.Serving(check_rows=16),
    )


@pytest.fixture(scope="module")
def trained(rows, tmp_path_factory):
    """A run on TFRecords that nothing stopped."""
    model_dir = tmp_path_factory.mktemp("trained") / "run"
    verbs.train(_make(rows, "tfrecord"), str(model_dir))
    return model_dir


def test_a_model_in_python_reads_the_files_of_its_rows_and_names_a_row_without_a_file(
    rows, trained
):
    expected = list(verbs.predict(_make(rows), str(trained)))
    model = from_python.load(trained, experiment=_make(rows))
    names = [f"test_{n}.png" for n in range(16)]
    found = model.predict({"photo": names})
    wanted = [row["light/value"] for row in expected]  # In batches of another size.
    np.testing.assert_allclose(found["light/value"], wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(checks.UserError, match="^the data row 2: .*test_99.png"):
        model.predict({"photo": [*names[:2], "test_99.png"]})


@pytest.mark.slow
def test_files_give_the_weights_that_tfrecords_give_also_where_the_run_was_stopped(
    rows, trained, tmp_path
):
    """To the bit, with other numbers of steps in a session call, too."""
    tiny.train(_make(rows, train_steps=7, steps_per_call=3), tmp_path)
    expected = tiny.variables(trained)
    for name, value in tiny.train(_make(rows), tmp_path).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    statistics = [(path / "statistics" / "statistics.json") for path in (tmp_path, trained)]
    assert statistics[0].read_text() == statistics[1].read_text()


def test_a_served_model_takes_bytes_and_predicts_what_the_run_does(rows, trained):
    """It takes encoded images instead of paths, and opens no file of its host."""
    expected = list(verbs.predict(_make(rows), str(trained)))
    (version,) = sorted((trained / "export" / "latest").iterdir())[-1:]
    served = tf.saved_model.load(str(version))
    # Estimator would treat a single text feature as tf.Examples.
    assert not [name for name in served.signatures if name.startswith("raw/kind/")]
    encoded = [(rows / "photos" / f"test_{n}.png").read_bytes() for n in range(16)]
    found = served.signatures["raw"](photo=tf.constant(encoded))
    for name in ("kind/probabilities", "light/value"):
        wanted = [row[name] for row in expected]
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
    functions = served.signatures["raw"].graph.as_graph_def()
    ops = {node.op for node in functions.node}
    for function in functions.library.function:
        ops |= {node.op for node in function.node_def}
    assert "DecodeImage" in ops
    assert not ops & {"ReadFile", "StatelessRandomUniformV2", "StatelessRandomGetKeyCounter"}


def test_statistics_are_those_of_unchanged_images(rows, trained):
    pixels = [
        tf.io.decode_png((rows / "photos" / f"train_{n}.png").read_bytes()).numpy()
        for n in range(48)
    ]
    flat = np.reshape(pixels, [-1, 3]) / 255
    entry = features.load_statistics(str(trained / "statistics")).for_column("image_photo")
    np.testing.assert_allclose(entry["mean"], flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(entry["stddev"], flat.std(0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["csv", "tfrecord"])
def test_a_damaged_image_ends_a_run_in_one_line(rows, tmp_path, kind):
    made = _make(rows, kind)
    if kind == "csv":
        source = dataclasses.replace(made.data.source.source, data_dir=str(tmp_path))
        (tmp_path / "test.csv").write_text("photo,kind,light\ntest_0.png,1,0.5\n")
        lines = "photo,kind,light\ntrain_0.png,1,0.5\ntrain_1.png,0,0.1\nno.png,0,0.1\n"
        (tmp_path / "train.csv").write_text(lines)
        source = dataclasses.replace(made.data.source, source=source)
        message = f"{tmp_path}/train.csv line 4: field 'photo' must be an image file, .* 'no.png'"
    else:
        source = dataclasses.replace(made.data.source, data_dir=str(tmp_path))
        records = list(tf.data.TFRecordDataset(str(rows / "train.tfrecord")).as_numpy_iterator())
        example = tf.train.Example.FromString(records[2])
        values = example.features.feature["photo"].bytes_list.value
        values[:] = [values[0][:40]]
        for split in ("train", "test"):
            with tf.io.TFRecordWriter(str(tmp_path / f"{split}.tfrecord")) as writer:
                for record in [*records[:2], example.SerializeToString()]:
                    writer.write(record)
        message = f"{tmp_path}/train.tfrecord record 2: field 'photo' must be an image .* 40 bytes"
    made = dataclasses.replace(made, data=dataclasses.replace(made.data, source=source))
    with pytest.raises(checks.UserError, match=message):
        verbs.train(made, str(tmp_path / "run"))
