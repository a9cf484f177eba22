import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, checks, compat, features, heads, model, networks, types
from mtl.balancing import methods, monitored, surgery, weighting
from mtl.heads import base
from mtl.model import graph_options
from mtl.optimization import optimizers, schedules, update
from mtl.step import outlets
from mtl.variables import stacks
from tests import tiny

tf1 = tf.compat.v1
ModeKeys = compat.estimator.ModeKeys

STATISTICS = features.Statistics(directory="", entries={})
BATCH = 8


def _model(trunk, learning_rate=0.1, **settings):
    """Two tasks on plain numbers and gradient descent: simple enough to recompute."""
    return model.MultiTaskModel(
        **{
            "columns": [features.Numeric(names=["x"], normalization="none")],
            "network": networks.SharedBottom(trunk=trunk, tower=networks.MLP(layers=[4])),
            "heads": [heads.Binary(name="sign"), heads.Regression(name="size")],
            "update": update.Update(optimizer=optimizers.SGD(learning_rate=learning_rate)),
            **settings,
        }
    )


def _batches(num_batches, **labels):
    """{field: [N, B, ...]}, with labels replaced by those given."""
    rows = tiny.rows(num_batches * BATCH, seed=3)
    rows = {name: rows[name] for name in ("x", "sign", "size")} | labels
    return {name: rows[name].reshape(num_batches, BATCH, *rows[name].shape[1:]) for name in rows}


