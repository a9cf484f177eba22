"""CSV as serialized tf.Examples: TensorFlow decodes a chunk at a time, as in training.

for chunk in csv_rows.Csv(spec=spec, keep=["id"], batch_size=512).chunks(["in.csv"]): ...
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import csv, examples, image_files, source
from mtl.deferred import tf
from mtl.tools.scoring import batches, image_rows, local

_SPLIT = "input"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Csv:
    """A `readers.Format`."""

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
            while some := list(itertools.islice(lines, self.batch_size)):
                numbers, rows = zip(*some, strict=True)
                # The source yields an error as a text in place of the last line, and stops.
                if isinstance(rows[-1], str):
                    raise checks.UserError(f"{path} line {numbers[-1]}: {rows[-1]}")
                yield batches.Chunk(path=path, numbers=numbers, rows=rows)

    def parse(self, chunk: batches.Chunk) -> batches.Batch:
        decode = self._decoder_of(tuple(self._source_of(chunk.path).names))
        try:
            columns = decode(np.array(chunk.rows, object))
        except source.list_refusals() as error:
            # TensorFlow names no row: Python reads the lines again to find it.
            reason = self.problem(chunk) or f"{chunk.path}: {local.explain_refusal(error)}"
            raise checks.UserError(reason) from error
        arrays = {name: _convert_column(values) for name, values in columns.items()}
        features = {name: arrays[name] for name in self.spec.features}
        features = image_rows.read_columns(self.images, chunk, features)
        kept = {name: arrays[name] for name in self.keep}
        return batches.Batch(examples=examples.serialize_examples(features), kept=kept)

    def problem(self, chunk: batches.Chunk) -> str:
        parse = self._source_of(chunk.path).parser(self._features_and_kept)
        for number, line in zip(chunk.numbers, chunk.rows, strict=True):
            values = parse(line)
            if isinstance(values, str):
                return f"{chunk.path} line {number}: {values}"
        return image_rows.find_problem(self.images, chunk, parse)

    @functools.cached_property
    def _source_of(self) -> Callable[[str], csv.Csv]:
        """Return a function from a path to its source, with the settings for CSV if any."""
        known = isinstance(self.settings, csv.Csv)
        settings = self.settings if known else csv.Csv(files={_SPLIT: ""})
        return functools.cache(
            lambda path: dataclasses.replace(settings, files={_SPLIT: path}, data_dir="")
        )

    @functools.cached_property
    def _decoder_of(self) -> Callable[[Sequence[str]], Any]:
        """Return a cached function from names of columns to a decoder of lines [B]."""

        def made(names: Sequence[str]) -> Any:
            source = dataclasses.replace(self._source_of(""), columns=names, rename={})
            return tf.function(
                lambda lines: source.decode(lines, self._features_and_kept, with_labels=False),
                input_signature=[tf.TensorSpec([None], tf.string)],
            )

        return functools.cache(made)

    @functools.cached_property
    def _features_and_kept(self) -> spec_lib.Spec:
        """Features and kept columns; a kept column that is not a feature is text."""
        others = [name for name in self.keep if name not in self.spec.features]
        return dataclasses.replace(
            self.spec,
            features={**self.spec.features, **dict.fromkeys(others, "string")},
            labels={},
            defaults={**self.spec.defaults, **dict.fromkeys(others, "")},
        )


def _convert_column(values: tf.Tensor | tf.RaggedTensor) -> Sequence[np.ndarray] | np.ndarray:
    if isinstance(values, tf.RaggedTensor):
        # [B + 1] row splits: without 0 and the end, they are the places to cut at.
        return np.split(values.flat_values.numpy(), values.row_splits.numpy()[1:-1])
    return values.numpy()
