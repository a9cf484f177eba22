"""Reads and writes remote files, such as s3://bucket/a.csv, through local copies.

paths = remote.find("Csv.files", "s3://bucket/part-*.csv.gz")
with open(remote.copy_here(paths[0]), "rb") as file: ...     # a copy, made by the first call
with remote.replacing("gs://bucket/out.jsonl") as partial:   # a local file, sent at the end
    ...

A process copies each file once into a temporary folder, and removes the folder when the process
ends. Each request has a time limit, so a server that does not answer causes an error within
seconds.
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
# After a copy, at least this number of bytes must be free on the disk.
_SPARE = 1 << 28
# File systems in which a file is visible while it is written, and can be renamed.
_RENAMES = ("hdfs",)


class Version(NamedTuple):
    """The size and the last change of a remote file.

    Attributes:
      size: the size in bytes; 0 if unknown.
      changed: the time of the last change in nanoseconds since 1970; 0 if unknown.
    """

    size: int
    changed: int


def is_remote(path: str) -> bool:
    """Return True if a path has a scheme other than file://."""
    return stores.find_scheme(path) is not None


def join(folder: str, path: str) -> str:
    """Join a folder and a path, without the prefix file://.

    Args:
      folder: a local or remote folder, which is ignored if `path` is absolute or has a scheme.
      path: a path that may be relative to the folder.
    """
    path = path if "://" in path else os.path.join(folder, path)
    return path.removeprefix("file://")


def find(where: str, pattern: str, folders: bool = False) -> list[str]:
    """Return the sorted remote files that match a path or a glob.

    Args:
      where: the name of the setting, for errors.
      pattern: a path or a glob with a scheme; the wildcards * and ? do not match a slash.
      folders: True if the path may also be a folder.

    Raises:
      UserError: no file matches, the path is a folder, or the server cannot be reached.
    """
    store = stores.connect(pattern)
    info = _look_up(store, pattern)
    if info is not None:
        fits_here = info.is_file or folders
        checks.require(fits_here, where, "name files", pattern, "It is a folder.")
        return [pattern]
    paths = _match_pattern(store, pattern) if _MAGIC.search(store.name_inside(pattern)) else []
    if not paths:
        checks.fail(where, "name existing files", pattern, _find_neighbour(store, pattern))
    return paths


def _look_up(store: stores.Store, path: str) -> Any:
    """Return the pyarrow.fs.FileInfo of a path, or None; remember the version of the file."""
    name = store.name_inside(path).rstrip("/")
    info = stores.ask(path, lambda: store.system.get_file_info(name))
    if info.type.name == "NotFound":
        _versions.pop(path, None)
        return None
    return _note_version(path, info)


def _note_version(path: str, info: Any) -> Any:
    if info.is_file:
        _versions[path] = Version(info.size or 0, info.mtime_ns or 0)
        if not info.mtime_ns:  # Without a time of change, a copy may be outdated.
            _copies.pop(path, None)
    return info


def _list_folder(store: stores.Store, folder: str, recursive: bool = False) -> list[Any]:
    """Return the pyarrow.fs.FileInfo of all entries of a folder; [] if the folder is absent."""
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
    paths = []
    for info in _list_folder(store, folder, recursive=plain < len(parts) - 1):
        path = store.name_outside(info.path)
        names = path[len(store.prefix) :].split("/")
        fits = len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))
        if info.is_file and fits:
            _note_version(path, info)
            paths.append(path)
    return sorted(paths)


def fits(path: str, pattern: str) -> bool:
    """Return True if a path equals or matches a glob; no request is sent.

    Args:
      path: the path of a file.
      pattern: a path or a glob; wildcards do not match a slash.
    """
    names, parts = path.split("/"), pattern.split("/")
    is_match = len(names) == len(parts) and all(map(fnmatch.fnmatchcase, names, parts))
    return path == pattern or is_match


def _find_neighbour(store: stores.Store, path: str) -> str:
    """Return a hint for a wrong path: the folder is missing, or the nearest name in the folder."""
    folder, _, name = path.rpartition("/")
    names = [info.base_name for info in _list_folder(store, f"{folder}/")]
    if names:
        return checks.nearest(name, names)
    return f"There is no {folder}, or it is empty."


def look(path: str) -> Version:
    """Return the version of a remote file.

    Raises:
      UserError: the file does not exist, or the server cannot be reached.
    """
    info = _look_up(stores.connect(path), path)
    checks.require(info is not None and info.is_file, path, "exist", "no file")
    return _versions[path]


def find_size(path: str) -> int:
    """Return the size of a remote file, as `find` or `look` remember it; 0 if it is unknown.

    Raises:
      UserError: no size is remembered, and the file does not exist or cannot be reached.
    """
    return (_versions.get(path) or look(path)).size


def exists(path: str) -> bool:
    """Return True if a local or remote file or folder exists.

    Raises:
      UserError: the server of a remote path cannot be reached.
    """
    if not is_remote(path):
        return os.path.exists(path)
    return _look_up(stores.connect(path), path) is not None


def is_folder(path: str) -> bool:
    """Return True if a path is a local or remote folder.

    Raises:
      UserError: the server of a remote path cannot be reached.
    """
    if not is_remote(path):
        return os.path.isdir(path)
    info = _look_up(stores.connect(path), path.rstrip("/"))
    return info is not None and not info.is_file


