"""Finds, checks and opens the files of a split.

paths = files.find("Csv.files", {"train": "part-*.csv.gz"}, "train", data_dir="data")
with files.open_binary(paths[0]) as lines:
    first_line = next(lines)
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import functools
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from mtl import checks, deferred
from mtl.data import partitions
from mtl.deferred import tf
from mtl.files import storage

with deferred.imports():
    from mtl.data import copies
    from mtl.files import remote

# {first bytes of a file: format} for formats other than UTF-8 text.
_NO_TEXT = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "a ZIP file, such as a spreadsheet",
    b"\x1f\x8b": "gzip without the ending .gz, or compressed twice",
}
# Files are read in blocks of `_CHUNK` bytes or, line by line, in blocks of `_LINES` lines.
_CHUNK = 1 << 18
_LINES = 1024
# Text has about `_COMPRESSED` times the bytes of its compressed file.
_COMPRESSED = 10
_OTHER_SIZE = re.compile(r'input file "(.+)" has body length')


def list_read_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading a damaged or missing file raises."""
    return OSError, EOFError, zlib.error, tf.errors.OpError


def check_files(where: str, files: Any) -> None:
    """Fail unless `files` maps each split to a path or several paths.

    Args:
      where: the name of the setting, with which the error message begins.
      files: the value of the setting, {split: path or paths}.

    Raises:
      UserError: the value has another type, or names no split.
    """
    rule = "map splits to files, such as {'train': 'train.csv'}"
    checks.mapping(where, files, rule)
    checks.require(bool(files), where, "name a split", dict(files))
    for split, paths in files.items():
        kinds = (str, list, tuple)
        checks.is_a(f"{where}[{split!r}]", paths, kinds, "be a path or a list of them")
        for path in paths if isinstance(paths, (list, tuple)) else ():
            checks.is_a(f"{where}[{split!r}]", path, str, "hold paths")


Files = Annotated[Mapping[str, str | Sequence[str]], check_files]
"""{split: path or paths}."""


def find(
    where: str,
    files: Mapping[str, str | Sequence[str]],
    split: str,
    data_dir: str = "",
    folders: bool = False,
) -> list[str]:
    """Return the files of a split in the order of the setting; the files of a glob are sorted.

    Args:
      where: the name of the setting, for errors.
      files: {split: path or paths}.
      split: the name of the split, such as "train".
      data_dir: the folder in which relative paths start.
      folders: True if a path may be a folder of Parquet or ORC files.

    Raises:
      UserError: the split does not exist, a path or glob matches nothing, or a remote file cannot
        be reached.
    """
    checks.one_of(f"{where} split", split, files)
    is_flag = where.startswith("--")
    where = where if is_flag else f"{where}[{split!r}]"
    setting = files[split]
    paths = [setting] if isinstance(setting, str) else setting
    checks.require(bool(paths), where, "name a file", setting)
    full_paths = [remote.join(data_dir, path) for path in paths]
    return [match for path in full_paths for match in _find_matches(where, path, folders)]


def shard(source: Any, split: str, paths: Sequence[str], num_shards: int, shard: int) -> Any:
    """Return `source` with every `num_shards`-th file of a split; None if the files are too few.

    Args:
      source: a dataclass with the settings `files` and `data_dir`.
      split: the split to divide.
      paths: the files of the split, including `data_dir`.
      num_shards: the number of shards.
      shard: the index of this shard, from 0.
    """
    if len(paths) < num_shards:
        return None
    # `paths` already include `data_dir`.
    return dataclasses.replace(source, files={split: paths[shard::num_shards]}, data_dir="")


def measure_shards(source: Any, split: str, num_shards: int) -> list[int]:
    """Estimate the bytes of each shard, if the function `shard` divides the files of a split.

    Args:
      source: any source; the files belong to its innermost source.
      split: the split to divide.
      num_shards: the number of shards.

    Returns:
      The bytes of text of each shard; [] if the source names no files of the split.
    """
    while (inner_source := getattr(source, "source", None)) is not None:
        source = inner_source
    setting = getattr(source, "files", None)
    if not isinstance(setting, Mapping) or split not in setting:
        return []
    paths = named_by(source, split, connects=True)
    return [estimate_bytes(paths[shard::num_shards]) for shard in range(num_shards)]


