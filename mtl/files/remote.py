"""Files in other places than this machine, such as s3://bucket/a.csv, read from copies.

paths = remote.find("Csv.files", "s3://bucket/part-*.csv.gz")
with open(remote.copy_here(paths[0]), "rb") as file: ...     # a copy, made at the first call
with remote.replacing("gs://bucket/out.jsonl") as partial:   # a local file, sent at the end
    ...

A process copies each file once into a temporary folder, which it removes when it ends. Each request
has a time limit, so an absent server is one line after seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import fnmatch
import functools
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from mtl import checks
from mtl.files import in_work, stores

_MAGIC = re.compile(r"[*?\[]")
_FOLDER = "mtl-copies-"
_CHUNK = 1 << 22
# Free bytes that a copy leaves on its disk.
_SPARE = 1 << 28
# Systems in which a file shows while it is written, and that can rename.
_RENAMES = ("hdfs",)


class Version(NamedTuple):
    """The size in bytes and the time of change in nanoseconds of a file; 0 if it is unknown."""

    size: int
    changed: int


def is_remote(path: str) -> bool:
    """Return True if a path has a scheme other than file://."""
    return stores.find_scheme(path) is not None


def join(folder: str, path: str) -> str:
    """Return a path within a folder; a path with a scheme stands alone, as an absolute one does.

    A path of this machine loses the beginning file://.
    """
    path = path if "://" in path else os.path.join(folder, path)
    return path.removeprefix("file://")


def find(where: str, pattern: str, folders: bool = False) -> list[str]:
    """Return the file at a path with a scheme, or the sorted files that match a glob.

    Args:
      where: the name of the setting, for errors.
      pattern: a path or a glob; * and ? do not match a slash.
      folders: True if the path may be a folder, which is returned.

    Raises:
      UserError: nothing matches, the path is a folder, or the place cannot be reached.
    """
    store = stores.connect(pattern)
    found = _look_up(store, pattern)
    if found is not None:
        fits_here = found.is_file or folders
        checks.require(fits_here, where, "name files", pattern, "It is a folder.")
        return [pattern]
    paths = _match_pattern(store, pattern) if _MAGIC.search(store.name_inside(pattern)) else []
    if not paths:
        checks.fail(where, "name existing files", pattern, _find_neighbour(store, pattern))
    return paths


def _look_up(store: stores.Store, path: str) -> Any:
    """Return the pyarrow.fs.FileInfo of a path, and note its version; None if it is absent."""
    name = store.name_inside(path).rstrip("/")
    info = stores.ask(path, lambda: store.system.get_file_info(name))
    if info.type.name == "NotFound":
        _versions.pop(path, None)
        return None
    return _note_version(path, info)


def _note_version(path: str, info: Any) -> Any:
    if info.is_file:
        _versions[path] = Version(info.size or 0, info.mtime_ns or 0)
        if not info.mtime_ns:  # Nothing shows whether it has changed since it was copied.
            _copies.pop(path, None)
    return info


def _list_folder(store: stores.Store, folder: str, recursive: bool = False) -> list[Any]:
    """Return the pyarrow.fs.FileInfo of all that lies in a folder, which may be absent."""
    from pyarrow import fs

    name = store.name_inside(folder).rstrip("/") or "/"
    selector = fs.FileSelector(name, allow_not_found=True, recursive=recursive)
    try:
        return stores.ask(folder, lambda: store.system.get_file_info(selector))
    except FileNotFoundError:
        return []


def _match_pattern(store: stores.Store, pattern: str) -> list[str]:
    parts = pattern[len(store.prefix) :].split("/")
    plain = next(number for number, part in enumerate(parts) if _MAGIC.search(part))
    folder = store.prefix + "/".join(parts[:plain])
    matched = []
    for info in _list_folder(store, folder, recursive=plain < len(parts) - 1):
        path = store.name_outside(info.path)
        names = path[len(store.prefix) :].split("/")
        fits = len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))
        if info.is_file and fits:
            _note_version(path, info)
            matched.append(path)
    return sorted(matched)


