"""A tiny trained model: its run, its export, and the test rows as tf.Examples and in files."""

import csv
import dataclasses
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mtl import verbs
from tests import tiny
from tests.tools.scoring import servers


@dataclasses.dataclass(frozen=True)
class Trained:
    experiment: Any
    model_dir: str
    base: str
    examples: list[bytes]
    expected: dict[str, np.ndarray]

    def write(self, path: pathlib.Path, count: int = 48) -> str:
        """The first rows in a file of the format that its name says, with `id` r0, r1, ..."""
        rows = tiny.SPLITS["test"]
        if path.suffix == ".csv":
            with path.open("w") as file:
                writer = csv.writer(file)
                writer.writerow(["id", "x", "word"])
                for i in range(count):
                    x = "|".join(map(repr, rows["x"][i].tolist()))
                    writer.writerow([f"r{i}", x, rows["word"][i].decode()])
        elif path.suffix == ".jsonl":
            with path.open("w") as file:
                for i in range(count):
                    row = {"id": f"r{i}", "x": rows["x"][i].tolist()}
                    file.write(json.dumps({**row, "word": rows["word"][i].decode()}) + "\n")
        else:
            with tf.io.TFRecordWriter(str(path)) as writer:
                for example in self.examples[:count]:
                    writer.write(example)
        return str(path)


def _example(index, x, word):
    values = {
        "id": tf.train.Feature(bytes_list={"value": [f"r{index}".encode()]}),
        "x": tf.train.Feature(float_list={"value": x}),
        "word": tf.train.Feature(bytes_list={"value": [word]}),
    }
    return tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("scoring")
    made, model_dir = tiny.make(check_rows=256), str(directory / "run")
    base = directory / "served"
    verbs.train(made, model_dir)
    (written,) = (directory / "run" / "export" / "latest").iterdir()
    for version in ("1", "2"):
        shutil.copytree(written, base / version)
    rows = tiny.SPLITS["test"]
    examples = [
        _example(i, x, word)
        for i, (x, word) in enumerate(zip(rows["x"], rows["word"], strict=True))
    ]
    predicted = list(verbs.predict(made, model_dir))
    expected = {name: np.array([row[name] for row in predicted]) for name in predicted[0]}
    return Trained(made, model_dir, str(base), examples, expected)


@pytest.fixture
def served(trained):
    return servers.Served(trained.base)
