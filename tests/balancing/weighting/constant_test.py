import pytest
import tensorflow as tf

from mtl.balancing import weighting


def _weigh(part, losses):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tensors = {task: tf.constant(loss) for task, loss in losses.items()}
        return session.run(part(tensors, tf.constant(0, tf.int64)))


def test_equal():
    assert _weigh(weighting.Equal(), {"a": 2.0, "b": 3.0}) == {"a": 2.0, "b": 3.0}


def test_fixed():
    part = weighting.Fixed(weights={"b": 0.5, "a": 4})
    assert _weigh(part, {"a": 2.0, "b": 3.0}) == {"a": 8.0, "b": 1.5}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0, "bb": 1.0}, "Fixed.weights must be one of a, b, got 'bb'. Did you mean 'b'?"),
        ({"a": 1.0}, r"Fixed.weights must name every task, got \['b'\]. Add them"),
        ({"a": 1.0, "b": -1.0}, r"Fixed.weights\['b'\] must be at least 0, got -1.0"),
        ({"a": 0, "b": 0}, "Fixed.weights must hold a weight above 0"),
        (2.0, "Fixed.weights must map tasks to weights, got 2.0"),
    ],
)
def test_fixed_settings(weights, message):
    with pytest.raises(ValueError, match=message):
        _weigh(weighting.Fixed(weights=weights), {"a": 2.0, "b": 3.0})
