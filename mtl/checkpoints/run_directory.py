"""Finds complete checkpoints in the folder of a run, and removes half-written files.

with run_directory.lock_run("runs/digits"):               # one training at a time
    ...
with run_directory.claim_run("runs/digits") as keep:      # removes new files after an error
    path = run_directory.find_latest("runs/digits")          # or None
with run_directory.hold_checkpoint("runs/digits", "latest") as path:  # no training removes it here
    ...
run_directory.repair_run("runs/digits")                     # before a run continues
run_directory.require_intact(path)                      # after a restore has failed
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mtl import checks
from mtl.checkpoints import leftovers, lock
from mtl.deferred import tf
from mtl.files import atomic, in_work, storage

_log = logging.getLogger(__name__)

# The paths that a training writes; docs/architecture.md describes these files.
_OWN = re.compile(
    r"model\.ckpt-.*|checkpoint.*|graph\.pbtxt.*|events\.out\.tfevents\..*|input|best|eval"
    r"|statistics(\.[0-9a-f]{32}\.tmp)?|warm_start(\.txt)?|export/(latest|best)|clip_audit/training"
    r"|tracking|profile|plugins|projector"
    r"|((given_files|training_files|row_names|warnings|failure|tensorboard)\.json|config\.gin|metrics\.jsonl"
    r"|(balancing|gates|sparsity)\.svg|projector_config\.pbtxt)(\.([0-9a-f]{16}\.)?partial)?"
)
_NOTES = ("given_files.json", "training_files.json", "row_names.json", "warnings.json")
# Folders of a run to which commands other than training write, too.
_SHARED = ("export", "clip_audit")

# Built-in errors of Python that TensorFlow's reader of checkpoints raises, besides `OpError`.
_OTHER_READ_ERRORS = (IndexError, RuntimeError, ValueError)


def is_own(name: str) -> bool:
    """Return True if training writes the file `name`, a path relative to the run's folder."""
    parts = name.split("/")
    return any(_OWN.fullmatch("/".join(parts[:count])) for count in range(1, len(parts) + 1))


def tell_unlisted(directory: str) -> str:
    """Return advice if a folder holds checkpoints but not the file `checkpoint`, else ""."""
    if tf.io.gfile.exists(os.path.join(directory, "checkpoint")):
        return ""
    checkpoints = sorted(leftovers.list_unfinished(directory), key=step_in_name)
    if not checkpoints:
        return ""
    return (
        f"The file 'checkpoint', which lists the checkpoints there, is gone: copy it back, or name "
        f"one, such as {checkpoints[-1]!r}."
    )


def list_checkpoints(directory: str) -> list[str]:
    """Return the paths of the checkpoints in `directory`, oldest first; [] if there are none.

    Returns:
      Paths without the endings of the files, such as "runs/digits/model.ckpt-20". If the file
      `checkpoint` is damaged, the result has the readable checkpoints in the folder or, if none is
      readable, all checkpoints.
    """
    state = _read_list(directory)
    if state is not None:
        earlier = [p for p in state.all_model_checkpoint_paths if p != state.model_checkpoint_path]
        return [*earlier, state.model_checkpoint_path]
    if not tf.io.gfile.exists(os.path.join(directory, "checkpoint")):
        return []
    # The file `checkpoint` is damaged, so search for checkpoints by their names.
    checkpoints = sorted(leftovers.list_unfinished(directory), key=step_in_name)
    # If no checkpoint is complete, return all checkpoints, so that the caller reports the error of
    # the last checkpoint.
    return [path for path in checkpoints if _find_open_error(path) is None] or checkpoints


def _read_list(directory: str) -> Any:
    """Return TensorFlow's list of checkpoints; None if it is absent or damaged."""
    try:
        state = tf.train.get_checkpoint_state(directory)
    except ValueError:  # The file `checkpoint` is empty, or not a text.
        return None
    if state is None:
        return None
    names = [state.model_checkpoint_path, *state.all_model_checkpoint_paths]
    is_sound = all(re.search(r"-\d+$", name) or is_checkpoint(name) for name in names)
    return state if is_sound else None


