"""Refuses a checkpoint that does not fit the model, before any variable is restored.

model_fn = mismatch.refuse_mismatch(model_fn, "runs/digits/model.ckpt-500")
mismatch.require_same("runs/digits/model.ckpt-500", saved, wanted)      # {name: shape} each
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mtl import checks, deferred
from mtl.deferred import compat, tf, tf1
from mtl.variables import averaging, pruned, stacks

with deferred.imports():
    from mtl.tf_internals import zeros_saver


def refuse_mismatch(model_fn: Callable[..., Any], checkpoint: str | None) -> Callable[..., Any]:
    """Return a `model_fn` that fails before the restore if the checkpoint does not fit the graph.

    In training, the graph must have every variable of the checkpoint; other modes ignore variables
    of the optimizer. Checkpoints of old versions lack the decays of moving averages; their averages
    count as up to date.

    Args:
      model_fn: a function (features, labels, mode) that returns an EstimatorSpec.
      checkpoint: the path of the checkpoint to restore; None returns `model_fn` unchanged.

    Returns:
      A function with the arguments of `model_fn`, which raises a UserError if the checkpoint does
      not fit.
    """
    if checkpoint is None:
        return model_fn

    def check_and_build(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
        spec = model_fn(features, labels, mode)
        missing = require_fit(checkpoint, mode == compat.estimator.ModeKeys.TRAIN)
        if missing:
            zeros_saver.add_zeros_saver(missing)
        return spec

    return check_and_build


def require_fit(checkpoint: str, is_training: bool) -> set[str]:
    """Refuse a checkpoint that does not fit the default graph.

    Args:
      checkpoint: the path of the checkpoint.
      is_training: True refuses a checkpoint with variables that the graph lacks. An evaluation sets
        False, because its graph lacks optimizer state.

    Returns:
      The names of variables that checkpoints of old versions lack, and that therefore start from 0.

    Raises:
      UserError: the checkpoint does not fit; the error names the first variable that differs.
    """
    saved_shapes = dict(tf.train.list_variables(checkpoint))
    graph_shapes = {
        name: shape
        for variable in tf1.global_variables()
        for name, shape in stacks.list_members(variable).items()
    }
    restored_shapes = {
        name: saved_shapes[name] for name in saved_shapes if is_training or name in graph_shapes
    }
    # If the checkpoint lacks the decays of all averages, the decays start from 0. If it has some
    # decays, it must have all, because decays are compared with each other.
    knows_decays = any(map(averaging.is_decay, saved_shapes))
    missing = set() if knows_decays else set(filter(averaging.is_decay, graph_shapes))
    _require_types(checkpoint)
    require_same(
        checkpoint,
        restored_shapes,
        {name: graph_shapes[name] for name in graph_shapes.keys() - missing},
    )
    return missing


def _require_types(checkpoint: str) -> None:
    """Fail if a variable has another dtype in the checkpoint, such as float16 for float32."""
    dtypes = tf.train.load_checkpoint(checkpoint).get_variable_to_dtype_map()
    fix = "Choose another --model_dir, or train with the config.gin that lies beside it."
    for variable in tf1.global_variables():
        dtype = variable.dtype.base_dtype
        for name in stacks.list_members(variable):
            where, saved_dtype = (
                f"variable {name!r} of checkpoint {checkpoint}",
                dtypes.get(name, dtype),
            )
            checks.require(
                saved_dtype == dtype, where, f"be of {dtype.name}", saved_dtype.name, fix
            )


_FIX_REFIT = (
    "If Experiment.refit has computed it, it has no state of an optimizer: a new run can start "
    "from it with Experiment.warm_start. Otherwise, train with the config.gin"
)


def require_same(
    checkpoint: str, saved: Mapping[str, Sequence[int]], wanted: Mapping[str, Sequence[int]]
) -> None:
    """Refuse a checkpoint whose variables differ from the variables of a graph.

    Args:
      checkpoint: the path of the checkpoint, for the error message.
      saved: {variable: its shape in the checkpoint}.
      wanted: {variable: its shape in the graph}.

    Raises:
      UserError: variables differ; the error names the first difference.
    """
    common, differ = sorted(set(saved) & set(wanted)), set(saved) ^ set(wanted)
    problems = {
        name: f"{name!r} has shape {list(saved[name])} there and {list(wanted[name])} here"
        for name in common
        if list(saved[name]) != list(wanted[name])
    }
    problems |= {name: f"it lacks {name!r}" for name in sorted(set(wanted) - set(saved))}
    problems |= {name: f"it also holds {name!r}" for name in sorted(set(saved) - set(wanted))}
    if problems:
        rest = f" ({len(problems) - 1} more differ)" * (len(problems) > 1)
        # Name a statistic of pruning only if no other variable differs: a mask, for example,
        # explains more.
        first = problems[min(problems, key=lambda name: name.startswith("pruning/"))]
        cause, fix = "architecture", "Choose another --model_dir, or train with the config.gin"
        if all(map(pruned.is_of_pruning, problems)):
            cause = "pruning"
        elif first.startswith("it ") and _are_of_optimizer(differ, common):
            cause = "optimizer"
            fix = _FIX_REFIT if set(saved) < set(wanted) else fix
        fix += " that lies beside it."
        raise checks.UserError(
            f"checkpoint {checkpoint} is of another {cause}: {first}{rest}. {fix}"
        )


def _are_of_optimizer(names: Iterable[str], variables: Iterable[str]) -> bool:
    """Return True if `names` may be optimizer state of `variables`."""
    # Optimizers name slots "<variable>/<slot>", and their other variables without a "/".
    return {name.rpartition("/")[0] for name in names} <= {*variables, ""}
