"""A block of heads that differ only in name and label: many equal tasks in three lines of gin.

model.MultiTaskModel.heads = [@heads.Block()]
heads.Block.head = @heads.Binary                 # without (): the block calls the class
heads.Block.tasks = ["news", "sport", "music"]
heads.Binary.positive_weight = 2.0               # for all tasks
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from mtl import checks, types

_TASK = "{task}"


def _check_label(where: str, value: Any) -> None:
    rule = f"be a text with {_TASK}, such as 'likes_{_TASK}'"
    checks.is_a(where, value, str, rule)
    checks.require(_TASK in value, where, rule, value)


@checks.dataclass
class Block:
    """T heads with the same settings, one for each task.

    Variables, metrics and predictions have the same names as if the T heads were listed one by one.
    Equal heads with a `joint_kind`, such as `Binary`, are computed together: 16 or more heads share
    ops, 64 or more heads share variables of the graph (see docs/many_tasks.md).

    Attributes:
      head: a class of heads, or a function that returns a head. The block calls this class or
        function for each task, with the keyword arguments `name` and `label`.
      tasks: the names of the T tasks, one for each head.
      label: the name of each head's label field, in which {task} stands for the name of the task.
    """

    head: Annotated[
        Callable[..., types.Head], checks.PartClass("heads.Binary", attributes=["metrics"])
    ]
    tasks: checks.SomeNames
    label: Annotated[str, _check_label] = _TASK

    def list_heads(self) -> list[types.Head]:
        """Build a head for each task, in the order of the tasks."""
        fields = [self.label.replace(_TASK, task) for task in self.tasks]
        return [
            self.head(name=task, label=None if field == task else field)
            for task, field in zip(self.tasks, fields, strict=True)
        ]
