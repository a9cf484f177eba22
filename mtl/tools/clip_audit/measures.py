"""Measures the examples of a batch: gradient norms, share in the gradient, losses, EL2N, margins.

measured = measures.measure(model, statistics, features, labels, weigh)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mtl import checks, types
from mtl import features as features_lib
from mtl.deferred import tf, tf1
from mtl.example_gradients import proof
from mtl.step import gradients as gradients_lib
from mtl.step import whole_batch
from mtl.tools.clip_audit import auxiliary as auxiliary_lib
from mtl.tools.clip_audit import norms, twins

if TYPE_CHECKING:
    from mtl import model as model_lib


_OF_HEADS = ("el2n", "margin", "label", "prediction")


class Measured(NamedTuple):
    """Measurements of a batch of B examples.

    Attributes:
      examples: {column of the report: its value for each example, [B]}.
      batch: {column of the report: its value for the whole batch, a scalar}; `norm` is the norm of
        the mean gradient of the examples.
      unknown: the variables whose norms need a backward pass for each example.
      left_out: {auxiliary loss that is not measured: reason}.
    """

    examples: dict[str, tf.Tensor]
    batch: dict[str, tf.Tensor]
    unknown: Sequence[str]
    left_out: Mapping[str, str]


def measure(
    model: model_lib.MultiTaskModel,
    statistics: features_lib.Statistics,
    features: types.Tensors,
    labels: types.Tensors,
    weigh: Callable[[types.Tensors], types.Tensors],
) -> Measured:
    """Measure a batch by a forward pass as in evaluation: examples do not affect each other.

    The loss of a task is a weighted mean over the labels of the batch. The loss of an example is B
    times the example's term of the weighted mean, so the mean of the examples' gradients is the
    gradient of the batch. `auxiliary.Measured` adds auxiliary losses to the losses of the tasks.

    Args:
      model: the model with fitted heads.
      statistics: the statistics of the columns.
      features: {field: [B, ...]}.
      labels: {field: [B, ...]}.
      weigh: maps {name: losses [B]} of tasks and auxiliary losses to {name: the weight of the loss,
        a scalar}. `weigh` gets losses of 0 for auxiliary losses that cannot be measured.

    Raises:
      UserError: a head does not compute the loss of each example, or building the forward pass
        again creates new variables.
    """
    heads = _require_losses(model)
    logits: dict[str, tf.Tensor] = {}
    scales: dict[str, tf.Tensor] = {}
    auxiliary = auxiliary_lib.Measured(model)

    def losses_of(batch: Any) -> types.Tensors:
        before = len(tf1.trainable_variables())
        # Ops from the index `first` on belong to the new forward pass; see `twins`.
        first = len(tf1.get_default_graph().get_operations())
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            activations = model.infer_activations(batch[0], batch[1], statistics)
            outputs = twins.reuse_earlier(first, activations.logits)
            others = auxiliary.measure(dataclasses.replace(activations, logits=outputs), first)
        if before:  # `launch.clip_audit` creates all variables in its first pass.
            _require_none(tf1.trainable_variables()[before:])
        examples = {head.name: head.examples(outputs[head.name], batch[1]) for head in heads}
        if not logits:  # Only the first call measures the whole batch.
            logits.update(outputs)
            scales.update({task: _find_scale(of_task) for task, of_task in examples.items()})
        losses = {h.name: _weigh_losses(h, examples[h.name], scales[h.name]) for h in heads}
        return {**losses, **others}

    def weigh_measured(losses: types.Tensors) -> types.Tensors:
        zeros = tf.zeros_like(next(iter(losses.values())))
        weights = weigh({name: losses.get(name, zeros) for name in model.loss_names})
        return {name: weights[name] for name in losses}

    measured = norms.measure(losses_of, (features, labels), weigh_measured)
    examples = _of_gradients(measured)
    for head in heads:
        columns = _of_head(head, logits[head.name], labels)
        examples |= {f"{name}/{head.name}": tf.cast(x, tf.float32) for name, x in columns.items()}
    for name in measured.losses.keys() - logits.keys():
        examples[f"loss/{name}"] = tf.cast(measured.losses[name], tf.float32)
    return Measured(examples, _of_batch(measured), measured.unknown, auxiliary.left_out)


def _require_none(new_variables: Sequence[tf.Variable]) -> None:
    """Fail if a further forward pass has created variables."""
    names = [variable.name for variable in new_variables]
    fix = "A KerasModel of 16 bits cannot be audited while it trains: use launch.clip_audit."
    rule = "reuse the existing variables, and create none"
    checks.require(not names, "clip audit", rule, names[:3], fix)


def _require_losses(model: model_lib.MultiTaskModel) -> Sequence[types.ExampleHead]:
    for head in model.heads_with_loss:
        fix = f"{type(head).__name__} does not compute the loss of each label."
        is_fit = isinstance(head, types.ExampleHead)
        checks.require(is_fit, "clip audit", "know each loss", head.name, fix)
    return cast(Sequence[types.ExampleHead], model.heads_with_loss)


def measure_losses(
    losses_of: Callable[[Any], types.Tensors], batch: Any, weights: types.Tensors
) -> Measured:
    """Measure the examples of a network whose heads are unknown, for any `model_fn`.

    Values that need a head, such as EL2N, are NaN.

    Args:
      losses_of: a function that builds the network again for some rows, and returns {task: losses
        [B]}; the loss of an example must not depend on other examples.
      batch: tensors of B rows, in any nesting of dictionaries and sequences.
      weights: {task: the weight of its loss, a scalar}.

    Raises:
      UserError: `losses_of` creates new variables, lacks a task, or does not return a loss for each
        row.
    """

    def build(rows: Any) -> types.Tensors:
        before = {variable.ref() for variable in tf1.global_variables()}
        here = tf1.get_variable_scope()
        # Building the network a second time would add its UPDATE_OPS and losses to the step again.
        with whole_batch.withhold_collections(), tf1.variable_scope(here, reuse=tf1.AUTO_REUSE):
            losses = losses_of(rows)
        # A variable that this pass creates would have random values, so its
        # losses would mean nothing.
        new_names = [v.name for v in tf1.global_variables() if v.ref() not in before]
        rule = "reuse the existing variables, and create none"
        checks.require(not new_names, "clip audit: losses_of", rule, new_names[:3])
        checks.is_a("clip audit: losses_of", losses, Mapping, "return {task: losses [B]}")
        for task in weights:
            checks.one_of("clip audit: losses_of", task, losses)
            is_row = isinstance(losses[task], tf.Tensor) and losses[task].shape.rank == 1
            where = f"clip audit: losses_of, task {task!r}"
            checks.require(is_row, where, "return a loss for each row, [B]", losses[task])
        return {task: losses[task] for task in weights}

    measured = norms.measure(build, batch, lambda _: weights)
    examples = _of_gradients(measured)
    for task, losses in measured.losses.items():
        # Return columns of NaN, because reports find the names of the tasks in `label/<task>`.
        unknown = tf.fill(tf.shape(losses), float("nan"))
        examples[f"loss/{task}"] = tf.cast(losses, tf.float32)
        examples |= {f"{name}/{task}": unknown for name in _OF_HEADS}
    return Measured(examples, _of_batch(measured), measured.unknown, {})


def _weigh_losses(
    head: types.ExampleHead, examples: types.LossInputs, scale: tf.Tensor
) -> tf.Tensor:
    """Return the sum of the weighted losses of each row, times a scale, [B]."""
    # `declare` says that each row belongs to one example, which `proof` cannot find out after a sum
    # over rows. Without `declare`, each example would need a backward pass.
    weights = proof.declare(scale * examples.weights)
    return _sum_labels(weights * head.losses(examples.logits, examples.targets))


def _find_scale(examples: types.LossInputs) -> tf.Tensor:
    """Return the factor from a mean over rows to the weighted mean over labels, the task's loss."""
    rows = tf.cast(tf.shape(examples.weights)[0], tf.float32)
    return tf.math.divide_no_nan(rows, tf.reduce_sum(examples.weights))


