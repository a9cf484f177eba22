"""Networks that learn new tasks without any change in the predictions of old tasks.

networks.Piggyback.network = @networks.SharedBottom()           # or networks.PackNet
networks.Piggyback.added = ["loops"]
experiment.Experiment.warm_start = @transfer.WarmStart()        # from a run of the old tasks
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.variables import freezing as freezing_lib
from mtl.variables import patterns, pruned, views

_log = logging.getLogger(__name__)

_KERNELS = ("^network/(?!(.*/)?tower_).*kernel$",)

View = Callable[[Any, str, Callable[..., Any], dict[str, Any]], Any]
"""A function (kernel, name, getter, settings) that returns the kernel for one task."""


@checks.dataclass
class Piggyback(types.Network):
    """Adds tasks to a trained network; a new task learns which weights to mask.

    Old tasks use kernels W, and an added task t uses `W (r[t] > threshold)` with learned scores
    r[t]. A. Mallya et al., "Piggyback: Adapting a Single Network to Multiple Tasks by Learning to
    Mask Weights", ECCV 2018, arXiv:1801.06519. Training changes only the scores, and the towers and
    heads of added tasks, so the predictions of old tasks stay bit-identical. The scores get the
    gradient of the mask unchanged (straight-through). A mask needs only one bit for each weight,
    but checkpoints store the scores, which are floats. A run needs a warm start from a run of the
    old tasks.

    Attributes:
      network: the network, which is built for all old tasks, and again for each added task.
      added: the added tasks, which mask weights; at least one task must be an old task.
      kernels: patterns of the kernels to which masks are applied (see `mtl.variables.patterns`). By
        default, the patterns match all kernels of the network except in towers. The scores are
        `<kernel>_mask_<task>`.
      start: the initial value of all scores, above `threshold`.
      threshold: an added task uses the weights with scores above this number.
    """

    network: types.Network
    added: Sequence[str]
    kernels: Sequence[str] = _KERNELS
    start: float = 0.01
    threshold: float = 0.005

    def __post_init__(self):
        _check_settings(self, "added", self.added)
        rule = f"be above threshold, {self.threshold:g}, so that added tasks start with all weights"
        checks.require(self.start > self.threshold, "Piggyback.start", rule, self.start)

    @property
    def starts_from_run(self) -> bool:
        """True if a new run needs a warm start."""
        return True

    def hold(self, freezing: freezing_lib.Freezing) -> freezing_lib.Freezing:
        """Extend the settings `Freezing` of a run by the columns and the heads of old tasks.

        Args:
          freezing: the settings of the run that name the frozen variables.

        Returns:
          A copy of `freezing` that also freezes all variables outside of the network, except the
          heads of added tasks, and sets `batch_norm` to "inference".
        """
        return _freeze_others(freezing, self.added)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Run the network, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` is empty, because added tasks do not share outputs.

        Raises:
          UserError: a task is unknown, all tasks are added, or the patterns match no kernel.
        """
        for task in self.added:
            checks.one_of("Piggyback.added", task, tasks)
        old_tasks = [task for task in tasks if task not in self.added]
        rule = "leave out at least one task, an old task without masks"
        checks.require(len(old_tasks) > 0, "Piggyback.added", rule, list(self.added))
        with freezing_lib.hold_part(trainable=False):
            towers = dict(self.network(inputs, old_tasks, training))

        def mask(task: str) -> View:
            def view(kernel: Any, name: str, getter: Any, settings: dict[str, Any]) -> tf.Tensor:
                # Replace the kernel's initializer and penalty, which do not suit scores.
                start = tf1.constant_initializer(self.start)
                mask_settings = {
                    **settings,
                    "initializer": start,
                    "regularizer": None,
                    "trainable": True,
                }
                scores = tf.convert_to_tensor(getter(f"{name}_mask_{task}", **mask_settings))
                weight_mask = _binarise_scores(scores, self.threshold)
                return tf.stop_gradient(tf.convert_to_tensor(kernel)) * weight_mask

            return view

        for task in self.added:
            stage = views.Stage.SELECTED
            towers |= _run_for(task, self, inputs, training, mask(task), stage)
        return types.Towers({task: towers[task] for task in tasks})


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackNet(types.Network):
    """Adds tasks one by one; each task trains the weights that earlier tasks left free.

    A. Mallya, S. Lazebnik, "PackNet: Adding Multiple Tasks to a Single Network by Iterative
    Pruning", CVPR 2018, arXiv:1711.05769. Each run adds the last task of `order`: the run trains
    the free weights, and `Pruning` frees some of these weights again, for later tasks. The weights
    that `Pruning` does not free belong to the added task, and never change again, so the
    predictions of old tasks stay bit-identical. A task uses only its weights and the weights of
    earlier tasks; in the network of the task, all other weights of the kernels are 0. From the
    second task on, a run needs a warm start from the previous run, and also freezes all other
    variables that old tasks use, such as biases and norms.

    `Pruning.sparsity` is the share of all weights that is free after the run, so set a smaller
    value in each run. Entries above 0 in the mask `<kernel>_of_<task>` mark the weights of a task.
    A run fails if the previous run left no weight free.

    Attributes:
      network: the network, which is built once for each task.
      order: all tasks, in the order in which runs add the tasks; this run trains the last task of
        the list.
      kernels: patterns of the kernels whose weights are divided among tasks (see
        `mtl.variables.patterns`). By default, the patterns match all kernels of the network except
        in towers.
    """

    network: types.Network
    order: Sequence[str]
    kernels: Sequence[str] = _KERNELS

    def __post_init__(self):
        _check_settings(self, "order", self.order)

    @property
    def starts_from_run(self) -> bool:
        """True if a new run needs a warm start."""
        return len(self.order) > 1

    def hold(self, freezing: freezing_lib.Freezing) -> freezing_lib.Freezing:
        """Extend the settings `Freezing` of a run by all variables that old tasks use.

        Args:
          freezing: the settings of the run that name the frozen variables.

        Returns:
          The unchanged settings if `order` has a single task. With several tasks in `order`, a copy
          of the settings that also freezes the weights of old tasks in `kernels`, and all variables
          outside of the network except the head of the last task, and sets `batch_norm` to
          "inference". Patterns in `freezing.entries` take precedence over equal patterns in
          `kernels`.
        """
        if not self.starts_from_run:
            return freezing
        frozen = _freeze_others(freezing, self.order[-1:])
        free: freezing_lib.Mask = _Free(self.order[:-1])
        entries = {**dict.fromkeys(self.kernels, free), **freezing.entries}
        return dataclasses.replace(frozen, entries=entries)

    def check_start(self, names: Collection[str], read: Callable[[str], Any]) -> None:
        """Fail if the previous run left no weights free for the task that this run adds.

        Args:
          names: the names of all variables of the run.
          read: maps the name of a variable to its saved initial value, or to None.
        """
        *old_tasks, new_task = self.order
        suffix = pruned.owner_name("", new_task)
        free: dict[str, np.ndarray] = {}
        for kernel in [name.removesuffix(suffix) for name in names if name.endswith(suffix)]:
            masks = [read(pruned.owner_name(kernel, task)) for task in old_tasks]
            # If the mask of a task was not saved, all weights belong to this task.
            is_free = [np.zeros(1) if mask is None else mask == 0 for mask in masks]
            free[kernel] = functools.reduce(np.multiply, is_free, np.ones(1))
        count, total = (int(sum(f(mask) for mask in free.values())) for f in (np.sum, np.size))
        rule = f"leave weights free for {new_task!r}, which PackNet adds"
        fix = f"Prune the earlier run: all weights of {len(free)} kernels belong to {old_tasks}."
        checks.require(count > 0, "WarmStart.source", rule, count, fix)
        _log.info("%d of %d weights are free for %r", count, total, new_task)

    def __call__(self, inputs: types.Tensors, tasks: Sequence[str], training: bool) -> types.Towers:
        """Run the network, {column: [B, ...]} -> {task: [B, H]}.

        `Towers.shared` is empty, because only one task trains.

        Raises:
          UserError: `order` does not name each task once, or the patterns match no kernel.
        """
        rule = f"name each task once, {list(tasks)}"
        checks.require(sorted(self.order) == sorted(tasks), "PackNet.order", rule, list(self.order))
        towers: dict[str, tf.Tensor] = {}
        for number, task in enumerate(self.order, 1):
            is_last = number == len(self.order)
            view = self._find_view(self.order[:number], is_last, training)
            with freezing_lib.hold_part(trainable=is_last):
                # Mask before quantisation, so that the scale depends only on weights of the task.
                stage = views.Stage.SHARED_OUT
                towers |= _run_for(task, self, inputs, training, view, stage)
        return types.Towers({task: towers[task] for task in tasks})

    def _find_view(self, tasks: Sequence[str], is_last: bool, training: bool) -> View:
        """Return a function that computes the kernel that the last task of `tasks` uses."""

        def view(kernel: Any, name: str, getter: Any, settings: dict[str, Any]) -> Any:
            mask_settings = {
                **settings,
                "dtype": tf.float32,
                "initializer": tf1.ones_initializer(),
                "regularizer": None,
                "constraint": None,
                "trainable": False,
                "synchronization": tf.VariableSynchronization.ON_READ,
                "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
            }
            masks = [getter(pruned.owner_name(name, task), **mask_settings) for task in tasks]
            if not is_last:
                weights = tf.convert_to_tensor(kernel)
                return tf.stop_gradient(weights) * tf.cast(_join_masks(masks), weights.dtype)
            if training:
                # Pruning sets some weights to 0; the other free weights belong to the task.
                new_mask = tf.cast(tf.not_equal(tf.convert_to_tensor(kernel), 0), tf.float32)
                # Exclude the weights of earlier tasks, which also differ from 0.
                new_mask *= 1 - _join_masks(masks[:-1]) if masks[:-1] else 1
                assignment = masks[-1].assign(new_mask, read_value=False)
                tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, assignment)
            return kernel

        return view


