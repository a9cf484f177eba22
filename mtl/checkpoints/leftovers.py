"""Finds half-written and unused files that killed processes left in the folder of a run.

leftovers.half_written("runs/digits")                    # *.partial, *_temp, ...
leftovers.list_unused("runs/digits", ["runs/digits/model.ckpt-20"])
"""

import os
import re
from collections.abc import Sequence

from mtl.files import in_work, storage

_HALF_WRITTEN = re.compile(r".*_temp|.*\.tempstate.*|.*\.partial|statistics\.[0-9a-f]{32}\.tmp")
_FOLDERS = ("", "best", "input", "statistics", "clip_audit", "export")
_UNPUBLISHED = ".partial-"

_FILE = r"\.(?P<kind>index|meta|checksums|data-\d{5}-of-(?P<shards>\d{5})(\.zlib)?)"
_CHECKPOINT = re.compile(r"(?P<name>model\.ckpt-(?P<step>\d+))" + _FILE)
_INPUT = re.compile(r"(?P<name>\d+of\d+-[0-9a-f]+-(?P<step>\d+))" + _FILE)


def list_unfinished(directory: str) -> list[str]:
    """Return all checkpoints in a folder that have an index file, in any order.

    Checkpoints that are not listed in the file `checkpoint` are included.

    Returns:
      Paths without the endings of the files, such as "runs/digits/model.ckpt-20".
    """
    files = filter(_CHECKPOINT.fullmatch, map(os.path.basename, storage.listed(directory)))
    names = [name.removesuffix(".index") for name in files if name.endswith(".index")]
    return [os.path.join(directory, name) for name in names]


def half_written(model_dir: str) -> list[str]:
    """Return the files and folders that processes were writing when they were killed.

    Returns:
      The paths of temporary files in the folders of a run, and of unfinished exports. Paths that a
      living process has locked are left out.
    """
    paths = [p for name in _FOLDERS for p in storage.listed(os.path.join(model_dir, name))]
    half_files = [p for p in paths if _HALF_WRITTEN.fullmatch(os.path.basename(p))]
    half_files = [path for path in half_files if in_work.is_abandoned(path) is not False]
    return half_files + _list_unpublished(os.path.join(model_dir, "export"))


def _list_unpublished(directory: str) -> list[str]:
    """Return the exports that processes were writing when they were killed."""
    exports = storage.listed(directory)
    exports_in_work = [path for folder in exports for path in storage.listed(folder, _UNPUBLISHED)]
    return [path for path in exports_in_work if in_work.is_folder_abandoned(path) is not False]


def list_unused(model_dir: str, named: Sequence[str]) -> list[str]:
    """Return files that no checkpoint of a run needs.

    Unused files belong to incomplete checkpoints, for example after an interrupted removal, and to
    input states that are incomplete or older than all listed checkpoints. A later input state is
    kept, because its checkpoint may not be listed yet. A complete checkpoint is not returned, even
    if `named` lacks it, because the user may have copied the checkpoint into the folder.

    Args:
      model_dir: the folder of the run.
      named: the paths of the checkpoints that the file `checkpoint` lists.
    """
    names = [os.path.basename(path) for path in named]
    steps = [int(name.rpartition("-")[2]) for name in names if re.fullmatch(r".+-\d+", name)]
    if not names or len(steps) < len(names):
        return []
    checkpoints = _find_unnamed(model_dir, _CHECKPOINT, steps, oldest=0)
    return checkpoints + _find_unnamed(
        os.path.join(model_dir, "input"), _INPUT, steps, oldest=min(steps)
    )


def _find_unnamed(
    folder: str, pattern: re.Pattern[str], steps: Sequence[int], oldest: int
) -> list[str]:
    groups: dict[str, list[re.Match[str]]] = {}
    for path in storage.listed(folder):
        if match := pattern.fullmatch(os.path.basename(path)):
            groups.setdefault(match["name"], []).append(match)
    old = [
        match.string
        for files in groups.values()
        for match in files
        if (step := int(match["step"])) not in steps
        if step < oldest or not _is_whole(files)
    ]
    return [os.path.join(folder, name) for name in old]


def _is_whole(files: Sequence[re.Match[str]]) -> bool:
    shards = [int(file["shards"]) for file in files if file["shards"]]
    return len(shards) == max(shards, default=-1) and any(f["kind"] == "index" for f in files)