def _sum_labels(values: tf.Tensor) -> tf.Tensor:
    """Return the sum over the labels of a row: [B, ...] -> [B]."""
    return tf.reduce_sum(values, axis=list(range(1, values.shape.rank)))


def _of_gradients(measured: norms.Norms) -> dict[str, tf.Tensor]:
    """Return `norm`, `norm/task/<task>`, `norm/scope/<scope>` and `blame`, each of shape [B]."""
    scopes = _group_squares(measured.squares, _find_scope)
    total = tf.add_n(list(measured.squares.values()))
    # The share of example i is <g_i, S> / |S|^2, with the sum S of all gradients. The shares of all
    # examples add up to 1; a share may be negative.
    blame = tf.math.divide_no_nan(measured.products, tf.reduce_sum(measured.products))
    return {
        "norm": _norms(total),
        **{f"norm/task/{task}": _norms(squares) for task, squares in measured.task_squares.items()},
        **{f"norm/scope/{scope}": _norms(squares) for scope, squares in scopes.items()},
        "blame": tf.cast(blame, tf.float32),
    }


def _of_batch(measured: norms.Norms) -> dict[str, tf.Tensor]:
    """Return `norm` of the mean gradient, and for each layer the mean of the examples' norms."""
    count = tf.cast(tf.size(measured.products), tf.float32)
    layers = _group_squares(measured.squares, lambda name: name.rpartition("/")[0])
    means = {f"layer/{name}": tf.reduce_mean(_norms(squares)) for name, squares in layers.items()}
    # |S|^2 is the sum of the inner products of all gradients with their sum S.
    return {"norm": _norms(tf.reduce_sum(measured.products)) / count, **means}


