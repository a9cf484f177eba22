"""A plain training step calls no code of features that the run does not use."""

import pathlib
import sys

import pytest
import tensorflow as tf

import mtl
from mtl import compat, features
from mtl.configs import config
from mtl.model import graph_options, multi_task_model

_ROOT = pathlib.Path(mtl.__file__).parent
# To be 38 and 173: whoever takes a feature off the path lowers them.
_FILES, _FUNCTIONS = 53, 270


def _trace_step(monkeypatch, made):
    """The (file, function) pairs of the package that building one step enters."""
    entered, build = set(), multi_task_model.MultiTaskModel._step

    def note(frame, event, _):
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(_ROOT):
            entered.add((path.relative_to(_ROOT).as_posix(), frame.f_code.co_name))

    def step(*args):
        sys.setprofile(note)
        try:
            return build(*args)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(multi_task_model.MultiTaskModel, "_step", step)
    statistics = features.Statistics(directory="", entries={})
    with tf.Graph().as_default():
        tf.compat.v1.train.get_or_create_global_step()
        batches = made.data.dataset("train", training=True, seed=1)
        rows = tf.compat.v1.data.make_initializable_iterator(batches).get_next()
        options = graph_options.GraphOptions(statistics=statistics)
        made.model.fill_schedules(100).model_fn(
            *rows, compat.estimator.ModeKeys.TRAIN, options=options
        )
    return entered


@pytest.mark.medium
@pytest.mark.always
def test_a_plain_step_enters_no_feature_that_is_off(monkeypatch):
    made = config.load(["gin_configs/experiments/digits_shared_bottom.gin"])
    assert made.model.step_extensions == []
    entered = _trace_step(monkeypatch, made)
    files = {file for file, _ in entered}
    assert not [file for file in files if file.startswith(("sparsity/", "clip_audit/"))]
    assert not files & {"features/growth.py", "variables/moved.py", "auxiliary/row_losses.py"}
    assert not [file for file in files if file.startswith("monitoring/")]
    assert len(files) <= _FILES, sorted(files)
    assert len(entered) <= _FUNCTIONS
