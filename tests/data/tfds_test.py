import collections
import dataclasses
import functools
import gzip
import http.server
import itertools
import pathlib
import threading
import types
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets

from mtl import checks, spec
from mtl.data import pipeline, subset, tfds

SPEC = spec.Spec(
    features={"image": ("uint8", (8, 8, 1))},
    labels={"digit": "int64", "parity": "int64", "loops": "int64"},
)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("tfds"))


@pytest.fixture
def digits(data_dir) -> tfds.Tfds:
    return tfds.Tfds(name="mtl.datasets.digits.builder.Digits", data_dir=data_dir)


def read(source, split, spec_=SPEC, **settings):
    data = pipeline.Pipeline(source=source, spec=spec_, **settings)
    batches = list(data.dataset(split, training=False, seed=0))
    merged = [{**features, **labels} for features, labels in batches]
    return {name: np.concatenate([batch[name] for batch in merged]) for name in merged[0]}


@pytest.mark.medium
def test_digits_are_those_of_scikit_learn(digits):
    from sklearn import datasets

    truth = datasets.load_digits()
    in_test = np.arange(len(truth.target)) % 5 == 0
    loops = np.array([1, 0, 0, 0, 0, 0, 1, 0, 2, 1])
    for split, chosen in {"train": ~in_test, "test": in_test}.items():
        values = read(digits, split)
        np.testing.assert_array_equal(values["image"][..., 0], truth.images[chosen])
        np.testing.assert_array_equal(values["digit"], truth.target[chosen])
        np.testing.assert_array_equal(values["parity"], truth.target[chosen] % 2)
        np.testing.assert_array_equal(values["loops"], loops[truth.target[chosen]])
    assert values["image"].dtype == np.uint8


@pytest.mark.parametrize(
    "name", ["", "mnist/", "mnist:", "mnist:3", "/mnist", "a b", "../x", "a:b:c"]
)
def test_a_name_that_cannot_be_read_is_refused_at_once(name):
    with pytest.raises(checks.UserError, match="Tfds.name must name a dataset, such as 'mnist'"):
        tfds.Tfds(name=name)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["mnist/none", "mnist:9.9.9", "mnist/a=1", "mnist/version=1"])
def test_a_name_that_cannot_be_opened_is_one_line(name, tmp_path):
    with pytest.raises(
        checks.UserError, match=f"got '{name}'. It cannot be opened in '/.*"
    ) as error:
        tfds.Tfds(name=name, data_dir=str(tmp_path)).records("train")
    assert "\n" not in str(error.value)


@pytest.mark.medium
def test_split_expressions_and_renamed_fields(data_dir):
    source = tfds.Tfds(
        name="mtl.datasets.digits.builder.Digits", data_dir=data_dir, rename={"picture": "image"}
    )
    renamed = spec.Spec(features={"picture": ("float32", (8, 8, 1))}, labels={"id": "int64"})
    values = read(source, "test[:10]+train[:5]", renamed)
    assert values["id"].tolist() == [*range(0, 50, 5), 1, 2, 3, 4, 6]
    assert values["picture"].dtype == np.float32
    assert values["picture"].max() == 16
    rows = list(source.scan("test[:10]", renamed))
    assert [row["id"] for _, row in rows] == list(range(0, 50, 5))
    assert rows[3][0] == "mtl.datasets.digits.builder.Digits split 'test[:10]' example 3"
    assert rows[3][1]["picture"] == values["picture"][3].reshape(-1).tolist()


@pytest.mark.medium
def test_reads_in_the_input_function_of_a_graph(digits):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        data = pipeline.Pipeline(source=digits, spec=SPEC, batch_size=50, cache=True)
        dataset = data.dataset("train", training=True, seed=0)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        features, labels = iterator.get_next()
        session.run(iterator.initializer)
        image, digit = session.run([features["image"], labels["digit"]])
    assert image.shape == (50, 8, 8, 1)
    assert len(set(digit.tolist())) > 5


@pytest.mark.medium
def test_a_damaged_file_is_found(tmp_path):
    source = tfds.Tfds(name="mtl.datasets.digits.builder.Digits", data_dir=str(tmp_path))
    read(source, "test")
    (path,) = tmp_path.glob("digits/*/digits-test.tfrecord-*")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(tf.errors.DataLossError) as caught:
        read(source, "test")
    line = pipeline.Pipeline(source=source, spec=SPEC).diagnose(caught.value, "test")
    assert line.startswith(
        "mtl.datasets.digits.builder.Digits split 'test' example 359: truncated record"
    )


