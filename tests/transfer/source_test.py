"""The source of a warm start: which of the saved models in a folder is taken."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks
from mtl.transfer import source

tf1 = tf.compat.v1


def _save(path, value):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        tf1.get_variable("weights", initializer=np.float32(value))
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver().save(session, str(path))  # Writes the file `checkpoint`, too.


def _export(folder, value):
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").touch()
    _save(folder / "variables" / "variables", value)


def _read(folder):
    return source.open_source("WarmStart.source", str(folder)).read_value("weights")


def test_the_checkpoint_of_a_run_comes_before_exports_in_its_folder(tmp_path):
    _export(tmp_path / "5", 5.0)
    assert _read(tmp_path) == 5.0
    _save(tmp_path / "model.ckpt-1", 1.0)
    assert _read(tmp_path) == 1.0
    assert _read(tmp_path / "5") == 5.0


def test_the_newest_export_of_a_folder_is_taken(tmp_path):
    for number in (9, 10):
        _export(tmp_path / str(number), number)
    assert _read(tmp_path) == 10.0


def test_a_folder_of_keras_or_tf_train_checkpoint_has_no_global_step(tmp_path):
    tf.train.Checkpoint(weights=tf.Variable(3.0)).save(str(tmp_path / "ck"))
    opened = source.open_source("WarmStart.source", str(tmp_path))
    assert opened.read_value("weights/.ATTRIBUTES/VARIABLE_VALUE") == 3.0


def test_a_file_of_a_checkpoint_stands_for_the_checkpoint(tmp_path):
    _save(tmp_path / "model.ckpt-1", 1.0)
    for ending in ("index", "data-00000-of-00001"):
        assert _read(tmp_path / f"model.ckpt-1.{ending}") == 1.0


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_file_of_keras_is_refused_with_the_form_that_can_be_read(tmp_path, name):
    (tmp_path / name).touch()
    message = r"WarmStart.source must be a checkpoint, .* by `model.export\(FOLDER\)`"
    with pytest.raises(checks.UserError, match=message):
        source.open_source("WarmStart.source", str(tmp_path / name))


def test_a_checkpoint_without_its_values_is_one_line(tmp_path):
    _save(tmp_path / "model.ckpt-1", 1.0)
    (tmp_path / "model.ckpt-1.data-00000-of-00001").unlink()
    with pytest.raises(checks.UserError, match=r"checkpoint .*model.ckpt-1 cannot be read: "):
        source.open_source("WarmStart.source", str(tmp_path))
