"""Checksums of the files that say what a run means: damage is found before it is used.

checksums.write_json("runs/a/row_names.json", entries)      # with a checksum of its own
entries = checksums.read_json("runs/a/row_names.json", fix="Copy it back.")
checksums.require("runs/a/words.txt", "crc32:0a1b2c3d", fix="Copy it back.")

A vocabulary that lost a line would move all rows behind it, and no error would tell.

Files of earlier versions have no checksum and are taken as they are.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from mtl import checks, deferred
from mtl.files import atomic

with deferred.imports():
    import tensorflow as tf

KEY = "checksum"
_CHUNK = 1 << 20


def compute_checksum(data: bytes) -> str:
    """Return the checksum of some bytes; any flipped bit and nearly any other damage changes it."""
    return f"crc32:{zlib.crc32(data):08x}"


def of_file(path: str) -> str:
    """Return the checksum of a file.

    It takes a second for a gigabyte, far less than a lookup table of it takes.
    """
    value = 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while data := file.read(_CHUNK):
            value = zlib.crc32(data, value)
    return f"crc32:{value:08x}"


def matches(path: str, expected: str | None) -> bool:
    """Return whether the file has this checksum; True where none is known."""
    return expected is None or of_file(path) == expected


def require(path: str, expected: str | None, fix: str) -> None:
    """Fail unless the file is there, with this checksum where one is known."""
    if not tf.io.gfile.exists(path):
        raise checks.UserError(f"{path} is gone. {fix}")
    if not matches(path, expected):
        raise describe_damage(path, "its checksum is another one", fix)


def describe_damage(path: str, problem: str, fix: str) -> checks.UserError:
    """Return the error of a file that is not as it was written."""
    return checks.UserError(f"{path} is damaged: {problem}. {fix}")


def add_checksum(entries: Mapping[str, Any]) -> str:
    """Entries as JSON, with a further one: the checksum of the others."""
    return json.dumps({**entries, KEY: _of_entries(entries)}, indent=1)


def _of_entries(entries: Mapping[str, Any]) -> str:
    # Once through JSON, as they will be when they are read.
    return compute_checksum(json.dumps(json.loads(json.dumps(entries)), sort_keys=True).encode())


def write_json(path: str, entries: Mapping[str, Any]) -> None:
    """Write what `read_json` reads; the file appears when it is complete."""
    atomic.write(path, add_checksum(entries))


def read_json(path: str, fix: str) -> dict[str, Any]:
    """Return the entries of a file, without their checksum.

    Raises:
      UserError: they are not what was written; `fix` says what to do.
    """
    entries = _loaded(path, fix)
    recorded = entries.pop(KEY, None)
    if recorded is not None and recorded != _of_entries(entries):
        raise describe_damage(path, "its checksum is another one", fix)
    return entries


def _loaded(path: str, fix: str) -> dict[str, Any]:
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError) as error:  # Also of bytes that are no text.
        raise describe_damage(path, "it is no JSON any more", fix) from error
    if not isinstance(entries, dict):
        raise describe_damage(path, "it holds no JSON object", fix)
    return entries


def seal(path: str, fix: str) -> None:
    """Give a file of an earlier version the checksum that it lacks."""
    if tf.io.gfile.exists(path) and KEY not in _loaded(path, fix):
        write_json(path, read_json(path, fix))