def _train(made, batches, loop=None):
    """Trains one epoch; yields the variables before the first and after each session call."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(5)
        tf1.train.get_or_create_global_step()
        dataset = tf.data.Dataset.from_tensor_slices(dict(batches))
        dataset = dataset.map(lambda row: ({"x": row.pop("x")}, row)).repeat()
        iterator = tf1.data.make_initializable_iterator(dataset)
        inputs = (iterator, None) if loop else iterator.get_next()
        spec = made.model_fn(
            *inputs,
            ModeKeys.TRAIN,
            options=graph_options.GraphOptions(statistics=STATISTICS, loop=loop),
        )
        names = {variable.op.name: variable for variable in tf1.global_variables()}
        session.run([tf1.global_variables_initializer(), iterator.initializer])
        yield session.run(names), None
        for _ in range(len(batches["x"])):
            _, loss = session.run([spec.train_op, spec.loss])
            yield session.run(names), loss


@pytest.mark.medium
@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_batch_norm_averages_equal_numpy(steps_per_call):
    num_steps, momentum = 6, 0.99
    batches = _batches(num_steps)
    # With so small a rate the kernel stays what it is; the averages must move all the same.
    made = _model(networks.MLP(layers=[5], batch_norm=True), learning_rate=1e-12)
    loop = {"steps_per_call": steps_per_call, "last_step": num_steps, "due_every": ()}
    *_, (variables, _) = _train(made, batches, None if steps_per_call == 1 else loop)
    assert variables["global_step"] == num_steps
    scope = "network/trunk/hidden_0"
    mean, variance = np.zeros(5), np.ones(5)
    for x in batches["x"]:
        hidden = x.astype(np.float64) @ variables[f"{scope}/kernel"]
        mean += (1 - momentum) * (hidden.mean(axis=0) - mean)
        variance += (1 - momentum) * (hidden.var(axis=0) - variance)
    assert np.abs(mean).max() > 1e-3
    actual = {name: variables[f"{scope}_norm/moving_{name}"] for name in ("mean", "variance")}
    np.testing.assert_allclose(actual["mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(actual["variance"], variance, rtol=1e-4)


@pytest.mark.medium
def test_a_step_equals_numpy():
    batches = _batches(3)
    made = _model(networks.MLP(layers=[], activation="linear"), network=_Straight())
    (before, _), *after = _train(made, batches)
    sign = {"w": before["head/sign/logits/kernel"], "b": before["head/sign/logits/bias"]}
    size = {"w": before["head/size/logits/kernel"], "b": before["head/size/logits/bias"]}
    rows = zip(batches["x"], batches["sign"], batches["size"], after, strict=True)
    for x, signs, sizes, (variables, loss) in rows:
        probability = 1 / (1 + np.exp(-(x @ sign["w"] + sign["b"])[:, 0]))
        value = (x @ size["w"] + size["b"])[:, 0]
        cross_entropy = -np.log(np.where(signs == 1, probability, 1 - probability)).mean()
        assert loss == pytest.approx(cross_entropy + ((value - sizes) ** 2).mean(), rel=1e-5)
        for task, slope in ((sign, probability - signs), (size, 2 * (value - sizes))):
            task["w"] = task["w"] - 0.1 * x.T @ slope[:, np.newaxis] / BATCH
            task["b"] = task["b"] - 0.1 * slope.mean()
        for name, task in (("sign", sign), ("size", size)):
            kernel, bias = (variables[f"head/{name}/logits/{part}"] for part in ("kernel", "bias"))
            np.testing.assert_allclose(kernel, task["w"], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(bias, task["b"], rtol=1e-4, atol=1e-6)


class _Straight:
    """Hands the inputs to every head."""

    def __call__(self, inputs, tasks, training):
        del training
        return dict.fromkeys(tasks, inputs["numeric_x"])


@pytest.mark.medium
def test_a_batch_without_a_label_leaves_its_head_unmoved():
    missing = np.full([2 * BATCH], np.nan, np.float32)
    made = _model(networks.MLP(layers=[5]))
    (before, _), *after = _train(made, _batches(2, size=missing))
    variables, loss = after[-1]
    assert np.isfinite(loss)
    for name, value in before.items():
        own = name.startswith(("head/size", "network/tower_size"))
        moved = not np.array_equal(variables[name], value)
        assert moved != own, name


@pytest.mark.medium
def test_tasks_share_stacked_variables_only_if_the_caller_allows_it(monkeypatch):
    monkeypatch.setattr(stacks, "FROM", 2)
    tasks = [heads.Binary(name=name) for name in ("a", "b")]
    made = dataclasses.replace(_model(networks.MLP(layers=[5])), heads=tasks)
    names = []
    for options in ({}, {"may_stack": True}):
        with tf.Graph().as_default():
            tf1.train.get_or_create_global_step()
            rows = {name: tf.zeros([BATCH], tf.int64) for name in ("a", "b")}
            options = graph_options.GraphOptions(statistics=STATISTICS, **options)
            made.model_fn({"x": tf.zeros([BATCH, 3])}, rows, ModeKeys.TRAIN, options=options)
            names.append({variable.op.name for variable in tf1.trainable_variables()})
    assert {f"head/{name}/logits/kernel" for name in ("a", "b")} <= names[0]
    assert len(names[1]) < len(names[0])


def _loss(made, mode, batch):
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(5)
        tf1.train.get_or_create_global_step()
        inputs = {name: tf.constant(value) for name, value in batch.items()}
        spec = made.model_fn(
            {"x": inputs.pop("x")},
            inputs,
            mode,
            options=graph_options.GraphOptions(statistics=STATISTICS),
        )
        session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
        updates = [op for _, op in spec.eval_metric_ops.values()]
        loss, _ = session.run([spec.loss, updates])
        return loss, session.run({name: value for name, (value, _) in spec.eval_metric_ops.items()})


@pytest.mark.medium
def test_rows_without_a_label_do_not_count_for_its_task():
    batch = {name: values[0] for name, values in _batches(1).items()}
    gaps = np.arange(BATCH) % 2 == 0
    made = _model(networks.MLP(layers=[5]))
    signs = _loss(_model(networks.MLP(layers=[5])), ModeKeys.EVAL, batch)[1]
    halved = {name: value[~gaps] for name, value in batch.items()}
    sizes = _loss(made, ModeKeys.EVAL, halved)[1]
    loss, metrics = _loss(
        made, ModeKeys.EVAL, batch | {"size": np.where(gaps, np.nan, batch["size"])}
    )
    for task, expected in (("sign", signs), ("size", sizes)):
        for name, value in expected.items():
            if name.startswith(f"{task}/"):
                assert metrics[name] == pytest.approx(value, rel=1e-5), name
    total = signs["sign/average_loss"] + sizes["size/average_loss"]
    assert loss == pytest.approx(total, rel=1e-5)


class _NaNInOneRow(heads.Binary):
    def logits(self, tower):
        rows = tf.range(tf.shape(tower)[0])[:, tf.newaxis]
        return tf.where(tf.equal(rows, 2), np.nan, super().logits(tower))


@pytest.mark.medium
def test_a_nan_prediction_makes_nan_of_the_loss_and_a_task_without_labels_does_not():
    batch = {name: values[0] for name, values in _batches(1).items()}
    made = _model(networks.MLP(layers=[5]))
    whole = _loss(made, ModeKeys.EVAL, batch)[1]
    unlabelled = batch | {"size": np.full(BATCH, np.nan, "f")}
    metrics = _loss(made, ModeKeys.EVAL, unlabelled)[1]
    assert np.isnan(metrics["size/average_loss"])
    assert metrics["average_loss"] == pytest.approx(whole["sign/average_loss"])
    tasks = [_NaNInOneRow(name="sign"), heads.Regression(name="size")]
    loss, metrics = _loss(_model(networks.MLP(layers=[5]), heads=tasks), ModeKeys.EVAL, unlabelled)
    assert np.isnan(loss)
    assert np.isnan(metrics["average_loss"])
    assert (metrics["sign/nan_predictions"], metrics["size/nan_predictions"]) == (1, 0)


@pytest.mark.medium
def test_weights_scale_what_is_trained_and_not_what_is_evaluated():
    batch = _batches(1)
    fixed = weighting.Fixed(weights={"sign": 0.0, "size": 2.0})
    plain, weighted = (
        _model(networks.MLP(layers=[5]), weighting=chosen) for chosen in (weighting.Equal(), fixed)
    )
    (before, _), (after, loss) = _train(weighted, batch)
    np.testing.assert_array_equal(
        after["head/sign/logits/kernel"], before["head/sign/logits/kernel"]
    )
    first = {name: values[0] for name, values in batch.items()}
    expected, metrics = _loss(plain, ModeKeys.EVAL, first)
    assert _loss(weighted, ModeKeys.EVAL, first)[0] == expected
    assert loss == pytest.approx(2 * metrics["size/average_loss"], rel=1e-5)


def _gradients(batch, task):
    """Return {name: gradient} of a task's loss on these rows, read off a step at rate 1."""
    only = weighting.Fixed(weights={name: float(name == task) for name in ("sign", "size")})
    made = _model(networks.MLP(layers=[5]), learning_rate=1.0, weighting=only)
    (before, _), (after, _) = _train(made, {name: value[None] for name, value in batch.items()})
    return {name: before[name] - after[name] for name in before if name != "global_step"}


