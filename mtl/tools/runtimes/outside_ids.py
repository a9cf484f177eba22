"""Removes lookups of texts from a graph, whose inputs become ids that a client computes.

outside_ids.take_lookups(graph, inputs, tables)
# {"job/categorical_job": Placed(node, lookup, "job", kind, ...)}
outside_ids.list_obstacles(graph_def)    # {"RaggedCross": ["crossed_a_x_b"]}

A lookup such as `table[text]` treats each value separately, and the operations between an input and
its lookup only move values: these operations select, reshape or mask values. The operations that
move texts can therefore also move ids. For each lookup, this module copies the operations between
the input and the lookup, and connects the copies to a placeholder of ids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtl.deferred import tf
from mtl.serving import graphs
from mtl.tools.runtimes.encoders import encoder

_FIND, _HASH, _SIZE = "LookupTableFindV2", "StringToHashBucketFast", "LookupTableSizeV2"
# Operations that turn an integer into its digits, value by value.
_TO_DIGITS = ("AsString", "Cast", "Identity")
# {operation that moves the values of its first input: attribute with the type of the values}.
_MOVES = {
    "EnsureShape": "T",
    "ExpandDims": "T",
    "GatherNd": "Tparams",
    "GatherV2": "Tparams",
    "Identity": "T",
    "Reshape": "T",
    "Slice": "T",
    "Squeeze": "T",
    "StridedSlice": "T",
    "Tile": "T",
}
_SHAPES = ("Shape", "Size", "Rank")
_INTEGERS = ("int64", "int32", "uint8", "bool")
_OBSTACLE = re.compile(
    r"AsString|String\w+|StaticRegex\w+|Regex\w+|Unicode\w+|LookupTable\w+|RaggedCross|Substr"
    r"|ReduceJoin|UnsortedSegmentJoin|(Sparse)?Fingerprint|Parse(Single)?Example\w*|DecodeRaw"
)
_STRING = 7  # The code of the type "string" (DT_STRING) in a graph.
_COLUMN = re.compile(r"(?:^|/)features(?:_\d+)?/([^/]+)/")


class Table(NamedTuple):
    """The contents of a lookup table.

    Attributes:
      keys: the N keys, [N].
      values: the values of the N keys, [N]; they are in ascending order.
    """

    keys: np.ndarray
    values: np.ndarray

    @property
    def is_vocabulary(self) -> bool:
        """True if the keys are texts, and the values are 0, 1, 2 and so on."""
        numbered = self.values.dtype == np.int64 and self.keys.dtype == object
        return numbered and np.array_equal(self.values, np.arange(len(self.values)))


class Placed(NamedTuple):
    """A placeholder for ids, which replaces a lookup of texts in a graph.

    Attributes:
      node: the name of the placeholder in the graph.
      lookup: the name of the node of the replaced lookup.
      field: the name of the feature that the ids encode.
      kind: `encoder.VOCABULARY` or `encoder.HASH`.
      size: the number of categories in the vocabulary, or the number of hash buckets.
      unknown: the number of ids for texts that are not in the vocabulary.
      table: the name of the node of the vocabulary's table; "" if a hash computes the ids.
    """

    node: str
    lookup: str
    field: str
    kind: str
    size: int
    unknown: int = 0
    table: str = ""


class _Lookup(NamedTuple):
    """A lookup of texts in a graph.

    Attributes:
      node: the name of the node that computes the ids.
      tokens: the reference to the tensor with the texts.
      kind, size, unknown, table: as in `Placed`.
    """

    node: str
    tokens: str
    kind: str
    size: int
    unknown: int = 0
    table: str = ""


def take_lookups(
    graph: graphs.Graph,
    inputs: Mapping[str, str],
    tables: Mapping[str, Table],
    without: Collection[str] = (),
) -> dict[str, Placed]:
    """Replace lookups by placeholders of ids if the texts come directly from inputs.

    Args:
      graph: the graph, whose variables are constants. The graph is rewritten in place.
      inputs: {name of a placeholder: field}.
      tables: {name of a table's node: contents of the table}.
      without: the names of columns whose lookups stay in the graph.

    Returns:
      {"<field>/<column>": placeholder of ids}.
    """
    placeholders: dict[str, Placed] = {}
    copies: dict[tuple[Any, ...], str] = {}
    for lookup in _find_lookups(graph, tables):
        chain = _trace_tokens(graph, lookup.tokens, inputs)
        if chain is None or find_column(lookup.node) in without:
            continue
        source, path = chain[-1], chain[:-1]
        # Two lookups of the same feature share an input if they use the same table, or equally many
        # buckets.
        key = (source, *lookup[2:])
        if key not in copies:
            name = _name_input(inputs[source], lookup.node, placeholders)
            node = _place_input(graph, source, f"ids_{len(placeholders)}")
            placeholders[name] = Placed(node, lookup.node, inputs[source], *lookup[2:])
            copies[key] = node
        ids = _copy_path(graph, path, copies[key], key, copies)
        # The node of the lookup keeps its name, so the nodes that read the ids need no change.
        graph.set(lookup.node, "Identity", [ids], T=tf.int64)
    return placeholders


def find_column(name: str) -> str:
    """Return the name of the column whose scope holds a node; "" for other nodes."""
    match = _COLUMN.search(name)
    return match[1] if match else ""


def list_obstacles(graph_def: tf.compat.v1.GraphDef) -> dict[str, list[str]]:
    """Find the operations on texts or tf.Examples in a graph, which other runtimes may lack.

    Args:
      graph_def: a frozen graph.

    Returns:
      {operation: the columns that use it}. The list of columns is empty if the operation lies
      outside of columns.
    """
    obstacles: dict[str, list[str]] = {}
    for node in graph_def.node:
        is_compared = node.op in ("Equal", "NotEqual") and node.attr["T"].type == _STRING
        if is_compared or _OBSTACLE.fullmatch(node.op):
            columns = obstacles.setdefault(node.op, [])
            columns += {find_column(node.name)} - {"", *columns}
    return obstacles


def _find_lookups(graph: graphs.Graph, tables: Mapping[str, Table]) -> list[_Lookup]:
    """Return the lookups of a graph: first in vocabularies, and then by hashes."""
    lookups, of_unknown, readers = [], set(), graph.readers()
    for node in graph.nodes.values():
        if node.op != _FIND:
            continue
        name, default = graphs.name_of(node.input[0]), graph.value(node.input[2])
        # Skip other tables, because an encoder reads a vocabulary from a file whose lines are
        # numbered.
        if name not in tables or not tables[name].is_vocabulary or default is None:
            continue
        size, choice = len(tables[name].keys), _find_choice(graph, node, readers)
        if choice is not None:
            ids, buckets = choice
            of_unknown.add(buckets.name)
            places = buckets.attr["num_buckets"].i
            lookups.append(_Lookup(ids.name, node.input[1], encoder.VOCABULARY, size, places, name))
        # All unknown texts share the id after the vocabulary.
        elif default == size:
            lookups.append(_Lookup(node.name, node.input[1], encoder.VOCABULARY, size, 1, name))
    for node in graph.nodes.values():
        if node.op == _HASH and node.name not in of_unknown:
            size = node.attr["num_buckets"].i
            lookups.append(_Lookup(node.name, node.input[0], encoder.HASH, size))
    return lookups


def _find_choice(
    graph: graphs.Graph, find: Any, readers: Mapping[str, list[Any]]
) -> tuple[Any, Any] | None:
    """Return the nodes of the ids and of the hash of unknown texts; None without a hash.

    In a graph, a `StaticVocabularyTable` with several ids for unknown texts consists of operations
    that compute where(ids != default, ids, hash + size).
    """
    for node in readers.get(find.name, ()):
        if node.op != "SelectV2" or graphs.name_of(node.input[1]) != find.name:
            continue
        total = graph.nodes[graphs.name_of(node.input[2])]
        parts = [graph.nodes[graphs.name_of(part)] for part in total.input]
        buckets = [part for part in parts if part.op == _HASH]
        if total.op == "AddV2" and buckets and any(part.op == _SIZE for part in parts):
            return node, buckets[0]
    return None


def _trace_tokens(
    graph: graphs.Graph, reference: str, inputs: Mapping[str, str]
) -> list[str] | None:
    """Return the nodes from a tensor back to an input of the graph; None if no input is reached."""
    chain = []
    while True:
        node = graph.nodes.get(graphs.name_of(reference))
        # The path to the input may only use the first output of each node, which holds the moved
        # values.
        if node is None or reference.partition(":")[2] not in ("", "0"):
            return None
        chain.append(node.name)
        if node.name in inputs:
            return chain
        if node.op not in _MOVES and not _gives_digits(node):
            return None
        reference = node.input[0]


def _gives_digits(node: Any) -> bool:
    """Return True if a node keeps integers, or turns integers into texts of digits."""
    if node.op != "Cast":
        return node.op in _TO_DIGITS
    types = (tf.as_dtype(node.attr[key].type).name for key in ("SrcT", "DstT"))
    return all(name in _INTEGERS for name in types)


def _name_input(field: str, node: str, placeholders: Mapping[str, Placed]) -> str:
    name = f"{field}/{find_column(node) or 'ids'}"
    number = 2
    while name in placeholders:
        name, number = f"{field}/{find_column(node) or 'ids'}_{number}", number + 1
    return name


def _place_input(graph: graphs.Graph, source: str, name: str) -> str:
    while name in graph.nodes:
        name += "_"
    shape = graph.nodes[source].attr["shape"]
    return graph.set(name, "Placeholder", [], dtype=tf.int64, shape=shape)


def _copy_path(
    graph: graphs.Graph,
    path: Sequence[str],
    source: str,
    key: tuple[Any, ...],
    copies: dict[tuple[Any, ...], str],
) -> str:
    """Copy nodes that pass texts on, such as Reshape, so that the copies pass ids on.

    Returns:
      The name of the last copied node.
    """
    last_node = source
    for name in reversed(path):
        node = graph.nodes[name]
        if node.op in _MOVES and (key, name) not in copies:
            attributes = {**dict(node.attr), _MOVES[node.op]: tf.int64}
            copy_name = f"{name}/{source}"
            graph.set(copy_name, node.op, [last_node, *node.input[1:]], **attributes)
            copies[key, name] = copy_name
        last_node = copies.get((key, name), last_node)
        # Texts and ids have the same shape, so shapes can be read from ids.
        copies.setdefault(("shape", name), last_node)
    copies.setdefault(("shape", key[0]), source)
    _read_shapes(graph, {name: copies["shape", name] for name in (*path, key[0])})
    return last_node


def _read_shapes(graph: graphs.Graph, copies: Mapping[str, str]) -> None:
    """Let operations that only need the shape of values read the shape of ids instead."""
    for node in list(graph.nodes.values()):
        if node.op in _SHAPES and graphs.name_of(node.input[0]) in copies:
            ids = copies[graphs.name_of(node.input[0])]
            graph.set(node.name, node.op, [ids], **{**dict(node.attr), "T": tf.int64})


def read_tables(
    session: tf.compat.v1.Session, graph_def: tf.compat.v1.GraphDef
) -> dict[str, Table]:
    """Return the contents of the hash tables of a session.

    Args:
      session: a session with initialised tables.
      graph_def: the graph of the session.

    Returns:
      {name of a table's node: contents, sorted by value}.
    """
    tables = {}
    for node in graph_def.node:
        if node.op != "HashTableV2":
            continue
        handle = session.graph.get_tensor_by_name(f"{node.name}:0")
        keys, values = (tf.as_dtype(node.attr[key].type) for key in ("key_dtype", "value_dtype"))
        with session.graph.as_default():
            pairs = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=keys, Tvalues=values)
        read_keys, read_values = session.run([pairs.keys, pairs.values])
        # Sort the pairs, because a hash table exports pairs in any order, but ids are the numbers
        # of lines in a vocabulary.
        order = np.argsort(read_values, kind="stable")
        tables[node.name] = Table(read_keys[order], read_values[order])
    return tables


def fill_tables(graph: tf.Graph, tables: Mapping[str, Table]) -> tf.Operation:
    """Return a new operation that fills the hash tables of a graph, which is the default graph.

    Args:
      graph: the graph, which may have only some of the tables.
      tables: {name of a table's node: contents}. Tables that the graph lacks are skipped.
    """
    fills = []
    for name, table in tables.items():
        if name in {operation.name for operation in graph.get_operations()}:
            handle = graph.get_tensor_by_name(f"{name}:0")
            fills.append(
                tf.raw_ops.LookupTableImportV2(
                    table_handle=handle, keys=table.keys, values=table.values
                )
            )
    return tf.group(*fills)
