"""Pruning: weights chosen by pattern are cut while a network trains, and then stay exactly 0.

model.MultiTaskModel.pruning = [@pruning.Pruning()]
pruning.Pruning.sparsity = 0.9
pruning.Pruning.schedule = @pruning_schedules.Cubic()
pruning_schedules.Cubic.end_step = 2000

The network's code does not change. Beside each pruned variable lies `<variable>/pruning_mask`, of
zeros and ones. It is saved and restored with the model, and UPDATE_OPS change it. If the mask is 0,
so are the weight, its optimizer state and its average. So evaluation, prediction and exports read
the weights as they are.
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
    """Cuts the least important weights of the variables that its patterns choose.

    By default kernels of the network lose single weights of the smallest magnitude. Heads, biases,
    scales and variables that are frozen for good are not cut.

    Attributes:
      sparsity: the share of weights that are 0 in the end, in (0, 1), over all variables that the
        patterns choose; None if the granularity sets it, as `NOfM` does.
      schedule: when weights are cut.
      patterns: patterns (see `mtl.variables.patterns`) of variables; only matching variables with
        two axes or more are cut.
      cuts_heads: True also cuts the heads that a pattern matches.
      criterion: scores the importance of weights.
      density: how much of each layer is kept.
      granularity: the groups of weights that are cut together.
      regrowth: lets other weights grow in the place of some; None if cut weights stay cut.
      gradient: the gradient of cut weights. "stopped": 0, also for balancing and clipping. "dense":
        it is computed for balancing and for the criterion, but does not move the weights;
        `Regrowth` needs it. "straight_through": cut weights keep their values behind the masks,
        train as if they were not cut, and come back when their scores are large again; a checkpoint
        holds them, and evaluation and exports restore zeros.
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
            rule = f"be {fixed:g}, as {type(self.granularity).__name__} has it, or None"
            checks.require(fits, "Pruning.sparsity", rule, self.sparsity)

    def _check_granularity(self) -> None:
        name, is_entries = type(self.granularity).__name__, self._cuts_entries
        per_unit = getattr(self.density, "per_unit", False)
        rule = "be False where not single weights are cut"
        checks.require(is_entries or not per_unit, "Uniform.per_unit", rule, per_unit, f"{name}.")
        if self.granularity.is_of_units:
            rule = f"be {STOPPED!r} or {DENSE!r} where whole units are cut"
            checks.require(not self.hides_weights, "Pruning.gradient", rule, self.gradient)
        if self.granularity.is_of_tables:
            rule = "read weights alone where rows of tables are cut"
            reads = self.criterion.reads_gradients or self.criterion.reads_inputs
            reads = reads or self.criterion.reads_tasks
            checks.require(not reads, "Pruning.criterion", rule, self.criterion)
            rule = f"be {STOPPED!r} where rows of tables are cut"
            checks.require(self.gradient == STOPPED, "Pruning.gradient", rule, self.gradient)

    def _check_regrowth(self, regrowth: Any) -> None:
        example = "be built, such as @regrowth.Regrowth()"
        checks.is_a("Pruning.regrowth", regrowth, regrowth_lib.Regrowth, example)
        rule = "be Entries where weights grow again"
        checks.require(self._cuts_entries, "Pruning.granularity", rule, self.granularity)
        rule = f"be {DENSE!r} where weights grow by their gradients"
        fits = regrowth.by != regrowth_lib.GRADIENT or self.gradient == DENSE
        checks.require(fits, "Pruning.gradient", rule, self.gradient)
        rule = f"be {STOPPED!r} or {DENSE!r} where weights grow again from 0"
        checks.require(not self.hides_weights, "Pruning.gradient", rule, self.gradient)

    @property
    def _cuts_entries(self) -> bool:
        return isinstance(self.granularity, granularity.Entries)

    @property
    def final_sparsity(self) -> float:
        """The share of weights that are 0 in the end."""
        # `__post_init__` makes sure that one of the two is a number.
        return float(self.sparsity or self.granularity.fixed_sparsity)

    @property
    def hides_weights(self) -> bool:
        """True if cut weights train on behind their masks, so that they are not 0."""
        return self.gradient == STRAIGHT_THROUGH

    @property
    def last_step(self) -> int:
        """The global step from which masks do not change."""
        until = self.regrowth.until_step if self.regrowth else 0
        return max(self.schedule.last_step, until)

    def select_masks(
        self, seen: Sequence[criteria.Seen], masks: Sequence[tf.Tensor], progress: tf.Tensor
    ) -> Selection:
        """Choose the next masks of N variables; they stay if a score is not finite.

        Args:
          seen: N, the values of the variables.
          masks: N, of zeros and ones.
          progress: float64 scalar in [0, 1], the reached share of the final sparsity.
        """
        overlaps: list[tf.Tensor] = []
        if isinstance(self.criterion, criteria.TaskSaliency):
            of_tasks = [self.criterion.task_scores(one) for one in seen]
            is_finite = _are_finite(of_tasks)
            scores = self.criterion.merge(of_tasks, self.density.is_global)
        else:
            scores = of_tasks = [self.criterion.scores(one) for one in seen]
            is_finite = _are_finite(scores)
        new = self._keep_weights(seen, scores, masks, progress)
        chosen = [tf.where(is_finite, own, mask) for own, mask in zip(new, masks, strict=True)]
        for one, own, mask in zip(seen, of_tasks, chosen, strict=True):
            tasks = [n for n, g in enumerate(one.task_gradients.values()) if g is not None]
            if len(tasks) > 1:
                overlaps.append(self._compare_tasks([own[task] for task in tasks], mask))
        return Selection(is_finite, chosen, overlaps)

    def _keep_weights(
        self,
        seen: Sequence[criteria.Seen],
        scores: Sequence[tf.Tensor],
        masks: Sequence[tf.Tensor],
        progress: tf.Tensor,
    ) -> list[tf.Tensor]:
        stay = [_find_staying(one) for one in seen]
        scores = [
            own if held is None else tf.where(held, own.dtype.max, own)
            for own, held in zip(scores, stay, strict=True)
        ]
        if not self.hides_weights:  # Otherwise cut weights may come back.
            pairs = zip(scores, masks, strict=True)
            # Weights that are cut stay cut: they must not take the places of others.
            scores = [tf.where(mask > 0, own, own.dtype.min) for own, mask in pairs]
        new = self._select_together(seen, scores, progress)
        new = [
            # Held weights stay even if there are more of them than weights to keep.
            own if held is None else tf.maximum(own, self._any_of(held, own))
            for own, held in zip(new, stay, strict=True)
        ]
        if self.hides_weights:
            return new
        return [own * mask for own, mask in zip(new, masks, strict=True)]

    def _select_together(
        self, seen: Sequence[criteria.Seen], scores: Sequence[tf.Tensor], progress: tf.Tensor
    ) -> list[tf.Tensor]:
        """Return masks by scores; variables whose groups go together share one mask."""
        shapes = [one.weights.shape.as_list() for one in seen]
        sets = self.granularity.list_together([one.name for one in seen], shapes)
        firsts = [shapes[own[0]] for own in sets]
        shares = self.density.densities(firsts, self.final_sparsity)
        merged = [self._merge_scores([scores[index] for index in own]) for own in sets]
        found = self.granularity.select(merged, self.density, shares, progress)
        masks: dict[int, tf.Tensor] = {}
        for own, mask in zip(sets, found, strict=True):
            shapes_of = (self.granularity.mask_shape(shapes[index]) for index in own)
            masks |= {i: tf.reshape(mask, to) for i, to in zip(own, shapes_of, strict=True)}
        return [masks[index] for index in range(len(seen))]

    def _merge_scores(self, scores: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the scores of a variable, or the mean group scores of several variables."""
        if len(scores) == 1:
            return scores[0]
        pooled = [tf.reshape(self.granularity.pool(own), [-1]) for own in scores]
        return tf.reshape(tf.add_n(pooled) / len(pooled), [*[1] * (scores[0].shape.rank - 1), -1])

    @staticmethod
    def _any_of(held: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Return ones if an entry of the mask, for a weight, unit or row, covers a held weight."""
        axes = [n for n, size in enumerate(mask.shape) if size == 1]
        held = tf.cast(held, mask.dtype)
        return tf.reduce_max(held, axes, keepdims=True) if axes else held

    def _compare_tasks(self, scores: Sequence[tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
        """Return the mean overlap of the masks that tasks alone would choose, of equal size."""
        # Tasks are compared by the groups of the granularity, such as units.
        count = tf.math.count_nonzero(self.granularity.pool(mask), dtype=tf.int32)
        flat = [tf.reshape(self.granularity.pool(own), [-1]) for own in scores]
        kept = [densities.keep_largest(own, count) for own in flat]
        pairs = list(itertools.combinations(kept, 2))
        return tf.reduce_mean([_find_overlap(*pair) for pair in pairs])


class Selection(NamedTuple):
    """The next masks.

    Attributes:
      is_finite: True if all scores are finite; else the masks stay.
      masks: N, of zeros and ones.
      overlaps: one for each variable that several tasks share. If each task kept as much as the
        mask does: of all weights that either of two tasks keeps, the share that both keep, as the
        mean over pairs. Empty unless tasks have separate scores.
    """

    is_finite: tf.Tensor
    masks: list[tf.Tensor]
    overlaps: list[tf.Tensor]


def _find_staying(one: criteria.Seen) -> tf.Tensor | None:
    """Return which weights are kept because training does not move them; None if it moves all.

    Weights of 0 are cut anyway.
    """
    return None if one.is_moving is None else ~one.is_moving & tf.not_equal(one.weights, 0)


def _are_finite(scores: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(own)) for own in scores])


def _find_overlap(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    both, either = first * second, tf.maximum(first, second)
    return tf.math.divide_no_nan(tf.reduce_sum(both), tf.reduce_sum(either))
