"""The input pipeline, which shards, caches, shuffles, repeats, batches and decodes records.

pipeline.Pipeline.source = @tfds.Tfds()
pipeline.Pipeline.spec = @spec.Spec()
pipeline.Pipeline.batch_size = 64
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, cast

import numpy as np

from mtl import checks, deferred, types
from mtl import spec as spec_lib
from mtl.data import files, in_memory, label_counts, mixing, order, packed
from mtl.data import source as source_lib
from mtl.deferred import tf
from mtl.distribution import memory
from mtl.spec import literals

with deferred.imports():
    from mtl.data import block_rows, filled_fields, sampling, windows

# An error of TensorFlow that comes from the input pipeline names the op `IteratorGetNext`.
_READING = "IteratorGetNext"
# An error quotes at most this number of characters of a message from TensorFlow.
_LONGEST_REASON = 200
# Workers read whole files if no worker reads more than `_MOST_UNEVEN` times the bytes of another; a
# new run logs a difference from `_UNEVEN` on. The bytes of a worker's files only estimate its
# number of rows.
_UNEVEN, _MOST_UNEVEN = 1.1, 1.25
# The default of `Pipeline.shuffle_buffer`.
_SHUFFLE_BUFFER = 10_000
# The size of a batch outside of training, where large batches cost less time for each row.
_LARGE_BATCH_BYTES, _LARGE_BATCH_ROWS = 1 << 23, 32_768
# The most bytes and rows that a call from TensorFlow into Python reads. A call costs a tenth of a
# millisecond, so one call reads the rows of several batches.
_BYTES_OF_CALL, _ROWS_OF_CALL = 1 << 23, 1 << 14
# Words that occur in error messages about NaN and infinity.
_NUMERIC = re.compile(r"finite|\b(nan|inf)\b", re.IGNORECASE)


def _list_data_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that a bad record raises; Estimator raises RuntimeError for NaN."""
    return *source_lib.list_refusals(), tf.errors.DataLossError, RuntimeError


