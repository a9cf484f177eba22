import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver

from benchmarks import balancing, rows, scaled
from mtl import checks, heads
from mtl.balancing import weighting
from mtl.configs import config


@pytest.fixture(autouse=True)
def _flags(tmp_path):
    with flagsaver.as_parsed(output=str(tmp_path)):
        yield


def test_rows_are_the_files_of_the_folder():
    names = rows.methods()
    folder = pathlib.Path(__file__).parents[2] / "gin_configs" / "balancing"
    others = {path.stem for path in folder.glob("*.gin")} - set(names)
    assert others == {"fixed", "scheduled", "monitored", "affinity"}
    assert next(iter(names)) == "equal"
    assert list(rows.methods(["mgda", "famo"])) == ["mgda", "famo"]
    with pytest.raises(checks.UserError, match="--methods must be one of .*Did you mean 'mgda'"):
        rows.methods(["mgad"])


def test_what_was_measured_is_not_measured_again(tmp_path):
    path = str(tmp_path / "a" / "b.json")
    assert rows.load_or_measure(path, lambda: {"x": 1.5}) == {"x": 1.5}
    assert rows.load_or_measure(path, lambda: {"x": 2.5}) == {"x": 1.5}
    assert json.loads(pathlib.Path(path).read_text()) == {"x": 1.5}


def test_a_missing_data_set_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("MTL_DATA_DIR", str(tmp_path))
    with pytest.raises(checks.UserError, match="data set adult must be a folder, .* MTL_DATA_DIR"):
        rows.data_dir("adult")


def test_delta_is_the_mean_change_against_single_tasks():
    results = {
        "single task": [{"a": 0.8, "b": 0.4}, {"a": 0.8, "b": 0.6}],
        "worse": [{"a": 0.6, "b": 0.5}, {"a": 0.8, "b": 0.4}],
        "better": [{"a": 0.8, "b": 0.6}, {"a": 0.8, "b": 0.6}],
    }
    # Against 0.8 and 0.5: (-25 + 0) / 2 and (0 - 20) / 2, and +10 twice.
    found = balancing.deltas(results)
    assert list(found) == ["better", "single task", "worse"]
    assert found["worse"] == pytest.approx((-11.25, 1.25))
    assert found["better"] == pytest.approx((10, 0))


@pytest.mark.medium
@pytest.mark.parametrize("name", balancing.DATA)
def test_every_run_can_be_built_from_the_shipped_files(name, real_data):
    data = balancing.DATA[name]
    for task in data.heads:
        experiment = data.experiment([], data.only(task), seed=2)
        assert experiment.model.tasks == (task,)
        assert experiment.run.seed == 2
    both = tuple(data.heads)
    for files, choices in data.tuned.values():
        for choice in choices.values():
            assert data.experiment(files, [choice], seed=1).model.tasks == both
    rate, value = data.rate
    assert data.experiment([], [f"{rate} = {value}"], 1) == data.experiment([], [], 1)


def test_scaled_income_differs_by_its_unit_alone():
    plain, scaled = (
        config.load([balancing.DATA[name].gin_file]).model for name in ("adult", "adult_scaled")
    )
    assert scaled.heads[0].scale == 0.001
    assert scaled.heads[1:] == plain.heads[1:]
    assert scaled.network == plain.network
    assert scaled.weighting == weighting.Equal()


def test_a_scaled_head_scales_its_loss_alone():
    logits, labels = [[0.3], [-2.0], [1.5]], np.array([1, 0, -1])
    settings = ((heads.Binary, {}), (scaled.ScaledBinary, {"scale": 0.001}))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        losses = [
            head(name="a", **own).loss(tf.constant(logits), {"a": tf.constant(labels)})
            for head, own in settings
        ]
        plain, small = session.run(losses)
    assert small == pytest.approx(0.001 * plain)
    with pytest.raises(checks.UserError, match="ScaledBinary.scale of task 'a' must be above 0"):
        scaled.ScaledBinary(name="a", scale=0)


def test_a_picture_shows_each_method_by_data():
    found = {"adult": {"mgda": (-0.1, 0.02), "krum": (-29.6, 1.8)}, "mnist": {"famo": (0.3, 0.1)}}
    drawn = balancing.draw(found)
    told = ("adult", "mnist", "mgda", "krum", "famo", "-10", "-1")
    assert all(f">{text}</text>" in drawn for text in told)
