"""EstimatorSpec, TrainSpec, EvalSpec and input receivers: what they take, refuse and fill in."""

import pytest
import tensorflow as tf

from mtl import compat
from mtl.compat import keras

tf1 = tf.compat.v1
needs_keras_2 = pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")
api = compat.estimator
outputs = api.export
DEFAULT = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class _Hook(api.SessionRunHook):
    pass


@pytest.fixture
def one():
    """A scalar tensor in a new graph."""
    with tf.Graph().as_default():
        yield tf.constant(1.0)


def _sparse():
    return tf.sparse.SparseTensor(indices=[[0]], values=[0.0], dense_shape=[1])


def _all_arguments(one):
    return {
        "predictions": {"loss": one},
        "loss": one,
        "train_op": tf.no_op(),
        "eval_metric_ops": {"loss": (tf.no_op(), one), "nested": ((one, (one, one)), tf.no_op())},
        "export_outputs": {"head": outputs.ClassificationOutput(classes=tf.constant("hello"))},
        "training_chief_hooks": [_Hook()],
        "training_hooks": [_Hook()],
        "evaluation_hooks": [_Hook()],
        "prediction_hooks": [_Hook()],
        "scaffold": tf1.train.Scaffold(),
    }


@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_every_mode_takes_all_arguments(mode, one):
    arguments = _all_arguments(one)
    spec = api.EstimatorSpec(mode, **arguments)
    for name, value in arguments.items():
        if name == "export_outputs" and mode == "infer":
            value = value | {DEFAULT: value["head"]}
        assert getattr(spec, name) == (tuple(value) if name.endswith("hooks") else value)


@pytest.mark.parametrize(
    ("mode", "names"),
    [("train", ("loss", "train_op")), ("eval", ("loss",)), ("infer", ("predictions",))],
)
def test_a_mode_needs_only_its_own(mode, names, one):
    arguments = dict.fromkeys(names, one)
    assert api.EstimatorSpec(mode, **arguments).scaffold is not None
    for name in names:
        rest = {key: value for key, value in arguments.items() if key != name}
        with pytest.raises(ValueError, match=f"Missing {name}"):
            api.EstimatorSpec(mode, **rest)


def test_a_loss_of_one_element_is_a_scalar(one):
    assert api.EstimatorSpec("eval", loss=one[tf.newaxis]).loss.shape == ()


WRONG = {  # message -> (type of error, what is wrong with it)
    "loss must be Tensor": (TypeError, lambda: {"loss": 1.0}),
    "loss must be Tensor, given: SparseTensor": (TypeError, lambda: {"loss": _sparse()}),
    "Loss must be scalar": (ValueError, lambda: {"loss": tf.constant([1.0, 2.0])}),
    "train_op must be Operation or Tensor": (TypeError, lambda: {"train_op": "no"}),
    r"predictions\[number\] must be Tensor": (TypeError, lambda: {"predictions": {"number": 1.0}}),
    r"predictions\[sparse\] must be Tensor": (
        TypeError,
        lambda: {"predictions": {"sparse": _sparse()}},
    ),
    "eval_metric_ops must be a dict": (TypeError, lambda: {"eval_metric_ops": 1.0}),
    r"must be \(metric_value, update_op\)": (
        TypeError,
        lambda: {"eval_metric_ops": {"loss": tf.constant(1.0)}},
    ),
    "scaffold must be": (TypeError, lambda: {"scaffold": object()}),
    "`?export_outputs`? must be dict": (
        TypeError,
        lambda: {"export_outputs": outputs.RegressionOutput(tf.constant([1.0]))},
    ),
    "must be ExportOutput objects": (TypeError, lambda: {"export_outputs": {"head": {"x": 1}}}),
    "Multiple `?export_outputs`? were provided": (
        ValueError,
        lambda: {
            "export_outputs": {
                name: outputs.RegressionOutput(tf.constant([1.0])) for name in ("one", "two")
            }
        },
    ),
    **{
        f"All hooks must be SessionRunHook.*{name}": (TypeError, lambda name=name: {name: [name]})
        for name in ("training_hooks", "training_chief_hooks", "evaluation_hooks")
    },
    "All hooks must be SessionRunHook.*prediction": (
        TypeError,
        lambda: {"prediction_hooks": ["prediction"]},
    ),
}


def _modes(message):
    """The modes in which EstimatorSpec looks at this."""
    if "loss" in message.lower():
        return ("train", "eval")
    return ("infer",) if "xport" in message else ("train", "eval", "infer")


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message, one):
    kind, make = WRONG[message]
    for mode in _modes(message):
        arguments = {"loss": one, "train_op": tf.no_op(), "predictions": one} | make()
        with pytest.raises(kind, match=message):
            api.EstimatorSpec(mode, **arguments)


@pytest.mark.parametrize("name", ["loss", "train_op", "predictions", "eval_metric_ops"])
def test_tensors_of_another_graph(name, one):
    with tf.Graph().as_default():
        own = {"loss": tf.constant(1.0), "train_op": tf.no_op(), "predictions": tf.constant(1.0)}
        foreign = {"m": (one, one)} if name == "eval_metric_ops" else one
        with pytest.raises(ValueError, match="must be from the default graph"):
            api.EstimatorSpec("train", **own | {name: foreign})


