"""Makes constant fields in place of fields that a source lacks, and narrower specifications.

fill = filled_fields.Filled(spec.fields["stars"], content=math.nan)
fill.repeat(3)                                          # [nan, nan, nan]
filled_fields.narrow_spec(spec, ["age", "clicked"])     # the Spec of only these fields
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from mtl import spec as spec_lib
from mtl.data import packed


class Filled(NamedTuple):
    """A field with one constant value in all rows of a source.

    Attributes:
      field: the field that gets the constant value.
      content: the constant value, which may stand for a missing label; None for an empty list.
    """

    field: spec_lib.Field
    content: Any

    def make_value(self) -> Any:
        """Return the constant value of one row in plain Python."""
        if self.field.is_ragged:
            return [] if self.content is None else [self.content]
        return dataclasses.replace(self.field, default=self.content).value(None)

    def repeat(self, count: int) -> packed.Values:
        """Return the constant value for several rows.

        Args:
          count: the number of rows.

        Returns:
          The values in a form of `packed`: an array [count, *shape], `Texts` or `Lists`.
        """
        field = self.field
        if field.is_ragged:
            length = 0 if self.content is None else 1
            flat = _repeat_value(self.content, field.dtype, (count * length,))
            return packed.Lists(flat, np.arange(count + 1, dtype=np.int64) * length)
        return _repeat_value(
            self.content, field.dtype, (count, *cast(tuple[int, ...], field.shape))
        )


def _repeat_value(content: Any, dtype: str, shape: tuple[int, ...]) -> packed.Values:
    """Return an array of some shape that is filled with one value."""
    if dtype == "string":
        texts = pa.array(["" if content is None else content], pa.large_string())
        numbers = np.zeros([math.prod(shape)], np.int32)
        return packed.Texts(numbers, texts.cast(pa.large_binary()))
    return np.full(shape, 0 if content is None else content, packed.DTYPES[dtype])


def fill_lists(lists: packed.Lists, is_absent: np.ndarray, field: spec_lib.Field) -> packed.Lists:
    """Replace absent lists by the default of their field, if it has a default.

    Args:
      lists: N lists; absent lists are empty.
      is_absent: True for the absent lists, bool [N].
      field: the field of the lists.
    """
    if field.default is None or not is_absent.any():
        return lists
    count = len(is_absent)
    default = Filled(field, field.default).repeat(1)
    rows = np.where(is_absent, count, np.arange(count))
    return cast(packed.Lists, packed.take(packed.join([lists, default], field), rows))


def specify_field(field: spec_lib.Field) -> spec_lib.Spec:
    """Return a specification with a single field, to read this field alone.

    Args:
      field: a scalar field; if the field has no default, an absent value is read as a missing
        label.
    """
    default = field.missing if field.default is None else field.default
    return spec_lib.Spec(
        features={field.name: field.dtype}, labels={}, defaults={field.name: default}
    )


def narrow_spec(spec: spec_lib.Spec, names: Sequence[str]) -> spec_lib.Spec | None:
    """Return a specification with only some fields.

    Args:
      spec: the specification of all fields.
      names: the fields to keep; unknown names have no effect.

    Returns:
      A specification without keys; None if it would have no field. If only labels are left, they
      become features, because a specification needs a feature.
    """
    features, labels, defaults = (
        {name: value for name, value in mapping.items() if name in names}
        for mapping in (spec.features, spec.labels, spec.defaults)
    )
    if not features and not labels:
        return None
    if not features:  # A `Spec` needs features, so labels become features with defaults.
        label_fields = {name: spec.label_fields[name] for name in labels}
        defaults = {name: field.default for name, field in label_fields.items()}
        features, labels = labels, {}
    return dataclasses.replace(spec, features=features, labels=labels, defaults=defaults, keys=())
