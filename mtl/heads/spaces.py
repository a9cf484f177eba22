"""Sample spaces: the rows that a task uses, selected by labels of earlier tasks.

space = spaces.Space("click")                       # the rows with label click 1
space = spaces.Space({"income": [">50K", ">50K."]})       # the rows with one of these labels
inside, outside = space.locate(labels, "heads.Binary.within")      # bool [B] each

A head drops the labels of rows outside of its sample space when it reads labels, so other code need
not know the sample space.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from mtl import checks, types
from mtl.deferred import tf
from mtl.heads import values

Within = str | Mapping[str, Sequence[Any]]
"""A label field that is 1 in the rows of a space, or {label field: allowed values}."""

_RULE = "name a label field, or map label fields to lists of their values"


@dataclasses.dataclass(frozen=True)
class Space:
    """A sample space: the rows in which every field of `within` has an allowed value.

    A row is outside of the space if any field of `within` has a value that is not allowed. If a
    field is missing in a row, and no other field has a value that is not allowed, the row is
    neither inside nor outside of the space.

    Attributes:
      within: a label field that is 1 in the rows of the sample space, or {label field: allowed
        values}.
    """

    within: Within

    @property
    def fields(self) -> Mapping[str, Sequence[Any]]:
        """The allowed values of each label field, {label field: values}."""
        return {self.within: (1,)} if isinstance(self.within, str) else self.within

    @property
    def rule(self) -> str:
        """The condition for rows of the space in error messages, such as `label 'click' is 1`."""
        conditions = []
        for name, accepted in self.fields.items():
            text = (
                values.show(accepted[0])
                if len(accepted) == 1
                else values.one_of(accepted)[len("be ") :]
            )
            conditions.append(f"label {name!r} is {text}")
        return " and ".join(conditions)

    def check(self, where: str) -> None:
        """Fail unless the fields and values of `within` can define a sample space.

        Args:
          where: the name of the setting, for error messages.

        Raises:
          UserError: `within` has no fields, or a list of values is empty or holds a missing value.
        """
        checks.is_a(where, self.within, (str, Mapping), _RULE)
        checks.mapping(where, self.fields, _RULE)
        checks.require(bool(self.fields) and "" not in self.fields, where, _RULE, self.within)
        for name, accepted in self.fields.items():
            setting = where if isinstance(self.within, str) else f"{where}[{name!r}]"
            checks.is_a(setting, accepted, (list, tuple), "be a list of label values")
            checks.require(bool(accepted), setting, "hold a label value", accepted)
            for value in accepted:
                checks.is_a(setting, value, (str, int, float), "be a list of label values")
                rule = "hold no missing value"
                checks.require(not values.is_missing(value), setting, rule, value)

    def locate(self, labels: types.Tensors, where: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Find the rows inside and outside of the sample space.

        Args:
          labels: {field: [B]}, with every field of the sample space.
          where: the name of the setting, for error messages.

        Returns:
          Masks of the rows inside and outside of the sample space, bool [B] each. If a field of the
          sample space is missing in a row, the row may be neither inside nor outside.

        Raises:
          UserError: a field is absent, has several values in a row, or has another type than its
            allowed values.
        """
        inside, outside = [], []
        for name, accepted in self.fields.items():
            checks.one_of(where, name, labels)
            label = labels[name]
            fits = isinstance(label, tf.Tensor) and label.shape.rank == 1
            checks.require(fits, where, "name labels with one value per example", name)
            hits = values.is_any(label, values.as_held(label, accepted, where, f"label {name!r}"))
            inside.append(hits)
            # A label of -1 is a hit if `accepted` holds -1, and missing otherwise.
            outside.append(values.are_ids_present(label) & ~hits)
        return functools.reduce(tf.logical_and, inside), functools.reduce(tf.logical_or, outside)

    @property
    def suffix(self) -> str:
        """The end of the name of each statistic that covers only the rows of the sample space."""
        return f" where {self.rule}"

    def gather(self, accumulators: Mapping[str, types.Accumulator]) -> dict[str, types.Accumulator]:
        """Restrict accumulators to the rows inside of the space, and extend their names.

        Args:
          accumulators: {name of an entry of the statistics: its accumulator}.

        Returns:
          {longer name: accumulator}, with names such as "moments/price where label 'click' is 1".
        """
        return {
            f"{name}{self.suffix}": Inside(accumulator=accumulator, space=self)
            for name, accumulator in accumulators.items()
        }

    def place(self, labels: Mapping[str, Any]) -> bool | None:
        """Return True if a record is inside of the sample space, False if it is outside.

        Args:
          labels: {label field: its value in the record, in plain Python}.

        Returns:
          True inside of the space, False outside, and None if that depends on a missing value.
        """
        is_known = True
        for name, accepted in self.fields.items():
            for value in values.flatten_values(labels.get(name, [])):
                if value in accepted:
                    continue
                if not values.is_id_missing(value):
                    return False
                is_known = False
        return True if is_known else None


@dataclasses.dataclass(kw_only=True)
class Inside:
    """An accumulator that reads only the rows inside of a sample space.

    Attributes:
      accumulator: the accumulator that gets the rows inside of the sample space; it reads labels
        with one value in each row.
      space: the sample space whose rows are read.
    """

    accumulator: types.Accumulator
    space: Space

    def update(self, fields: types.Tensors) -> None:
        """Add the rows of a batch that are inside of the sample space.

        Args:
          fields: {field: [B, ...]} of eager tensors, with the fields of the space. The accumulator
            gets only fields with one value in each row, [B].

        Raises:
          UserError: a field of the space is absent, has several values in a row, or has another
            type than its allowed values.
        """
        is_inside, _ = self.space.locate(fields, "within")
        rows_inside = {
            name: tf.boolean_mask(tensor, is_inside)
            for name, tensor in fields.items()
            if isinstance(tensor, tf.Tensor) and tensor.shape.rank == 1
        }
        self.accumulator.update(rows_inside)

    def save(self, directory: str, column: str) -> dict[str, Any]:
        """Return the statistics of the accumulator."""
        return self.accumulator.save(directory, column)
