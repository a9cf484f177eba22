"""Gin files and runs of version 0.1, written before its modules moved, are read as they were."""

import json
import logging
import pathlib
import shutil

import gin
import numpy as np
import pytest
import tensorflow as tf

from mtl.balancing import monitored
from mtl.configs import config, gin_names, old_names, trust
from mtl.data import pipeline, tfds
from mtl.runs import verbs
from tests.configs import gin_files_test

SAVED = pathlib.Path(__file__).parents[1] / "saved_0_1"
CLASSES = (SAVED / "names.txt").read_text().split()
# Classes that no gin file could build: they were renamed without an old name.
INTERNAL = {"mtl.row_names.RowNames", "mtl.whole_batch.Part"}
METRICS = json.loads((SAVED / "metrics.json").read_text())


def _names(*statements):
    names = gin_names.Names(trust.EVERYTHING, gin_names.IMPORTED)
    for statement in statements:
        text = f"{statement}\n"
        (parsed,) = gin.config_parser.ConfigParser(text, gin.config_parser.ParserDelegate)
        names.add(parsed)
    return names


def test_every_class_is_found_under_its_old_name():
    modules = sorted({name.rpartition(".")[0] for name in CLASSES} & set(old_names.MODULES))
    assert len(modules) > 20
    lacking = []
    for module in modules:
        package, _, base = module.rpartition(".")
        names = _names(f"from {package} import {base}"), _names(f"import {module}")
        for name in CLASSES:
            if name.rpartition(".")[0] == module and name not in INTERNAL:
                short, whole = f"{base}.{name.rpartition('.')[2]}", name
                found = names[0].resolve(names[0].full(short))
                again = names[1].resolve(names[1].full(whole))
                lacking += [name] if found is None or found is not again else []
    assert not lacking


@pytest.mark.medium
@pytest.mark.parametrize("path", sorted((SAVED / "configs").iterdir()), ids=lambda path: path.stem)
def test_saved_configurations(path, tmp_path, monkeypatch):
    monkeypatch.chdir(gin_files_test.ROOT)
    shutil.copyfile(path, tmp_path / "config.gin")
    experiment = config.load([config.saved_in(str(tmp_path))])
    name = f"{path.stem.rpartition('__')[2]}.gin"
    folders = ("gin_configs/experiments", "benchmarks")
    (given,) = (found for folder in folders for found in pathlib.Path(folder).rglob(name))
    assert experiment.model.tasks == config.load([str(given)]).model.tasks


@pytest.mark.medium
def test_old_names_in_a_file_and_a_parameter(tmp_path):
    path = tmp_path / "old.gin"
    path.write_text(
        "from __gin__ import dynamic_registration\n"
        "from mtl import compute\n"
        "from mtl import model\n"
        "import mtl.freezing\n"
        "from mtl.monitoring import checkpoints as kept\n"
        'include "gin_configs/experiments/digits_shared_bottom.gin"\n'
        'compute.Compute.precision = "bfloat16"\n'
        "from mtl import experiment\n"
        "experiment.Run.compute = @compute.Compute()\n"
        "from mtl.balancing import watched\n"
        "model.MultiTaskModel.surgery = @watched.Watched()\n"
        "model.MultiTaskModel.freezing = @mtl.freezing.Freezing()\n"
        'mtl.freezing.Freezing.frozen = ["^network/"]\n'
        "kept.Best.patience = 7\n"
    )
    made = config.load([str(path)], ["compute.Compute.xla = True"])
    assert (made.run.precision.dtype, made.run.precision.xla) == ("bfloat16", True)
    assert made.best.patience == 7
    assert isinstance(made.model.surgery, monitored.Monitored)
    assert made.model.freezing.frozen == ["^network/"]
    assert "from mtl.layers import precision" in config.text()


@pytest.mark.slow
def test_a_run_is_evaluated_and_goes_on(tmp_path, monkeypatch):
    # Its input was read otherwise: what else goes on shows where it still is.
    monkeypatch.setattr(pipeline, "_keep_in_memory", lambda read: read().cache())
    monkeypatch.setattr(tfds.Tfds, "_stored", {})
    run = tmp_path / "run"
    shutil.copytree(SAVED / "run", run)
    expected = tf.train.load_checkpoint(str(run / "model.ckpt-8"))
    for path in run.glob("model.ckpt-8.*"):
        path.rename(tmp_path / path.name)
    expected = tf.train.load_checkpoint(str(tmp_path / "model.ckpt-8"))
    experiment = config.load([config.saved_in(str(run))])
    metrics = verbs.evaluate(experiment, str(run))
    for name, value in METRICS.items():
        # By the processor's rounding two scores may change places, which areas show.
        rtol = 2e-3 if name.endswith("auc") else 1e-4
        np.testing.assert_allclose(metrics[name], value, rtol=rtol, err_msg=name)
    _, steps = verbs.train(experiment, str(run))
    assert steps == 4
    found = tf.train.load_checkpoint(str(run / "model.ckpt-8"))
    shapes = expected.get_variable_to_shape_map()
    assert found.get_variable_to_shape_map() == shapes
    for name in shapes:
        actual, wanted = found.get_tensor(name), expected.get_tensor(name)
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_a_run_whose_input_is_read_otherwise_starts_the_order_of_its_rows_anew(tmp_path, caplog):
    run = tmp_path / "run"
    shutil.copytree(SAVED / "run", run)
    for path in run.glob("model.ckpt-8.*"):
        path.unlink()
    experiment = config.load([config.saved_in(str(run))])
    with caplog.at_level(logging.INFO):
        _, steps = verbs.train(experiment, str(run))
    assert steps == 4
    assert "Step 4 was saved without this input: its order starts anew." in caplog.text
