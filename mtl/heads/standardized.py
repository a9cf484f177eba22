"""The base class of heads that standardize their labels by mean and standard deviation.

standardized.list_moments(model.heads)      # ["moments/minutes"], the names of their statistics
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from mtl import checks, types
from mtl.features import accumulators
from mtl.heads import regression


@checks.dataclass
class Standardized(regression.Number):
    """A head that standardizes labels by their mean and deviation in the training split.

    Attributes:
      label_mean: the mean of the label; None takes it from the training split.
      label_stddev: the standard deviation of the label, above 0; None takes it from the training
        split.
    """

    label_mean: Annotated[float, checks.number] | None = None
    label_stddev: checks.Positive | None = None

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of logits."""

    def rule(self, dtype: Any) -> str:
        """Return the rule that error messages state: a label must be a finite number."""
        del dtype
        return "be a finite number"

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return an accumulator of the label's mean and deviation, unless both are settings."""
        if self.label_mean is not None and self.label_stddev is not None:
            return {}
        read_numbers = functools.partial(_read_numbers, field=self.field, head=self)
        without = f" without {list(self.missing)}" if self.missing else ""
        moments = accumulators.Moments(source=f"label {self.field}{without}", read=read_numbers)
        counters: dict[str, types.Accumulator] = {f"moments/{self.field}{without}": moments}
        return counters if self.within is None else self._space.gather(counters)

    def fitted(self, statistics: types.Statistics) -> "Standardized":
        """Return a copy of the head with the mean and standard deviation of the label.

        Args:
          statistics: the statistics that the head's accumulators gathered.

        Returns:
          The head itself if its settings give mean and standard deviation. If `label_mean` or
          `label_stddev` is None, a copy of the head with the value from the statistics; a standard
          deviation of 0 becomes 1.
        """
        if not self.accumulators():
            return self
        (name,) = self.accumulators()
        entry = statistics.for_column(name)
        mean, stddev = self.label_mean, self.label_stddev
        return dataclasses.replace(
            self,
            label_mean=entry["mean"][0] if mean is None else mean,
            # Replace a standard deviation of 0, because labels are divided by it.
            label_stddev=(entry["stddev"][0] or 1.0) if stddev is None else stddev,
        )

    @property
    def _shift(self) -> float:
        return self.label_mean or 0.0

    @property
    def _unit(self) -> float:
        return self.label_stddev or 1.0


def list_moments(heads: Sequence[types.Head]) -> list[str]:
    """List the names of the statistics by which heads convert logits into predictions."""
    return [name for h in heads if isinstance(h, Standardized) for name in h.accumulators()]


def _read_numbers(labels: types.Tensors, field: str, head: Standardized) -> np.ndarray:
    """Return the labels of an eager batch as [N, 1] float64, with NaN for missing labels."""
    label = labels[field]
    numbers = np.where(head.are_present(label).numpy(), label.numpy().astype(np.float64), np.nan)
    return numbers[:, np.newaxis]
