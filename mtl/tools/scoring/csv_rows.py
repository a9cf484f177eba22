"""Reads CSV files as serialized tf.Examples. As in training, TensorFlow decodes many lines at once.

for chunk in csv_rows.Csv(spec=spec, keep=["id"], batch_size=512).chunks(["in.csv"]): ...
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import csv, examples, image_files, source
from mtl.deferred import tf
from mtl.runs import kept_fields
from mtl.tools.scoring import batches, image_rows, local, run_source

_SPLIT = "input"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Csv:
    """Reads CSV files; implements `readers.Format`.

    Attributes:
      spec: the features of the model.
      keep: the names of columns to return beside the tf.Examples.
      batch_size: the largest number of rows in a chunk.
      settings: the data source of the run, whose settings for texts apply to the files; None
        without a run.
      images: the source that says which fields hold paths of image files; None if no field does.
    """

    spec: spec_lib.Spec
    keep: Sequence[str]
    batch_size: int
    settings: Any = None
    images: image_files.ImageFiles | None = None

    def check(self, path: str) -> None:
        self._source_of(path).parser(self._features_and_kept)

    def chunks(self, paths: Sequence[str]) -> Iterator[batches.Chunk]:
        for path in paths:
            self.check(path)
            lines = self._source_of(path).lines(path)
            while part := list(itertools.islice(lines, self.batch_size)):
                numbers, rows = zip(*part, strict=True)
                # If a line cannot be read, the source yields the error message, a text instead of
                # bytes, as its last item.
                if isinstance(rows[-1], str):
                    raise checks.UserError(f"{path} line {numbers[-1]}: {rows[-1]}")
                yield batches.Chunk(path=path, numbers=numbers, rows=rows)

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        decode = self._decoder_of(tuple(self._source_of(chunk.path).names))
        try:
            columns = decode(np.array(chunk.rows, object))
        except source.list_refusals() as error:
            # TensorFlow does not name the wrong row, so Python reads the lines again to find the
            # wrong row.
            reason = self.problem(chunk) or f"{chunk.path}: {local.explain_refusal(error)}"
            raise checks.UserError(reason) from error
        arrays = {name: _convert_column(values) for name, values in columns.items()}
        features = {name: arrays[name] for name in self.spec.features}
        features = image_rows.read_columns(self.images, chunk, features)
        extra = {name: _join_items(arrays, name) for name in self.keep}
        return batches.Batch(examples=examples.serialize_examples(features), kept=extra)

    def problem(self, chunk: batches.Chunk) -> str:
        parse = self._source_of(chunk.path).parser(self._features_and_kept)
        for number, line in zip(chunk.numbers, chunk.rows, strict=True):
            values = parse(line)
            if isinstance(values, str):
                return f"{chunk.path} line {number}: {values}"
        return image_rows.find_problem(self.images, chunk, parse)

    @functools.cached_property
    def _source_of(self) -> Callable[[str], csv.Csv]:
        """Return a function from the path of a file to a source with the run's settings."""
        settings = run_source.find_csv(self.settings)
        return functools.cache(
            lambda path: dataclasses.replace(settings, files={_SPLIT: path}, data_dir="")
        )

    @functools.cached_property
    def _decoder_of(self) -> Callable[[Sequence[str]], Any]:
        """Return a function from names of columns to a TensorFlow function that decodes lines."""

        def make_decoder(names: Sequence[str]) -> Any:
            source = dataclasses.replace(self._source_of(""), columns=names, rename={})
            return tf.function(
                lambda lines: source.decode(lines, self._features_and_kept, with_labels=False),
                input_signature=[tf.TensorSpec([None], tf.string)],
            )

        return functools.cache(make_decoder)

    @functools.cached_property
    def _features_and_kept(self) -> spec_lib.Spec:
        """The features and the columns in `keep`. Columns that are not features are texts."""
        extra = [name for name in self.keep if name not in self.spec.features]
        return dataclasses.replace(
            self.spec,
            features={**self.spec.features, **dict.fromkeys(extra, "string")},
            labels={},
            defaults={**self.spec.defaults, **dict.fromkeys(extra, "")},
        )


def _join_items(arrays: Mapping[str, Any], name: str) -> Any:
    """Return the values of a field in B rows; the values of a list of lists as lists of items."""
    counts = arrays.get(spec_lib.counts_name(name))
    if counts is None:
        return arrays[name]
    return list(map(kept_fields.split_items, arrays[name], counts))


def _convert_column(values: tf.Tensor | tf.RaggedTensor) -> Sequence[np.ndarray] | np.ndarray:
    if isinstance(values, tf.RaggedTensor):
        # `row_splits` [B + 1] begins with 0 and ends with the number of values. The numbers between
        # the first and the last are the places at which to split rows.
        return np.split(values.flat_values.numpy(), values.row_splits.numpy()[1:-1])
    return values.numpy()