@pytest.mark.medium
@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize("missing", ["no label", "all of the first part"])
def test_gradients_of_independent_parts_of_a_batch(missing, samples):
    """Seven rows in two or three parts: MoDo by gradients that training on each part gives."""
    scales = np.array([2.0, 0.5])
    batch = {name: values[0, :7] for name, values in _batches(1).items()}
    if missing != "no label":
        batch["size"][::samples] = np.nan
    parts = [
        {name: value[first::samples] for name, value in batch.items()} for first in range(samples)
    ]
    shared = [f"network/trunk/hidden_0/{name}" for name in ("kernel", "bias")]
    whole, *cut = [
        [_gradients(rows, task) for task in ("sign", "size")] for rows in (batch, *parts)
    ]

    def flat(tasks):
        rows = [np.concatenate([np.ravel(task[name]) for name in shared]) for task in tasks]
        return scales[:, np.newaxis] * rows

    slope = flat(cut[0]) @ flat(cut[1]).T @ [0.5, 0.5]
    share = np.clip((1 + 2.0 * (slope[1] - slope[0])) / 2, 0, 1)  # The simplex of two.
    expected = [share, 1 - share] @ flat(cut[2] if samples == 3 else whole)

    made = _model(
        networks.MLP(layers=[5]),
        learning_rate=1.0,
        weighting=weighting.Fixed(weights=dict(zip(("sign", "size"), scales, strict=True))),
        surgery=surgery.Combine(method=methods.MoDo(step_size=2.0, samples=samples)),
    )
    (before, _), (after, _) = _train(made, {name: value[None] for name, value in batch.items()})
    moved = np.concatenate([np.ravel(before[name] - after[name]) for name in shared])
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-6)
    for scale, task, own in zip(scales, ("sign", "size"), whole, strict=True):
        name = f"head/{task}/logits/kernel"
        np.testing.assert_allclose(
            before[name] - after[name], scale * own[name], rtol=1e-4, atol=1e-6
        )
    weights = after["balancing/simplex_weights"]
    np.testing.assert_allclose(weights, [share, 1 - share], rtol=1e-5)
    assert abs(share - 0.5) > 0.01


