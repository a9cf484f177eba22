"""Runs of November 2026 (revision 6a8318e) go on: evaluated, predicted from, exported, trained."""

import dataclasses
import json
import pathlib
import shutil
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from mtl import verbs
from mtl.configs import config
from mtl.tools import scoring

# Runs of users have to go on, whatever else is tested.
pytestmark = pytest.mark.always

SAVED = pathlib.Path(__file__).parent / "saved_2026_11" / "runs.tar.gz"
# `run` trained for 40 steps: a table that grows, lists, a held-out share of the training rows.
# `calibrated` is its best checkpoint with knots that were fitted to the task `clicked`.
RUNS = {"run": "run.jsonl", "calibrated": "calibrated.jsonl"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with tarfile.open(SAVED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def saved(unpacked, monkeypatch):
    monkeypatch.chdir(unpacked)
    return unpacked


def _load(run):
    return config.load([config.saved_in(run)])


def _score(model, experiment):
    """Predict the rows of new.csv as `launch.predict` does."""
    reader = scoring.Reader(
        spec=experiment.data.spec, settings=experiment.data.source, batch_size=8, keep=["id"]
    )
    guard = scoring.Protection(files=[], model_dir=None)
    plan = scoring.plan_shards(reader.find(["new.csv"]), "scored.jsonl", "auto", guard)
    scoring.score_shards(plan, reader, model, 1)
    return _rows("scored.jsonl")


def _rows(path):
    rows = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    assert len(rows) == 20
    return rows


def _assert_close(found, expected):
    for row, wanted in zip(found, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            if isinstance(value, str):
                assert row[name] == value
            else:
                np.testing.assert_allclose(row[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_metrics_and_predictions_are_those_of_before(saved, run):
    experiment = _load(run)
    metrics = verbs.evaluate(experiment, run)
    expected = json.loads((saved / run / "metrics.jsonl").read_text().splitlines()[-1])
    known = metrics.keys() & expected.keys()
    assert len(known) > 30
    for name in known:
        wanted = np.nan if expected[name] is None else expected[name]  # JSON has no NaN.
        np.testing.assert_allclose(metrics[name], wanted, rtol=1e-4, err_msg=name)
    with verbs.open_scorer(experiment, run) as model:
        _assert_close(_score(model, experiment), _rows(RUNS[run]))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("run", "lines"), [("run", "best.jsonl"), ("calibrated", RUNS["calibrated"])]
)
def test_an_export_of_before_answers_as_it_did(saved, run, lines):
    model = scoring.SavedModel(f"{run}/export/best", "serving_default")
    _assert_close(_score(model, _load(run)), _rows(lines))


@pytest.mark.slow
def test_a_run_goes_on_as_before_and_is_exported(saved, tmp_path):
    shutil.copytree("run", tmp_path / "run")
    experiment = _load("run")
    more = dataclasses.replace(experiment.run, train_steps=60)
    experiment = dataclasses.replace(experiment, run=more)
    _, steps = verbs.train(experiment, str(tmp_path / "run"))
    assert steps == 20
    found = tf.train.load_checkpoint(str(tmp_path / "run" / "model.ckpt-60"))
    expected = {n.replace("|", "/"): v for n, v in np.load("at_60.npz").items()}
    assert found.get_variable_to_shape_map().keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(
            found.get_tensor(name), wanted, rtol=1e-4, atol=1e-6, err_msg=name
        )
    written = verbs.export(experiment, str(tmp_path / "run"), str(tmp_path / "served"))
    with verbs.open_scorer(experiment, str(tmp_path / "run")) as model:
        expected = _score(model, experiment)
    _assert_close(_score(scoring.SavedModel(written, "serving_default"), experiment), expected)