def named_by(source: Any, split: str | None = None, connects: bool = False) -> list[str]:
    """Return the files of a source and of its inner sources; [] if no source names files.

    Args:
      source: a source with or without inner sources.
      split: the split whose files are returned; None for all splits.
      connects: True expands remote globs, such as s3://; False returns remote globs unchanged.
    """
    folder = getattr(source, "data_dir", "")
    setting = getattr(source, "files", {})
    if split in setting:
        setting = setting[split]
    paths = [remote.join(folder, name) for name in _list_leaves(setting)]
    matches = [match for path in paths for match in _list_named(path, connects)]
    for part in getattr(source, "sources", {}).values():
        matches += named_by(part, split, connects)
    for table in getattr(source, "tables", {}).values():
        matches += named_by(table, source.table_split, connects)
    inner_source = getattr(source, "source", None)
    if inner_source is None:
        return matches
    # The rows of a derived split are in the files of the original split.
    is_there = split is None or split in getattr(inner_source, "files", {})
    cut_from = getattr(source, "split", split)
    return matches + named_by(inner_source, split if is_there else cut_from, connects)


def _list_named(path: str, connects: bool) -> list[str]:
    where = "a file of the run"
    if not remote.is_remote(path):
        return partitions.expand(where, _list_existing(path))
    return partitions.expand(where, remote.find(where, path, folders=True)) if connects else [path]


def _list_leaves(setting: Any) -> Iterator[str]:
    if isinstance(setting, str):
        yield setting
        return
    for part in setting.values() if isinstance(setting, Mapping) else setting:
        yield from _list_leaves(part)


def _list_existing(path: str) -> list[str]:
    path = os.path.expanduser(path)
    # Check existence first, because a file name with a bracket is a glob that does not match
    # itself.
    return [path] if tf.io.gfile.exists(path) else sorted(tf.io.gfile.glob(path))


def _find_matches(where: str, path: str, folders: bool) -> list[str]:
    if remote.is_remote(path):
        matches = remote.find(where, path, folders)
        return partitions.expand(where, matches) if folders else matches
    path = os.path.expanduser(path)
    storage.require_path(where, path)
    matches = _list_existing(path)
    if not matches:
        checks.fail(where, "name existing files", path, _suggest_neighbour(path))
    if folders:
        return partitions.expand(where, matches)
    for match in matches:
        checks.require(not tf.io.gfile.isdir(match), where, "name files", match, "It is a folder.")
    return matches


def _suggest_neighbour(path: str) -> str:
    """Return a hint: either the folder is missing, or the nearest file name in the folder."""
    folder, name = os.path.split(path)
    if folder and not tf.io.gfile.isdir(folder):
        return f"There is no folder {folder!r}."
    return checks.nearest(name, tf.io.gfile.listdir(folder or "."))


def compression(path: str) -> str:
    """Return the name of a file's compression in `tf.data`.

    Args:
      path: the path of the file, which need not exist.

    Returns:
      "GZIP" if the name ends in ".gz"; "" for other names.
    """
    return "GZIP" if path.endswith(".gz") else ""


def read_lines(paths: Sequence[str], skip: int, dropped: str) -> tf.data.Dataset:
    """Return the lines of text files in blocks of n lines, [n].

    Lines end with a line feed; carriage returns are dropped. Compressed files, whose size is
    unknown, are read by `read_line_by_line`, which takes more than twice as long. If a file changes
    its size during the reading, TensorFlow raises an error; see `find_change`.

    Args:
      paths: the files in the order of reading.
      skip: the number of lines to leave out at the beginning of each file.
      dropped: a pattern; a line is left out if the whole line matches.
    """
    if any(map(compression, paths)):
        return read_line_by_line(paths, skip, dropped)
    cut = functools.partial(_cut_lines, dropped)
    chunk = functools.partial(_read_chunks, copies.Reader(paths))
    bounds = np.array(
        [(_end_of_lines(path, skip), _measure_size(path)) for path in paths], np.int64
    )
    files = tf.data.Dataset.from_tensor_slices((list(paths), *bounds.T))
    # Without this decorator, AutoGraph would take a third of a second to convert functions that
    # have no control flow.
    read = tf.autograph.experimental.do_not_convert(lambda *file: chunk(*file).scan("", cut))
    return files.flat_map(read)


def read_line_by_line(paths: Sequence[str], skip: int, dropped: str) -> tf.data.Dataset:
    """Return the same lines as `read_lines`, but read the files line by line.

    Args:
      paths: the files in the order of reading; a file whose name ends in ".gz" is decompressed.
      skip: the number of lines to leave out at the beginning of each file.
      dropped: a pattern; a line is left out if the whole line matches.

    Returns:
      Blocks of up to 1,024 lines, string [n].
    """
    inputs = tf.data.Dataset.from_tensor_slices((list(paths), list(map(compression, paths))))
    reader = copies.Reader(paths)
    # Do not convert functions without control flow by AutoGraph; see `read_lines`.
    keep = tf.autograph.experimental.do_not_convert
    lines = inputs.flat_map(keep(lambda *file: reader.lines(*file).skip(skip)))
    return lines.batch(_LINES).map(keep(functools.partial(_drop, dropped)))


