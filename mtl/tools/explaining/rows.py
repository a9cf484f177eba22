"""Reads rows of a split as NumPy values, to select, permute and feed to a graph.

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
"""{field: [N, ...]}: NumPy arrays, or `tf1.ragged` values for ragged fields."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a split, as NumPy values of N rows.

    Attributes:
      split: the name of the split.
      features: {field: [N, ...]}.
      labels: {field: [N, ...]}.
    """

    split: str
    features: Values
    labels: Values

    @property
    def size(self) -> int:
        """The number of rows, N."""
        return inspection.Batch(self.features, self.labels).size

    def take(self, places: Any) -> Rows:
        """Select rows by their indices.

        Args:
          places: the indices of K rows in [0, N), in any order, with repetitions allowed.

        Returns:
          The K rows.
        """
        return Rows(self.split, take(self.features, places), take(self.labels, places))

    def permute(self, fields: Sequence[str], order: np.ndarray) -> dict[str, Any]:
        """Return the features after some fields are permuted among the rows.

        Args:
          fields: the fields to permute.
          order: a permutation of the rows, [N]. Row i gets the values of row `order[i]`.
        """
        # The counts and the weights of list entries belong to the list: permute them together.
        names = [*fields, *map(spec_lib.counts_name, fields), *map(spec_lib.weights_name, fields)]
        selected = {name: self.features[name] for name in names if name in self.features}
        return {**self.features, **take(selected, order)}

    def fill(self, field: str, value: Any) -> dict[str, Any]:
        """Return the features after one field is set to the same value in all rows.

        Args:
          field: the name of a feature that is not ragged.
          value: the value, which is converted to the type of the feature.

        Returns:
          {field: [N, ...]}.
        """
        values = np.asarray(self.features[field])
        return {**self.features, field: np.full(values.shape, value, values.dtype)}

    def split_up(self, size: int) -> Iterator[Rows]:
        """Yield the rows in batches of at most `size` rows."""
        for start in range(0, self.size, size):
            yield self.take(np.arange(start, min(start + size, self.size)))


class Read(NamedTuple):
    """Rows that were read from a split: a random sample, and requested rows.

    Attributes:
      held: the random sample of the whole split, in the order of the split.
      shown: the requested rows, in the order of the request.
      total: the number of rows in the split.
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
    """Draw rows of a split at random, and also read the rows at some positions.

    If a head ranks groups of rows, whole groups are drawn.

    Args:
      experiment: the experiment of the run; its seed decides which rows are drawn.
      split: the name of the split; None for the split of evaluations.
      most: the number of rows to draw.
      named: the positions in the split, from 0, of rows that are read in addition to the random
        rows.

    Raises:
      UserError: the split or a position does not exist, or a record cannot be parsed.
    """
    data = experiment.data
    split = split or data.eval_split
    with diagnosis.explain_run_errors(data, experiment.model, None, split):
        draw_result = draw(experiment, split, most)
        for row in named:
            rule = f"be below {draw_result.total}, the number of rows of split {split!r}"
            checks.require(row < draw_result.total or not draw_result.total, "--rows", rule, row)
        # Read the drawn rows and the rows in `named` in one pass over the split;
        # `union1d` sorts their positions.
        places = np.union1d(draw_result.places, np.asarray(named, np.int64))
        data_of_rows = drawn_rows.keep(data, split, draw_result._replace(places=places))
        # Read all rows as one batch, with a size of at least 1, because 0 would be an error.
        size = max(len(places), 1)
        batches = source_lib.iterate(
            lambda: data_of_rows.dataset(split, training=False, seed=0, batch_size=size)
        )
        batch = next(batches)
        if isinstance(batch, Exception):
            raise batch
    sample = Rows(split, *batch)
    # `places` is sorted, so `searchsorted` finds the index of each row in the batch.
    drawn_sample = sample.take(np.searchsorted(places, draw_result.places))
    return Read(drawn_sample, sample.take(np.searchsorted(places, named)), draw_result.total)


