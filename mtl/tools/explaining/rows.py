"""Reads rows of a split as NumPy values, which can be selected, permuted and fed to a graph.

rows = rows_lib.read_rows(experiment, "test", most=2000).held
rows.take([0, 3]), rows.permute(["age"], order), rows.fill("age", 40)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl import checks, types
from mtl import experiment as experiment_lib
from mtl import spec as spec_lib
from mtl.data import pipeline
from mtl.data import source as source_lib
from mtl.deferred import tf, tf1
from mtl.runs import diagnosis
from mtl.tools.debugging import inspection
from mtl.tools.explaining import drawn_rows

Values = Mapping[str, Any]
"""{field: [N, ...]}, NumPy arrays, or `tf1.ragged` values of lists."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """N rows of a split.

    Attributes:
      split: the split of the rows.
      features: {field: [N, ...]}.
      labels: {field: [N, ...]}.
    """

    split: str
    features: Values
    labels: Values

    @property
    def size(self) -> int:
        """N."""
        return inspection.Batch(self.features, self.labels).size

    def take(self, places: Any) -> Rows:
        """Return the rows at K places."""
        return Rows(self.split, take(self.features, places), take(self.labels, places))

    def permute(self, fields: Sequence[str], order: np.ndarray) -> dict[str, Any]:
        """Return the features; row i gets the values of row `order[i]` in these fields.

        Args:
          fields: the fields to permute.
          order: a permutation of the rows, [N].
        """
        # Counts and weights belong to the values of a list, and move with them.
        moved = [*fields, *map(spec_lib.counts_name, fields)]
        moved += map(spec_lib.weights_name, fields)
        own = {name: self.features[name] for name in moved if name in self.features}
        return {**self.features, **take(own, order)}

    def fill(self, field: str, value: Any) -> dict[str, Any]:
        """Return the features with the same value in a field for all rows."""
        given = np.asarray(self.features[field])
        return {**self.features, field: np.full(given.shape, value, given.dtype)}

    def split_up(self, size: int) -> Iterator[Rows]:
        """Yield these rows in batches of at most `size`."""
        for start in range(0, self.size, size):
            yield self.take(np.arange(start, min(start + size, self.size)))


class Read(NamedTuple):
    """The rows that were read from a split.

    Attributes:
      held: rows drawn from the whole split, in its order.
      shown: the named rows, in the order of `named`.
      total: how many rows the split has.
    """

    held: Rows
    shown: Rows
    total: int


def read_rows(
    experiment: experiment_lib.Experiment,
    split: str | None,
    most: int,
    named: Sequence[int] = (),
) -> Read:
    """Draw rows of a split, and read the named rows.

    Groups of rows that a head ranks are drawn whole.

    Args:
      experiment: the experiment of the run; its seed decides which rows are drawn.
      split: the split; None for the split of evaluations.
      most: how many rows are drawn at most.
      named: positions of further rows in the split, from 0 on.

    Raises:
      UserError: the split or a position does not exist, or a record is bad.
    """
    data = experiment.data
    split = split or data.eval_split
    with diagnosis.explain_run_errors(data, experiment.model, None, split):
        drawn = draw(experiment, split, most)
        for row in named:
            rule = f"be below {drawn.total}, the number of rows of split {split!r}"
            checks.require(row < drawn.total or not drawn.total, "--rows", rule, row)
        # One pass reads both: `union1d` sorts, and the split is read in its order.
        places = np.union1d(drawn.places, np.asarray(named, np.int64))
        kept = drawn_rows.keep(data, split, drawn._replace(places=places))
        # A single batch holds all rows, but a batch of 0 rows is refused.
        size = max(len(places), 1)
        found = source_lib.iterate(
            lambda: kept.dataset(split, training=False, seed=0, batch_size=size)
        )
        batch = next(found)
        if isinstance(batch, Exception):
            raise batch
    both = Rows(split, *batch)
    # `places` is sorted, so this finds the index of each row in the batch.
    held = both.take(np.searchsorted(places, drawn.places))
    return Read(held, both.take(np.searchsorted(places, named)), drawn.total)


def draw(experiment: experiment_lib.Experiment, split: str, most: int) -> drawn_rows.Drawn:
    """Draw rows of a split, or whole groups if a head ranks groups."""
    return drawn_rows.draw(
        experiment.data, split, most, experiment.run.seed, find_groups(experiment)
    )


def find_groups(experiment: experiment_lib.Experiment) -> str | None:
    """Return the label field whose equal values form the groups that a head ranks, or None."""
    heads = experiment.model.heads
    found = (types.read_member(head, types.GroupHead, "whole_groups") for head in heads)
    return next((field for field in found if field), None)


def read_batches(experiment: experiment_lib.Experiment, split: str, most: int) -> Iterator[Rows]:
    """Yield batches of rows drawn from a split, with the batch size of training.

    A single batch may be smaller. Rows come in a random order, as in training. Groups that a head
    ranks come one after another, and the end of a batch may cut a group.

    Args:
      experiment: the experiment of the run.
      split: the split.
      most: how many batches are read at most.

    Raises:
      UserError: a record is bad.
    """
    data = experiment.data
    with diagnosis.explain_run_errors(data, experiment.model, None, split):
        drawn = draw(experiment, split, most * data.batch_size)
        kept = drawn_rows.keep(data, split, drawn)
        rows, seed = len(drawn.places), experiment.run.seed
        # Groups have to stay together; a single batch has no order.
        is_mixed = rows > data.batch_size and not find_groups(experiment)
        found = source_lib.iterate(
            lambda: _shuffle_rows(kept, split, seed, rows) if is_mixed else kept.one_pass(split)
        )
        # Only whole batches, as the gradient of a small last batch has more noise.
        for batch in itertools.islice(found, max(1, min(most, rows // data.batch_size))):
            if isinstance(batch, Exception):
                raise batch
            yield Rows(split, *batch)


def _shuffle_rows(data: pipeline.Pipeline, split: str, seed: int, count: int) -> tf.data.Dataset:
    """Return batches of a split of `count` rows in a random order, as in training."""
    # Without the sampler of training, which may repeat rows. The buffer holds all rows, so that
    # every order may come.
    shuffled = dataclasses.replace(data, cache=False, sampler=None, shuffle_buffer=count)
    return shuffled.dataset(split, training=True, seed=seed)


def take(values: Values, places: Any) -> dict[str, Any]:
    """Return the rows at these places of {field: [N, ...]}.

    Args:
      values: fields of N rows; lists are `tf1.ragged` values.
      places: K indices in [0, N), in any order, also repeated.

    Returns:
      {field: [K, ...]}.
    """
    places = np.asarray(places, np.int64)
    return {name: _take_rows(value, places) for name, value in values.items()}


def _take_rows(value: Any, places: np.ndarray) -> Any:
    if not isinstance(value, tf1.ragged.RaggedTensorValue):
        return np.asarray(value)[places]
    splits = np.asarray(value.row_splits)  # [N + 1]
    lengths = np.diff(splits)[places]  # [K]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    # The place of each entry within its row: 0, 1, ..., then 0 again.
    inner = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    entries = np.repeat(splits[:-1][places], lengths) + inner
    return tf1.ragged.RaggedTensorValue(
        np.asarray(value.values)[entries], ends.astype(splits.dtype)
    )
