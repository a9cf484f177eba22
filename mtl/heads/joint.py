"""Joint tasks, such as "a click and then an order", as in ESMM and ESM2.

model.MultiTaskModel.heads = [@click/heads.Binary(), @order/heads.Binary(), @heads.Joint()]
order/heads.Binary.within = "click"                  # metrics of orders use only clicks
order/heads.Binary.has_loss = False                  # ESMM: only the joint loss trains this task
heads.Joint.name = "click_and_order"
heads.Joint.of = ["click", "order"]
heads.Joint.label = "order"
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import binary, objectives


@checks.dataclass
class Joint(binary.Binary):
    """Predicts that the events of a chain of binary tasks t all happen: `p = prod_t p_t`.

    p_t is the probability of task t if all earlier tasks of the chain happen. If a task of the
    chain has a loss, let `within` of its head select the rows in which the events of all earlier
    tasks happened; otherwise, its probability p_t is a probability over all rows, and the product
    of the p_t is wrong. The head has neither variables nor a tower: it computes its logit from the
    logits of the tasks `of` (`objectives.join_log_odds`). So loss and gradient stay exact even if
    probabilities would round to 0 or 1. Apart from the computed logit, the head works like a
    `Binary` that uses all rows.

    A chain of a click task, and a conversion task with `has_loss = False`, is ESMM: Ma et al.,
    "Entire Space Multi-Task Model", SIGIR 2018, arXiv:1804.07931. A chain with a branch is ESM2:
    Wen et al., "Entire Space Multi-Task Modeling via Post-Click Behavior Decomposition", SIGIR
    2020, arXiv:1910.07099. A branch {"if": c, "then": t, "else": o} has the probability
    `p = p_c p_t + (1 - p_c) p_o`. A chain with a branch can describe several ways to the same last
    event:

        ["click", {"if": "cart", "then": "order_from_cart", "else": "order_at_once"}]

    A row outside of the sample space `within` is negative, even if its label is missing. If
    conversions are recorded only for clicks, set `within` to the click label, so that rows without
    a click count as negatives.

    Attributes:
      of: the chain, in order: names of tasks with a head `Binary`, and branches. "then" and "else"
        of a branch hold a task, or a list of tasks and branches.
    """

    of: Annotated[
        Sequence[str | Mapping[str, Any]],
        checks.Is((list, tuple), "be a list of tasks and branches"),
        checks.Filled("hold a task"),
        _list_tasks,
    ]

    def __post_init__(self):
        super().__post_init__()
        checks.require(self.prior is None, self._where("prior"), "be None", self.prior)
        rule, fix = "be True, as the head has no variables", "Freeze the tasks of the chain."
        checks.require(self.trainable, self._where("trainable"), rule, False, fix)
        rule, fix = "be 0, as the logits are composed", "Calibrate the tasks of the chain."
        checks.require(self.knots == 0, self._where("knots"), rule, self.knots, fix)
        where, slices = self._where("calibration_slices"), self.calibration_slices
        checks.require(not slices, where, "be empty, as the logits are composed", slices, fix)

    def check_model(self, model: Any) -> None:
        """Fail unless every task of the chain has a head `Binary`.

        Args:
          model: the `MultiTaskModel` with the heads of all tasks.

        Raises:
          UserError: a task of the chain has a head that is not a `Binary`.
        """
        for task in self.composes:
            kind = type(model.heads_by_task[task])
            where = f"MultiTaskModel.heads: a task of {self.name!r}"
            rule, fix = "have a head Binary", f"It is {kind.__name__}."
            checks.require(issubclass(kind, binary.Binary), where, rule, task, fix)

    @property
    def composes(self) -> Sequence[str]:
        """The tasks of the chain, each listed once."""
        return list(dict.fromkeys(_list_tasks(self._where("of"), self.of)))

    def compose(self, logits: types.Tensors) -> tf.Tensor:
        """Compute the log-odds that the whole chain happens, {task: [B, 1]} -> [B, 1]."""
        return _compose_chain(self.of, logits)

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Fail, as this task does not use a tower.

        Raises:
          NotImplementedError: always; `compose` computes the logits.
        """
        raise NotImplementedError(f"The logits of task {self.name!r} are composed.")

    def _confine(
        self, targets: tf.Tensor, present: tf.Tensor, inside: tf.Tensor, outside: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the targets, 0 outside of the sample space, and a mask of known targets."""
        # A row outside of the sample space counts as a negative, with the label 0. The loss uses a
        # row that is not outside of the sample space if its label is present.
        del inside
        return tf.where(outside, tf.zeros_like(targets), targets), present | outside

    def _is_weighed(self, is_present: bool, place: bool | None) -> bool:
        """Return True if the target of a row is known."""
        return is_present or place is False


_BRANCH = ("if", "then", "else")


def _list_tasks(where: str, chain: Any) -> list[str]:
    """List the tasks of a chain, and check the chain.

    "then" and "else" of a branch may hold the same tasks.
    """
    tasks: list[str] = []
    for part in [chain] if isinstance(chain, (str, Mapping)) else chain:
        checks.is_a(where, part, (str, Mapping), "hold tasks, and branches of tasks")
        if isinstance(part, str):
            part_tasks = [part]
        else:
            rule = 'be {"if": task, "then": ..., "else": ...} in a branch'
            checks.require(set(part) == set(_BRANCH), where, rule, dict(part))
            checks.is_a(where, part["if"], str, rule)
            sides = []
            for side in _BRANCH[1:]:
                checks.is_a(where, part[side], (str, list, tuple, Mapping), rule)
                checks.require(bool(part[side]), where, rule, dict(part))
                sides += _list_tasks(where, part[side])
            part_tasks = [part["if"], *dict.fromkeys(sides)]
        repeats = [task for task in part_tasks if task in tasks or part_tasks.count(task) > 1]
        rule = "hold each task once, except for the two sides of a branch"
        checks.require(not repeats, where, rule, repeats)
        tasks += part_tasks
    return tasks


def _compose_chain(chain: Any, logits: types.Tensors) -> tf.Tensor:
    if isinstance(chain, str):
        return logits[chain]
    if isinstance(chain, Mapping):
        sides = (_compose_chain(chain[side], logits) for side in _BRANCH[1:])
        return objectives.branch_log_odds(logits[chain["if"]], *sides)
    return functools.reduce(
        objectives.join_log_odds, [_compose_chain(part, logits) for part in chain]
    )