@pytest.mark.medium
def test_a_batch_with_fewer_rows_than_parts_trains():
    batch = {name: values[:, :2] for name, values in _batches(3).items()}
    for method in (methods.MoDo(), methods.SDMGrad()):
        part = monitored.Monitored(surgery=surgery.Combine(method=method), every_steps=1)
        made = _model(networks.MLP(layers=[5]), surgery=part)
        *_, (after, _) = _train(made, batch)
        assert all(np.isfinite(value).all() for value in after.values())


@pytest.mark.medium
def test_samples_of_a_batch_are_refused_if_an_auxiliary_loss_compares_rows():
    made = _model(
        networks.MLP(layers=[5]),
        surgery=surgery.Combine(method=methods.MoDo()),
        auxiliary_losses=[auxiliary.SupervisedContrastive(head="sign", layers=[])],
    )
    message = "Combine.method must suit the model, .* auxiliary losses that compare rows"
    with pytest.raises(checks.UserError, match=message):
        next(_train(made, _batches(1)))


def test_the_signatures_of_every_head():
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        x = tf1.placeholder(tf.float32, [None, 3])
        spec = _model(networks.MLP(layers=[5])).model_fn(
            {"x": x},
            None,
            ModeKeys.PREDICT,
            options=graph_options.GraphOptions(statistics=STATISTICS),
        )
    assert set(spec.export_outputs) == {
        *("serving_default", "sign", "sign/classify", "sign/regress", "size", "size/regress")
    }
    assert set(spec.export_outputs["serving_default"].outputs) == set(spec.predictions)
    assert set(spec.predictions) == {
        *("sign/probability", "sign/class_id", "sign/class", "size/value")
    }


