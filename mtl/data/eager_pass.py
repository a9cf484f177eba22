"""Reads a split once, as batches of eager tensors; a source with `read_values` needs no graph.

for features, labels in eager_pass.read(data, "train"):    # the batches of data.one_pass("train")
    ...

So the first pass over a table, such as the pass that computes statistics, builds no graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import packed, pipeline
from mtl.deferred import tf

_Batch = tuple[dict[str, Any], dict[str, Any]]


def read(data: pipeline.Pipeline, split: str, with_labels: bool = True) -> Iterator[_Batch]:
    """Yield the batches of `Pipeline.one_pass`, as eager tensors.

    Args:
      data: the pipeline, whose `batch_size` is the number of rows of a batch.
      split: a split of the source.
      with_labels: False if the records lack labels; the dict of labels is then empty.

    Yields:
      ({feature: [B, ...]}, {label: [B, ...]}).

    Raises:
      UserError, or an error of TensorFlow: the split does not exist or holds no record, or a record
        is malformed.
    """
    if not with_labels:
        data = dataclasses.replace(data, spec=data.spec.without_labels(), sampler=None)
    blocks = types.read_shortcut(data.source, "read_values")(split, data.spec)
    count = 0
    if blocks is not None:
        try:
            for values in _cut_batches(blocks, data.spec.fields, data.batch_size):
                yield data.spec.split(data.spec.drop_empty_texts(values))
                count += 1
            checks.require(count > 0, f"split {split!r}", "hold a record", 0)
            return
        except types.DecodeOnlyError:
            pass  # `decode` reads the rows after the last yielded batch.
    yield from data.one_pass(split).skip(count)


def _cut_batches(
    blocks: Iterable[Mapping[str, Any]], fields: Mapping[str, spec_lib.Field], size: int
) -> Iterator[dict[str, Any]]:
    """Yield {field: [B, ...]} in batches of `size` rows; the last batch may be smaller."""
    first = next(iter(fields))
    rest: Mapping[str, Any] = {}
    for block in blocks:
        values = packed.join_fields([rest, block], fields) if rest else block
        count = packed.count_rows(values[first], fields[first])
        end = count - count % size
        yield from _cut_block(values, fields, range(0, end, size), size)
        rest = {name: packed.cut(values[name], end, count, f) for name, f in fields.items()}
    if rest:
        count = packed.count_rows(rest[first], fields[first])
        yield from _cut_block(rest, fields, range(0, count, size), count)


def _cut_block(
    values: Mapping[str, Any], fields: Mapping[str, spec_lib.Field], starts: range, size: int
) -> Iterator[dict[str, Any]]:
    """Yield {field: [B, ...]} for `size` rows from each position in `starts`."""
    # Each distinct text is converted to TensorFlow once; `tf.gather` repeats the text for its rows.
    texts = {name: _hold_texts(values[name]) for name, f in fields.items() if f.dtype == "string"}
    for start in starts:
        parts = {n: packed.cut(values[n], start, start + size, f) for n, f in fields.items()}
        yield {n: _to_tensor(part, fields[n], texts.get(n)) for n, part in parts.items()}


def _hold_texts(values: packed.Texts | packed.Lists) -> tf.Tensor:
    """Return the distinct texts of a field, string [D]."""
    flat = values.values if isinstance(values, packed.Lists) else values
    return tf.constant(flat.distinct.to_numpy(zero_copy_only=False), tf.string)


def _to_tensor(values: Any, field: spec_lib.Field, texts: tf.Tensor | None) -> Any:
    """Return the values of a field in some rows, [B, ...]; ragged for lists."""
    if isinstance(values, packed.Lists):
        flat = _flatten(values.values, texts)
        return tf.RaggedTensor.from_row_splits(flat, values.splits, validate=False)
    shape = cast(tuple[int, ...], field.shape)
    return tf.reshape(_flatten(values, texts), [-1, *shape])


def _flatten(values: Any, texts: tf.Tensor | None) -> tf.Tensor:
    return tf.constant(values) if texts is None else tf.gather(texts, values.numbers)