def step_in_name(path: str) -> int:
    """Return the step in a name `model.ckpt-<step>`; for other names, the step in the file."""
    match = re.search(r"-([0-9]+)$", path)
    return int(match.group(1)) if match else step_saved(path)


def find_latest(directory: str) -> str | None:
    """Return the path of the latest checkpoint in `directory`; None if there is none.

    Raises:
      UserError: the files of the latest checkpoint are missing or cannot be read.
    """
    paths = list_checkpoints(directory)
    if not paths:
        return None
    error = _find_open_error(paths[-1])
    if error is not None:
        raise _describe_unreadable(paths[-1], error) from error
    return paths[-1]


def repair_run(directory: str) -> None:
    """Make the newest undamaged checkpoint of a run the latest, and remove half-written files.

    Every variable of the checkpoint is read and compared with its checksum. If the file
    `checkpoint`, which lists the checkpoints, is missing, the run starts anew. If a run starts
    anew, old checkpoints move to a folder `earlier-<n>`, because in the folder of the run, they
    would count as checkpoints of the new run if the new file `checkpoint` is damaged.

    Raises:
      UserError: all checkpoints of the run are damaged.
    """
    if not tf.io.gfile.exists(os.path.join(directory, "checkpoint")):
        _set_aside(directory)
    state, paths = _read_list(directory), _not_removed(list_checkpoints(directory))
    whole = _drop_damaged(paths)
    if whole and (whole != list_checkpoints(directory) or state is None):
        _write_list(directory, whole)
    # Keep unlisted files if the list is incomplete, because of a crash or an edit by a user.
    is_list = state is not None and state.model_checkpoint_path in state.all_model_checkpoint_paths
    leftover_paths = leftovers.list_unused(directory, paths) if is_list else []
    for path in [*leftovers.half_written(directory), *leftover_paths]:
        _remove_path(path)


def _drop_damaged(paths: Sequence[str]) -> list[str]:
    """Return `paths` up to the newest undamaged checkpoint; warn of later, damaged checkpoints."""
    # Check the newest checkpoint first, and stop at the first undamaged checkpoint.
    whole, errors = list(paths), {}
    while whole and (error := _find_damage(whole[-1])):
        errors[whole.pop()] = error
    if errors and not whole:
        raise _describe_unreadable(paths[-1], errors[paths[-1]])
    for path, error in errors.items():
        _log.warning("Checkpoint %s is damaged: %s.", path, shorten_error(error))
    if errors:
        _log.warning("Going back to %s.", whole[-1])
    return whole


def _not_removed(checkpoints: Sequence[str]) -> list[str]:
    """Return the checkpoints without those that a killed `add_checkpoint` has partly removed."""
    return [path for path in checkpoints if is_checkpoint(path) or path == checkpoints[-1]]


def _set_aside(directory: str) -> None:
    """Move the checkpoints of a run into a new folder `earlier-<n>` in the folder of the run."""
    checkpoints = sorted(leftovers.list_unfinished(directory), key=step_in_name)
    if not checkpoints:
        return
    numbers = itertools.count(1)
    folders = (os.path.join(directory, f"earlier-{number}") for number in numbers)
    folder = next(folder for folder in folders if not tf.io.gfile.exists(folder))
    tf.io.gfile.makedirs(folder)
    for file in (file for path in checkpoints for file in _list_files(path)):
        tf.io.gfile.rename(file, os.path.join(folder, os.path.basename(file)))
    last = os.path.basename(checkpoints[-1])
    _log.warning(
        "There is no file 'checkpoint' in %s: the run starts anew. Earlier checkpoints, up to %s, "
        "are now in %s: delete that folder if you do not need them.",
        directory,
        last,
        folder,
    )