@pytest.mark.medium
def test_variables_have_the_scopes_that_patterns_rely_on():
    (variables, _), *_ = _train(_model(networks.MLP(layers=[5])), _batches(1))
    assert set(variables) == {
        "global_step",
        *(f"network/trunk/hidden_0/{part}" for part in ("kernel", "bias")),
        *(
            f"network/tower_{task}/hidden_0/{part}"
            for task in ("sign", "size")
            for part in ("kernel", "bias")
        ),
        *(f"head/{task}/logits/{part}" for task in ("sign", "size") for part in ("kernel", "bias")),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": []}, r"^MultiTaskModel\.heads must not be empty"),
        ({"heads": heads.Binary(name="a")}, r"^MultiTaskModel\.heads must be a list"),
        ({"heads": [heads.Binary(name="a")] * 2}, r"^MultiTaskModel\.heads must .*\['a'\]"),
        ({"columns": []}, r"^MultiTaskModel\.columns must not be empty"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(checks.UserError, match=message):
        _model(networks.MLP(layers=[5]), **settings)


def test_a_label_field_that_is_not_there_is_named():
    batch = {name: values[0] for name, values in _batches(1).items()}
    made = _model(networks.MLP(), heads=[heads.Binary(name="sing")])
    with pytest.raises(checks.UserError, match="Did you mean 'sign'"):
        _loss(made, ModeKeys.EVAL, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfOtherShape(heads.Regression):
    """A head whose losses have a shape that would be broadcast with the weights."""

    change: Any

    def losses(self, logits, targets):
        return self.change(super().losses(logits, targets))


@pytest.mark.parametrize(
    "change, shape",
    [(tf.reduce_mean, "()"), (lambda losses: losses[:, tf.newaxis] + losses, "(8, 8)")],
    ids=["a mean", "pairs of rows"],
)
@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.EVAL])
def test_losses_of_another_shape_are_one_line(change, shape, mode):
    own = [heads.Binary(name="sign"), _OfOtherShape(name="size", change=change)]
    batch = {name: values[0] for name, values in _batches(1).items()}
    with pytest.raises(checks.UserError) as error:
        _loss(_model(networks.MLP(layers=[5]), heads=own), mode, batch)
    wanted = "the losses of head 'size', _OfOtherShape, must have the shape (8,) of its weights"
    assert str(error.value) == f"{wanted}, got {shape}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OfKeras(types.Optimizer):
    learning_rate: float = 0.1

    def __call__(self, learning_rate):
        return tf.keras.optimizers.SGD(0.1)


def test_an_optimizer_of_keras_is_one_line():
    made = _model(networks.MLP(layers=[5]), update=update.Update(optimizer=_OfKeras()))
    batch = {name: values[0] for name, values in _batches(1).items()}
    message = "the part _OfKeras must build an optimizer of tf.compat.v1.train, got"
    with pytest.raises(checks.UserError, match=message):
        _loss(made, ModeKeys.TRAIN, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Returning:
    """A network that returns what it is told to, of its inputs [B, D]."""

    towers: Any

    def __call__(self, inputs, tasks, training):
        return self.towers(next(iter(inputs.values())))


@pytest.mark.parametrize(
    ("towers", "says"),
    [
        (lambda x: {"sign": x}, "must return a tower for every task, got ['sign']. Missing: size."),
        (lambda x: x, "must return types.Towers"),
        (lambda x: {"sign": x, "size": None}, "tower 'size' must be a tensor, got None."),
        (
            lambda x: {"sign": x, "size": tf.reduce_mean(x, 0, keepdims=True)},
            "tower 'size' must have a row for each of the 4 rows, got 1.",
        ),
        (lambda x: {"sign": x, "size": x[:, 0]}, "tower 'size' must be [B, H] of a known H"),
        (
            lambda x: {"sign": x, "size": tf1.placeholder_with_default(x, [None, None])},
            "tower 'size' must be [B, H] of a known H",
        ),
    ],
    ids=["missing", "no mapping", "nothing", "one row", "no vector", "unknown width"],
)
def test_a_network_that_leaves_a_task_without_a_tower_is_one_line(towers, says):
    made = _model(networks.MLP(), network=_Returning(towers=towers))
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as error:
        made.build_outputs({"x": tf.zeros([4, 3])}, STATISTICS, training=False)
    assert "MultiTaskModel.network, _Returning," in str(error.value)
    assert says in str(error.value) and "\n" not in str(error.value)


class _Own:
    """A part that returns what it is told to."""

    def __init__(self, result, **members):
        self.result = result
        vars(self).update(members)

    def __call__(self, *arguments):
        return self.result(*arguments)


def _own_head(name, result):
    """Make a regression of which one method returns something else."""
    return type("Own", (heads.Regression,), {name: lambda self, logits: result(logits)})(
        name="size"
    )


@pytest.mark.parametrize(
    ("setting", "part", "says"),
    [
        (
            "weighting",
            _Own(lambda losses, step: None),
            "must return {task: weighted loss}, got None.",
        ),
        (
            "weighting",
            _Own(lambda losses, step: {"sign": losses["sign"]}),
            "must return a loss for each of sign, size, got ['sign'].",
        ),
        (
            "weighting",
            _Own(lambda losses, step: {"sign": losses["sign"], "size": 0.0}),
            "the weighted loss 'size' must be a scalar tensor, got 0.0.",
        ),
        (
            "weighting",
            _Own(lambda losses, step: {"sign": losses["sign"], "size": tf.ones([])}),
            "the weighted loss 'size' must be a tensor that depends on the loss, got <tf.Tensor",
        ),
        (
            "weighting",
            _Own(lambda losses, step: {name: loss[tf.newaxis] for name, loss in losses.items()}),
            "the weighted loss 'sign' must be a scalar tensor, got <tf.Tensor",
        ),
        ("extensions", _Own(lambda *step: None), "must be a types.StepExtension, got None."),
        ("method", lambda tasks: None, "must return a weight for each task, float64 [T], got None"),
        (
            "method",
            lambda tasks: tasks.gramian,
            "must return a weight for each task, float64 [T], ",
        ),
        ("method", lambda tasks: tf.ones([2]), "must return a weight for each task, float64 [T], "),
        (
            "clipping",
            lambda *given: None,
            "the clipping _Own must return one gradient for each of 10 variables, got",
        ),
        (
            "clipping",
            lambda *given: given[0][:2],
            "the clipping _Own must return one gradient for each of 10 var",
        ),
        (
            "transforms",
            lambda *given: (given[0], given[2]),
            "the clipping _Own must return one gradient for each of",
        ),
        (
            "auxiliary_losses",
            _Own(lambda activations: None, name="own", weight=1.0),
            "auxiliary loss 'own' must return the losses of rows, float32 (8,), got None.",
        ),
        (
            "auxiliary_losses",
            _Own(lambda of: tf.zeros([8], tf.float64), name="own", weight=1.0),
            "auxiliary loss 'own' must return the losses of rows, float32 (8,), got <tf.Tensor",
        ),
        (
            "auxiliary_losses",
            _Own(lambda of: of.features["x"][:, 0], name="own", weight=_Own(lambda step: None)),
            "the schedule _Own of 'own' must return a scalar, got None.",
        ),
    ],
    ids=[
        "no map",
        "a task less",
        "a number",
        "a constant",
        "a vector",
        "no extension",
        "no weights",
        "a matrix",
        "float32",
        "no gradients",
        "two gradients",
        "a pair",
        "no loss",
        "a double",
        "no weight",
    ],
)
def test_own_parts_of_a_step_that_return_something_else_are_one_line(setting, part, says):
    if setting == "method":
        own = type("Own", (methods.MGDA,), {"weights": lambda self, tasks: part(tasks)})()
        settings = {"surgery": surgery.Combine(method=own)}
    elif setting in ("clipping", "transforms"):
        own = _Own(part)
        settings = {"update": update.Update(**{setting: own if setting == "clipping" else [own]})}
    else:
        is_list = setting in ("extensions", "auxiliary_losses")
        settings = {setting: [part] if is_list else part}
    made = _model(networks.MLP(layers=[5]), **settings)
    batch = {name: values[0] for name, values in _batches(1).items()}
    with pytest.raises(checks.UserError) as error:
        _loss(made, ModeKeys.TRAIN, batch)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        (lambda step: None, "must return a scalar, got None."),
        (lambda step: tf.ones([2]), "must return a scalar, got <tf.Tensor"),
    ],
    ids=["nothing", "a vector"],
)
def test_own_schedules_without_a_scalar_are_one_line(rate, says):
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as error:
        schedules.evaluate_rate(_Own(rate), tf.constant(3))
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "rate",
    [
        lambda step: 0.5,
        lambda step: np.float32(0.5),
        lambda step: tf.cast(step, tf.float64) / 6,
        lambda step: tf1.get_variable("rate", initializer=0.5, trainable=False),
    ],
    ids=["number", "NumPy", "double", "variable"],
)
def test_own_schedules_may_return_numbers_and_doubles(rate):
    with tf.Graph().as_default(), tf1.Session() as session:
        tensor = schedules.evaluate_rate(_Own(rate), tf.constant(3))
        session.run(tf1.global_variables_initializer())
        assert tensor.dtype == tf.float32 and session.run(tensor) == 0.5