def fits(path: str, pattern: str) -> bool:
    """Return True if a path equals another one, or matches it as a glob; sends nothing."""
    names, parts = path.split("/"), pattern.split("/")
    is_match = len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))
    return path == pattern or is_match


def _find_neighbour(store: stores.Store, path: str) -> str:
    """Return a hint: the nearest name in the folder of a path, or that the folder is missing."""
    folder, _, name = path.rpartition("/")
    names = [info.base_name for info in _list_folder(store, f"{folder}/")]
    if names:
        return checks.nearest(name, names)
    return f"There is no {folder}, or it is empty."


def look(path: str) -> Version:
    """Return the version of a remote file.

    Raises:
      UserError: it does not exist, or cannot be reached.
    """
    found = _look_up(stores.connect(path), path)
    checks.require(found is not None and found.is_file, path, "exist", "no file")
    return _versions[path]


def exists(path: str) -> bool:
    """Return True if a file or a folder exists, here or in another place."""
    if not is_remote(path):
        return os.path.exists(path)
    return _look_up(stores.connect(path), path) is not None


def is_folder(path: str) -> bool:
    """Return True if a path is a folder, here or in another place."""
    if not is_remote(path):
        return os.path.isdir(path)
    found = _look_up(stores.connect(path), path.rstrip("/"))
    return found is not None and not found.is_file


def walk(folder: str) -> list[str]:
    """Return the paths of all files below a folder in another place, in any order."""
    store, folder = stores.connect(folder), f"{folder.rstrip('/')}/"
    found = [info for info in _list_folder(store, folder, recursive=True) if info.is_file]
    paths = [store.name_outside(info.path) for info in found]
    for path, info in zip(paths, found, strict=True):
        _note_version(path, info)
    return paths


def list_names(folder: str) -> list[str]:
    """Return the names in a folder, here or in another place; [] if it is absent."""
    if not is_remote(folder):
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    folder = f"{folder.rstrip('/')}/"
    return sorted(info.base_name for info in _list_folder(stores.connect(folder), folder))


def copy_here(path: str) -> str:
    """Return the path of a local copy of a remote file; a local path stays as it is.

    `find` and `look` note the version of a file. A file is copied anew only if the noted
    version differs from the version of the copy, so reading a copy needs no connection.

    Raises:
      UserError: the file cannot be reached, or does not fit on the disk.
    """
    if not is_remote(path):
        return path
    with _lock:
        version = _versions.get(path) or look(path)
        known = _copies.get(path)
        # An earlier copy stays, because a reader may open it again.
        if known is None or known[0] != version:
            _copies[path] = version, _copy_file(path, version)
        return _copies[path][1]


def _copy_file(path: str, version: Version) -> str:
    folder = _open_folder()
    free = shutil.disk_usage(folder).free
    rule = f"fit into {free - _SPARE:,} free bytes of {os.path.dirname(folder)}"
    fix = "Set TMPDIR to a larger disk: a process copies the files that it reads."
    checks.require(version.size + _SPARE <= free, path, rule, f"{version.size:,} bytes", fix)
    store = stores.connect(path)
    name, to = store.name_inside(path), os.path.join(folder, in_work.make_token())
    try:
        with open(to, "wb") as file:
            # By default Arrow decompresses, and compresses, by the ending of a name.
            opener = functools.partial(store.system.open_input_stream, name, compression=None)
            stream = stores.ask(path, opener)
            while chunk := stores.ask(path, lambda: stream.read(_CHUNK)):
                file.write(chunk)
        size = os.path.getsize(to)
        rule, fix = f"have {version.size} bytes", "It changed while it was read: start again."
        checks.require(size == version.size, path, rule, size, fix)
    except FileNotFoundError as error:
        raise checks.UserError(f"{path} is gone: it was there a moment ago.") from error
    except OSError as error:
        raise checks.UserError(f"{path} cannot be copied to {folder}: {error.strerror}.") from error
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(to)
        raise
    return to