def _norms(squares: tf.Tensor) -> tf.Tensor:
    """Return roots of float64 squares as float32; squares below 0 (rounding errors) count as 0."""
    return gradients_lib.take_roots(tf.where(squares < 0, tf.zeros_like(squares), squares))


def _group_squares(
    squares: dict[str, tf.Tensor], name_of: Callable[[str], str]
) -> dict[str, tf.Tensor]:
    groups: dict[str, list[tf.Tensor]] = {}
    for name, part in squares.items():
        groups.setdefault(name_of(name), []).append(part)
    return {name: tf.add_n(parts) for name, parts in groups.items()}


def _find_scope(name: str) -> str:
    """Return the scope of a variable: network, features, head/<task> or auxiliary/<name>."""
    return "/".join(name.split("/")[: 2 if name.startswith(("head/", "auxiliary/")) else 1])


def _of_head(
    head: types.ExampleHead, logits: tf.Tensor, labels: types.Tensors
) -> dict[str, tf.Tensor]:
    """Return loss, EL2N, margin, label and prediction of each example, [B]; NaN if undefined.

    The loss is the weighted mean over the labels of the example, and NaN without a label.
    EL2N is the norm of the derivative of the loss with respect to the logits. For cross-entropy,
    EL2N equals `|p - y|`, the distance between the probabilities p and the one-hot label y. M.
    Paul, S. Ganguli, G. K. Dziugaite, "Deep Learning on a Data Diet", 2021, arXiv:2107.07075. The
    margin is the logit of the label minus the largest logit of another class.
    """
    examples, predicted = head.examples(logits, labels), head.predictions(logits)
    losses = head.losses(examples.logits, examples.targets)
    weights = _sum_labels(examples.weights)
    loss = tf.where(weights > 0, _sum_labels(examples.weights * losses) / weights, float("nan"))
    # One gradient of all losses is enough: the logits of a row affect only the loss of this row.
    (errors,) = tf.gradients(losses, [logits])
    counts, unknown = examples.weights > 0, tf.fill(tf.shape(logits)[:1], float("nan"))
    flat = tf.reshape(errors, [tf.shape(logits)[0], -1])  # [B, C]
    el2n = gradients_lib.take_roots(
        gradients_lib.retry_in_float64(lambda dtype: tf.reduce_sum(tf.cast(flat, dtype) ** 2, 1))
    )
    # With several labels per row, label, prediction and margin are undefined.
    if counts.shape.rank > 1:
        return {"loss": loss, **dict.fromkeys(_OF_HEADS, unknown), "el2n": el2n}
    prediction = predicted.get("class_id", predicted.get("value", unknown))
    of_labelled = {
        "el2n": el2n,
        "margin": _compute_margin(examples, predicted, unknown),
        "label": examples.targets,
    }
    columns = {name: tf.where(counts, _cast_float(x), unknown) for name, x in of_labelled.items()}
    columns["prediction"] = prediction if prediction.shape.rank == 1 else unknown
    return {"loss": loss, **columns}


def _compute_margin(examples: Any, predicted: types.Tensors, unknown: tf.Tensor) -> tf.Tensor:
    logits, targets, _ = examples
    if "probability" in predicted:
        # A binary head has one logit for each row, [B], and the other class has the logit 0. The
        # margin is the row's logit, with the sign that the label gives.
        return (2 * targets - 1) * logits
    probabilities = predicted.get("probabilities")
    # Without a logit for each class, no logit belongs to the label.
    if probabilities is None or logits.shape[1:] != probabilities.shape[1:]:
        return unknown
    is_target = tf.one_hot(targets, logits.shape[1], on_value=True, off_value=False)  # [B, C]
    others = tf.reduce_max(tf.where(is_target, logits.dtype.min, logits), axis=1)
    return tf.reduce_sum(tf.where(is_target, logits, 0.0), axis=1) - others


def _cast_float(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float32)