@pytest.mark.parametrize(
    ("method", "result", "says"),
    [
        ("predictions", lambda logits: None, "must return {name: [B, ...]}, got None."),
        (
            "predictions",
            lambda logits: {"value": tf.reduce_mean(logits)},
            "must return a tensor [B, ...] as 'value', got <tf.Tensor",
        ),
        ("export_outputs", lambda logits: None, "must return {kind: output}, got None."),
    ],
    ids=["no predictions", "a scalar", "no outputs"],
)
def test_own_heads_that_predict_something_else_are_one_line(method, result, says):
    own = [heads.Binary(name="sign"), _own_head(method, result)]
    batch = {name: values[0] for name, values in _batches(1).items()}
    with pytest.raises(checks.UserError) as error:
        _loss(_model(networks.MLP(layers=[5]), heads=own), ModeKeys.PREDICT, batch)
    assert str(error.value).startswith(f"Own.{method} of task 'size' must return")
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.EVAL])
@pytest.mark.parametrize(
    ("method", "result", "says"),
    [
        ("losses", None, "the losses of head 'size', Own, must be a float32 tensor, got None."),
        ("losses", 1.0, "the losses of head 'size', Own, must be a float32 tensor, got 1.0."),
        ("targets", None, "Own.targets of task 'size' must return targets, and a bool mask"),
        # The second tensor would become the weights of the rows.
        ("targets", "numbers", "Own.targets of task 'size' must return targets, and a bool mask"),
        ("size", None, "Own must define size, the number of its logits."),
    ],
)
def test_own_heads_without_losses_are_one_line(mode, method, result, says):
    def own(self, *arguments):
        return (arguments[0], arguments[0]) if result == "numbers" else result

    part = type("Own", (heads.Regression,), {method: base.Base.size if method == "size" else own})
    batch = {name: values[0] for name, values in _batches(1).items()}
    with pytest.raises(checks.UserError) as error:
        made = _model(networks.MLP(), heads=[heads.Binary(name="sign"), part(name="size")])
        _loss(made, mode, batch)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["sums", "summary", "predictions"])
