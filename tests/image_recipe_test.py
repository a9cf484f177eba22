"""The recipe of docs/images.md, run as it is printed, and its gin files."""

import pathlib
import subprocess
import sys

import pytest

from mtl import verbs
from mtl.configs import config
from mtl.tools import scoring
from tests import pages
from tests.launch import conftest as processes

ROOT = pathlib.Path(__file__).parent.parent
LEAVES = sorted((ROOT / "gin_configs" / "augmentation").glob("*.gin"))


@pytest.mark.slow
def test_rows_that_name_files_become_a_model_of_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make_shapes.py").write_text(pages.read_block("images.md", "python"))
    (tmp_path / "shapes.gin").write_text(pages.read_block("images.md", "gin"))
    made = [sys.executable, "make_shapes.py"]
    subprocess.run(made, check=True, env=processes.environment(), capture_output=True)
    experiment = config.load(["shapes.gin"], ["Run.checkpoint_steps = 600"])
    metrics, _ = verbs.train(experiment, "run")
    assert metrics["shape/accuracy"] > 0.75
    assert metrics["size/r2"] > 0.8
    reader = scoring.Reader(
        spec=experiment.data.spec, settings=experiment.data.source, keep=["photo"]
    )
    (chunk,) = reader.chunks(["new.csv"])
    with verbs.open_scorer(experiment, "run") as model:
        found = model(reader.parse(chunk).examples)
    assert found["shape/probabilities"].shape == (3, 3)


@pytest.mark.parametrize("path", LEAVES, ids=lambda path: path.stem)
def test_leaves_add_to_an_experiment(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    few = "gin_configs/experiments/mnist_few.gin"
    (plain, changed) = (config.load([few, *more], []) for more in ((), (str(path),)))
    assert repr(changed.model) != repr(plain.model)
    assert not plain.model.mixing and not plain.model.columns[0].augmentations