def add_checkpoint(checkpoint: str, keep: int, evaluated: float = math.inf) -> None:
    """List a new checkpoint as the latest in the file `checkpoint`, after writing it to the disk.

    Args:
      checkpoint: the path of the checkpoint.
      keep: how many of the latest checkpoints to keep; older checkpoints are removed.
      evaluated: the last evaluated step; checkpoints of later steps are kept, too.
    """
    storage.sync(_list_files(checkpoint))
    directory = os.path.dirname(checkpoint)
    paths = [path for path in list_checkpoints(directory) if path != checkpoint] + [checkpoint]
    old = [path for path in paths[:-keep] if step_in_name(path) <= evaluated]
    _write_list(directory, paths)
    # Keep an old checkpoint in the list until its files are removed. If the process is killed while
    # it removes files, the next start removes the remaining files.
    removed_paths = [path for path in old if remove_checkpoint(path)]
    if removed_paths:
        _write_list(directory, [path for path in paths if path not in removed_paths])


def remove_checkpoint(checkpoint: str) -> bool:
    """Remove a checkpoint, unless another process reads it.

    Args:
      checkpoint: the path of the checkpoint, without the endings of its files.

    Returns:
      False if another process reads the checkpoint, so that all files remain.
    """
    index = f"{checkpoint}.index"
    if storage.is_local(index) and in_work.remove_abandoned(index) is False:
        return False
    for file in _list_files(checkpoint):
        tf.io.gfile.remove(file)
    return True


def _list_files(checkpoint: str) -> list[str]:
    """Return the files of a checkpoint, its index first.

    This function does not use TensorFlow's search for files, which would read special characters in
    the path as a pattern.
    """
    index = f"{checkpoint}.index"
    files = storage.listed(*os.path.split(f"{checkpoint}."))
    return sorted(files, key=lambda file: file != index)


def is_checkpoint(path: str) -> bool:
    """Return True if files of a checkpoint exist at `path`.

    In TensorFlow's first format, a checkpoint is a single file without an ending.
    """
    is_file = tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)
    return is_file or tf.io.gfile.exists(f"{path}.index")


def _write_list(directory: str, paths: Sequence[str]) -> None:
    """Write the list of checkpoints that TensorFlow reads."""
    names = [os.path.basename(path) for path in paths]
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    atomic.write(os.path.join(directory, "checkpoint"), "\n".join(lines) + "\n")


def _find_open_error(checkpoint: str) -> Exception | None:
    """Return the error if the global step of a checkpoint cannot be read, else None."""
    try:
        tf.train.load_variable(checkpoint, "global_step")
    except (tf.errors.OpError, *_OTHER_READ_ERRORS) as error:
        return error
    return None


def _find_damage(checkpoint: str) -> Exception | None:
    try:
        for name, _ in tf.train.list_variables(checkpoint):
            tf.train.load_variable(checkpoint, name)
    except (tf.errors.OpError, *_OTHER_READ_ERRORS) as error:
        return error
    return None


def _describe_unreadable(checkpoint: str, error: Exception) -> checks.UserError:
    problem, fix = shorten_error(error), "Copy it back, or delete the file 'checkpoint' beside it"
    return checks.UserError(
        f"checkpoint {checkpoint} cannot be read: {problem}. {fix} to start again."
    )


def name_run(model_dir: str) -> str:
    """Return the name of a run, which is the name of its folder."""
    return os.path.basename(os.path.abspath(model_dir))


def step_of(model_dir: str) -> int:
    """Return the global step of the latest checkpoint in `model_dir`; 0 without checkpoints.

    Raises:
      UserError: the files of the latest checkpoint are missing or cannot be read.
    """
    path = find_latest(model_dir)
    return step_saved(path) if path else 0


def step_saved(checkpoint: str) -> int:
    """Return the global step that a checkpoint has saved; the checkpoint's name may lack it."""
    return int(tf.train.load_variable(checkpoint, "global_step"))


def require_regular(model_dir: str) -> None:
    """Fail if a file of a run is a pipe or a device.

    Only local files that a training may have written are checked.

    Raises:
      UserError: a file is a pipe, a socket or a device; the error names the file.
    """
    for path in filter(storage.is_local, _list_written(model_dir)):
        storage.require_regular(path)
        for folder, _, names in os.walk(path):
            for name in names:
                storage.require_regular(os.path.join(folder, name))


