"""Saves the tokens or classes of table rows; a warm start matches rows by these names.

row_names.save({"head/digit/": types.RowNames(names=("0", "1"), axis=-1)}, model_dir)
row_names.load(model_dir)                                # or the folder of a SavedModel
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.deferred import tf
from mtl.files import checksums, storage

FILE = "row_names.json"
TASKS = "MultiTaskModel.heads"
"""The key of the names of tasks, in whose order some variables hold a value for each task."""
LOSSES = "MultiTaskModel.auxiliary_losses"
"""The key of the names of losses without a head, for which states of balancing hold values, too."""

_FIX = "Copy it back, or delete row_names.json: rows then keep their places in a warm start."
# The folders with vocabularies in a model_dir or SavedModel.
_FOLDERS = ("statistics", "assets")
# The folder with `row_names.json` in a SavedModel.
_EXTRA = "assets.extra"
_FIX_ORDER = "The checkpoint has this order. Only a warm start matches rows by name."
# So many names are shown in an error.
_SHOWN = 9
# These fields of `RowNames` are written only if they differ from their defaults.
_OF_SMALLER_TABLES = ("first", "last", "are_grouped", "are_a_set")


def fit_shape(names: types.RowNames, shape: Sequence[int]) -> bool:
    """Return True if there are as many names as rows of a variable.

    Args:
      names: the names; a file of names must exist. If `and_unknown` is True, the variable may have
        more rows than names.
      shape: the shape of the variable; a scalar never fits.
    """
    if not shape:
        return False
    size, count = shape[names.axis], len(read_names(names))
    return size >= count if names.and_unknown else size == count


def read_names(names: types.RowNames) -> list[str]:
    """Return the names as a list of strings; names in a file are read.

    Args:
      names: names, or the path of a file; the fields `first` and `last` choose the names that are
        returned.

    Returns:
      The names in order. A name in a file that is not valid UTF-8 has surrogate escapes.
    """
    if not isinstance(names.names, str):
        return [str(name) for name in names.names][names.first : names.last]
    with tf.io.gfile.GFile(names.names, "rb") as file:
        lines = split_lines(file.read())[names.first : names.last]
    return [name.decode(errors="surrogateescape") for name in lines]


def split_lines(data: bytes) -> list[bytes]:
    r"""Split a file of names into lines, in the way of TensorFlow's lookup tables.

    Lines end at \n, with or without a \r before it. `str.splitlines` also splits at U+2028, \v and
    other characters: a name with such a character would become two names, and all later names
    would move to other rows.

    Args:
      data: the content of the file.

    Returns:
      The lines without their ends; [] for an empty file. An empty line between two names counts as
      a name.
    """
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return lines if lines[-1] else lines[:-1]


def join(
    named: Mapping[str, types.RowNames], more: Mapping[str, types.RowNames]
) -> dict[str, types.RowNames]:
    """Join two maps of names.

    Args:
      named: {scope: names}.
      more: {scope: names}. If `named` also has a scope of `more`, the names in `more` replace the
        names in `named`; if `are_a_set` is True, they are added to the names in `named`.

    Returns:
      {scope: names}. If `are_a_set` is True, the joined names are in alphabetical order.
    """
    names_by_scope = dict(named)
    for scope, new_names in more.items():
        old_names = names_by_scope.get(scope, new_names)
        joint_names = (
            tuple(sorted({*old_names.names, *new_names.names}))
            if new_names.are_a_set
            else new_names.names
        )
        names_by_scope[scope] = new_names._replace(names=joint_names)
    return names_by_scope


def save(named: Mapping[str, types.RowNames], model_dir: str) -> None:
    """Write the names of rows beside the checkpoints.

    Args:
      named: {scope: names}. If names are in a file, the path and the checksum of the file are
        written instead of the names.
      model_dir: the folder of the checkpoints.
    """
    entries = {scope: _make_entry(names) for scope, names in named.items()}
    checksums.write_json(os.path.join(model_dir, FILE), entries)


def _make_entry(names: types.RowNames) -> dict[str, Any]:
    entry = names._asdict()
    for setting in _OF_SMALLER_TABLES:
        if entry[setting] == types.RowNames._field_defaults[setting]:
            del entry[setting]
    if isinstance(names.names, str):
        entry[checksums.KEY] = checksums.of_file(names.names)
    return entry


def load(directory: str, with_files: bool = True) -> dict[str, types.RowNames]:
    """Read {scope: names} of a model_dir or SavedModel; leave out names whose file is missing.

    Args:
      directory: the folder of the run, or of the SavedModel.
      with_files: False leaves out all names in files, and opens no such file.

    Raises:
      UserError: a file is damaged.
    """
    paths = [os.path.join(directory, *folders, FILE) for folders in ((), (_EXTRA,))]
    path = next(filter(tf.io.gfile.exists, paths), None)
    if path is None:
        return {}
    entries = checksums.read_json(path, _FIX)
    if not all(isinstance(entry, Mapping) for entry in entries.values()):
        raise checksums.describe_damage(path, "it holds no names", _FIX)
    try:
        names_by_scope = {
            scope: _find_names(directory, with_files, **entry) for scope, entry in entries.items()
        }
    # A file of an earlier version has no checksum, so only a TypeError shows that the file is
    # damaged.
    except TypeError as error:
        raise checksums.describe_damage(path, "it holds no names", _FIX) from error
    return {scope: names for scope, names in names_by_scope.items() if names}


def _find_names(
    directory: str,
    with_files: bool,
    names: Sequence[str] | str,
    checksum: str | None = None,
    **settings: Any,
) -> types.RowNames | None:
    if not isinstance(names, str):
        return types.RowNames(names=tuple(names), **settings)
    if not with_files:
        return None
    base = os.path.basename(names)
    paths = [*(os.path.join(directory, folder, base) for folder in _FOLDERS), names]
    existing_paths = list(filter(tf.io.gfile.exists, paths))
    if not existing_paths:
        return None
    # If two vocabularies have the same file name, the checksum shows which file is right.
    path = next((path for path in existing_paths if checksums.matches(path, checksum)), None)
    if path is None:
        fix = "Copy the file back, or set WarmStart.row_names to the names of the saved rows."
        raise checksums.describe_damage(
            existing_paths[0], f"it has changed since {directory} was written", fix
        )
    return types.RowNames(names=path, **settings)


def seal(model_dir: str) -> None:
    """Add a checksum to `row_names.json` if the file has none.

    Args:
      model_dir: the folder of the file; a missing file is not created.

    Raises:
      UserError: the file does not hold a JSON object.
    """
    checksums.seal(os.path.join(model_dir, FILE), _FIX)


def renew(
    saved: Mapping[str, types.RowNames], named: Mapping[str, types.RowNames], model_dir: str
) -> None:
    """Save the names of a continued run if some of them are new.

    Args:
      saved: {scope: names} in `row_names.json`.
      named: {scope: names}, of the settings with which the run continues.
      model_dir: the folder of the run.
    """
    # Files of names do not change while a run continues.
    changed = {k: v for k, v in named.items() if not isinstance(v.names, str)}
    # The record of an earlier version lacks the tasks.
    if any(k not in saved or read_names(saved[k]) != read_names(v) for k, v in changed.items()):
        save(named, model_dir)


def require_order(
    saved: Mapping[str, types.RowNames],
    named: Mapping[str, types.RowNames],
    fix: str = _FIX_ORDER,
) -> None:
    """Refuse names in a different order than in another model.

    Args:
      saved: {scope: names} of the other model.
      named: {scope: names} of this model. Files of names are not read.
      fix: what the user can do.

    Raises:
      UserError: two lists of equal length have a name at different places, lists of other lengths
        have names in another order, or a vocabulary has another length.
    """
    saved = {TASKS: _find_tasks(saved), **saved}
    for scope, names in named.items():
        old = saved.get(scope, names)
        if names.are_a_set or isinstance(names.names, str) or isinstance(old.names, str):
            continue
        before, now = read_names(old), read_names(names)
        # With fewer rows for unknown values, a longer vocabulary has a table of the same size.
        is_other = names.and_unknown and len(before) != len(now)
        where = scope if scope in (TASKS, LOSSES) else f"the classes or values of {scope[:-1]!r}"
        rule = f"keep the {'names' if is_other else 'order'} {', '.join(before[:_SHOWN])}"
        is_kept = not is_other and not _is_any_moved(before, now)
        checks.require(is_kept, where, rule, ", ".join(now[:_SHOWN]), fix)


def _find_tasks(saved: Mapping[str, types.RowNames]) -> types.RowNames:
    """Return the tasks in the record of an earlier version, which only has the classes of heads."""
    scopes = [scope.split("/") for scope in saved if scope.startswith("head/")]
    return types.RowNames(names=tuple(parts[1] for parts in scopes), axis=0)


def _is_any_moved(before: Sequence[str], now: Sequence[str]) -> bool:
    if len(before) != len(now):  # Only the order of names in both lists counts.
        both = {*before} & {*now}
        before, now = ([name for name in names if name in both] for names in (before, now))
    places = {name: place for place, name in enumerate(before)}
    return any(places.get(name, place) != place for place, name in enumerate(now))


def find_row_names(named: Mapping[str, types.RowNames], variable: str) -> types.RowNames | None:
    """Return the names for a variable, from the innermost scope that contains it.

    Args:
      named: {scope: names}; a scope ends with "/".
      variable: the name of the variable.

    Returns:
      The names for the variable; None if the variable is in none of the scopes.
    """
    scopes = [scope for scope in named if f"{variable}/".startswith(scope)]
    return named[max(scopes, key=len)] if scopes else None


def match_rows(old: Sequence[str], new: Sequence[str], old_size: int, new_size: int) -> np.ndarray:
    """Match the rows of two tables by their names.

    Rows for unknown values are matched only if both tables have the same number of such rows,
    because this number determines the row to which an unknown value is hashed.

    Args:
      old: the names of the rows of the old table, without its last rows, which are for unknown
        values.
      new: the names of the rows of the new table, without its last rows, which are for unknown
        values.
      old_size: the number of rows of the old table; rows without a name are for unknown values.
      new_size: the number of rows of the new table.

    Returns:
      For each row of the new table, the index of the matching row of the old table, or -1, int64
      [new_size].
    """
    places = {name: place for place, name in enumerate(old)}
    origins = [places.get(name, -1) for name in new]
    unknown = new_size - len(new)
    is_same = unknown == old_size - len(old)
    origins += range(len(old), old_size) if is_same else [-1] * unknown
    return np.asarray(origins, np.int64)


def check(where: str, named: Mapping[str, Sequence[str] | str]) -> None:
    """Check that each value is a list of names, or the path of an existing file.

    Args:
      where: the name of the setting, for error messages.
      named: {pattern: names of rows, or the path of a file of names}. The check does not test
        whether a remote file exists.

    Raises:
      UserError: the setting is not a map from texts, a value is neither a list nor a tuple of
        texts, a name occurs twice, or a local file does not exist.
    """
    checks.mapping(where, named, "map patterns to names")
    for pattern, names in named.items():
        if isinstance(names, str):
            rule = "be a list of names or an existing file"
            checks.require(storage.may_exist(names), f"{where}[{pattern!r}]", rule, names)
        else:
            checks.is_a(f"{where}[{pattern!r}]", names, (list, tuple), "be a list of names")
            checks.unique(f"{where}[{pattern!r}]", names)