def walk(folder: str) -> list[str]:
    """Return the paths of all files below a remote folder, in any order.

    Returns:
      Paths with their scheme; [] if the folder does not exist.

    Raises:
      UserError: the server cannot be reached.
    """
    store, folder = stores.connect(folder), f"{folder.rstrip('/')}/"
    infos = [info for info in _list_folder(store, folder, recursive=True) if info.is_file]
    paths = [store.name_outside(info.path) for info in infos]
    for path, info in zip(paths, infos, strict=True):
        _note_version(path, info)
    return paths


def list_names(folder: str) -> list[str]:
    """Return the sorted names in a local or remote folder; [] if the folder is absent.

    Raises:
      UserError: the server of a remote folder cannot be reached.
    """
    if not is_remote(folder):
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    folder = f"{folder.rstrip('/')}/"
    return sorted(info.base_name for info in _list_folder(stores.connect(folder), folder))


def copy_here(path: str) -> str:
    """Return the path of a local copy of a remote file; a local path is returned unchanged.

    `find` and `look` remember the version of a file. A file is copied again only if the remembered
    version differs from the version that was copied. Reading a copy therefore needs no connection
    to the server.

    Raises:
      UserError: the server cannot be reached, or the file does not fit on the disk.
    """
    if not is_remote(path):
        return path
    with _lock:
        version = _versions.get(path) or look(path)
        copy = _copies.get(path)
        # An earlier copy remains on the disk, because a reader may open it again.
        if copy is None or copy[0] != version:
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
            # By default, Arrow would decompress files with extensions such as ".gz".
            opener = functools.partial(store.system.open_input_stream, name, compression=None)
            stream = stores.ask(path, opener)
            while chunk := stores.ask(path, lambda: stream.read(_CHUNK)):
                file.write(chunk)
        size = os.path.getsize(to)
        rule, fix = f"have {version.size} bytes", "The file changed while it was read: start again."
        checks.require(size == version.size, path, rule, size, fix)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.remove(to)
        if isinstance(error, FileNotFoundError):
            raise checks.UserError(f"{path} is gone: it was there a moment ago.") from error
        if isinstance(error, OSError):
            problem = f"{path} cannot be copied to {folder}: {error.strerror}."
            raise checks.UserError(problem) from error
        raise
    return to


_lock = threading.RLock()
_versions: dict[str, Version] = {}
"""The last known version of each path."""
_copies: dict[str, tuple[Version, str]] = {}
"""The version and the local path of each copy."""
_folders: dict[int, str] = {}
"""{process id: folder of its copies}, so that a fork does not remove the folder of its parent."""


def _open_folder() -> str:
    """Return the folder in which this process stores its copies of remote files.

    The first call creates the folder, and removes the folders of killed processes.
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
    """Return True if a folder belongs to this user, and to a process that has ended."""
    with contextlib.suppress(OSError):
        is_of_user = os.lstat(folder).st_uid == os.geteuid() and not os.path.islink(folder)
        return is_of_user and bool(in_work.is_folder_abandoned(folder))
    return False


def _remove_folder() -> None:
    folder = _folders.pop(os.getpid(), None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def require_writable(where: str, path: str) -> None:
    """Fail unless the bucket or folder of a remote output exists, without writing anything.

    Args:
      where: the flag or setting that names the path, for the error message.
      path: the path of the output, with a scheme.

    Raises:
      UserError: the bucket or the folder does not exist, or the server cannot be reached.
    """
    store = stores.connect(path)
    top = store.prefix + path[len(store.prefix) :].partition("/")[0]
    above = store.prefix.rstrip("/") if store.root.strip("/") else top
    name = store.root.rstrip("/") or store.name_inside(top)
    info = stores.ask(above, lambda: store.system.get_file_info(name))
    fix = f"There is no {above}."
    checks.require(info.type.name != "NotFound", where, "lie in a place that exists", path, fix)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield a local path; its file replaces the remote file `path` at the end.

    After an error in the `with` block, nothing is sent. If the file cannot be sent, the local file
    remains, and the error names its path.

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
        unsent = os.path.join(tempfile.mkdtemp(prefix="mtl-unsent-"), os.path.basename(path))
        shutil.move(partial, unsent)
        is_absent = isinstance(error, FileNotFoundError)
        problem = f"{path} cannot be written: its bucket or folder is gone." if is_absent else error
        raise checks.UserError(f"{problem} The file was not sent: it lies in {unsent}.") from error
    os.remove(partial)


def write(path: str, data: bytes) -> None:
    """Write a remote file atomically: either completely or not at all.

    Raises:
      UserError: the file cannot be sent; the error names a local file with the data.
    """
    with replacing(path) as partial, open(partial, "wb") as file:
        file.write(data)


def _send_file(source: str, path: str) -> None:
    store = stores.connect(path)
    name, size = store.name_inside(path), os.path.getsize(source)
    renames = stores.find_scheme(path) in _RENAMES
    to = f"{name}.{in_work.make_token()}.partial" if renames else name
    if renames:  # Object stores have no folders, but file systems need the folder.
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
