"""Files with labels, such as new rows whose outcome is known by now, as a split to evaluate.

data, split = labelled.open_files(experiment.data, ["new/*.csv"])
verbs.evaluate(dataclasses.replace(experiment, data=data), model_dir, split)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mtl import checks
from mtl.data import arrow, csv, json_lines, pipeline, tfrecord
from mtl.data import files as files_lib
from mtl.tools.scoring import image_rows, readers


def open_files(
    data: pipeline.Pipeline, patterns: Sequence[str], format_name: str = "auto"
) -> tuple[pipeline.Pipeline, str]:
    """Return a pipeline whose source reads these files, and the name of their split.

    A file is read as training reads one of its format: with the settings of the run's source if it
    has this format. The split has the name of a single file. It has the name "input" if there are
    several files, or if the name is that of a split of the run.

    Args:
      data: the pipeline of a run.
      patterns: files or globs, all of one format.
      format_name: csv, jsonl, parquet or tfrecord; "auto" goes by the names of the files.

    Raises:
      UserError: a pattern matches no file, or the format of a file is unknown.
    """
    checks.one_of("--input_format", format_name, ["auto", *readers.FORMATS])
    found = files_lib.find("--input", {"input": list(patterns)}, "input", folders=True)
    paths = list(dict.fromkeys(found))
    kinds = list(dict.fromkeys(readers.find_format(path, format_name) for path in paths))
    checks.require(len(kinds) == 1, "--input", "hold files of one format", kinds)
    name = os.path.basename(paths[0])
    is_free = len(paths) == 1 and name not in (data.train_split, data.eval_split)
    split = name if is_free else "input"
    known, kind = image_rows.unwrap(data.source), _SOURCES[kinds[0]]
    known = known if isinstance(known, kind) else kind(files={split: paths})
    source: Any = dataclasses.replace(known, files={split: paths}, data_dir="")
    images = image_rows.find(data.source)
    source = source if images is None else dataclasses.replace(images, source=source)
    # The split of the run's own evaluations stays, so that these metrics are not among theirs.
    return dataclasses.replace(data, source=source, sampler=None), split


_SOURCES: Mapping[str, Any] = {
    "csv": csv.Csv,
    "jsonl": json_lines.JsonLines,
    "parquet": arrow.Arrow,
    "tfrecord": tfrecord.TfRecord,
}
