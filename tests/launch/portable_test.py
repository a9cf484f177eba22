"""`launch.export --onnx` and `--tflite` of categories, integers and lists, from a gin file."""

import csv
import importlib
import importlib.util
import pathlib
import random

import numpy as np
import pytest

from mtl.tools.runtimes import tflite
from mtl.tools.runtimes.encoders import encoder
from tests.launch import toy

pytestmark = pytest.mark.slow

RUN = ("--model_dir", "run")
COLUMNS = """
model.MultiTaskModel.columns = [
    @features.Numeric(),
    @features.Categorical(),
    @hashed/features.Hashed(),
    @features.Bucketized(),
    @heavy/features.Numeric(),
]
features.Categorical.names = ["job", "tags", "born"]
features.Categorical.num_unknown = 3
hashed/features.Hashed.names = ["job", "visits"]
hashed/features.Hashed.num_buckets = 100
features.Bucketized.names = ["born"]
features.Bucketized.boundaries = 5
heavy/features.Numeric.names = ["born"]
heavy/features.Numeric.log = True
heavy/features.Numeric.prefix = "heavy"
spec.Spec.defaults = {"age": "nan", "job": ""}
"""
FIELDS = (
    '{"age": "float32", "job": "string", "born": "int64", "tags": ("string", (None,)), '
    '"visits": ("int64", (None,))}'
)


def _lines(seed, count):
    draw = random.Random(seed)
    yield "age,job,born,tags,visits,rich,level"
    for _ in range(count):
        age, job = draw.randint(18, 80), draw.choice(["cook", "Köchin", "smith", ""])
        born = draw.choice([1_000_000_000, 1_100_000_007]) + draw.randint(0, 3)
        tags = "|".join(draw.sample("abcd", draw.randint(0, 3)))
        visits = "|".join(str(draw.randint(-5, 2**40)) for _ in range(draw.randint(0, 3)))
        missing = "" if draw.random() < 0.2 else age
        yield f"{missing},{job},{born},{tags},{visits},{int(age > 40)},{draw.randrange(3)}"


@pytest.fixture(scope="module")
def directory(launch_in, tmp_path_factory):
    """A folder with a run on texts, large integers and lists."""
    path = tmp_path_factory.mktemp("portable")
    text = toy.GIN.replace('{"age": "float32", "job": "string"}', FIELDS)
    lines = text.splitlines()
    kept = [line for line in lines if not line.startswith(("features.Categorical", "model.Multi"))]
    at = kept.index('features.Numeric.names = ["age"]')
    heads = lines[lines.index("model.MultiTaskModel.heads = [") :][:1]
    kept = kept[:at] + COLUMNS.splitlines() + [kept[at], *heads, *kept[at + 1 :]]
    (path / "toy.gin").write_text("\n".join(kept) + "\n")
    (path / "data").mkdir()
    for split, count in (("train", 200), ("test", 40)):
        (path / "data" / f"{split}.csv").write_text("\n".join(_lines(split, count)) + "\n")
    result = launch_in(path, "train", "--gin_file", "toy.gin", *RUN)
    assert result.code == 0, result
    return path


def _columns(path):
    """The columns of the test split, as a client has them."""
    with open(path, newline="") as file:
        table = list(csv.DictReader(file))
    return {
        "age": [float(row["age"]) if row["age"] else None for row in table],
        "job": [row["job"] for row in table],
        "born": [int(row["born"]) for row in table],
        "tags": [row["tags"].split("|") for row in table],
        "visits": [[int(n) for n in row["visits"].split("|") if n] for row in table],
    }


def test_files_take_ids_and_give_what_the_checkpoint_predicts(directory, launch_in):
    onnx = ("--onnx", "toy.onnx") if importlib.util.find_spec("tf2onnx") else ()
    args = ("--tflite", "toy.tflite", *onnx, "--export_dir", "served")
    result = launch_in(directory, "export", *RUN, *args)
    assert result.code == 0, result
    assert result.out.count(" from the checkpoint") == 1 + bool(onnx)
    predicted = launch_in(
        directory, "predict", *RUN, "--split", "test", "--output", "predictions.csv"
    )
    assert predicted.code == 0, predicted
    with open(directory / "predictions.csv", newline="") as file:
        wanted = list(csv.DictReader(file))
    (ids,) = pathlib.Path(directory / "served").glob("*/portable/ids")
    inputs = encoder.Encoder(str(ids))(_columns(directory / "data" / "test.csv"))
    found = tflite.make_runner((directory / "toy.tflite").read_bytes())(inputs)
    expected = [float(row["rich/probability"]) for row in wanted]
    np.testing.assert_allclose(found["rich/probability"], expected, atol=1e-5)
    if onnx:
        session = importlib.import_module("onnxruntime").InferenceSession(
            str(directory / "toy.onnx")
        )
        (probability,) = session.run(["rich/probability"], inputs)
        np.testing.assert_allclose(probability, expected, atol=1e-5)


@pytest.mark.thorough
def test_what_cannot_be_converted_is_one_line_and_publishes_nothing(directory, launch_in):
    crossed = 'features.Crossed.crosses = [["job", "born"]]\n'
    text = (directory / "toy.gin").read_text()
    text = text.replace("    @features.Bucketized(),", "    @features.Crossed(),")
    text = "\n".join(line for line in text.splitlines() if "features.Bucketized." not in line)
    (directory / "crossed.gin").write_text(text + "\n" + crossed)
    other = ("--model_dir", "crossed")
    assert launch_in(directory, "train", "--gin_file", "crossed.gin", *other).code == 0
    args = ("--tflite", "crossed.tflite", "--export_dir", "refused")
    result = launch_in(directory, "export", *other, *args)
    assert result.code == 2
    (line,) = [line for line in result.err.splitlines() if line.startswith("Error: ")]
    assert "RaggedCross (column 'crossed_job_x_born' of 'born', 'job')" in line
    assert not (directory / "refused").exists() and not (directory / "crossed.tflite").exists()
