"""Reads and edits the protocol buffers of SavedModels, without loading the models.

with saved_model.edited(path) as meta_graph:
    del meta_graph.signature_def["predict"]
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from mtl import deferred
from mtl.deferred import tf

with deferred.imports():
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

FILE = "saved_model.pb"


def read(directory: str) -> Any:
    """Read the MetaGraphDef of a SavedModel.

    Args:
      directory: the folder that contains saved_model.pb.

    Returns:
      The first MetaGraphDef; changes of this object change no file.
    """
    return _read_proto(directory).meta_graphs[0]


@contextlib.contextmanager
def edited(directory: str) -> Iterator[Any]:
    """Yield the MetaGraphDef of a SavedModel, and write it at the end of the context.

    If code in the context raises an error, the file does not change.

    Args:
      directory: the folder that contains saved_model.pb.
    """
    proto = _read_proto(directory)
    yield proto.meta_graphs[0]
    with tf.io.gfile.GFile(os.path.join(directory, FILE), "wb") as file:
        # The bytes are deterministic, so equal graphs have equal files.
        file.write(proto.SerializeToString(deterministic=True))


def assets(meta_graph: Any) -> dict[str, str]:
    """Return the files that the graph of a SavedModel reads, such as vocabularies.

    Args:
      meta_graph: a MetaGraphDef, as from `read`.

    Returns:
      {name of the constant with the path of a file: name of the file in the SavedModel}.
    """
    definitions = [*meta_graph.asset_file_def]
    collection = meta_graph.collection_def.get(tf.compat.v1.saved_model.ASSETS_KEY)
    for asset in collection.any_list.value if collection else ():
        definitions.append(meta_graph_pb2.AssetFileDef())
        asset.Unpack(definitions[-1])
    return {asset.tensor_info.name.partition(":")[0]: asset.filename for asset in definitions}


def _read_proto(directory: str) -> Any:
    with tf.io.gfile.GFile(os.path.join(directory, FILE), "rb") as file:
        return saved_model_pb2.SavedModel.FromString(file.read())
