"""Pruning: sets weights to 0 while a network trains; pruned weights stay exactly 0.

model.MultiTaskModel.pruning = [@pruning.Pruning()]
pruning.Pruning.sparsity = 0.9
pruning.Pruning.schedule = @pruning_schedules.Cubic()
pruning_schedules.Cubic.end_step = 2000

Pruning needs no change of the network's code. Each pruned variable has a mask of zeros and ones,
`<variable>/pruning_mask`, which is saved and restored with the model. Where a mask is 0, the weight
and its moving average are 0, and the optimizer state has its initial value. Therefore, evaluation,
prediction and exports need no mask.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from mtl import checks
from mtl.deferred import tf
from mtl.sparsity import criteria, cuts, densities, granularity, pruned_step, pruning_schedules
from mtl.sparsity import regrowth as regrowth_lib
from mtl.variables import patterns

STOPPED, DENSE, STRAIGHT_THROUGH = cuts.STOPPED, cuts.DENSE, cuts.STRAIGHT_THROUGH


@checks.dataclass
class Pruning:
    """Prunes the least important weights of variables that patterns match.

    By default, single weights with the smallest magnitude are pruned, in the kernels of the
    network. Heads, biases, scales and variables that are always frozen are not pruned.

    Attributes:
      sparsity: the final share of weights that are 0, in (0, 1), over all variables that the
        patterns match; None if the granularity determines the share, as `NOfM` does.
      schedule: the steps at which weights are pruned.
      patterns: patterns (see `mtl.variables.patterns`) of the pruned variables. Variables with
        fewer than two axes are not pruned.
      cuts_heads: True also prunes heads that a pattern matches.
      criterion: the criterion that scores the importance of weights.
      density: the rule for the share of each layer that remains.
      granularity: the groups of weights that are pruned together.
      regrowth: lets pruned weights grow again, and prunes others in exchange; None if pruned
        weights remain pruned.
      gradient: the gradient of pruned weights. If `gradient` is "stopped", the gradient of pruned
        weights is 0, also for balancing and clipping. If `gradient` is "dense", balancing and the
        criterion get the gradient of pruned weights, but these weights do not change; `Regrowth` by
        gradients needs "dense". With "straight_through", pruned weights keep their values behind
        the masks and are trained, and come back if their scores become large. A checkpoint saves
        the values behind the masks; evaluation and exports restore zeros.
    """

    schedule: pruning_schedules.Cubic | pruning_schedules.OneShot
    sparsity: float | None = None
    patterns: Annotated[Sequence[str], patterns.check_patterns, checks.Filled("not be empty")] = (
        "^network/.*/kernel$",
    )
    cuts_heads: bool = False
    criterion: criteria.Criterion = criteria.Magnitude()
    density: Any = densities.ErdosRenyiKernel()
    granularity: Any = granularity.Entries()
    regrowth: regrowth_lib.Regrowth | None = None
    gradient: Annotated[str, checks.OneOf((STOPPED, DENSE, STRAIGHT_THROUGH))] = STOPPED

    step_extension = pruned_step.PrunedStep

    def __post_init__(self):
        for setting, names, example in (
            ("schedule", ("progress", "first_step", "last_step"), "pruning_schedules.Cubic"),
            ("criterion", ("scores", "gathers", "reads_gradients"), "criteria.Magnitude"),
            ("density", ("select", "densities", "is_global"), "densities.Global"),
            ("granularity", ("select", "group_shape", "check"), "granularity.Entries"),
        ):
            rule = f"be a part such as @{example}()"
            checks.has(f"Pruning.{setting}", getattr(self, setting), names, rule)
        self._check_sparsity()
        self._check_granularity()
        if self.regrowth is not None:
            self._check_regrowth(self.regrowth)

    def _check_sparsity(self) -> None:
        fixed = self.granularity.fixed_sparsity
        if fixed is None:
            checks.is_a("Pruning.sparsity", self.sparsity, (int, float), "be a share in (0, 1)")
            in_range = 0 < (self.sparsity or 0) < 1
            checks.require(in_range, "Pruning.sparsity", "be in (0, 1)", self.sparsity)
        else:
            fits = self.sparsity is None or abs(self.sparsity - fixed) < 1e-6
            rule = f"be None or {fixed:g}, the sparsity of {type(self.granularity).__name__}"
            checks.require(fits, "Pruning.sparsity", rule, self.sparsity)

    def _check_granularity(self) -> None:
        name, is_entries = type(self.granularity).__name__, self._cuts_entries
        per_unit = getattr(self.density, "per_unit", False)
        rule, fix = "be False unless single weights are cut", f"{name} cuts groups."
        checks.require(is_entries or not per_unit, "Uniform.per_unit", rule, per_unit, fix)
        if self.granularity.is_of_units:
            rule = f"be {STOPPED!r} or {DENSE!r} if whole units are cut"
            checks.require(not self.hides_weights, "Pruning.gradient", rule, self.gradient)
        if self.granularity.is_of_tables:
            rule = "read only weights if rows of tables are cut"
            reads = self.criterion.reads_gradients or self.criterion.reads_inputs
            reads = reads or self.criterion.reads_tasks
            checks.require(not reads, "Pruning.criterion", rule, self.criterion)
            rule = f"be {STOPPED!r} if rows of tables are cut"
            checks.require(self.gradient == STOPPED, "Pruning.gradient", rule, self.gradient)

    def _check_regrowth(self, regrowth: Any) -> None:
        example = "be built, such as @regrowth.Regrowth()"
        checks.is_a("Pruning.regrowth", regrowth, regrowth_lib.Regrowth, example)
        rule = "be Entries if weights grow again"
        checks.require(self._cuts_entries, "Pruning.granularity", rule, self.granularity)
        rule = f"be {DENSE!r} if weights grow by their gradients"
        fits = regrowth.by != regrowth_lib.GRADIENT or self.gradient == DENSE
        checks.require(fits, "Pruning.gradient", rule, self.gradient)
        rule = f"be {STOPPED!r} or {DENSE!r} if weights grow again from 0"
        checks.require(not self.hides_weights, "Pruning.gradient", rule, self.gradient)

    @property
    def _cuts_entries(self) -> bool:
        return isinstance(self.granularity, granularity.Entries)

    @property
    def final_sparsity(self) -> float:
        """The final share of weights that are 0."""
        # `__post_init__` has checked that one of these values is a number.
        return float(self.sparsity or self.granularity.fixed_sparsity)

    @property
    def hides_weights(self) -> bool:
        """True if pruned weights are still trained behind their masks, and so are not 0."""
        return self.gradient == STRAIGHT_THROUGH

    @property
    def last_step(self) -> int:
        """The global step from which the masks do not change."""
        until = self.regrowth.until_step if self.regrowth else 0
        return max(self.schedule.last_step, until)

    def select_masks(
        self, seen: Sequence[criteria.Seen], masks: Sequence[tf.Tensor], progress: tf.Tensor
    ) -> Selection:
        """Choose the next masks of N variables; if a score is not finite, the masks do not change.

        Args:
          seen: the weights, gradients and other values of N variables.
          masks: the masks of N variables, zeros and ones.
          progress: a float64 scalar in [0, 1], the present share of the final sparsity.
        """
        overlaps: list[tf.Tensor] = []
        if isinstance(self.criterion, criteria.TaskSaliency):
            task_scores = [self.criterion.task_scores(variable) for variable in seen]
            is_finite = _are_finite(task_scores)
            scores = self.criterion.merge(task_scores, self.density.is_global)
        else:
            scores = task_scores = [self.criterion.scores(variable) for variable in seen]
            is_finite = _are_finite(scores)
        pairs = zip(self._keep_weights(seen, scores, masks, progress), masks, strict=True)
        new_masks = [tf.where(is_finite, new, old) for new, old in pairs]
        for variable, by_task, mask in zip(seen, task_scores, new_masks, strict=True):
            gradients = variable.task_gradients.values()
            tasks = [number for number, g in enumerate(gradients) if g is not None]
            if len(tasks) > 1:
                overlaps.append(self._compare_tasks([by_task[task] for task in tasks], mask))
        return Selection(is_finite, new_masks, overlaps)

    def _keep_weights(
        self,
        seen: Sequence[criteria.Seen],
        scores: Sequence[tf.Tensor],
        masks: Sequence[tf.Tensor],
        progress: tf.Tensor,
    ) -> list[tf.Tensor]:
        frozen = [_find_frozen(variable) for variable in seen]
        scores = [
            score if is_frozen is None else tf.where(is_frozen, score.dtype.max, score)
            for score, is_frozen in zip(scores, frozen, strict=True)
        ]
        if not self.hides_weights:  # Weights that are hidden behind a mask may come back.
            pairs = zip(scores, masks, strict=True)
            # Pruned weights get the least score, so that they remain pruned.
            scores = [tf.where(mask > 0, score, score.dtype.min) for score, mask in pairs]
        new_masks = self._select_together(seen, scores, progress)
        new_masks = [
            # Frozen weights are never pruned, even if more weights are frozen than should remain.
            mask if is_frozen is None else tf.maximum(mask, self._any_of(is_frozen, mask))
            for mask, is_frozen in zip(new_masks, frozen, strict=True)
        ]
        if self.hides_weights:
            return new_masks
        return [new * old for new, old in zip(new_masks, masks, strict=True)]

    def _select_together(
        self, seen: Sequence[criteria.Seen], scores: Sequence[tf.Tensor], progress: tf.Tensor
    ) -> list[tf.Tensor]:
        """Compute masks from scores; variables that are pruned together have the same mask."""
        shapes = [variable.weights.shape.as_list() for variable in seen]
        sets = self.granularity.list_together([variable.name for variable in seen], shapes)
        set_shapes = [shapes[indices[0]] for indices in sets]
        shares = self.density.densities(set_shapes, self.final_sparsity)
        set_scores = [self._merge_scores([scores[index] for index in indices]) for indices in sets]
        set_masks = self.granularity.select(set_scores, self.density, shares, progress)
        masks: dict[int, tf.Tensor] = {}
        for indices, mask in zip(sets, set_masks, strict=True):
            for index in indices:
                masks[index] = tf.reshape(mask, self.granularity.mask_shape(shapes[index]))
        return [masks[index] for index in range(len(seen))]

    def _merge_scores(self, scores: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the scores of a single variable, or the mean group scores of several variables."""
        if len(scores) == 1:
            return scores[0]
        group_scores = [tf.reshape(self.granularity.pool(score), [-1]) for score in scores]
        mean = tf.add_n(group_scores) / len(group_scores)
        return tf.reshape(mean, [*[1] * (scores[0].shape.rank - 1), -1])

    @staticmethod
    def _any_of(weights: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Reduce a flag for each weight to the shape of a mask, by the maximum of each group."""
        axes = [n for n, size in enumerate(mask.shape) if size == 1]
        weights = tf.cast(weights, mask.dtype)
        return tf.reduce_max(weights, axes, keepdims=True) if axes else weights

    def _compare_tasks(self, scores: Sequence[tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
        """Compute the mean overlap of the masks that single tasks would choose."""
        # Tasks are compared by groups of the granularity, such as units.
        count = tf.math.count_nonzero(self.granularity.pool(mask), dtype=tf.int32)
        group_scores = [tf.reshape(self.granularity.pool(score), [-1]) for score in scores]
        task_masks = [densities.keep_largest(flat, count) for flat in group_scores]
        pairs = list(itertools.combinations(task_masks, 2))
        return tf.reduce_mean([_find_overlap(*pair) for pair in pairs])


class Selection(NamedTuple):
    """The next masks of N variables.

    Attributes:
      is_finite: True if all scores are finite; otherwise the masks do not change.
      masks: the masks of N variables, zeros and ones.
      overlaps: a number in [0, 1] for each variable that several tasks share. An overlap is the
        intersection over union of the masks that single tasks would choose, averaged over all pairs
        of tasks. `overlaps` is empty if the criterion has no separate scores for tasks.
    """

    is_finite: tf.Tensor
    masks: list[tf.Tensor]
    overlaps: list[tf.Tensor]


def _find_frozen(variable: criteria.Seen) -> tf.Tensor | None:
    """Mark the weights that training does not change; return None if training changes all weights.

    Weights that are already 0 are not marked, because pruning does not change them.
    """
    if variable.is_moving is None:
        return None
    return ~variable.is_moving & tf.not_equal(variable.weights, 0)


def _are_finite(scores: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(score)) for score in scores])


def _find_overlap(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    intersection, union = first * second, tf.maximum(first, second)
    return tf.math.divide_no_nan(tf.reduce_sum(intersection), tf.reduce_sum(union))
