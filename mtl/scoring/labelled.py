"""Files with labels, such as new rows whose outcome is known by now, as a split to evaluate.

data, split = labelled.open_files(experiment.data, ["new/*.csv"])
verbs.evaluate(dataclasses.replace(experiment, data=data), model_dir, split)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtl import checks, types
from mtl.data import arrow, csv, json_lines, pipeline, tfrecord
from mtl.data import files as files_lib
from mtl.scoring import image_rows, readers


def open_files(
    data: pipeline.Pipeline, patterns: Sequence[str], format_name: str = "auto"
) -> tuple[pipeline.Pipeline, str]:
    """Return a pipeline whose source reads these files, and the name of their split.

    A file is read as training reads one of its format: with the settings of the run's source if it
    has this format. The split has the name of a single file, else the name "input".

    Args:
      data: the pipeline of a run.
      patterns: files or globs, all of one format.
      format_name: csv, jsonl, parquet or tfrecord; "auto" goes by the names of the files.

    Raises:
      UserError: a pattern matches no file, or the format of a file is unknown.
    """
    checks.one_of("--input_format", format_name, ["auto", *readers.FORMATS])
    paths = list(dict.fromkeys(files_lib.find("--input", {"input": list(patterns)}, "input")))
    kinds = list(dict.fromkeys(_find_kind(path, format_name) for path in paths))
    checks.require(len(kinds) == 1, "--input", "hold files of one format", kinds)
    split = os.path.basename(paths[0]) if len(paths) == 1 else "input"
    source = _SOURCES[kinds[0]](image_rows.unwrap(data.source), {split: paths})
    images = image_rows.find(data.source)
    source = source if images is None else dataclasses.replace(images, source=source)
    return dataclasses.replace(data, source=source, sampler=None, eval_split=split), split


def _find_kind(path: str, format_name: str) -> str:
    is_table = format_name == "auto" and arrow.find_ending(path) in arrow.ENDINGS
    return "parquet" if is_table else readers.find_format(path, format_name)


def _open_csv(settings: Any, files: Mapping[str, Sequence[str]]) -> types.Source:
    known = settings if isinstance(settings, csv.Csv) else csv.Csv(files=files)
    return dataclasses.replace(known, files=files, data_dir="")


def _open_tables(settings: Any, files: Mapping[str, Sequence[str]]) -> types.Source:
    known = settings if isinstance(settings, arrow.Arrow) else arrow.Arrow(files=files)
    return dataclasses.replace(known, files=files, data_dir="")


def _open_records(settings: Any, files: Mapping[str, Sequence[str]]) -> types.Source:
    known = settings if isinstance(settings, tfrecord.TfRecord) else tfrecord.TfRecord(files=files)
    return dataclasses.replace(known, files=files, data_dir="")


def _open_json(settings: Any, files: Mapping[str, Sequence[str]]) -> types.Source:
    known = settings if isinstance(settings, json_lines.JsonLines) else None
    known = known or json_lines.JsonLines(files=files)
    return dataclasses.replace(known, files=files, data_dir="")


_SOURCES: Mapping[str, Callable[[Any, Mapping[str, Sequence[str]]], types.Source]] = {
    "csv": _open_csv,
    "jsonl": _open_json,
    "parquet": _open_tables,
    "tfrecord": _open_records,
}