_lock = threading.RLock()
_versions: dict[str, Version] = {}
"""The last known version of each path."""
_copies: dict[str, tuple[Version, str]] = {}
"""The version and the local path of each copy."""
_folders: dict[int, str] = {}
"""The folder of the copies of each process, by its id: a fork does not remove another's."""


def _open_folder() -> str:
    """Return the folder of this process; make it, and remove those of processes that were killed.

    Raises:
      UserError: it cannot be made.
    """
    if os.getpid() not in _folders:
        parent = tempfile.gettempdir()
        for name in os.listdir(parent):
            folder = os.path.join(parent, name)
            if name.startswith(_FOLDER) and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
        folder = tempfile.mkdtemp(prefix=_FOLDER)
        in_work.lock_folder(folder)
        _folders[os.getpid()] = folder
        atexit.register(_remove_folder)
    return _folders[os.getpid()]


def _is_abandoned(folder: str) -> bool:
    """Return True for a folder of this user whose process is gone."""
    with contextlib.suppress(OSError):
        is_mine = os.lstat(folder).st_uid == os.geteuid() and not os.path.islink(folder)
        return is_mine and bool(in_work.is_folder_abandoned(folder))
    return False


def _remove_folder() -> None:
    folder = _folders.pop(os.getpid(), None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def require_writable(where: str, path: str) -> None:
    """Fail unless the bucket or folder above a remote output answers; nothing is written."""
    store = stores.connect(path)
    top = store.prefix + path[len(store.prefix) :].partition("/")[0]
    above = store.prefix.rstrip("/") if store.root.strip("/") else top
    name = store.root.rstrip("/") or store.name_inside(top)
    info = stores.ask(above, lambda: store.system.get_file_info(name))
    fix = f"There is no {above}."
    checks.require(info.type.name != "NotFound", where, "lie in a place that exists", path, fix)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield a local path to write to; its file replaces the remote file `path` at the end.

    After an error nothing is sent. If sending fails, the local file stays, and the error names it.

    Raises:
      UserError: the file cannot be sent.
    """
    partial = os.path.join(_open_folder(), in_work.make_token())
    try:
        yield partial
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        raise
    try:
        _send_file(partial, path)
    except (checks.UserError, FileNotFoundError) as error:
        kept = os.path.join(tempfile.mkdtemp(prefix="mtl-unsent-"), os.path.basename(path))
        shutil.move(partial, kept)
        is_absent = isinstance(error, FileNotFoundError)
        problem = f"{path} cannot be written: its bucket or folder is gone." if is_absent else error
        raise checks.UserError(f"{problem} The file was not sent: it lies in {kept}.") from error
    os.remove(partial)


def write(path: str, data: bytes) -> None:
    """Write a remote file as a whole."""
    with replacing(path) as partial, open(partial, "wb") as file:
        file.write(data)


def _send_file(source: str, path: str) -> None:
    store = stores.connect(path)
    name, size = store.name_inside(path), os.path.getsize(source)
    renames = stores.find_scheme(path) in _RENAMES
    to = f"{name}.{in_work.make_token()}.partial" if renames else name
    if renames:  # Object stores need no folders.
        folder = os.path.dirname(name)
        stores.ask(path, lambda: store.system.create_dir(folder, recursive=True))
    opener = functools.partial(store.system.open_output_stream, to, compression=None)
    stream = stores.ask(path, opener)
    with open(source, "rb") as file:
        while chunk := file.read(_CHUNK):
            stores.ask(path, functools.partial(stream.write, chunk))
    stores.ask(path, stream.close)
    if renames:
        with contextlib.suppress(FileNotFoundError):
            stores.ask(path, lambda: store.system.delete_file(name))
        stores.ask(path, lambda: store.system.move(to, name))
    sent = look(path).size
    checks.require(sent == size, path, f"have {size} bytes after it was sent", sent)