def draw(experiment: experiment_lib.Experiment, split: str, most: int) -> drawn_rows.Drawn:
    """Draw rows of a split at random, or whole groups of rows if a head ranks groups.

    Args:
      experiment: the experiment of the run; its seed decides which rows are drawn.
      split: the name of the split.
      most: the number of rows to draw.

    Raises:
      UserError: the split does not exist.
    """
    return drawn_rows.draw(
        experiment.data, split, most, experiment.run.seed, find_groups(experiment)
    )


def find_groups(experiment: experiment_lib.Experiment) -> str | None:
    """Return the label field that holds the group of a row, if a head ranks groups; else None."""
    heads = experiment.model.heads
    group_fields = (types.read_member(head, types.GroupHead, "whole_groups") for head in heads)
    return next((field for field in group_fields if field), None)


def read_batches(experiment: experiment_lib.Experiment, split: str, most: int) -> Iterator[Rows]:
    """Yield batches of random rows of a split, in the batch size of training.

    If the split has fewer rows than a batch, one smaller batch holds all rows. The rows come in a
    random order, as in training. But if a head ranks groups, the rows of a group stay together,
    except that the end of a batch may cut a group.

    Args:
      experiment: the experiment of the run.
      split: the name of the split.
      most: the largest number of batches.

    Raises:
      UserError: a record cannot be parsed.
    """
    data = experiment.data
    with diagnosis.explain_run_errors(data, experiment.model, None, split):
        sample = draw(experiment, split, most * data.batch_size)
        data_of_rows = drawn_rows.keep(data, split, sample)
        rows, seed = len(sample.places), experiment.run.seed
        # Do not shuffle if a head ranks groups, which would be torn apart, or if
        # one batch holds all rows.
        is_mixed = rows > data.batch_size and not find_groups(experiment)
        batches = source_lib.iterate(
            lambda: (
                _shuffle_rows(data_of_rows, split, seed, rows)
                if is_mixed
                else data_of_rows.one_pass(split)
            )
        )
        # Skip a smaller last batch, because its gradient would be noisier.
        for batch in itertools.islice(batches, max(1, min(most, rows // data.batch_size))):
            if isinstance(batch, Exception):
                raise batch
            yield Rows(split, *batch)


def _shuffle_rows(data: pipeline.Pipeline, split: str, seed: int, count: int) -> tf.data.Dataset:
    """Return batches of a split with `count` rows, in a random order as in training."""
    # Leave out the sampler of training, which may repeat rows. Put all rows into the shuffle
    # buffer, so that every order is possible.
    shuffled = dataclasses.replace(data, cache=False, sampler=None, shuffle_buffer=count)
    return shuffled.dataset(split, training=True, seed=seed)


def take(values: Values, places: Any) -> dict[str, Any]:
    """Select rows of {field: [N, ...]} by their indices.

    Args:
      values: the fields of N rows; ragged fields are `tf1.ragged` values.
      places: the indices of K rows in [0, N), in any order, with repetitions allowed.

    Returns:
      {field: [K, ...]}.
    """
    places = np.asarray(places, np.int64)
    return {name: _take_rows(value, places) for name, value in values.items()}


def _take_rows(value: Any, places: np.ndarray) -> Any:
    if not isinstance(value, tf1.ragged.RaggedTensorValue):
        return np.asarray(value)[places]
    splits = np.asarray(value.row_splits)  # The start of each row, and the end: [N + 1].
    lengths = np.diff(splits)[places]  # The lengths of the chosen rows: [K].
    ends = np.concatenate([[0], np.cumsum(lengths)])
    # For each entry its index within its row: 0, 1, ..., and again from 0 in the next row.
    inner = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
    entries = np.repeat(splits[:-1][places], lengths) + inner
    return tf1.ragged.RaggedTensorValue(
        np.asarray(value.values)[entries], ends.astype(splits.dtype)
    )