def find_change(error: str) -> str | None:
    """Find the path of a file that changed while TensorFlow read it.

    Args:
      error: the message of an error of TensorFlow.

    Returns:
      The path; None if the error has another cause.
    """
    match = _OTHER_SIZE.search(error)
    return match and match.group(1)


def _read_chunks(
    reader: copies.Reader, path: tf.Tensor, start: tf.Tensor, end: tf.Tensor
) -> tf.data.Dataset:
    """Return the bytes of a file in chunks, with an additional line feed at the end."""
    last_bytes = (end - start) % _CHUNK
    full_chunks = reader.pieces(path, _CHUNK, start, last_bytes)
    last_chunk = reader.pieces(path, tf.maximum(last_bytes, 1), end - last_bytes)
    return full_chunks.concatenate(last_chunk).concatenate(tf.data.Dataset.from_tensors("\n"))


def _cut_lines(
    pattern: str, line_start: tf.Tensor, chunk: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the incomplete last line of a chunk, and all lines that end in the chunk."""
    text = tf.strings.regex_replace(tf.strings.join([line_start, chunk]), "\r", "")
    lines = tf.strings.split(text, "\n")
    return lines[-1], _drop(pattern, lines[:-1])


def _drop(pattern: str, lines: tf.Tensor) -> tf.Tensor:
    return tf.boolean_mask(lines, ~tf.strings.regex_full_match(lines, pattern))


def _end_of_lines(path: str, lines: int) -> int:
    """Return the number of bytes in the first `lines` lines of a file."""
    with open_binary(path) as file:
        return sum(len(file.readline()) for _ in range(lines))


def _measure_size(path: str) -> int:
    return tf.io.gfile.stat(remote.copy_here(path)).length


def estimate_bytes(paths: Sequence[str]) -> int:
    """Estimate the bytes of text in local or remote files, without reading or copying them."""
    total = 0
    for path in paths:
        size = remote.find_size(path) if remote.is_remote(path) else os.path.getsize(path)
        total += size * (_COMPRESSED if compression(path) else 1)
    return total


@contextlib.contextmanager
def open_binary(path: str) -> Iterator[Any]:
    """Open a file to read its decompressed bytes.

    Args:
      path: a local or remote file, which is compressed if its name ends in ".gz".

    Yields:
      A file object with `read` and `readline`, which also iterates over lines.
    """
    with tf.io.gfile.GFile(remote.copy_here(path), "rb") as file:
        if compression(path):
            with gzip.GzipFile(fileobj=file) as gzip_file:
                yield gzip_file
        else:
            yield file


def check_text(path: str, may_have_mark: bool = True) -> None:
    """Fail if the first bytes of a file belong to UTF-16, or to a format other than text.

    Args:
      path: the path of a local or remote file.
      may_have_mark: False refuses a byte order mark, which would become part of the first value.

    Raises:
      UserError: the file has another format, or a byte order mark that is refused.
    """
    try:
        with open_binary(path) as file:
            start = file.read(1024)
    except list_read_errors():
        return  # The next reader of the file reports the error with the line number.
    kind = next((kind for mark, kind in _NO_TEXT.items() if start.startswith(mark)), None)
    if kind is None and start.count(b"\0") > len(start) // 4:
        kind = "binary, or UTF-16 without a mark"
    if kind is not None:
        fix = f"Its first bytes are {start[:8]!r}: write it anew as CSV in UTF-8."
        raise checks.UserError(f"{path} must be text in UTF-8, but it is {kind}. {fix}")
    is_plain = may_have_mark or not start.startswith(codecs.BOM_UTF8)
    fix = "Save it as UTF-8 without BOM."
    checks.require(is_plain, path, "begin without a byte order mark", start[:8], fix)


def check_whole(path: str) -> None:
    """Fail if a compressed file is truncated, because `tf.data` would silently stop there.

    A process reads each file only once, unless its size or time changes.

    Args:
      path: the file; a file that is not compressed always passes.

    Raises:
      UserError: the file is truncated, or is not a gzip file.
    """
    if compression(path):
        copy = remote.copy_here(path)
        status = tf.io.gfile.stat(copy)
        problem = _gzip_problem(copy, status.length, status.mtime_nsec)
        checks.require(not problem, path, "be a whole gzip file", problem)


@functools.cache
def _gzip_problem(path: str, length: int, mtime: int) -> str:
    del length, mtime  # Keys of the cache: a changed file is checked again.
    try:
        with tf.io.gfile.GFile(path, "rb") as file, gzip.GzipFile(fileobj=file) as gzip_file:
            while gzip_file.read(1 << 20):
                pass
    except list_read_errors() as error:
        return str(error)
    return ""