def checkpoint_path(model_dir: str, which: str) -> str:
    """Return the path of the checkpoint that "latest", "best" or a path names.

    Raises:
      UserError: the checkpoint does not exist.
    """
    storage.require_plain("--model_dir", model_dir)
    storage.require_plain("--checkpoint", which)
    require_regular(model_dir)
    if which in ("latest", "best"):
        directory = model_dir if which == "latest" else os.path.join(model_dir, "best")
        path = find_latest(directory)
    else:
        which = which.removesuffix(".index")  # `which` may be the index file.
        path = which if is_checkpoint(which) else None
    if path is None:
        checkpoints = list_checkpoints(model_dir)
        examples = (
            [*checkpoints[:3], "...", *checkpoints[-3:]] if len(checkpoints) > 6 else checkpoints
        )
        fix = f"There are: {', '.join(examples)}." if checkpoints else tell_unlisted(model_dir)
        fix = fix or "There is no checkpoint yet."
        checks.fail("--checkpoint", f"be 'latest', 'best' or a path, in {model_dir}", which, fix)
    return path


@contextlib.contextmanager
def hold_checkpoint(model_dir: str, which: str) -> Iterator[str]:
    """Protect the checkpoint that "latest", "best" or a path names, and yield its path.

    A training in another process keeps the checkpoint until the `with` block ends. On a file system
    without locks, the training may remove the checkpoint; an error then reports the removal.

    Raises:
      UserError: the checkpoint does not exist, or was removed during the `with` block.
    """
    path, descriptor = _hold_index(model_dir, which)
    try:
        yield path
    except Exception as error:
        if is_checkpoint(path):
            raise
        fix = "Its run was trained further. Use --checkpoint best, or a copy of a checkpoint."
        message = f"checkpoint {path} was removed while it was read. {fix}"
        raise checks.UserError(message) from error
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _hold_index(model_dir: str, which: str) -> tuple[str, int | None]:
    while True:
        before = _list_all(model_dir)
        try:
            path = checkpoint_path(model_dir, which)
            index = f"{path}.index"
            is_lockable = storage.is_local(index) and os.path.exists(index)
            if is_lockable or is_checkpoint(path):
                return path, in_work.hold(index) if is_lockable else None
        except (checks.UserError, FileNotFoundError):
            # If a training has just removed the checkpoint, try again with the new latest
            # checkpoint.
            if _list_all(model_dir) == before:
                raise


def _list_all(model_dir: str) -> list[str]:
    return [*list_checkpoints(model_dir), *list_checkpoints(os.path.join(model_dir, "best"))]


def require_intact(checkpoint: str) -> None:
    """Fail unless every variable of a checkpoint can be read.

    Raises:
      UserError: the checkpoint is damaged or missing.
    """
    error = _find_damage(checkpoint)
    if error is not None:
        raise _describe_unreadable(checkpoint, error) from error


@contextlib.contextmanager
def lock_run(model_dir: str) -> Iterator[None]:
    """Hold the lock of a run, whose folder must be writable; create the folder if needed.

    If the folder is new and still empty at the end, it is removed.

    Raises:
      UserError: the folder cannot be written, or another process trains in the folder.
    """
    with dropping_empty(model_dir):
        require_writable("--model_dir", model_dir)
        require_regular(model_dir)
        with lock.hold_lock(model_dir):
            yield


@contextlib.contextmanager
def dropping_empty(folder: str) -> Iterator[None]:
    """Remove a folder that the `with` block created and left empty."""
    is_new = not tf.io.gfile.isdir(folder)
    try:
        yield
    finally:
        if is_new:
            _remove_empty(folder)


@contextlib.contextmanager
def claim_run(model_dir: str) -> Iterator[Callable[[], None]]:
    """Remove the files of a new run after an error in a `with` block; keep all other files.

    The caller must hold the lock of the folder. A continued run keeps its files, and gets back the
    earlier content of small files such as warnings.json.

    Yields:
      A function that turns off the removal of files; call this function at the first trained step.
    """
    before, notes = set(_list_written(model_dir)), _read_notes(model_dir)
    keeps: set[bool] = set()
    is_new = find_latest(model_dir) is None
    try:
        yield lambda: keeps.add(True)
    except BaseException:
        if not keeps and not is_new:
            _restore_notes(notes, model_dir)
        elif not keeps:
            for path in set(_list_written(model_dir)) - before:
                _remove_path(path)
            for folder in (os.path.join(model_dir, name) for name in _SHARED):
                _remove_empty(folder)
        raise


