"""The base class of heads with classes, whose labels are names or ids of classes.

digit/heads.MultiClass.classes = 10
animal/heads.MultiClass.classes = ["cat", "dog", "bird"]
animal/heads.MultiClass.prior = {"cat": 3, "dog": 2}       # other classes: 1
trend/heads.Ordinal.classes = ["-1", "0", "1"]             # labels of int64 are these numbers
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from mtl import checks, types
from mtl.deferred import compat, tf
from mtl.heads import base, values
from mtl.spec import literals


@checks.dataclass
class Classes(base.Base):
    """The base class of heads with classes. Labels are class names (string) or ids (int64).

    If all class names are whole numbers, such as "-1", "0" and "1", an int64 label is one of these
    numbers instead of an id.

    Attributes:
      classes: the number of classes, at least 2, or their names in the order of their ids.
    """

    classes: Annotated[int | Sequence[str], values.check_classes]

    label_types: ClassVar[tuple[str, ...]] = ("int64", "string")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes in the order of their ids."""
        return values.class_names(self.classes)

    @functools.cached_property
    def class_numbers(self) -> Sequence[int]:
        """The int64 label of each class: its name if all names are numbers, else its id."""
        ids = range(len(self.class_names))
        if isinstance(self.classes, int):
            return ids
        numbers = [values.read_number(name) for name in self.classes]
        whole_numbers = [number for number in numbers if number is not None]
        return (
            ids
            if len(whole_numbers) < len(numbers) or whole_numbers == list(ids)
            else tuple(whole_numbers)
        )

    @property
    def named_values(self) -> Sequence[Any]:
        """The int64 and string values that are labels of the classes."""
        names = self.class_names if not isinstance(self.classes, int) else ()
        return (*names, *self.class_numbers) if names else self.class_numbers

    @property
    def row_names(self) -> types.RowNames:
        """The names of the classes, for the last axis of variables that has an entry per class."""
        return types.RowNames(names=self.class_names, axis=-1)

    def _per_class(self, setting: str) -> list[float]:
        """Return a setting as a list with a number above 0 for each class."""
        setting_value, where = getattr(self, setting), self._where(setting)
        return values.per_class(where, setting_value, self.class_names)

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels: [B] -> class ids, int64, and a mask of present labels.

        Raises:
          UserError: labels are int64, but only some of the class names are numbers, or two names
            are the same number.
          InvalidArgumentError: when the op runs, if a label is neither missing nor the label of a
            class.
        """
        present = self.are_present(label)
        # Any valid class can stand for a missing label, whose weight is 0.
        return tf.where(present, self._checked_ids(label, present), 0), present

    def _checked_ids(self, label: tf.Tensor, present: tf.Tensor) -> tf.Tensor:
        """Return the class ids of the present labels, int64 in the same shape.

        The op that computes the ids fails if a label is neither missing nor the label of a class.

        Raises:
          UserError: labels are int64, but only some of the class names are numbers, or two names
            are the same number.
        """
        if label.dtype == tf.int64:
            self._check_numbers()
        names = self.class_names if label.dtype == tf.string else self.class_numbers
        ids, is_known = values.class_ids(label, names)
        return self.checked(ids, is_known | ~present, label, self.rule(label.dtype))

    def _check_numbers(self) -> None:
        where, names = self._where("classes"), self.class_names
        rule = f"hold only whole numbers or none, as label {self.field!r} is int64"
        numbers = [name for name in names if re.fullmatch(literals.INT, name)]
        fix = f"Label {', '.join(numbers[:1])} could mean the name or the id of a class."
        checks.require(len(numbers) in (0, len(names)), where, rule, list(names), fix)
        rule = f"hold each number once, as label {self.field!r} is int64"
        are_unique = len(set(self.class_numbers)) == len(names)
        checks.require(are_unique, where, rule, list(names))

    def accepts(self, value: Any) -> bool:
        """Return True if the value is the id, the number or the name of a class."""
        return value in (self.class_names if isinstance(value, str) else self.class_numbers)

    def rule(self, dtype: Any) -> str:
        """Return the rule for labels in error messages, `be in [0, C)` or `be one of ...`."""
        is_text = dtype in (tf.string, str)
        return values.class_rule(self.class_names if is_text else self.class_numbers)

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Return the export outputs: predictions, and the scores of all classes."""
        predictions = self.predictions(logits)
        scores = predictions["probabilities"]
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "classify": base.classification_output(scores, self.class_names),
        }