@needs_keras_2
def test_metric_objects(one):
    mean = tf.keras.metrics.Mean()
    with pytest.raises(ValueError, match="Please call update_state"):
        api.EstimatorSpec("eval", loss=one, eval_metric_ops={"mean": mean})
    mean.update_state(one)
    api.EstimatorSpec("eval", loss=one, eval_metric_ops={"mean": mean})
    for key in (tf1.GraphKeys.LOCAL_VARIABLES, tf1.GraphKeys.METRIC_VARIABLES):
        found = [id(variable) for variable in tf1.get_collection(key)]
        assert {id(variable) for variable in mean.variables} <= set(found)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="from the default graph"):
        api.EstimatorSpec("eval", loss=tf.constant(1.0), eval_metric_ops={"mean": mean})


def test_replace_checks_again(one):
    spec = api.EstimatorSpec("eval", loss=one)
    assert spec._replace(predictions={"m": one}).predictions == {"m": one}
    assert spec._replace(mode="eval").mode == "eval"
    with pytest.raises(ValueError, match="Loss must be scalar"):
        spec._replace(loss=tf.constant([1.0, 2.0]))
    with pytest.raises(ValueError, match="mode of EstimatorSpec cannot be changed"):
        spec._replace(mode="train")


def test_the_default_signature(one):
    regression = outputs.RegressionOutput(value=one[tf.newaxis])
    predict = {"loss": one, "score": one}
    given = {DEFAULT: regression, "head": outputs.PredictOutput(predict)}

    def filled(**arguments):
        return api.EstimatorSpec("infer", predict, **arguments).export_outputs

    assert filled(export_outputs=given) == given
    assert filled(export_outputs={"head": regression}) == {"head": regression, DEFAULT: regression}
    assert filled()[DEFAULT].outputs == predict


LOGITS = {"x": [[2.0, 3.0]], "y": [[4.0, 5.0]]}


def test_logit_functions(one):
    features = {name: tf.constant(value) for name, value in LOGITS.items()}

    def call(logit_fn):
        return api.experimental.call_logit_fn(logit_fn, features, "eval", "params", "config")

    def by_mode(features, mode):
        return features["y" if mode == "eval" else "x"]

    def by_head(features, params, config):
        assert (params, config) == ("params", "config")
        return {"x": features["x"]}

    assert call(by_mode) is features["y"]
    assert call(by_head) == {"x": features["x"]}
    for wrong in ([features["x"]], {"x": "text"}):
        with pytest.raises(ValueError, match="logit_fn should return a Tensor or a dictionary"):
            call(lambda features, wrong=wrong: wrong)


class _Exporter(api.Exporter):
    def __init__(self, name):
        self._name = name

    name = property(lambda self: self._name)

    def export(self, *args, **kwargs):
        """Nothing to do."""


def _input_fn():
    return 1


def test_train_and_eval_spec_defaults():
    train, evaluate = api.TrainSpec(_input_fn), api.EvalSpec(_input_fn)
    assert (train.max_steps, train.hooks, train.saving_listeners) == (None, (), ())
    assert (evaluate.steps, evaluate.name) == (100, None)
    assert (evaluate.hooks, evaluate.exporters) == ((), ())
    assert (evaluate.start_delay_secs, evaluate.throttle_secs) == (120, 600)
    hooks, exporter = [_Hook()], _Exporter("a")
    assert api.TrainSpec(_input_fn, 2, hooks)[:3] == (_input_fn, 2, tuple(hooks))
    full = api.EvalSpec(_input_fn, 2, "name", hooks, exporter, 3, 4)
    assert full == (_input_fn, 2, "name", tuple(hooks), (exporter,), 3, 4)


REFUSED = {
    "`input_fn` must be callable": {"input_fn": "text"},
    "All hooks must be": {"hooks": [object()]},
}
REFUSED_TRAIN = REFUSED | {"Must specify max_steps > 0": {"max_steps": 0}}
REFUSED_EVAL = REFUSED | {
    "Must specify steps > 0": {"steps": 0},
    "`name` must be string": {"name": 123},
    "start_delay_secs >= 0": {"start_delay_secs": -1},
    "throttle_secs >= 0": {"throttle_secs": -1},
    "`exporters` must be": {"exporters": _Hook()},
    "`exporters` must be an Exporter": {"exporters": [_Exporter("a"), _Hook()]},
    "must have a string name": {"exporters": _Exporter(123)},
    "must have unique names": {"exporters": [_Exporter("a"), _Exporter("a")]},
    "cannot have a name that is `None`": {"exporters": _Exporter(None)},
}


@pytest.mark.parametrize("message", REFUSED_TRAIN)
def test_refused_train_specs(message):
    with pytest.raises((TypeError, ValueError), match=message):
        api.TrainSpec(**{"input_fn": _input_fn} | REFUSED_TRAIN[message])


@pytest.mark.parametrize("message", REFUSED_EVAL)
def test_refused_eval_specs(message):
    with pytest.raises((TypeError, ValueError), match=message):
        api.EvalSpec(**{"input_fn": _input_fn} | REFUSED_EVAL[message])