def copy_checkpoint(checkpoint: str, output_dir: str) -> None:
    """Copy a checkpoint into the folder of another run, which has no other checkpoint.

    Args:
      checkpoint: the path of the checkpoint, without the endings of its files.
      output_dir: an existing folder, in which the copy becomes the only listed checkpoint.
    """
    for file in _list_files(checkpoint):
        tf.io.gfile.copy(file, os.path.join(output_dir, os.path.basename(file)), overwrite=True)
    _write_list(output_dir, [os.path.join(output_dir, os.path.basename(checkpoint))])


def copy_notes(model_dir: str, output_dir: str) -> None:
    """Copy the statistics and small files, such as warnings.json, to a run on the same data.

    Args:
      model_dir: the folder of the run to copy from; files that this run lacks are skipped.
      output_dir: the folder of the other run, which is created if needed.
    """
    folder = "statistics"
    tf.io.gfile.makedirs(os.path.join(output_dir, folder))
    files = [
        *_NOTES,
        *(os.path.join(folder, f) for f in _list_names(os.path.join(model_dir, folder))),
    ]
    for file in files:
        if tf.io.gfile.exists(os.path.join(model_dir, file)):
            with tf.io.gfile.GFile(os.path.join(model_dir, file), "rb") as source:
                atomic.write(os.path.join(output_dir, file), source.read())


def _list_names(folder: str) -> list[str]:
    return tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []


def require_writable(where: str, directory: str) -> None:
    """Fail unless files can be written into `directory`; create it if needed.

    Args:
      where: the flag or setting that names the folder, for the error message.
      directory: a local or remote folder, in which the function writes and removes an empty file.

    Raises:
      UserError: the folder cannot be created, or a file in it cannot be written.
    """
    probe = os.path.join(directory, f".{uuid.uuid4().hex}")
    with storage.writing(where, "a folder", directory):
        tf.io.gfile.makedirs(directory)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("")
        tf.io.gfile.remove(probe)


def _list_written(model_dir: str) -> list[str]:
    """Return the files in the folder of a run that a training may have written.

    Files that users or other commands have written are not returned.
    """
    folders = (model_dir, *(os.path.join(model_dir, name) for name in _SHARED))
    paths = [path for folder in folders for path in storage.listed(folder)]
    return [path for path in paths if _OWN.fullmatch(path.removeprefix(model_dir).lstrip("/"))]


def _read_notes(model_dir: str) -> dict[str, bytes]:
    """Return {path: content} for the small files that a run writes when it starts."""
    notes = {}
    for path in (os.path.join(model_dir, name) for name in _NOTES):
        if tf.io.gfile.exists(path):
            with tf.io.gfile.GFile(path, "rb") as file:
                notes[path] = file.read()
    return notes


def _restore_notes(notes: Mapping[str, bytes], model_dir: str) -> None:
    now = _read_notes(model_dir)
    for path in set(now) - set(notes):
        _remove_path(path)
    for path, content in notes.items():
        if now.get(path) != content:
            atomic.write(path, content)


def _remove_empty(folder: str) -> None:
    if tf.io.gfile.isdir(folder) and not tf.io.gfile.listdir(folder):
        tf.io.gfile.rmtree(folder)


def _remove_path(path: str) -> None:
    (tf.io.gfile.rmtree if tf.io.gfile.isdir(path) else tf.io.gfile.remove)(path)


def shorten_error(error: Exception) -> str:
    """Return the message of an error in one line, without the name of the op.

    Args:
      error: an error that TensorFlow or Python has raised.

    Returns:
      A text without a period at the end; the name of the error's class if the error has no text.
    """
    text = str(error)
    match = re.search(r"^Node: .*\n(.+)", text, re.M) or re.search(r"(.+)", text)
    return match.group(1).rstrip(".") if match else type(error).__name__