@pytest.mark.medium
def test_fields_must_be_there_and_fit(digits):
    for features, message in {
        ("imgae", "uint8", (8, 8, 1)): r"'imgae' must be one of .* Did you mean 'image'\?",
        ("image", "uint8", (8, 8)): r"'image' must have shape \(8, 8\), got \(8, 8, 1\)",
        ("image", "string", (8, 8, 1)): "'image' must hold string, got 'uint8'. Make it uint8",
    }.items():
        name, dtype, shape = features
        wrong = spec.Spec(features={name: (dtype, shape)}, labels={"digit": "int64"})
        with pytest.raises(checks.UserError, match=message):
            read(digits, "test", wrong)


@pytest.mark.medium
def test_unknown_splits_and_names_are_one_line(digits, data_dir):
    for split, message in {
        "tset": r"must name a split \(train, test\) .* got 'tset'. Did you mean 'test'\?",
        "train[:x]": r"got 'train\[:x\]'",
        "train[:0]": "Instruction .* corresponds to no data",
    }.items():
        with pytest.raises(checks.UserError, match=message) as caught:
            read(digits, split)
        assert "\n" not in str(caught.value)
    for name, message in {
        "mnst": r"got 'mnst'. Did you mean 'mnist'\?",
        "mtl.datasets.digits.builder.Digit": "has no attribute 'Digit'",
        "mtl.datasets.digit.builder.Digits": "No module named 'mtl.datasets.digit'",
    }.items():
        with pytest.raises(checks.UserError, match=message) as caught:
            tfds.Tfds(name=name, data_dir=data_dir).records("train")
        assert "\n" not in str(caught.value)


def test_a_registered_dataset_without_network_says_what_to_do(data_dir, monkeypatch):
    monkeypatch.setattr("socket.create_connection", _refuse)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with pytest.raises(checks.UserError) as caught:
        tfds.Tfds(name="mnist", data_dir=data_dir).records("train")
    line = str(caught.value)
    assert "got 'mnist'" in line
    assert "cannot be reached. If you cannot mend that, prepare it elsewhere and copy" in line
    assert f"{data_dir}/mnist/" in line
    assert not pathlib.Path(data_dir, "mnist").exists()


def _refuse(*_):
    raise OSError("no network")


