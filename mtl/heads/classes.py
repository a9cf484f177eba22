"""What the heads over several named classes share: the classes, and labels that name them.

digit/heads.MultiClass.classes = 10
animal/heads.MultiClass.classes = ["cat", "dog", "bird"]
animal/heads.MultiClass.prior = {"cat": 3, "dog": 2}       # the others 1
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from mtl import compat, types
from mtl.heads import base, values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classes(base.Base):
    """A head whose labels are class ids where their field is int64, and names where it is string.

    Attributes:
      classes: how many, or their names in the order of their ids; at least 2.
    """

    classes: int | Sequence[str]

    label_types: ClassVar[tuple[tf.DType, ...]] = (tf.int64, tf.string)

    def __post_init__(self):
        super().__post_init__()
        values.check_classes(self._where("classes"), self.classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes by id."""
        return values.class_names(self.classes)

    @property
    def row_names(self) -> types.RowNames:
        """Of the variables that have a column for each class."""
        return types.RowNames(names=self.class_names, axis=-1)

    def _per_class(self, setting: str) -> list[float]:
        """Return the setting as one number above 0 for every class."""
        given, where = getattr(self, setting), self._where(setting)
        return values.per_class(where, given, self.class_names)

    def targets(self, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Parse labels: [B] -> class ids, int64, and which of them are present."""
        ids, valid = values.class_ids(label, self.class_names)
        ids = self.checked(ids, valid, label, self.rule(label.dtype))
        return tf.maximum(ids, 0), ids >= 0

    def accepts(self, value: Any) -> bool:
        """Return whether the value is the id or the name of a class."""
        return values.knows_class(value, self.class_names)

    def rule(self, dtype: Any) -> str:
        """Return the rule, `be in [0, C)` or `be one of ...`."""
        return values.class_rule(dtype, self.class_names)

    def export_outputs(self, logits: tf.Tensor) -> dict[str, Any]:
        """Predict, and classify with all classes."""
        predictions = self.predictions(logits)
        scores = predictions["probabilities"]
        return {
            "predict": compat.estimator.export.PredictOutput(predictions),
            "classify": base.classification_output(scores, self.class_names),
        }