def list_file_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions for an unreadable file whose name is in a record."""
    errors = tf.errors
    return errors.NotFoundError, errors.PermissionDeniedError, errors.FailedPreconditionError


class _Part(NamedTuple):
    """The part of each batch that one process reads.

    Attributes:
      batch_size: the number of rows of the part.
      num_shards: the number of processes.
      shard: the index of the process, from 0.
      parts: the number of equal parts into which the process cuts its rows.
      together: the number of batches that one call reads.
    """

    batch_size: int
    num_shards: int
    shard: int
    parts: int
    together: int


@checks.dataclass
class Pipeline:
    """Makes batches of (features, labels) from a source.

    Training repeats the split without end, and cuts the resulting stream into full batches of
    static size, so no example is dropped. Evaluation makes one pass in the order of the source, and
    keeps the last, smaller batch.

    Attributes:
      source: the `Source` of raw records.
      spec: the fields to read.
      batch_size: the number of examples in a batch, over all replicas and workers.
      train_split: the name of the split for training and feature statistics.
      eval_split: the name of the split for evaluation.
      shuffle_buffer: the size of TensorFlow's shuffle buffer in records. A perfect shuffle needs a
        buffer as large as the split; a smaller buffer only mixes nearby records. `shuffle_buffer =
        1` keeps the order of the records. TensorFlow reserves 24 bytes for each record of the
        buffer, even if the split is smaller. Sources that hold their rows in memory, such as
        `arrow.Arrow`, shuffle all rows without a buffer.
      cache: True lets each process decode the whole training split once, when it starts, and keep
        the rows in memory. With `cache`, training shuffles all rows in every epoch, for any
        `shuffle_buffer` except 1, which keeps the order of the rows. Checkpoints hold no rows, and
        a run can continue with another number of workers. If records name files, or if you wrote a
        sampler without `types.RowSampler`, each process keeps the raw records of its shard instead.
        None means True for `Csv` and `JsonLines` if the files have less than 512 MiB in all (a
        `.gz` file counts ten times its size), and False for other sources, whose rows may take more
        memory than their files.
      sampler: `sampling.Power` sets how often training draws the rows of each class;
        `whole_groups.WholeGroups` keeps the rows of a group in one batch. Without a sampler (None),
        training draws each row once in an epoch (instance-balanced sampling).
    """

    source: Annotated[types.Source, source_lib.check]
    spec: Annotated[spec_lib.Spec, checks.Is(spec_lib.Spec, "be a Spec, such as @spec.Spec()")]
    batch_size: Annotated[int, checks.positive] = 64
    train_split: Annotated[str, checks.Is(str, "name a split")] = "train"
    eval_split: Annotated[str, checks.Is(str, "name a split")] = "test"
    shuffle_buffer: Annotated[int, checks.positive] = _SHUFFLE_BUFFER
    # The key "written" says that old runs have the value of `cache` in their saved settings.
    cache: bool | None = dataclasses.field(
        default=None, metadata={"earlier": False, "written": True}
    )
    sampler: sampling.Power | types.BatchSampler | None = None

    def __post_init__(self):
        source_lib.check_order(self.source, self.sampler)
        if self.sampler is not None:
            self._check_sampler(self.sampler)

    def _check_sampler(self, sampler: sampling.Power | types.BatchSampler) -> None:
        if isinstance(sampler, types.BatchSampler):
            sampler.check(self.spec)
        else:
            checks.require_part("Pipeline.sampler", sampler, "sampling.Power", arguments=6)
            checks.one_of(f"{type(sampler).__name__}.label", sampler.label, self.spec.labels)
            shape = self.spec.fields[sampler.label].shape
            where = f"{type(sampler).__name__}.label"
            checks.require(not shape, where, "have one value a row", sampler.label)

    def dataset(  # noqa: PLR0913  Callers pass the arguments by keyword.
        self,
        split: str,
        *,
        training: bool,
        seed: int,
        num_shards: int = 1,
        shard: int = 0,
        batch_size: int | None = None,
        with_labels: bool = True,
        statistics: Any = None,
        start_step: int = 0,
        parts: int = 1,
    ) -> tf.data.Dataset:
        """Return batches of ({feature: [B, ...]}, {label: [B, ...]}).

        Args:
          split: a split of the source, such as `train_split`.
          training: True shuffles and repeats the split without end; False makes one pass in order.
          seed: the seed of the shuffling; each epoch has another order.
          num_shards: the number of shards, one for each worker. A shard gets some of the files, or
            some of the records if the files cannot be divided into shards of equal size.
          shard: the index of the shard to read, from 0.
          batch_size: the number of examples in a batch, such as in one replica; None means the
            setting `batch_size`.
          with_labels: False if the records lack labels; the dict of labels is then empty.
          statistics: `features.Statistics` of the training split, which a sampler needs.
          start_step: the global step from which training and the sampler's schedule continue.
          parts: the number of equal, consecutive parts into which a training step cuts each batch.

        Raises:
          UserError: the split does not exist or lacks a record for this shard, or its files lack a
            field.
        """
        batch_size = batch_size or self.batch_size
        self.require_memory(batch_size, training)
        read_records = functools.partial(self._read, split, num_shards, shard)
        options = source_lib.options()
        if training and self._is_numbered(split):
            together = self._count_together(split, batch_size)
            part = _Part(batch_size, num_shards, shard, parts, together)
            batches, decode = self._take_batches(split, seed, start_step, part)
            # Decode several batches at once, because calls into Python are slow.
            batches = self._split_fields(batches, with_labels, together * batch_size, decode)
            batches = source_lib.cut_batches(batches, together, batch_size)
            # With `experimental_symbolic_checkpoint`, the saved state of the iterator holds a step
            # number, not the next rows.
            options.experimental_symbolic_checkpoint = True
        elif training:
            records = _keep_in_memory(read_records) if self.cache else read_records()
            if isinstance(self.sampler, types.BatchSampler):
                sizes = (batch_size, parts, num_shards)
                return self._form_batches(self.sampler, records, seed, statistics, split, *sizes)
            records = self._shuffle_records(self.sampler, records, seed, statistics, start_step)
            batches = source_lib.batch(records, batch_size, drop_remainder=True)
            batches = self._split_fields(batches, with_labels, batch_size)
        else:
            batches = self._split_fields(read_records(batch_size), with_labels)
        return batches.with_options(options).prefetch(source_lib.AHEAD)

    def _split_fields(
        self,
        batches: tf.data.Dataset,
        with_labels: bool,
        size: int | None = None,
        decode: Callable[..., dict[str, Any]] | None = None,
    ) -> tf.data.Dataset:
        """Decode raw batches of a source into (features, labels).

        Args:
          batches: raw records, or pairs of raw records and a mask, bool [B]. The mask is False for
            copies of rows that fill the batch.
          with_labels: False if the records lack labels.
          size: the static number of rows of each batch; None if batches differ in size.
          decode: the function that decodes the records; None means `decode` of the source.
        """

        # AutoGraph is off, because it would change the errors that sources raise.
        @tf.autograph.experimental.do_not_convert
        def split(*batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            # `Dataset.map` passes the parts of a tuple as several arguments.
            values = self._decode(batch[0], with_labels, decode)
            if size is not None:
                source_lib.set_batch_size(values, size)
            features, labels = self._divide(values, with_labels)
            if len(batch) > 1:  # The mask marks copies that fill the batch.
                labels = source_lib.mask_labels(self.spec, labels, batch[1])
                source_lib.set_batch_size(labels, cast(int, size))
            return features, labels

        return batches.map(split, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _decode(
        self, batch: Any, with_labels: bool, decode: Callable[..., dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Decode raw records by the source, and drop empty texts from lists."""
        if decode is not None:
            return self.spec.drop_empty_texts(decode(batch, self.spec, with_labels))
        values = self.source.decode(batch, self.spec, with_labels)
        where, rule = f"{type(self.source).__name__}.decode", "return {field: values [B, ...]}"
        checks.is_a(where, values, Mapping, rule)
        fields = self.spec.fields if with_labels else self.spec.features
        missing = [name for name in fields if name not in values]
        checks.require(not missing, where, "return every field", list(values), f"Add {missing}.")
        return self.spec.drop_empty_texts(values)

    def _divide(
        self, values: dict[str, Any], with_labels: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split a decoded batch into features and labels."""
        return self.spec.split(values, with_labels)

    @property
    def depends_on_parts(self) -> bool:
        """True if the rows of a batch depend on the number of its parts."""
        return isinstance(self.sampler, types.BatchSampler)

    @property
    def starts_anywhere(self) -> bool:
        """True if training can start at any step without a saved state of the input.

        If training can start at any step, the rows of a batch do not depend on the number of
        workers.
        """
        return self._keeps_rows or self._is_numbered(self.train_split)

    @property
    def takes_decoded_rows(self) -> bool:
        """True if training takes decoded rows by number, from memory or from windows."""
        # Files that rows name, such as images, are decoded at every step.
        return self.starts_anywhere and not source_lib.names_files(self.source)

    def _is_numbered(self, split: str) -> bool:
        """Return True if training takes the rows of a split by number."""
        if self._orders_itself:
            return True
        return self._list_blocks(split) is not None or self._list_rows(split) is not None

    def _list_blocks(self, split: str) -> types.Blocks | None:
        """Return the blocks of a split if training reads it in windows; otherwise None."""
        if self.sampler is not None:
            return None
        if split not in self._blocks:
            list_all = types.read_shortcut(self.source, "list_blocks")
            self._blocks[split] = list_all(split, self.spec)
        return self._blocks[split]

    @functools.cached_property
    def _blocks(self) -> dict[str, types.Blocks | None]:
        """The cache of `_list_blocks`: {split: blocks, or None}."""
        return {}

    def count_epochs(self, step: int) -> Mapping[str, float]:
        """Return the number of epochs of each source of a mixture before a step.

        Args:
          step: the global step before which epochs are counted.

        Returns:
          {source: number of epochs}; {} if the source is not a mixture.
        """
        if not self._orders_itself:
            return {}
        return types.read_member(self._own_order, types.RowOrder, "count_epochs")(step)

    @functools.cached_property
    def _own_order(self) -> types.RowOrder:
        """The order of training rows that a source such as a mixture decides, with any seed."""
        return self._find_order(self.train_split, self.batch_size, 0)

    def describe_order(self, steps: int, workers: int = 1) -> list[str]:
        """Describe how training shuffles rows, and warn if `shuffle_buffer` has no effect.

        Args:
          steps: the number of steps of the run.
          workers: the number of processes that read the rows of the run.
        """
        if not self.starts_anywhere:
            return self._describe_unmixed() + self._describe_uneven(workers)
        blocks, lines = None, []
        if self._orders_itself:
            lines = self._own_order.describe(steps)
        else:
            blocks = self._list_blocks(self.train_split)
        if blocks is not None and self.shuffle_buffer > 1:
            lines = mixing.describe_mixing(blocks, self.spec, self.batch_size)
        if blocks is not None and self.cache:
            rule = f"training reads windows of rows, as {blocks.setting} says"
            lines = [*lines, f"Pipeline.cache has no effect: {rule}."]
        if self.shuffle_buffer in (1, _SHUFFLE_BUFFER):
            return lines
        reason = "training mixes all rows, as they lie in memory"
        if blocks is not None:
            reason = f"training mixes {blocks.window:,} rows at a time, as {blocks.setting} says"
        return lines + [f"Pipeline.shuffle_buffer = {self.shuffle_buffer} has no effect: {reason}."]

    def _describe_unmixed(self) -> list[str]:
        """Return a log line if windows of rows would mix the split better than the sampler."""
        list_blocks = types.read_shortcut(self.source, "list_blocks")
        blocks = None if self.sampler is None else list_blocks(self.train_split, self.spec)
        if blocks is None:
            return []
        name = type(self.sampler).__name__
        return [
            f"{name} does not use windows of rows ({blocks.setting}): it reads the rows in the "
            f"order of the files, and Pipeline.shuffle_buffer = {self.shuffle_buffer} mixes them. "
            "If all rows fit into memory, set Pipeline.cache."
        ]

    def _describe_uneven(self, workers: int) -> list[str]:
        """Return a line if whole files do not give each worker the same number of bytes."""
        deal = types.read_member(self.source, types.Source, "shard")
        if workers == 1 or deal(self.train_split, workers, 0) is None:
            return []
        least, most = self._measure_shards(self.train_split, workers)
        if most <= _UNEVEN * least:
            return []
        reason = f"whole files give a worker {least:,} to {most:,} bytes"
        fix = f"write a multiple of {workers} files of equal size"
        if self._needs_whole_files or most <= _MOST_UNEVEN * least:
            also = ", or set Pipeline.cache" if self._orders_numbers else ""
            return [
                f"Training draws rows of some files about {most / max(least, 1):,.1f} times as "
                f"often as rows of others, because {reason}: {fix}{also}."
            ]
        return [
            f"Each of {workers} workers reads all files and uses a part of the rows, because "
            f"{reason}: to read less, {fix}."
        ]

    def _measure_shards(self, split: str, num_shards: int) -> tuple[int, int]:
        """Return the bytes of the smallest and the largest shard of whole files; 0 if unknown."""
        sizes = files.measure_shards(self.source, split, num_shards) or [0]
        return min(sizes), max(sizes)

    @property
    def _needs_whole_files(self) -> bool:
        """True if the sampler keeps neighbouring records together, so workers get whole files."""
        return isinstance(self.sampler, types.BatchSampler)

    @property
    def _keeps_rows(self) -> bool:
        """True if `cache` makes training keep decoded rows in memory."""
        if not self._orders_numbers or source_lib.names_files(self.source):
            return False
        return self._is_small if self.cache is None else self.cache

    @functools.cached_property
    def _is_small(self) -> bool:
        """True if the source knows that its training rows take little memory."""
        estimate = types.read_shortcut(self.source, "estimate_bytes")
        return in_memory.is_small(estimate(self.train_split))

    @property
    def _orders_numbers(self) -> bool:
        """True if training can take rows by number: no sampler is set, or it orders row numbers."""
        return self.sampler is None or self.order_field is not None

    @property
    def order_field(self) -> str | None:
        """The field by which the sampler orders row numbers; None if the sampler needs no field."""
        if self.sampler is None:
            return None
        return types.read_member(self.sampler, types.RowSampler, "order_field")

    def _list_rows(self, split: str) -> np.ndarray | None:
        """Return the row numbers of a split if training takes rows by number; otherwise None."""
        if not self._orders_numbers:
            return None
        with self.name_bad_record(split):
            return types.read_shortcut(self._row_source, "list_rows")(split)

    def _read_order_field(self, split: str, rows: np.ndarray) -> np.ndarray:
        """Return the values of the field by which the sampler orders rows, [N]."""
        if split not in self._order_values:
            narrow = filled_fields.narrow_spec(self.spec, [cast(str, self.order_field)])
            with self.name_bad_record(split):
                values = source_lib.read_field(
                    self._row_source, split, rows, cast(spec_lib.Spec, narrow)
                )
            self._order_values[split] = values
        return self._order_values[split]

    @functools.cached_property
    def _order_values(self) -> dict[str, np.ndarray]:
        """The cache of `_read_order_field`: {split: values, [N]}."""
        return {}

    @contextlib.contextmanager
    def name_bad_record(self, split: str) -> Iterator[None]:
        """If a bad record of a split raises an error, raise an error that names the record.

        Args:
          split: the split that the `with` block reads.

        Raises:
          UserError: TensorFlow raised an error in the `with` block because of a bad record of the
            split.
        """
        try:
            yield
        except source_lib.list_refusals() as error:
            problem = self.diagnose(error, split)
            if problem is None:
                raise
            raise checks.UserError(problem) from error

    @functools.cached_property
    def _row_source(self) -> types.Source:
        """The source from which rows are taken by number: `source`, or its rows in memory."""
        if self._orders_itself or not self._keeps_rows:
            return self.source
        if self._list_blocks(self.train_split) is not None:
            return self.source
        numbers = types.read_shortcut(self.source, "list_rows")(self.train_split)
        return in_memory.InMemory(self.source, self.spec) if numbers is None else self.source

    def _take_batches(
        self, split: str, seed: int, start_step: int, part: _Part
    ) -> tuple[tf.data.Dataset, Callable[..., dict[str, Any]]]:
        """Return endless raw batches, several in an element, and the function that decodes them."""
        settings = {
            "start_step": start_step,
            "num_shards": part.num_shards,
            "shard": part.shard,
            "together": part.together,
        }
        total_size, blocks = part.batch_size * part.num_shards, None
        if not self._orders_itself:
            blocks = self._list_blocks(split)
        if blocks is not None:
            checks.require(sum(blocks.sizes) > 0, f"split {split!r}", "hold a record", 0)
            is_shuffled = self.shuffle_buffer > 1
            plan = windows.Plan(tuple(blocks.sizes), total_size, blocks.window, seed, is_shuffled)
            windowed = self._open_windows(blocks)
            windowed.require_memory(blocks.setting, plan, part.num_shards)
            return windowed.take_batches(plan, **settings), windowed.decode
        row_order = self._find_order(split, total_size, seed, part.parts * part.num_shards)
        batches = order.take_batches(row_order, batch_size=total_size, **settings)
        take = functools.partial(self._row_source.take_rows, split)
        if not types.read_member(row_order, types.RowOrder, "pads"):
            return batches.map(take), self._row_source.decode

        @tf.autograph.experimental.do_not_convert
        # The number ~row means a copy of a row that fills the batch: see `RowOrder.pads`.
        def take_padded(rows: tf.Tensor) -> tuple[Any, tf.Tensor]:
            return take(tf.where(rows < 0, -1 - rows, rows)), rows >= 0

        return batches.map(take_padded), self._row_source.decode

    def _open_windows(self, blocks: types.Blocks) -> block_rows.Windowed:
        """Return an object that makes the training batches of a split in blocks."""
        return block_rows.Windowed(self.spec.fields, blocks)

    def _find_order(self, split: str, batch_size: int, seed: int, parts: int = 1) -> types.RowOrder:
        """Return the order of the rows that training takes by number.

        Args:
          split: the name of the split, such as "train".
          batch_size: the number of rows in a batch over all workers.
          seed: the seed of the random order of the rows.
          parts: the number of equal parts into which all workers cut a batch.
        """
        is_shuffled = self.shuffle_buffer > 1
        # `rows` is None for a source that orders its rows without listing them, such as a mixture.
        rows = self._list_rows(split)
        if self._orders_itself:
            row_order = self.source.order_rows(
                split, self.spec, batch_size=batch_size, seed=seed, is_shuffled=is_shuffled
            )
            return cast(types.RowOrder, row_order)
        rows = cast(np.ndarray, rows)
        checks.require(len(rows) > 0, f"split {split!r}", "hold a record", 0)
        if self.sampler is None:
            return order.Epochs(rows, seed, batch_size, is_shuffled)
        return cast(Any, self.sampler).order_by_field(
            rows,
            self._read_order_field(split, rows),
            batch_size=batch_size,
            parts=parts,
            seed=seed,
            is_shuffled=is_shuffled,
        )

    def _count_together(self, split: str, batch_size: int) -> int:
        """Return the number of batches that one call into Python reads."""
        row = sum(map(_least_bytes, self.spec.fields.values()))
        count = max(1, min(_ROWS_OF_CALL, _BYTES_OF_CALL // row) // batch_size)
        known_steps = types.read_member(self.source, types.Source, "known_steps")
        if known_steps is not None:
            return min(count, known_steps)
        blocks = None if self._orders_itself else self._list_blocks(split)
        # A call that spans many windows would read all these windows before it returns a batch.
        return count if blocks is None else min(count, max(1, blocks.window // batch_size))

    @property
    def _orders_itself(self) -> bool:
        """True if the source decides the order of its rows, as a mixture does."""
        return types.read_member(self.source, types.Source, "orders_rows")

    def require_memory(self, batch_size: int, training: bool = True) -> None:
        """Fail if a batch or the shuffle buffer cannot fit into the memory.

        Training batches are always full. Batches of evaluation may be smaller, so for evaluation,
        this method counts only the memory that TensorFlow reserves for the records of a batch.

        Args:
          batch_size: the number of rows of a batch in this process.
          training: True checks full batches and the shuffle buffer.
        """
        size = batch_size * memory.SLOT
        if training:
            size += batch_size * sum(map(_least_bytes, self.spec.fields.values()))
        if training and not self.starts_anywhere:
            slots = self.shuffle_buffer * memory.SLOT
            subject = "TensorFlow takes, before it reads a record,"
            memory.require_memory("Pipeline.shuffle_buffer", self.shuffle_buffer, slots, subject)
        subject = f"A batch of {batch_size} rows takes"
        memory.require_memory("Pipeline.batch_size", self.batch_size, size, subject)

    def one_pass(self, split: str, with_labels: bool = True) -> tf.data.Dataset:
        """Return one pass over a split, in order.

        Args:
          split: a split of the source.
          with_labels: False if the records lack labels.

        Returns:
          Batches ({feature: [B, ...]}, {label: [B, ...]}). Without labels, each batch is only
          {feature: [B, ...]}.
        """
        # A pass in order uses no seed.
        batches = self.dataset(split, training=False, seed=0, with_labels=with_labels)
        return batches if with_labels else batches.map(lambda features, labels: features)

    def in_large_batches(self, split: str) -> Pipeline:
        """Return a pipeline with batches of a few megabytes, for passes outside of training.

        Large batches save time, because each batch costs a millisecond or more. The size of a row
        is measured on the first row, including the files that the row names. `batch_size` never
        decreases.

        Args:
          split: the split whose first row is measured.

        Returns:
          The pipeline with larger batches; `self` if the split is empty, or its first row is bad.
        """
        first = next((row for _, row in self.source.scan(split, self.spec)), "")
        if isinstance(first, str):  # The split is empty, or the first row is bad.
            return self
        size = sum(map(_least_bytes, self.spec.fields.values()))
        for value in first.values():
            texts = value if isinstance(value, list) else [value]
            size += sum(len(text) for text in texts if isinstance(text, (str, bytes)))
        rows = min(_LARGE_BATCH_BYTES // size, _LARGE_BATCH_ROWS)
        return dataclasses.replace(self, batch_size=max(rows, self.batch_size))

    def keep_labels(self) -> Pipeline:
        """Return a pipeline with all labels and as few features as possible, to read the labels.

        The features in `Spec.keys`, which heads also read, remain; without such keys, only the
        first feature remains.
        """
        names = self.spec.keys or list(self.spec.features)[:1]
        # A source can split a list with weights only if the Spec has both the values and the
        # weights.
        names = [*names, *map(spec_lib.weights_name, names), *self.spec.labels]
        features = {name: kind for name, kind in self.spec.features.items() if name in names}
        defaults = {name: value for name, value in self.spec.defaults.items() if name in names}
        spec = dataclasses.replace(self.spec, features=features, defaults=defaults)
        return dataclasses.replace(self, spec=spec, sampler=None)

    def keep_fields(self, names: Sequence[str]) -> Pipeline:
        """Return a pipeline with all features, and with the labels and other columns in `names`.

        A name that is not a field of the Spec is a column of the source, which is read as text;
        such a source must have named columns.

        Raises:
          UserError: the records lack a field.
        """
        spec, columns = self.spec, getattr(self.source, "names", ())
        for name in names:
            checks.one_of("--keep", name, dict.fromkeys([*spec.fields, *columns]))
        text_columns = dict.fromkeys((name for name in names if name not in spec.fields), "string")
        new_spec = dataclasses.replace(
            spec,
            features={**spec.features, **text_columns},
            labels={name: kind for name, kind in spec.labels.items() if name in names},
            keys=(),
            defaults={
                name: default
                for name, default in {**spec.defaults, **dict.fromkeys(text_columns, "")}.items()
                if name in spec.features or name in names
            },
        )
        return dataclasses.replace(self, spec=new_spec, sampler=None)

    def _shuffle_records(
        self,
        sampler: sampling.Power | None,
        records: tf.data.Dataset,
        seed: int,
        statistics: Any,
        start_step: int,
    ) -> tf.data.Dataset:
        """Return an endless stream of shuffled passes; a sampler may repeat or drop rows."""
        if sampler is None:
            return records.shuffle(
                self.shuffle_buffer, seed, reshuffle_each_iteration=True
            ).repeat()
        counts = label_counts.read_counts(statistics, sampler.label, sampler.missing)
        sampler.require_classes(counts)
        field = self.spec.label_fields[sampler.label]
        # The number of the pass that contains the first step.
        rows = label_counts.count_rows(statistics, sampler.label)
        first = start_step * self.batch_size // rows

        def one_pass(epoch: tf.Tensor) -> tf.data.Dataset:
            samples = sampler(records, self.source, field, counts, seed, epoch)
            return samples.shuffle(self.shuffle_buffer, seed + epoch)

        return tf.data.Dataset.range(first, tf.int64.max).flat_map(one_pass)

    def _form_batches(
        self,
        sampler: types.BatchSampler,
        records: tf.data.Dataset,
        seed: int,
        statistics: Any,
        split: str,
        batch_size: int,
        parts: int,
        num_shards: int,
    ) -> tf.data.Dataset:
        """Return an endless dataset of the batches that a sampler forms."""
        if num_shards > 1:
            deal = types.read_member(self.source, types.Source, "shard")
            name = type(sampler).__name__
            # Workers get whole files, because the records of a group must stay together.
            rule = f"hold a file for each of {num_shards} workers, as {name} deals whole files"
            checks.require(deal(split, num_shards, 0) is not None, f"split {split!r}", rule, 1)
        rows = batch_size // parts
        if statistics is not None:
            sampler.require_room(statistics, rows)
        batches = sampler.form_batches(
            records, self.source, self.spec, self.shuffle_buffer, seed, rows, parts
        )

        @tf.autograph.experimental.do_not_convert
        def decode(batch: Any, is_row: tf.Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
            values = self._decode(batch, True)
            source_lib.set_batch_size(values, batch_size)
            features, labels = self.spec.split(values)
            labels = source_lib.mask_labels(self.spec, labels, is_row)
            source_lib.set_batch_size(labels, batch_size)
            return features, labels

        batches = batches.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        return batches.with_options(source_lib.options()).prefetch(source_lib.AHEAD)

    def _read(
        self, split: str, num_shards: int, shard: int, together: int | None = None
    ) -> tf.data.Dataset:
        """Return the records of a shard, which holds every n-th file or every n-th record.

        Args:
          split: a split of the source.
          num_shards: the number of shards.
          shard: the shard to read, from 0.
          together: the number of records in a batch; None for single records.
        """
        part = self._deal_files(split, num_shards, shard)
        shard_key = (split, num_shards, shard)
        if shard_key not in self._not_empty:
            self._require_record(part or self.source, split, num_shards, 0 if part else shard)
            self._not_empty.add(shard_key)
        if num_shards > 1 and part is None:
            records = self.source.records(split).shard(num_shards, shard)
            return source_lib.batch(records, together) if together else records
        source = part or self.source
        if together:
            return source_lib.read_batches(source, split, together)
        return source.records(split)

    def _deal_files(self, split: str, num_shards: int, shard: int) -> types.Source | None:
        """Return the source of a shard of whole files; None if each shard has every n-th record.

        All workers take equal parts of a batch, so they need shards with equal numbers of records.
        """
        deal = types.read_member(self.source, types.Source, "shard")
        part = deal(split, num_shards, shard) if num_shards > 1 else None
        if part is None or self._needs_whole_files:
            return cast("types.Source | None", part)
        least, most = self._measure_shards(split, num_shards)
        return None if most > _MOST_UNEVEN * least else cast(types.Source, part)

    @functools.cached_property
    def _not_empty(self) -> set[tuple[str, int, int]]:
        """The shards in which a record was found, so that each shard is checked only once."""
        return set()

    def _require_record(
        self, source: types.Source, split: str, num_shards: int, shard: int
    ) -> None:
        """Fail if a shard is empty, because training would end at step 0 without an error."""
        count = sum(1 for _ in itertools.islice(source.scan(split, self.spec), shard + 1))
        need = "a record" if num_shards == 1 else f"a record for each of {num_shards} shards"
        checks.require(count > shard, f"split {split!r}", f"hold {need}", count)

    def diagnose(
        self,
        error: Exception,
        split: str,
        heads: Sequence[types.Head] = (),
        columns: Sequence[types.Column] = (),
    ) -> str | None:
        """Find the bad record of a split that explains the error of a run.

        The search reads the split record by record, and takes seconds for each megabyte.

        Args:
          error: the error that ended the run.
          split: the name of the split, such as "train".
          heads: the heads, whose `check` finds bad labels.
          columns: the columns, whose `check` finds bad features.

        Returns:
          A message about the first bad record; None if no record explains the error.
        """
        changed_file = files.find_change(source_lib.error_text(error))
        if changed_file:
            return f"{changed_file} changed while it was read: train on a copy, or on new files."
        is_reading = _READING in source_lib.error_text(error)
        if not isinstance(error, _list_data_errors() + (list_file_errors() if is_reading else ())):
            return None
        bad_record, not_finite = self._find_bad(split, heads)
        if bad_record:
            return bad_record
        checking = _list_checking(columns)
        if is_reading or checking:
            refused_record = self._refused_alone(split, checking)
            if refused_record or is_reading:
                return refused_record
        # NaN and infinity may be valid values, so they are reported only if nothing else explains
        # the error.
        return not_finite if _NUMERIC.search(str(error)) else None

    def _find_bad(self, split: str, heads: Sequence[types.Head]) -> tuple[str | None, str | None]:
        """Return messages about the first bad record, and about an earlier NaN or infinity."""
        not_finite, records = None, iter(self.source.scan(split, self.spec))
        for location, values in records:
            problem = values if isinstance(values, str) else self._label_problem(values, heads)
            if isinstance(problem, spec_lib.Gaps):
                return f"{location}: {problem} {_further_gaps(problem, records)}", not_finite
            if problem:
                return f"{location}: {problem}", not_finite
            if not isinstance(values, str):
                not_finite = not_finite or self._not_finite(location, values)
        return None, not_finite

    def _refused_alone(self, split: str, columns: Sequence[types.Column]) -> str | None:
        """Return a message about the first record that TensorFlow or a column refuses."""

        @tf.autograph.experimental.do_not_convert
        def decode(*record: Any) -> dict[str, tf.Tensor]:
            return self.source.decode(record[0], self.spec, True)

        def one_by_one() -> tf.data.Dataset:
            return source_lib.batch(self.source.records(split), 1).map(decode)

        scanned_records = self.source.scan(split, self.spec)
        for (location, _), element in zip(
            scanned_records, source_lib.iterate(one_by_one), strict=False
        ):
            if isinstance(element, Exception):
                reason = source_lib.explain_unreadable(element)[:_LONGEST_REASON]
                return f"{location}: TensorFlow cannot read it: {reason}."
            # The batch has one record, so all values of a list belong to the same record.
            row = {
                name: value[0] if isinstance(value, np.ndarray) else value.flat_values
                for name, value in element.items()
            }
            problem = next(filter(None, (column.check(row) for column in columns)), None)
            if problem:
                return f"{location}: {problem}"
        return None

    def _label_problem(self, values: Mapping[str, Any], heads: Sequence[types.Head]) -> str | None:
        _, labels = self.spec.split(values)
        return next(filter(None, (head.check(labels) for head in heads)), None)

    def _not_finite(self, location: str, values: Mapping[str, Any]) -> str | None:
        """Return a message about the first feature with a NaN or infinity that is not allowed."""
        for name, field in self.spec.feature_fields.items():
            allows_nan = isinstance(field.default, float) and math.isnan(field.default)
            if field.dtype == "float32" and not allows_nan and not _is_finite(values[name]):
                return f"{location}: field {name!r} must be finite, got {values[name]!r}."
        return None


def read_split(
    source: types.Source, split: str, spec: spec_lib.Spec, setting: tuple[str, Any]
) -> dict[str, packed.Values]:
    """Call `in_memory.read_split` so that an error names the bad record.

    Args:
      source: the source of the records.
      split: the name of the split, such as "train".
      spec: the fields to read.
      setting: the name and the value of the setting that puts rows into memory, for errors.

    Raises:
      UserError: a record is malformed, or the rows do not fit into memory.
    """
    with Pipeline(source=source, spec=spec).name_bad_record(split):
        return in_memory.read_split(source, split, spec, setting)


def _keep_in_memory(read: Callable[..., tf.data.Dataset]) -> tf.data.Dataset:
    """Return a dataset whose iterator reads all records when it starts, and keeps them in memory.

    A checkpoint of the iterator contains only a position, not the records. Records with lists of
    different lengths need `Dataset.cache`; in this case, a checkpoint contains all records.
    """
    together = read(tf.int64.max)
    if source_lib.is_ragged(together):
        return read().cache()
    return tf.data.Dataset.from_tensor_slices(together.get_single_element())


def _list_checking(columns: Sequence[types.Column]) -> list[types.Column]:
    """Return the columns that define `check`, which finds bad values in a record."""
    default = types.Column.check
    return [column for column in columns if getattr(type(column), "check", default) is not default]


def _further_gaps(first: spec_lib.Gaps, records: Iterator[tuple[str, Any]]) -> str:
    """Return a hint: all further fields with absent values, and the settings that fill them in."""
    places: dict[str, str] = {}
    for location, problem in records:
        for field in problem.fields if isinstance(problem, spec_lib.Gaps) else ():
            if field not in first.fields:
                places.setdefault(field, location)
    gaps = ", ".join(f"{field!r} ({location})" for field, location in places.items())
    also = f"Further fields with gaps: {gaps}. " if places else ""
    nan = f"{literals.NAN!r} is a missing number"
    return f"{also}Set Spec.defaults, or Spec.type_defaults for all of a type; {nan}."


def _least_bytes(field: spec_lib.Field) -> int:
    """Return the least number of bytes that one value of a field takes in a batch."""
    width = memory.STRING if field.dtype == "string" else tf.as_dtype(field.dtype).size
    # An empty list takes only the memory of its row split.
    return 8 if field.is_ragged else field.size * width


def _is_finite(value: Any) -> bool:
    return all(map(_is_finite, value)) if isinstance(value, list) else math.isfinite(value)
