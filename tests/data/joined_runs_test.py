"""Clicks and a table of users, from a gin file to the served model."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from mtl import verbs
from mtl.configs import config
from tests import tiny

pytestmark = pytest.mark.medium

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIN = """
from __gin__ import dynamic_registration
from mtl import experiment
from mtl import features
from mtl import heads
from mtl import model
from mtl import networks
from mtl import serving
from mtl import spec
from mtl.data import csv
from mtl.data import joined
from mtl.data import pipeline
from mtl.optimization import optimizers
from mtl.optimization import update
include "{root}/gin_configs/defaults.gin"

experiment.Experiment.data = @pipeline.Pipeline()
pipeline.Pipeline.source = @joined.Joined()
pipeline.Pipeline.spec = @spec.Spec()
pipeline.Pipeline.cache = True
joined.Joined.source = @clicks/csv.Csv()
joined.Joined.tables = {{"user": @users/csv.Csv()}}
joined.Joined.fields = {{"user": ["age", "country"]}}
clicks/csv.Csv.files = {{"train": "{folder}/train.csv", "test": "{folder}/test.csv"}}
users/csv.Csv.files = {{"train": "{folder}/users.csv"}}
spec.Spec.features = {{"hour": "float32", "age": "float32", "country": "string"}}
spec.Spec.labels = {{"clicked": "int64"}}
spec.Spec.defaults = {{"age": "nan", "country": ""}}
model.MultiTaskModel.columns = [@features.Numeric(), @features.Categorical()]
features.Numeric.names = ["hour", "age"]
features.Categorical.names = ["country"]
model.MultiTaskModel.network = @networks.SharedBottom()
networks.SharedBottom.trunk = @networks.MLP()
networks.MLP.layers = [8]
model.MultiTaskModel.heads = [@heads.Binary()]
heads.Binary.name = "clicked"
update.Update.optimizer = @optimizers.LazyAdam()
optimizers.LazyAdam.learning_rate = 0.02
experiment.Run.train_steps = 60
experiment.Run.checkpoint_steps = 60
serving.Serving.check_rows = 64
"""


def _write_clicks(folder):
    """A user clicks if the country is DE and the age below 50; two of 40 users are unknown."""
    draw = np.random.default_rng(0)
    ages, countries = draw.integers(18, 80, 38), draw.choice(["DE", "FR"], 38)
    lines = [f"u{user},{ages[user]},{countries[user]}" for user in range(38)]
    (folder / "users.csv").write_text("\n".join(["user,age,country", *lines, ""]))
    users = {}
    for split, count in (("train", 1500), ("test", 400)):
        users[split] = draw.integers(0, 40, count)
        lines = []
        for user in users[split]:
            likes = user < 38 and countries[user] == "DE" and ages[user] < 50
            lines.append(
                f"u{user},{draw.integers(24)},{int(draw.random() < (0.9 if likes else 0.1))}"
            )
        (folder / f"{split}.csv").write_text("\n".join(["user,hour,clicked", *lines, ""]))
    return users, ages, countries


def test_a_run_over_joined_tables_is_trained_evaluated_and_served(tmp_path, caplog):
    caplog.set_level("INFO")
    users, ages, countries = _write_clicks(tmp_path)
    (tmp_path / "train.gin").write_text(GIN.format(root=ROOT, folder=tmp_path))
    made, folder = config.load([str(tmp_path / "train.gin")]), tmp_path / "run"
    metrics, _ = verbs.train(made, str(folder))
    # Without the table, nothing tells who clicks.
    assert metrics["clicked/auc"] > 0.8
    assert verbs.evaluate(made, str(folder))["clicked/auc"] == metrics["clicked/auc"]
    absent = int((users["train"] >= 38).sum())
    assert f"lacks the 'user' of {absent} of 1,500 rows" in caplog.text.replace("\n", " ")
    files = (folder / "training_files.json").read_text()
    assert "users.csv" in files and "train.csv" in files

    predicted = list(verbs.predict(made, str(folder), keep=["hour", "age", "country", "user"]))
    known = [row for row in predicted if row["country"]]
    for row in known[:50]:
        user = int(row["user"].decode().removeprefix("u"))
        assert row["age"] == ages[user] and row["country"].decode() == countries[user]
    assert len(predicted) - len(known) == (users["test"] >= 38).sum()
    # A server gets the joined fields in its requests.
    served = tiny.served(folder, "raw")
    fields = {
        name: tf.constant([row[name] for row in known[:20]]) for name in ("hour", "age", "country")
    }
    answers = served(**fields)
    probabilities = [row["clicked/probability"] for row in known[:20]]
    (name,) = [name for name in answers if name.endswith("probability")]
    np.testing.assert_allclose(np.ravel(answers[name]), np.ravel(probabilities), rtol=1e-5)