@dataclasses.dataclass(frozen=True)
class _Free:
    """Computes a mask of the free weights, which belong to no old task."""

    tasks: Sequence[str]

    def __call__(self, weights: tf.Tensor, name: str) -> tf.Tensor:
        names = {pruned.owner_name(name, task) for task in self.tasks}
        masks = [v for v in tf1.global_variables() if patterns.variable_name(v) in names]
        return tf.equal(_join_masks(masks), 0) if masks else tf.ones_like(weights, tf.bool)


def _join_masks(masks: Sequence[Any]) -> tf.Tensor:
    """Return the union of masks of 0 and 1."""
    union = tf.convert_to_tensor(masks[0])
    for mask in masks[1:]:
        union = tf.maximum(union, mask)
    return union


def _check_settings(part: Any, setting: str, tasks: Sequence[str]) -> None:
    kind = type(part).__name__
    checks.require_part(f"{kind}.network", part.network, "networks.SharedBottom", arguments=3)
    checks.texts(f"{kind}.{setting}", tasks, "be a list of tasks")
    checks.require(len(tasks) > 0, f"{kind}.{setting}", "name a task", list(tasks))
    checks.unique(f"{kind}.{setting}", tasks)
    patterns.check_patterns(f"{kind}.kernels", part.kernels)