class Lists(tensorflow_datasets.core.GeneratorBasedBuilder):
    """Features of variable length, nested and missing ones, written and read for real."""

    VERSION = tensorflow_datasets.core.Version("1.0.0")

    def _info(self):
        features = tensorflow_datasets.features
        return self.dataset_info_from_configs(
            features=features.FeaturesDict(
                {
                    "tags": features.Sequence(features.Text()),
                    "who": {"age": features.Scalar(np.int32), "ok": features.Scalar(np.bool_)},
                    "y": features.Scalar(np.float32),
                }
            )
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(5):
            tags = [f"t{j}" for j in range(i)]
            yield i, {"tags": tags, "who": {"age": i, "ok": i % 2 == 0}, "y": i / 2}


@pytest.mark.medium
def test_nested_and_ragged_features(tmp_path):
    Lists.pkg_dir_path = tmp_path
    source = tfds.Tfds(
        name=f"{__name__}.Lists",
        data_dir=str(tmp_path),
        rename={"age": "who/age", "ok": "who/ok"},
    )
    listed = spec.Spec(
        features={"tags": ("string", (None,)), "age": "float32", "ok": "bool"},
        labels={"y": "float32"},
    )
    data = pipeline.Pipeline(source=source, spec=listed, batch_size=3)
    rows = [row for _, row in source.scan("train", listed)]
    assert collections.Counter(len(row["tags"]) for row in rows) == dict.fromkeys(range(5), 1)
    start = 0
    for features, labels in data.dataset("train", training=False, seed=0):
        expected = rows[start : start + 3]
        start += 3
        tags = [[tag.decode() for tag in tags] for tags in features["tags"].to_list()]
        assert tags == [row["tags"] for row in expected]
        assert features["age"].numpy().tolist() == [row["age"] for row in expected]
        assert features["ok"].numpy().tolist() == [bool(row["ok"]) for row in expected]
        assert labels["y"].numpy().tolist() == [row["y"] for row in expected]
    assert start == 6
    chosen = dataclasses.replace(data, source=subset.Subset(source=source, share=0.6))
    kept = [row for _, row in chosen.source.scan("train", listed)]
    ((features, labels),) = chosen.dataset("train", training=False, seed=0)
    tags = [[tag.decode() for tag in tags] for tags in features["tags"].to_list()]
    assert tags == [row["tags"] for row in kept] and 0 < len(kept) < 5
    assert labels["y"].numpy().tolist() == [row["y"] for row in kept]


@pytest.mark.medium
def test_a_list_of_another_size_than_the_array_in_the_spec_is_refused(tmp_path):
    Lists.pkg_dir_path = tmp_path
    source = tfds.Tfds(name=f"{__name__}.Lists", data_dir=str(tmp_path))
    pair = spec.Spec(features={"tags": ("string", (2,))}, labels={})
    data = pipeline.Pipeline(source=source, spec=pair, batch_size=5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'tags.* must have shape") as bad:
        list(data.dataset("train", training=False, seed=0))
    assert "field 'tags' must hold 2 values, got" in data.diagnose(bad.value, "train")
    tags = tf.ragged.constant([["a", "b"], ["c", "d"]])
    read_tags = source.decode({"tags": tags}, pair, False)["tags"]
    assert read_tags.shape == (2, 2) and read_tags.numpy().tolist() == [[b"a", b"b"], [b"c", b"d"]]


@pytest.mark.medium
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64"])
def test_a_float_is_no_truth_value_and_no_integer(dtype, tmp_path):
    Lists.pkg_dir_path = tmp_path
    source = tfds.Tfds(name=f"{__name__}.Lists", data_dir=str(tmp_path))
    with pytest.raises(checks.UserError, match=f"field 'y' must hold {dtype}, got 'float32'"):
        read(source, "train", spec.Spec(features={"y": dtype}, labels={}))


class Stored(tensorflow_datasets.core.GeneratorBasedBuilder):
    """Features of every type that is stored as it is, and, if asked for, one that is not."""

    VERSION = tensorflow_datasets.core.Version("1.0.0")
    encoding, optional = "none", False

    def _info(self):
        features = tensorflow_datasets.features
        kinds = {
            "text": features.Text(),
            "texts": features.Tensor(shape=(2,), dtype=np.object_),
            "class": features.ClassLabel(names=["no", "yes"]),
            "flag": features.Scalar(np.bool_),
            "small": features.Scalar(np.uint8),
            "large": features.Scalar(np.uint64),
            "huge": features.Scalar(np.uint64),
            "pair": features.Tensor(shape=(2,), dtype=np.float32, optional=self.optional),
            "double": features.Scalar(np.float64),
            "matrix": features.Tensor(shape=(2, 3), dtype=np.float32, encoding=self.encoding),
        }
        return self.dataset_info_from_configs(
            features=features.FeaturesDict(kinds), disable_shuffling=True
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(7), "test": self._generate_examples(3)}

    def _generate_examples(self, count):
        random = np.random.default_rng(count)
        for i in range(count):
            yield (
                i,
                {
                    "text": f"ü{i}",
                    "texts": [f"{i}", ""],
                    "class": i % 2,
                    "flag": i % 3 == 0,
                    "small": 250 + i % 6,
                    "large": 2**40 + i,
                    "huge": 2**63 + i,
                    "pair": None if self.optional and i == 1 else np.float32([i, -i]),
                    "double": random.normal(),
                    "matrix": random.normal(size=(2, 3)).astype(np.float32),
                },
            )


@pytest.mark.medium
@pytest.mark.parametrize("encoding, optional", [("none", False), ("zlib", False), ("none", True)])
@pytest.mark.parametrize("split", ["train", "train[2:5]+test[-2:]+train[:1]"])
def test_serialized_examples_are_parsed_as_tensorflow_datasets_does(
    encoding, optional, split, tmp_path, monkeypatch
):
    Stored.pkg_dir_path = tmp_path
    monkeypatch.setattr(Stored, "encoding", encoding)
    monkeypatch.setattr(Stored, "optional", optional)
    source = tfds.Tfds(name=f"{__name__}.Stored", data_dir=str(tmp_path))
    expected = list(source._builder.as_dataset(split=split).as_numpy_iterator())
    is_serialized = source.records(split).element_spec == tf.TensorSpec([], tf.string)
    assert is_serialized == (encoding == "none" and not optional)
    given = {
        "text": "string",
        "texts": ("string", (2,)),
        "flag": "bool",
        "small": "uint8",
        "large": "int64",
        "double": "float32",
        "pair": ("float32", (2,)),
        "matrix": ("float32", (2, 3)),
    }
    all_fields = spec.Spec(features=given, labels={"class": "int64"})
    values = read(source, split, all_fields, batch_size=4)
    assert len(expected) == len(values["text"])
    for name, found in values.items():
        np.testing.assert_array_equal(found, np.array([row[name] for row in expected]), name)
    scanned = [row for _, row in source.scan(split, all_fields)]
    assert len(expected) == len(scanned)
    for name in values:
        both = [np.ravel([row[name] for row in rows]).tolist() for rows in (scanned, expected)]
        decoded = [text.decode() if isinstance(text, bytes) else text for text in both[1]]
        assert both[0] == decoded, name


@pytest.mark.medium
@pytest.mark.parametrize("encoding", ["none", "zlib"])
def test_an_unsigned_number_beyond_int64_fails(encoding, tmp_path, monkeypatch):
    Stored.pkg_dir_path = tmp_path
    monkeypatch.setattr(Stored, "encoding", encoding)
    source = tfds.Tfds(name=f"{__name__}.Stored", data_dir=str(tmp_path))
    fields = spec.Spec(features={"huge": "int64"}, labels={"class": "int64"})
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"huge.*must be int64"):
        read(source, "test", fields)
    told = [problem for _, problem in source.scan("test", fields)]
    assert told[0] == f"field 'huge' must be int64, got {2**63}."
    as_float = spec.Spec(features={"huge": "float32"}, labels={"class": "int64"})
    assert read(source, "test", as_float)["huge"] == pytest.approx(2.0**63)


@pytest.mark.medium
def test_a_file_that_lost_its_last_record_is_found(tmp_path):
    Stored.pkg_dir_path = tmp_path
    source = tfds.Tfds(name=f"{__name__}.Stored", data_dir=str(tmp_path))
    text = spec.Spec(features={"text": "string"}, labels={"class": "int64"})
    assert len(read(source, "train", text)["text"]) == 7
    (path,) = tmp_path.glob("stored/*/stored-train.tfrecord-*")
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records[:-1]:
            writer.write(record)
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 7"):
        read(source, "train", text)


ADULT = spec.Spec(
    features={"age": "float32", "occupation": "string", "native-country": "string"},
    labels={"income": "string", "marital-status": "string"},
)


def count_adult(source):
    counts = {}
    for split in ("train", "test"):
        values = read(source, split, ADULT, batch_size=4096)
        counts[split] = [
            len(values["age"]),
            int((values["income"] == b">50K").sum()),
            int((values["occupation"] == b"?").sum()),
            float(values["age"].sum()),
        ]
    return counts


@pytest.mark.medium
def test_adult_from_files_fetched_by_hand(real_data, tmp_path):
    """The builder hands these rows to tensorflow-datasets; the next test reads the result."""
    from mtl.datasets.adult import builder

    made = builder.Adult(data_dir=str(tmp_path))
    counts = {}
    manager = types.SimpleNamespace(manual_dir=real_data / "adult")
    for split, examples in made._split_generators(manager).items():
        rows = [row for _, row in examples]
        counts[split] = [
            len(rows),
            sum(row["income"] == ">50K" for row in rows),
            sum(row["occupation"] == "?" for row in rows),
            sum(float(row["age"]) for row in rows),
        ]
    # Counted with gzip, grep and awk.
    assert counts == {"train": [32561, 7841, 1843, 1256257], "test": [16281, 3846, 966, 631173]}


@pytest.mark.slow
def test_adult_from_a_server(real_data, tmp_path, monkeypatch):
    """The archive as UCI serves it, with the remark and dots of its test file: the first rows."""
    from mtl.datasets.adult import builder

    parts = []
    for part, rows in (("data", 2000), ("test", 1000)):
        with gzip.open(real_data / "adult" / f"adult.{part}.gz") as file:
            parts.append(b"".join(itertools.islice(file, rows)))
    train, test = parts
    with zipfile.ZipFile(tmp_path / "adult.zip", "w") as archive:
        archive.writestr("adult.data", train)
        archive.writestr("adult.test", b"|1x3 Cross validator\n" + test.replace(b"K\n", b"K.\n"))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://localhost:{server.server_port}/adult.zip"
        monkeypatch.setattr(builder.Adult, "URL", url)
        source = tfds.Tfds(name="mtl.datasets.adult.builder.Adult", data_dir=str(tmp_path / "d"))
        counts = count_adult(source)
        server.shutdown()
    assert counts == {"train": [2000, 499, 123, 77738], "test": [1000, 240, 58, 38088]}


def test_adult_without_network_says_what_to_fetch(tmp_path, monkeypatch):
    monkeypatch.setattr("socket.create_connection", _refuse)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with pytest.raises(checks.UserError, match="adult.zip cannot be reached. .* For Tfds.manual"):
        tfds.Tfds(name="mtl.datasets.adult.builder.Adult", data_dir=str(tmp_path)).records("train")
    assert not list(tmp_path.glob("adult/*"))
