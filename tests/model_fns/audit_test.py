"""An audit in a `model_fn` written by hand records what that of our own model does."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, model_fns
from mtl.tools import clip_audit
from mtl.tools.clip_audit import measures
from tests.model_fns import twin

tf1 = tf.compat.v1


@pytest.mark.medium
def test_norms_are_those_of_our_model():
    rng = np.random.default_rng(0)
    rows = {"x": tf.constant(rng.normal(size=(6, 3)), tf.float32)}
    labels = {"sign": tf.constant([0, 1, 1, 0, 1, 0], tf.int64), "size": tf.range(6.0)}
    weights = {"sign": tf.constant(2.0), "size": tf.constant(0.5)}
    made = twin.ours().model
    with tf.Graph().as_default():
        rows, labels, weights = tf.nest.map_structure(
            lambda value: tf.constant(value.numpy()), (rows, labels, weights)
        )
        twin.losses_of((rows, labels))  # The variables of both.
        ours = measures.measure(made, twin.NOTHING, rows, labels, lambda _: weights)
        own = measures.measure_losses(twin.losses_of, (rows, labels), weights)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            (expected, of_batch), (found, batch) = session.run([ours[:2], own[:2]])
    assert found.keys() == expected.keys()
    for name in found:
        if np.isnan(found[name]).all():  # Only a head can compute this.
            assert name.startswith(("el2n/", "margin/", "label/", "prediction/"))
        else:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)
    assert batch.keys() == of_batch.keys()
    np.testing.assert_allclose(list(batch.values()), list(of_batch.values()), rtol=1e-5)


def test_losses_without_rows_are_refused(tmp_path):
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match="a loss for each row"):
        measures.measure_losses(lambda _: {"sign": tf.constant(1.0)}, tf.ones([2]), {"sign": 1.0})


def test_losses_that_are_no_map_are_refused(tmp_path):
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match="losses_of must return {"):
        measures.measure_losses(lambda _: None, tf.ones([2]), {"sign": 1.0})


def test_network_with_variables_of_its_own_is_refused(tmp_path):
    def losses_of(rows):
        return {"sign": rows * tf.compat.v1.get_variable("new", [])}

    with tf.Graph().as_default(), pytest.raises(checks.UserError, match="create none"):
        measures.measure_losses(losses_of, tf.ones([2]), {"sign": tf.constant(1.0)})


def test_report_of_nothing_is_none(tmp_path):
    """A listener that no `model_fn` asked to observe writes nothing."""
    audit = model_fns.Audit(clip_audit.ClipAudit(), str(tmp_path))
    audit.before_save(None, 4)
    audit.end(None, 4)
    assert not list(tmp_path.iterdir())


def test_an_audit_that_nobody_saves_says_so(tmp_path, caplog):
    audit = model_fns.Audit(clip_audit.ClipAudit(), str(tmp_path))
    with tf.Graph().as_default():
        audit.observe(lambda rows: {}, tf.ones([2]), tf.constant([1, 2], tf.int64))
    assert not caplog.text
    del audit
    gc.collect()
    assert "has saved nothing: pass saving_listeners=[audit] to Estimator.train" in caplog.text


def test_an_audit_that_is_saved_says_nothing(tmp_path, caplog):
    audit = model_fns.Audit(clip_audit.ClipAudit(), str(tmp_path))
    with tf.Graph().as_default():
        audit.observe(lambda rows: {}, tf.ones([2]), tf.constant([1, 2], tf.int64))
    audit.before_save(None, 0)
    del audit
    gc.collect()
    assert not caplog.text
