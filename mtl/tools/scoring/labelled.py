"""Opens files with labels as a split to evaluate, such as rows from the time after the training.

data, split = labelled.open_files(experiment.data, ["new/*.csv"])
verbs.evaluate(dataclasses.replace(experiment, data=data), model_dir, split)
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtl import checks
from mtl.data import files as files_lib
from mtl.data import pipeline, tfrecord
from mtl.tools.scoring import image_rows, readers, run_source


def open_files(
    data: pipeline.Pipeline, patterns: Sequence[str], format_name: str = "auto"
) -> tuple[pipeline.Pipeline, str]:
    """Return a pipeline with a split that reads files, and the name of the split.

    The settings of the run for texts also apply to the files, whatever their format. The split
    has the name of the file, or the name "input" if there are several files, or if the training
    split or the evaluation split of the run already has the name of the file.

    Args:
      data: the input pipeline of a run.
      patterns: paths or globs of files with the same format.
      format_name: csv, jsonl, parquet or tfrecord; "auto" to derive the format from the names of
        the files.

    Returns:
      The pipeline that reads the files, and the name of their split.

    Raises:
      UserError: a pattern matches no file, or the format of a file is unknown.
    """
    checks.one_of("--input_format", format_name, ["auto", *readers.FORMATS])
    matches = files_lib.find("--input", {"input": list(patterns)}, "input", folders=True)
    paths = list(dict.fromkeys(matches))
    kinds = list(dict.fromkeys(readers.find_format(path, format_name) for path in paths))
    checks.require(len(kinds) == 1, "--input", "hold files of one format", kinds)
    name = os.path.basename(paths[0])
    is_free = len(paths) == 1 and name not in (data.train_split, data.eval_split)
    split = name if is_free else "input"
    settings: Any = _FIND_SETTINGS[kinds[0]](data.source)
    source: Any = dataclasses.replace(settings, files={split: paths}, data_dir="")
    images = image_rows.find(data.source)
    source = source if images is None else dataclasses.replace(images, source=source)
    # Do not change `eval_split`: metrics of new files must not count as evaluations of the run.
    return dataclasses.replace(data, source=source), split


def _find_settings(kind: Any, source: Any) -> Any:
    return run_source.find_settings(source, kind) or kind(files={"input": ""})


_FIND_SETTINGS: Mapping[str, Callable[[Any], Any]] = {
    "csv": run_source.find_csv,
    "jsonl": run_source.find_json_lines,
    "parquet": run_source.find_arrow,
    "tfrecord": functools.partial(_find_settings, tfrecord.TfRecord),
}
