"""Reads vocabulary files with one token per line, and creates lookup tables in the graph.

size = len(vocabulary.read_file("Categorical.vocabulary", "jobs.txt"))
ids = vocabulary.create_table("jobs.txt", num_unknown=1).lookup(tokens)
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Hashable
from typing import Any

from mtl import checks
from mtl.deferred import tf
from mtl.tf_internals import graphs
from mtl.variables import row_names


def read_file(where: str, path: str) -> list[bytes]:
    """Read the tokens of a file with one token per line, like TensorFlow's lookup tables.

    Args:
      where: the setting that names the file, used in error messages.
      path: the path of the file with the tokens.

    Raises:
      UserError: the file does not exist, begins with a byte order mark, or has an empty or repeated
        line.
    """
    exists = tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)
    checks.require(exists, where, "be an existing file", path)
    with tf.io.gfile.GFile(path, "rb") as file:
        lines = row_names.split_lines(file.read())
    # Lookup tables would read a byte order mark as part of the first token.
    has_mark = bool(lines) and lines[0].startswith(codecs.BOM_UTF8)
    rule, fix = "be a file without a byte order mark", "Save it as UTF-8 without BOM."
    checks.require(not has_mark, where, rule, path, fix)
    is_valid = lines and all(lines) and len(set(lines)) == len(lines)
    rule = "be a file with one category a line, none empty and none twice"
    checks.require(bool(is_valid), where, rule, path)
    return lines


def create_table(
    entries: tuple[str, ...] | str, num_unknown: int
) -> tf.lookup.StaticHashTable | tf.lookup.StaticVocabularyTable:
    """Create the lookup table of a vocabulary, only once in each graph.

    The table maps each token of the vocabulary to the index of the token. A hash maps each other
    token to one of `num_unknown` ids that follow the indices of the vocabulary.

    Args:
      entries: the tokens, or the path of a file with one token per line.
      num_unknown: the number of ids for tokens that the vocabulary lacks, at least 1.
    """

    def create() -> tf.lookup.StaticHashTable | tf.lookup.StaticVocabularyTable:
        if num_unknown == 1:  # A single id for unknown tokens needs no hash.
            return tf.lookup.StaticHashTable(_make_initializer(entries), _count_entries(entries))
        return tf.lookup.StaticVocabularyTable(_make_initializer(entries), num_unknown)

    return make_once((entries, num_unknown), create)


def make_once(key: Hashable, make: Callable[[], Any]) -> Any:
    """Return the result of `make`, which runs only once for each key in a graph.

    Args:
      key: a hashable value that identifies the result.
      make: builds tensors or tables, which must not depend on a loop or a branch.
    """
    if tf.executing_eagerly():
        return make()
    # The key of this collection is not a string, so saved graphs leave out the collection.
    results = graphs.outermost_graph().get_collection_ref((key,))
    if not results:
        # Create tables in the outermost graph, in which the session initialises tables once.
        with tf.init_scope():
            results.append(make())
    return results[0]


def _count_entries(entries: tuple[str, ...] | str) -> int:
    if isinstance(entries, tuple):
        return len(entries)
    with tf.io.gfile.GFile(entries, "rb") as file:
        return len(row_names.split_lines(file.read()))


def _make_initializer(entries: tuple[str, ...] | str) -> Any:
    if isinstance(entries, tuple):
        ids = list(range(len(entries)))
        return tf.lookup.KeyValueTensorInitializer(list(entries), ids, tf.string, tf.int64)
    index = tf.lookup.TextFileIndex
    return tf.lookup.TextFileInitializer(
        entries, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
