"""Predictions as JSON lines, CSV or TFRecords, in files that appear when they are complete.

with writers.writing("out.csv", "csv") as write:
    write(blocks.MAKERS["csv"]({"id": ["a", "b"], "income/probability": np.array([0.1, 0.9])}))
"""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from mtl import checks
from mtl.scoring import blocks

Write = Callable[[blocks.Block], None]

FORMATS = tuple(blocks.MAKERS)
# Also of shards: predictions.jsonl-00000-of-00010.
_IN_NAME = re.compile(r"\.(csv|jsonl|tfrecord)s?(?=[-.]|$)")


def format_in(path: str) -> str | None:
    """The format that the name of a file says, if it does."""
    found = _IN_NAME.search(path.rpartition("/")[2])
    return found.group(1) if found else None


def renamed(name: str, format_name: str) -> str:
    """The name of a file of another format: in-0.csv.gz -> in-0.jsonl."""
    name = name.removesuffix(".gz")
    if _IN_NAME.search(name):
        return _IN_NAME.sub(f".{format_name}", name, count=1)
    return f"{name}.{format_name}"


@contextlib.contextmanager
def writing(path: str | None, format_name: str) -> Iterator[Write]:
    """Gives what writes blocks of the format, to standard output without a path.

    A file appears under its name only when it is complete.

    Raises:
      UserError: the file cannot be written.
    """
    if path is None:
        rule = "be a file where --output_format is tfrecord"
        checks.require(format_name != "tfrecord", "--output", rule, None)
        yield _headed(lambda text: sys.stdout.write(text.decode()))
        return
    partial = path + ".partial"
    try:
        with _explained(path), tf.io.gfile.GFile(partial, "w") as file:
            file.write("")
        yield from _write_file(partial, format_name)
        tf.io.gfile.rename(partial, path, overwrite=True)
    finally:
        if tf.io.gfile.exists(partial):
            tf.io.gfile.remove(partial)


def _write_file(path: str, format_name: str) -> Iterator[Write]:
    if format_name == "tfrecord":
        with tf.io.TFRecordWriter(path) as records:
            yield lambda block: _write_records(records, block)
    else:
        with tf.io.gfile.GFile(path, "wb") as file:
            yield _headed(file.write)


def _write_records(records: tf.io.TFRecordWriter, block: blocks.Block) -> None:
    for record in block.rows:
        records.write(record)


def _headed(write: Callable[[bytes], Any]) -> Write:
    """Writes text, with the header of the first block that holds rows."""
    is_begun = False

    def text(block: blocks.Block) -> None:
        nonlocal is_begun
        if block.rows:
            write(block.rows if is_begun else block.header + block.rows)
            is_begun = True

    return text


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        reason = error.message.rpartition("; ")[2]
        checks.fail("--output", "be a file that can be written", path, f"{reason}.")
