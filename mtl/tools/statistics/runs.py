"""Computes statistics of the splits of a run: fields, labels of tasks, and unknown values.

train, test = runs.describe_splits(experiment, "runs/adult")
train, new = runs.describe_input(experiment, "runs/adult", ["new.csv"])
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from mtl import checks, types
from mtl import experiment as experiment_lib
from mtl import features as features_lib
from mtl import spec as spec_lib
from mtl.checkpoints import training_files
from mtl.data import arrow, file_settings, files, pipeline
from mtl.deferred import tf, tf1
from mtl.features import unknown
from mtl.files import checksums
from mtl.heads import base
from mtl.runs import diagnosis, fitting
from mtl.tools import scoring
from mtl.tools.reports import splits as splits_lib
from mtl.tools.statistics import columns as columns_lib
from mtl.tools.statistics import facts

# {type: value that stands for a missing value while a split is read}. Without a value for gaps,
# missing values would look like defaults. Every value of the types bool and uint8 may be a real
# value, so these types have no entry.
_GAPS: Mapping[str, Any] = {"float32": "nan", "int64": -(2**63), "string": "\ue000gap\ue000"}
_KINDS = {"float32": facts.FLOAT, "int64": facts.INT, "uint8": facts.INT, "bool": facts.BOOL}


def describe_splits(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    names: Sequence[str] = (),
    left_out: Collection[str] = (),
) -> list[facts.Dataset]:
    """Read splits of a run, and return the statistics of each split.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run, with its vocabularies; the folder may be absent.
      names: the names of splits; () for the training split and the evaluation split.
      left_out: the names of fields that are left out.

    Raises:
      UserError: a split or a field does not exist, or a row is malformed.
    """
    data = experiment.data
    names = list(names) or list(dict.fromkeys([data.train_split, data.eval_split]))
    return [_describe_split(experiment, data, split, model_dir, left_out) for split in names]


def describe_input(
    experiment: experiment_lib.Experiment,
    model_dir: str,
    patterns: Sequence[str],
    format_name: str = "auto",
    left_out: Collection[str] = (),
) -> list[facts.Dataset]:
    """Return statistics of the training split of a run, and of files with new rows.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      patterns: paths or globs of files, which are read like files of `launch.evaluate --input`,
        except that labels may be absent.
      format_name: the format of the files, as in `scoring.open_files`.
      left_out: the names of fields that are left out.

    Raises:
      UserError: no file matches, a file lacks a feature, or a row is malformed.
    """
    data = experiment.data
    new_data, split = scoring.open_files(data, patterns, format_name)
    missing_names = _find_lacking(new_data, split)
    new_data = dataclasses.replace(new_data, spec=_drop_labels(new_data.spec, missing_names))
    new = _describe_split(experiment, new_data, split, model_dir, left_out)
    training_data = _describe_split(
        experiment, data, data.train_split, model_dir, (*left_out, *missing_names)
    )
    notes = [*training_data.notes, *_list_changes(data, model_dir)]
    if missing_names:
        notes.append(f"Labels that the new files lack are left out: {', '.join(missing_names)}.")
    return [dataclasses.replace(training_data, notes=notes), new]


def _find_lacking(data: pipeline.Pipeline, split: str) -> list[str]:
    """Return the names of labels that have no column in the files of a split."""
    source, *_ = file_settings.list_inner(data.source)
    if isinstance(source, arrow.Arrow):
        schema, _ = arrow.open_file(files.named_by(source, split)[0])
        columns = arrow.find_columns(data.spec.label_fields, source.rename)
        return [name for name, column in columns.items() if column not in schema.names]
    names = getattr(source, "names", None)  # TFRecord files have no names of columns.
    return [name for name in data.spec.labels if name not in names] if names else []


def _drop_labels(spec: spec_lib.Spec, missing_names: Collection[str]) -> spec_lib.Spec:
    labels = {name: kind for name, kind in spec.labels.items() if name not in missing_names}
    defaults = {name: value for name, value in spec.defaults.items() if name not in missing_names}
    return dataclasses.replace(spec, labels=labels, defaults=defaults)


def _list_changes(data: pipeline.Pipeline, model_dir: str) -> list[str]:
    """Return a note for each file of the training split that has changed since the training."""
    record = os.path.join(model_dir, training_files.FILE)
    if not os.path.exists(record):
        return []
    records = checksums.read_json(record, "Delete the file, or copy it back.")
    paths = files.named_by(data.source, data.train_split)
    changed_paths = [
        path
        for path in paths
        if path not in records or checksums.of_file(path) != records[path]["checksum"]
    ]
    return [f"{path} has changed since the last training of {model_dir}." for path in changed_paths]


def _describe_split(
    experiment: experiment_lib.Experiment,
    data: pipeline.Pipeline,
    split: str,
    model_dir: str,
    left_out: Collection[str],
) -> facts.Dataset:
    spec = data.spec
    for name in left_out:
        checks.one_of("--leave_out", name, experiment.data.spec.fields)
    names = [n for n in spec.fields if n not in left_out and n not in spec.counted]
    collector = _Gathered(spec, names, experiment.model.heads)
    reading = _mark_gaps(data)
    statistics = fitting.load_statistics(model_dir)
    columns = experiment.model.columns
    limited_fields = unknown.list_fields(columns)
    missing_names = features_lib.missing_statistics(columns, statistics.directory)
    counted_columns = columns if limited_fields and not missing_names else None
    shares = unknown.Shares(limited_fields)
    with diagnosis.explain_run_errors(reading, experiment.model, None, split):
        for batch, counts in _read_batches(
            reading, spec, split, collector, counted_columns, statistics
        ):
            collector.add(batch)
            if counted_columns is not None:
                shares.add(counts)
    known_shares = dict(
        zip(limited_fields if counted_columns is not None else (), shares.compute(), strict=False)
    )
    notes = _list_notes(spec, names, missing_names if limited_fields else ())
    return dataclasses.replace(collector.finish(split, known_shares), notes=notes)


def _list_notes(
    spec: spec_lib.Spec, names: Sequence[str], missing_names: Collection[str]
) -> list[str]:
    notes = []
    hidden_fields = [
        name
        for name, field in spec.feature_fields.items()
        if name in names and field.default is not None and field.dtype not in _GAPS
    ]
    if hidden_fields:
        field_list = ", ".join(hidden_fields)
        notes.append(f"A gap counts as the default in fields of type bool and uint8: {field_list}.")
    if missing_names:
        notes.append("Unknown values are not counted: no training has learned the known values.")
    return notes


def _mark_gaps(data: pipeline.Pipeline) -> pipeline.Pipeline:
    """Return a pipeline that reads missing values of features as `_GAPS`, instead of defaults."""
    spec = data.spec
    defaults = dict(spec.defaults)
    for name, field in spec.feature_fields.items():
        if field.default is not None and field.dtype in _GAPS:
            defaults[name] = _GAPS[field.dtype]
    marked_spec = dataclasses.replace(spec, defaults=defaults)
    # Read the split without a cache, which would only take memory, and without a sampler, which
    # would change the shares of values.
    return dataclasses.replace(data, spec=marked_spec, sampler=None, cache=False)


def _read_batches(
    data: pipeline.Pipeline,
    spec: spec_lib.Spec,
    split: str,
    collector: _Gathered,
    columns: Sequence[types.Column] | None,
    statistics: types.Statistics,
) -> Iterator[tuple[Any, Any]]:
    """Yield the values of batches, and the counts of unknown values if `columns` is not None."""
    with tf.Graph().as_default(), tf1.Session() as session:
        batches = data.in_large_batches(split).one_pass(split)
        iterator = tf1.data.make_initializable_iterator(batches)
        features, labels = iterator.get_next()
        fetched = collector.build(features, labels)
        counts: Any = ()
        if columns is not None:
            # Replace marks of missing values by defaults, because columns would count marks as
            # unknown values.
            counts = unknown.count_unknown(columns, _fill_gaps(features, spec), statistics)
        session.run([iterator.initializer, tf1.tables_initializer()])
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                yield session.run((fetched, counts))


def _fill_gaps(features: types.Tensors, spec: spec_lib.Spec) -> dict[str, Any]:
    """Return features in which the defaults of the run replace marks of missing values."""
    filled = dict(features)
    for name, field in spec.feature_fields.items():
        if field.default is None or field.dtype not in _GAPS:
            continue
        values, mark = features[name], _GAPS[field.dtype]
        is_gap = tf.math.is_nan(values) if field.dtype == "float32" else tf.equal(values, mark)
        default = tf.constant(field.default, values.dtype)
        filled[name] = tf.where(is_gap, default, values)
    return filled


class _Gathered:
    """Collects the statistics of the fields and tasks of a split.

    Args:
      spec: the fields of the run.
      names: the names of the fields to describe.
      heads: the heads of the run. Heads whose label is not in `spec` are left out.
    """

    def __init__(self, spec: spec_lib.Spec, names: Sequence[str], heads: Sequence[types.Head]):
        limits = columns_lib.Limits.share(len(names))
        self._fields = {name: spec.fields[name] for name in names}
        self._columns = {name: _start_column(field, limits) for name, field in self._fields.items()}
        self._features = spec.feature_fields
        self._all_heads: list[Any] = list(heads)
        weighing = [head for head in heads if isinstance(head, types.WeighingHead)]
        self._heads = {head.name: head for head in weighing if head.field in spec.label_fields}
        self._counters = {name: splits_lib.LabelCounter(h) for name, h in self._heads.items()}
        self._rows = 0

    def build(self, features: types.Tensors, labels: types.Tensors) -> dict[str, Any]:
        """Return the tensors of a batch whose values `add` needs.

        Args:
          features: {field: [B, ...]}.
          labels: {field: [B, ...]}.
        """
        tensors = {**labels, **features}
        labelled = [h for h in self._all_heads if isinstance(h, base.Labelled)]
        present = {
            head.field: head.are_present(labels[head.field])
            for head in labelled
            if head.field in labels and head.field in self._fields
        }
        tasks = {
            name: (head.row_weights(labels), *head.targets(labels[head.field]))
            for name, head in self._heads.items()
        }
        rows = types.count_rows({"": next(iter(tensors.values()))})
        fields = {name: tensors[name] for name in self._fields}
        return {"fields": fields, "present": present, "tasks": tasks, "rows": rows}

    def add(self, batch: Mapping[str, Any]) -> None:
        """Add the values of a batch.

        Args:
          batch: the values of the tensors that `build` has returned.
        """
        self._rows += int(batch["rows"])
        for name, field in self._fields.items():
            mark = _GAPS.get(field.dtype) if name in self._features else field.missing
            has_mark = field.default is not None or name not in self._features
            present = batch["present"].get(name)
            values = _to_array(field, batch["fields"][name], mark if has_mark else None, present)
            self._columns[name].add(values)
        for name, counter in self._counters.items():
            counter.add(*batch["tasks"][name])

    def finish(self, split: str, unknown_shares: Mapping[str, float]) -> facts.Dataset:
        """Return the statistics of the split."""
        columns = {name: column.finish(name) for name, column in self._columns.items()}
        for name, share in unknown_shares.items():
            if name in columns:
                columns[name] = dataclasses.replace(columns[name], unknown=share)
        return facts.Dataset(
            name=f"split {split!r}",
            rows=self._rows,
            columns=columns,
            tasks={name: _to_task(c.tell(), self._rows) for name, c in self._counters.items()},
        )


def _to_task(labels: splits_lib.Labels, rows: int) -> facts.Task:
    counts = labels.counts or (dict([labels.largest]) if labels.largest else {})
    return facts.Task(
        rows=rows,
        labelled=labels.labelled,
        counts=counts,
        mean=labels.mean,
        deviation=labels.spread,
    )


def _start_column(field: spec_lib.Field, limits: columns_lib.Limits) -> columns_lib.Base:
    is_text = field.dtype == "string"
    inner: columns_lib.Base = (
        columns_lib.Text(limits) if is_text else columns_lib.Numeric(_KINDS[field.dtype], limits)
    )
    return columns_lib.Listed(inner) if field.shape else inner


def _to_array(field: spec_lib.Field, values: Any, mark: Any, present: Any) -> pa.Array:
    """Return the values of a batch as an Arrow array; missing values become nulls or empty lists.

    Args:
      field: the field that has the values.
      values: an array [B, ...], or lists as `RaggedTensorValue`.
      mark: the value that stands for a missing value; None if no value is missing.
      present: True for labels that are not missing, in the form of `values`; None for features.
    """
    if not isinstance(values, np.ndarray):
        is_value = ~_are_marks(values.values, mark)
        if present is not None:
            is_value &= present.values
        # A list that holds only the value for a gap becomes empty, because the list is a missing
        # label.
        ends = np.concatenate([[0], np.cumsum(is_value)])[values.row_splits]
        flat = _to_flat(values.values[is_value], None, None)
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat)
    if not field.shape:
        return _to_flat(values, mark, present)
    is_row = ~_are_marks(values, mark).reshape(len(values), -1).all(axis=1)
    if present is not None:
        is_row &= present.reshape(len(values), -1).any(axis=1)
    # A row without values becomes an empty list. A missing value in a row with other values becomes
    # null.
    flat = _to_flat(values[is_row].reshape(-1), mark, None)
    ends = np.concatenate([[0], np.cumsum(is_row * math.prod(values.shape[1:]))])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat)


def _to_flat(values: np.ndarray, mark: Any, present: np.ndarray | None) -> pa.Array:
    mask = _are_marks(values, mark)
    if present is not None:
        mask |= ~present.reshape(mask.shape)
    if values.dtype == object:
        return pa.array(values, pa.binary(), mask=mask)
    return pa.array(values, mask=mask)


def _are_marks(values: np.ndarray, mark: Any) -> np.ndarray:
    if mark is None:
        return np.zeros(values.shape, bool)
    if values.dtype.kind == "f":
        return np.isnan(values)
    return values == (mark.encode() if isinstance(mark, str) else mark)
