import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, heads

tf1 = tf.compat.v1


def test_predicts_its_tower_and_trains_nothing():
    head = heads.Score(name="usual")
    with tf.Graph().as_default(), tf1.Session() as session:
        tower = tf.constant([[1.5], [-2.0], [4.0]])
        logits = head.logits(tower)
        assert not tf1.global_variables()
        loss = head.loss(logits, {"y": tf.zeros([3])})
        assert tf.gradients(loss, tower) == [None]
        exported = head.export_outputs(logits)["predict"]
        assert isinstance(exported, compat.estimator.export.PredictOutput)
        found = session.run([head.predictions(logits), exported.outputs, loss])
    for predictions in found[:2]:
        assert list(predictions) == ["score"]
        np.testing.assert_array_equal(predictions["score"], [1.5, -2, 4])
    assert found[2] == 0


def test_counts_every_row():
    head = heads.Score(name="usual")
    with tf.Graph().as_default(), tf1.Session() as session:
        ragged = tf.ragged.constant([["a"], []])
        given = [{"y": tf.zeros([3, 2])}, {"y": ragged}, {}]
        assert session.run([head.label_weight(labels) for labels in given]) == [3, 2, 1]
        assert head.check({"y": float("inf")}) is None


def test_measures_the_mean_score_and_counts_nan():
    head = heads.Score(name="usual")
    for values, mean, count in (([[1.0], [4.0]], 2.5, 0), ([[1.0], [np.nan]], np.nan, 1)):
        with tf.Graph().as_default(), tf1.Session() as session:
            streams = head.metrics(tf.constant(values, tf.float32), {})
            session.run(tf1.local_variables_initializer())
            session.run([update for _, update in streams.values()])
            found = session.run({name: value for name, (value, _) in streams.items()})
        expected = {"average_loss": 0, "score_mean": mean, "nan_predictions": count}
        assert found == pytest.approx(expected, nan_ok=True)


def test_a_tower_of_several_values_is_refused():
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=r"one value for each row"):
        heads.Score(name="usual").logits(tf.zeros([4, 2]))