def _freeze_others(
    freezing: freezing_lib.Freezing, moving: Collection[str]
) -> freezing_lib.Freezing:
    """Freeze all variables outside of the network, except the heads of `moving` tasks."""
    pattern = f"^(?!network/|head/({'|'.join(map(re.escape, moving))})/)"
    frozen = [*freezing.frozen, pattern]
    return dataclasses.replace(freezing, frozen=frozen, batch_norm="inference")


def _run_for(
    task: str,
    part: Any,
    inputs: types.Tensors,
    training: bool,
    view: View,
    stage: views.Stage,
) -> types.Tensors:
    """Run the network of Piggyback or PackNet for one task, with kernels from `view`.

    Raises:
      UserError: the part's patterns match no kernel, or a variable has a different shape in a
        network for one task than in a network for several tasks.
    """
    kernels = []
    shapes = {patterns.variable_name(v): v.shape.as_list() for v in tf1.global_variables()}

    def get(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
        shape = tf.TensorShape(settings.get("shape"))
        rule = "have the same shapes for one task and for several tasks, as in SharedBottom"
        is_same = shape.is_compatible_with(shapes.get(name))
        difference = f"{name}, {shape} and {shapes.get(name)}"
        checks.require(is_same, f"{type(part).__name__}.network", rule, difference)
        if not any(patterns.matches(pattern, name) for pattern in part.kernels):
            return getter(name, **settings)
        with freezing_lib.release_part():  # `Freezing.entries` selects trainable weights.
            kernel = getter(name, **settings)
            if kernel.shape.rank < 2:
                return kernel
            kernels.append(name)
            return view(kernel, name, getter, settings)

    # `reuse` creates new variables (in towers, and for the first task) and reuses existing ones.
    scope, reuse = tf1.get_variable_scope(), tf1.AUTO_REUSE
    with (
        tf1.variable_scope(scope, reuse=reuse, auxiliary_name_scope=False),
        views.enter(stage, get),
    ):
        towers = part.network(inputs, [task], training)
    where = f"{type(part).__name__}.kernels"
    checks.require(len(kernels) > 0, where, "match a kernel of the network", list(part.kernels))
    return towers


def _binarise_scores(scores: tf.Tensor, threshold: float) -> tf.Tensor:
    """Return 1 for scores above a threshold, else 0, with a straight-through gradient."""

    @tf.custom_gradient
    def binarise(scores: tf.Tensor):  # type: ignore[no-untyped-def]
        return tf.cast(scores > threshold, scores.dtype), lambda upstream: upstream

    return binarise(scores)
