"""Negative items for retrieval, drawn from the training split and added as rows to each batch.

clicked/heads.Retrieval.negatives = @drawn_items.DrawnItems()
drawn_items.DrawnItems.num = 512
drawn_items.DrawnItems.features = ["item", "category"]
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import source as source_lib
from mtl.deferred import tf


@checks.dataclass
class DrawnItems:
    """Draws `num` items for each batch, each with a probability of `count^power / sum count^power`.

    The count of an item is the number of its rows in the training split. Power 1 draws items in
    proportion to their counts, and power 0 draws all items equally often. The default power, 0.75,
    is the choice of Mikolov et al., "Distributed Representations of Words and Phrases and their
    Compositionality", 2013, arXiv:1310.4546. The same item may be drawn twice for a batch.

    Each item becomes an additional row behind the other rows of the batch. The additional row has
    the features of the item, and copies all other features from a row of the batch. Since its
    labels are missing, the additional row has no weight in the losses of other heads. But batch
    norm and auxiliary losses without a label use the additional row, and the model encodes the
    features that this row copies. Each micro-batch and each replica gets an equal part of the
    items.

    Attributes:
      num: the number of items drawn for a batch, over all replicas and workers: a multiple of the
        number of parts into which all processes together cut a batch.
      features: the features of an item, which must be equal in all rows of the item.
      power: the exponent of the counts of the items, in [0, 1].
    """

    num: checks.Count
    features: Annotated[checks.Names, checks.Filled("name a feature")]
    power: Annotated[float, checks.In("[0, 1]")] = 0.75

    @property
    def shares(self) -> Mapping[int | str, float] | None:
        """{item: probability in a draw}; None until items are counted."""
        return None

    def fitted(self, task: str, statistics: types.Statistics) -> DrawnItems:
        """Return a copy with the items that `accumulators` counted in training rows.

        Args:
          task: the name of the head.
          statistics: the statistics of the training split.

        Returns:
          A copy whose `shares` give the probability of each item.
        """
        entry = statistics.for_column(_name_statistics(task))
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        counts = dict(zip(entry["items"], entry["counts"], strict=True))
        return _CountedItems(**settings, counts=counts)

    def check(self, spec: spec_lib.Spec) -> None:
        """Fail unless a specification suits the setting `features`.

        Args:
          spec: the fields of the training rows.

        Raises:
          UserError: a name in `features` is not a feature of the specification, or is a list of
            lists.
        """
        for name in self.features:
            checks.one_of("DrawnItems.features", name, spec.features)
            field, where = spec.fields[name], f"DrawnItems.features {name!r}"
            checks.require(not field.is_nested, where, "not be a list of lists", field.shape)

    def accumulators(self, task: str, item: str) -> dict[str, types.Accumulator]:
        """Return {name in the statistics: accumulator that counts items}.

        Args:
          task: the name of the head.
          item: the label field that names the item of a row.
        """
        return {_name_statistics(task): Items(item=item, features=tuple(self.features))}

    def append(
        self, task: str, batches: tf.data.Dataset, spec: spec_lib.Spec, reading: types.Reading
    ) -> tf.data.Dataset:
        """Append rows of drawn items to each part of a batch.

        The label field `drawn_field(task)` names an item only in the appended rows.

        Args:
          task: the name of the head.
          batches: (features, labels) of this process, with a static number of rows.
          spec: the fields of the rows.
          reading: the seed, the first step, the parts of a batch, and the statistics of the items.

        Returns:
          Batches with `num / reading.num_shards` additional rows.
        """
        parts, num = reading.parts, self.num // reading.num_shards
        first = reading.shard * num
        shares = cast(Mapping, self.fitted(task, reading.statistics).shares)
        ends, items = tf.constant(np.cumsum(list(shares.values()))), np.array(list(shares))
        items = tf.constant(items, tf.string if items.dtype.kind == "U" else tf.int64)
        tables = self._read_tables(task, spec, reading.statistics)
        seed = reading.seed ^ zlib.crc32(_name_statistics(task).encode())

        @tf.autograph.experimental.do_not_convert
        def add(step: tf.Tensor, batch: Any) -> tuple[types.Tensors, types.Tensors]:
            features, labels = batch
            rows = next(iter(features.values())).shape[0]
            # Each worker draws the items of the whole batch, and then uses only its part.
            uniform = tf.random.stateless_uniform([self.num], [seed, step], dtype=tf.float64)
            uniform = uniform[first : first + num]
            indices = tf.searchsorted(ends, uniform * ends[-1], side="right")
            # Rounding may make a draw equal to the last bound, so clip the index to the last item.
            indices = tf.minimum(indices, len(shares) - 1)
            places = [np.arange(rows), np.arange(rows, rows + num)]
            order = np.concatenate([part.reshape(parts, -1) for part in places], 1).ravel()

            def join(value: Any, item_rows: Any) -> Any:
                return tf.gather(tf.concat([value, item_rows], 0), order)

            # Each part of a batch copies its own rows, so the number of workers changes no copy.
            offsets = np.arange(num // parts) % (rows // parts)
            copied_rows = (offsets + np.arange(parts)[:, np.newaxis] * (rows // parts)).ravel()
            joined_features = {
                name: join(value, tf.gather(*pair))
                for name, value in features.items()
                for pair in [(tables[name], indices) if name in tables else (value, copied_rows)]
            }
            joined_labels = {
                name: join(value, _missing_rows(value, num)) for name, value in labels.items()
            }
            keys = tf.gather(items, indices)
            joined_labels[drawn_field(task)] = join(_missing_rows(keys, rows), keys)
            source_lib.set_batch_size(joined_features, rows + num)
            source_lib.set_batch_size(joined_labels, rows + num)
            return joined_features, joined_labels

        numbered = batches.enumerate(reading.start_step)
        larger = numbered.map(add, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return larger.prefetch(source_lib.AHEAD)

    def _read_tables(
        self, task: str, spec: spec_lib.Spec, statistics: types.Statistics
    ) -> dict[str, Any]:
        """Return {feature: values of all items}; graph ops read the values from a file."""
        path = statistics.path(statistics.for_column(_name_statistics(task))["file"])
        parts = tf.io.parse_tensor(tf.io.read_file(path), tf.string)
        tables, places = {}, iter(range(2 * len(self.features)))
        for name in self.features:
            field = spec.fields[name]
            values = tf.io.parse_tensor(parts[next(places)], field.dtype)
            if field.is_ragged:
                values = tf.ensure_shape(values, [None])
                splits = tf.ensure_shape(tf.io.parse_tensor(parts[next(places)], tf.int64), [None])
                tables[name] = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
            else:
                tables[name] = tf.ensure_shape(values, [None, *field.shape])
        return tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CountedItems(DrawnItems):
    """`DrawnItems` with the number of rows of each item in the training split."""

    counts: Mapping[int | str, int]

    @functools.cached_property
    def shares(self) -> Mapping[int | str, float]:
        """{item: probability in a draw}."""
        weights = np.array(list(self.counts.values()), np.float64) ** self.power
        return dict(zip(self.counts, (weights / weights.sum()).tolist(), strict=True))


def drawn_field(task: str) -> str:
    """Return the name of the label field with the items drawn for a task."""
    return f"{task}/drawn"


@dataclasses.dataclass(kw_only=True)
class Items:
    """An accumulator that counts the rows of each item, and keeps the features of each item.

    Attributes:
      item: the field that names the item of a row; rows without an item are left out.
      features: the fields to keep for each item.
    """

    item: str
    features: Sequence[str]

    def __post_init__(self):
        self._counts: collections.Counter = collections.Counter()
        self._rows: dict[Any, tuple] = {}
        self._kinds: dict[str, tuple[np.dtype, tuple, bool]] = {}

    def update(self, fields: types.Tensors) -> None:
        """Count the items of a batch of eager tensors, and keep the features of new items.

        Raises:
          UserError: the features of an item differ from row to row.
        """
        columns = [self._freeze_rows(name, fields[name]) for name in self.features]
        keys = fields[self.item].numpy().tolist()
        for key, *row in zip(keys, *columns, strict=True):
            # Skip a row without an item.
            if key in (spec_lib.MISSING["int64"], spec_lib.NO_ID, b""):
                continue
            self._counts[key] += 1
            # The first row of an item sets its features, and later rows must have the same
            # features.
            first_row = self._rows.setdefault(key, tuple(row))
            for name, value, first_value in zip(self.features, row, first_row, strict=True):
                if value != first_value:
                    where, rule = (
                        f"DrawnItems.features {name!r}",
                        "be the same in all rows of an item",
                    )
                    checks.fail(where, rule, f"two values for {self.item} {_to_text(key)!r}")

    def _freeze_rows(self, name: str, values: tf.Tensor | tf.RaggedTensor) -> list[Any]:
        """Convert the rows of a feature to comparable values; remember their type and shape."""
        is_list = isinstance(values, tf.RaggedTensor)
        flat = (values.flat_values if is_list else values).numpy()
        self._kinds[name] = (flat.dtype, flat.shape[1:], is_list)
        # List i lies between row splits i and i + 1.
        starts = values.row_splits.numpy() if is_list else []
        rows = [flat[a:b] for a, b in itertools.pairwise(starts)] if is_list else flat
        return list(map(_freeze, rows))

    def save(self, directory: str, column: str) -> dict[str, types.Json]:
        """Return the items and their counts, and write their features to a file.

        Args:
          directory: the folder in which the file is written.
          column: the name of the statistics, which also gives the file its name.

        Returns:
          {"items": items in ascending order, "counts": the number of rows of each item, "file": the
          name of the file}.

        Raises:
          UserError: no row has an item, or the name of an item is not UTF-8.
        """
        # Sort the items, so that the file does not depend on the order of the rows.
        items = sorted(self._rows)
        tensors: list[tf.Tensor] = []
        where = f"label {self.item!r} of the training split"
        checks.require(bool(items), where, "name an item, for negatives to be drawn", "none")
        for place, name in enumerate(self.features):
            rows = [self._rows[item][place] for item in items]
            tensors += _thaw(rows, *self._kinds[name])
        file = f"{column.replace('/', '_')}.tensors"
        content = tf.io.serialize_tensor(tf.stack(list(map(tf.io.serialize_tensor, tensors))))
        tf.io.write_file(os.path.join(directory, file), content)
        counts = [self._counts[item] for item in items]
        return {"items": list(map(_to_text, items)), "counts": counts, "file": file}


def _name_statistics(task: str) -> str:
    return f"drawn_items/{task}"


def _freeze(value: Any) -> Any:
    """Convert a feature of a row to a value that `==` compares, with NaN equal to NaN."""
    if isinstance(value, bytes):
        return value
    return value.tolist() if value.dtype.kind == "O" else value.tobytes()


def _thaw(rows: Sequence[Any], dtype: np.dtype, shape: tuple, is_list: bool) -> list[tf.Tensor]:
    """Convert the results of `_freeze` to a tensor of values; for lists, also to row splits."""
    is_text = dtype.kind == "O"
    if is_text:
        flat = list(itertools.chain(*rows)) if is_list else rows
        values = np.array(flat, object).reshape(-1, *shape)
        lengths = [len(row) for row in rows] if is_list else []
    else:
        values = np.frombuffer(b"".join(rows), dtype).reshape(-1, *shape)
        lengths = [len(row) // dtype.itemsize for row in rows]
    tensor = tf.constant(values, tf.string if is_text else dtype)
    return [tensor, tf.constant(np.cumsum([0, *lengths]), tf.int64)] if is_list else [tensor]


def _to_text(item: int | bytes) -> int | str:
    """Convert an item to a number or a text, for JSON and TensorFlow."""
    if not isinstance(item, bytes):
        return item
    try:
        return item.decode()
    except UnicodeDecodeError:
        checks.fail("the items of DrawnItems", "be named in UTF-8", item)


def _missing_rows(value: tf.Tensor | tf.RaggedTensor, count: int) -> tf.Tensor | tf.RaggedTensor:
    """Return `count` rows of missing labels, with the type and shape of `value`."""
    missing: Mapping[str, Any] = spec_lib.MISSING
    fill = tf.constant(missing.get(value.dtype.name, 0), value.dtype)
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensor.from_row_lengths(tf.fill([count], fill), np.ones(count, np.int64))
    return tf.fill([count, *value.shape[1:]], fill)
