"""Checksums of the files of a run, which detect damage before a file is used.

checksums.write_json("runs/a/row_names.json", entries)      # with a checksum inside
entries = checksums.read_json("runs/a/row_names.json", fix="Copy it back.")
checksums.require("runs/a/words.txt", "crc32:0a1b2c3d", fix="Copy it back.")

For example, a vocabulary that has lost a line would silently give wrong ids to all later words.

Files of earlier versions lack a checksum, and are not checked.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from mtl import checks
from mtl.deferred import tf
from mtl.files import atomic

KEY = "checksum"
_CHUNK = 1 << 20


def compute_checksum(data: bytes) -> str:
    """Return the checksum of bytes, which detects a changed bit and almost all other damage.

    Returns:
      A text such as "crc32:0a1b2c3d".
    """
    return f"crc32:{zlib.crc32(data):08x}"


def of_file(path: str) -> str:
    """Return the checksum of a file, in the form of `compute_checksum`.

    To compute a checksum takes a second per gigabyte, much less time than to build a lookup table
    from the file.
    """
    value = 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while data := file.read(_CHUNK):
            value = zlib.crc32(data, value)
    return f"crc32:{value:08x}"


def matches(path: str, expected: str | None) -> bool:
    """Return True if the checksum of a file is `expected`, or if `expected` is None."""
    return expected is None or of_file(path) == expected


def require(path: str, expected: str | None, fix: str) -> None:
    """Fail unless a file exists, and has the expected checksum.

    Args:
      path: the path of the file.
      expected: a checksum such as "crc32:0a1b2c3d"; None accepts any content.
      fix: the advice at the end of the error message.

    Raises:
      UserError: the file does not exist, or is damaged.
    """
    if not tf.io.gfile.exists(path):
        raise checks.UserError(f"{path} is gone. {fix}")
    if not matches(path, expected):
        raise describe_damage(path, "its checksum differs", fix)


def describe_damage(path: str, problem: str, fix: str) -> checks.UserError:
    """Return an error about a file that has changed since it was written.

    Args:
      path: the path of the file.
      problem: the reason, as a clause without a period, such as "its checksum differs".
      fix: the advice at the end of the error message.
    """
    return checks.UserError(f"{path} is damaged: {problem}. {fix}")


def add_checksum(entries: Mapping[str, Any]) -> str:
    """Return entries as JSON, with the checksum of all entries as an additional entry.

    Args:
      entries: values that JSON can represent, without an entry "checksum".

    Returns:
      The text of a JSON object, for `read_json`.
    """
    return json.dumps({**entries, KEY: _of_entries(entries)}, indent=1)


def _of_entries(entries: Mapping[str, Any]) -> str:
    # Convert to JSON and back, because JSON changes some types, such as tuples to lists.
    return compute_checksum(json.dumps(json.loads(json.dumps(entries)), sort_keys=True).encode())


def write_json(path: str, entries: Mapping[str, Any]) -> None:
    """Write entries and their checksum as JSON, for `read_json`.

    Args:
      path: the file, which is replaced atomically.
      entries: values that JSON can represent, without an entry "checksum".
    """
    atomic.write(path, add_checksum(entries))


def read_json(path: str, fix: str) -> dict[str, Any]:
    """Read the entries of a file, and verify the checksum.

    Args:
      path: the path of the file.
      fix: the advice at the end of the error message.

    Raises:
      UserError: the file is damaged.
    """
    entries = _load_entries(path, fix)
    recorded = entries.pop(KEY, None)
    if recorded is not None and recorded != _of_entries(entries):
        raise describe_damage(path, "its checksum differs", fix)
    return entries


def _load_entries(path: str, fix: str) -> dict[str, Any]:
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError) as error:  # The bytes may be invalid UTF-8.
        raise describe_damage(path, "it is not valid JSON", fix) from error
    if not isinstance(entries, dict):
        raise describe_damage(path, "it holds no JSON object", fix)
    return entries


def seal(path: str, fix: str) -> None:
    """Add a checksum to a file that an earlier version wrote without a checksum.

    Args:
      path: the file; a missing file, or a file that already has a checksum, is left unchanged.
      fix: the advice at the end of the error message.

    Raises:
      UserError: the file does not contain a JSON object.
    """
    if tf.io.gfile.exists(path) and KEY not in _load_entries(path, fix):
        write_json(path, read_json(path, fix))
