"""Loads one signature of a SavedModel; TensorFlow's loader copies the graph of each that it finds.

served = signatures.load("run/export/latest/1", "raw")
found = served(x=tf.constant(values))
"""

from unittest import mock

import tensorflow as tf
from tensorflow.python.saved_model import load_v1_in_v2

_LOADER = load_v1_in_v2._EagerSavedModelLoader
_extract = _LOADER._extract_signatures


def load(path, name="serving_default"):
    """The function that `tf.saved_model.load(path).signatures[name]` is."""

    def extract(loader, wrapped, meta_graph):
        assert name in meta_graph.signature_def, sorted(meta_graph.signature_def)
        only = tf.compat.v1.MetaGraphDef()
        only.signature_def[name].CopyFrom(meta_graph.signature_def[name])
        return _extract(loader, wrapped, only)

    with mock.patch.object(_LOADER, "_extract_signatures", extract):
        return tf.saved_model.load(str(path)).signatures[name]
