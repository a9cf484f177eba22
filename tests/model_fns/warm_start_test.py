"""A warm start in a `model_fn` written by hand, with the checks of `transfer.WarmStart`."""

import numpy as np
import pytest
import tensorflow as tf

from mtl import transfer
from tests import tiny
from tests.model_fns import twin

KERNEL, HEAD = "network/trunk/hidden_0/kernel", "head/sign/logits/kernel"


@pytest.mark.medium
def test_what_is_chosen_starts_from_the_source(trained, tmp_path):
    start = transfer.WarmStart(source=str(trained.twin), include=["^network/"])
    model_dir = tmp_path / "run"
    estimator = twin.estimator(model_dir, start=start)
    estimator.train(twin.read_rows, max_steps=1)
    first, source = tiny.variables(model_dir, step=0), tiny.variables(trained.twin)
    np.testing.assert_array_equal(first[KERNEL], source[KERNEL])
    assert (first[HEAD] != source[HEAD]).any()
    assert first["global_step"] == 0
    table = (model_dir / "warm_start.txt").read_text()
    assert "9 warmed" in table
    assert HEAD in table
    estimator.train(twin.read_rows, max_steps=2)  # Goes on from its own checkpoint.
    assert (tiny.variables(model_dir)[KERNEL] != source[KERNEL]).any()


def test_trainable_variables_need_no_scope(tmp_path):
    """A variable of a model may be called as a slot, or have no scope, as the state of Adam."""
    transfer.write_checkpoint(
        {"w": np.ones(2, np.float32), "w/b": np.ones(3, np.float32)}, str(tmp_path / "model.ckpt")
    )
    with tf.Graph().as_default():
        for name, size in (("w", 2), ("w/b", 3)):
            tf.compat.v1.get_variable(name, [size])
        tf.compat.v1.get_variable("beta1_power", [], trainable=False)
        start = transfer.WarmStart(source=str(tmp_path), include=[".*"])
        plan = start.plan(tf.compat.v1.global_variables(), {})
    assert [entry.name for entry in plan.warmed()] == ["w", "w/b"]
    assert plan.entries[-1].why == "the optimizer's state"