def test_own_heads_without_metrics_are_one_line(method):
    part = type("Own", (heads.Regression,), {method: lambda self, *arguments: None})
    batch = {name: values[0] for name, values in _batches(1).items()}
    made = _model(networks.MLP(), heads=[heads.Binary(name="sign"), part(name="size")])
    with pytest.raises(checks.UserError, match="must return a map of tensors, got None") as error:
        _loss(made, ModeKeys.EVAL, batch)
    assert str(error.value).startswith(f"Own.{method} of task 'size'")


@pytest.mark.parametrize(
    ("parent", "method", "similar"),
    [
        (types.StepExtension, "see_updates", "see_update"),
        (types.PassExtension, "change_input", "change_inputs"),
        (types.RunObserver, "build_hook", "build_hooks"),
    ],
)
def test_a_misspelt_optional_method_is_refused(parent, method, similar):
    with pytest.raises(checks.UserError) as error:
        type("Mine", (parent,), {method: lambda self: None})
    wanted = "a method of Mine must be a method of its base class, or begin with '_', got"
    assert str(error.value) == f"{wanted} {method!r}. Did you mean {similar!r}?"
    inner = type("Mine", (parent,), {f"_{method}": lambda self: None, "write_notes": print})
    type("Outer", (inner,), {"write_notes": print, similar: print})
    type("Both", (parent,), {similar: print, method: print})  # The method itself is there, too.


def test_own_weightings_may_read_other_losses_and_add_terms():
    """As constants; and with an entry for a penalty of the weighting's own variables."""

    def weigh(losses, step):
        mean = tf.stop_gradient(tf.add_n(list(losses.values()))) / 2
        own = tf1.get_variable("own", [], initializer=tf1.zeros_initializer())
        return {**{name: loss / mean for name, loss in losses.items()}, "own": (own - 1) ** 2}

    batch = {name: values[0] for name, values in _batches(1).items()}
    made = _model(networks.MLP(layers=[5]), weighting=_Own(weigh))
    assert np.isfinite(_loss(made, ModeKeys.TRAIN, batch)[0])


@pytest.mark.parametrize("name", ["loss", "sign/loss", "weight/size", "learning_rate"])
def test_scalars_of_a_network_do_not_replace_those_of_the_run(name):
    def build(x):
        outlets.add_scalar("own", tf.ones([]))
        outlets.add_scalar(name, tf.ones([]))
        return {"sign": x, "size": x}

    batch = {field: values[0] for field, values in _batches(1).items()}
    with pytest.raises(checks.UserError, match=f"must give its scalars other .* got .'{name}'."):
        _loss(_model(networks.MLP(), network=_Returning(towers=build)), ModeKeys.TRAIN, batch)


@pytest.mark.parametrize(
    ("weigh", "warns"),
    [
        (lambda sign, size: {"sign": sign * size, "size": size}, True),
        (lambda sign, size: {"sign": sign * tf.stop_gradient(size), "size": size}, False),
        (
            lambda sign, size: {
                "sign": sign * tf.cast(sign > size, tf.float32),
                "size": tf.where(sign > size, 0.0 * size, size),
            },
            False,
        ),
    ],
    ids=["a product", "a constant", "a comparison"],
)
def test_derivatives_by_losses_of_other_tasks_are_warned_of(weigh, warns, caplog):
    """A step drops them, so it trains another loss than it reports."""
    batch = {name: values[0] for name, values in _batches(1).items()}
    own = _Own(lambda losses, step: weigh(losses["sign"], losses["size"]))
    _loss(_model(networks.MLP(layers=[5]), weighting=own), ModeKeys.TRAIN, batch)
    said = "The weighted loss 'sign' depends on the losses of ['size']" in caplog.text
    assert said == warns
