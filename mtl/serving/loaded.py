"""Loads a SavedModel from its files like a server, and calls its signatures.

with loaded.load_export(path) as model:
    model(["sign", "sign/classify"], examples)           # {(signature, output): array}
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl.deferred import tf, tf1
from mtl.serving import rows


class Loaded:
    """Calls the signatures of a SavedModel in a session.

    Args:
      session: an open session with the restored variables.
      meta_graph: the MetaGraphDef of the SavedModel.
    """

    def __init__(self, session: tf.compat.v1.Session, meta_graph: Any):
        self.session, self.meta_graph = session, meta_graph

    @property
    def signatures(self) -> Mapping[str, Any]:
        """{name: SignatureDef}."""
        return self.meta_graph.signature_def

    def __call__(
        self, names: Sequence[str], given: Mapping[str, Any] | Sequence[bytes]
    ) -> dict[tuple[str, str], np.ndarray]:
        """Call several signatures with the same inputs.

        Args:
          names: the names of the signatures to call.
          given: {input: value}, in which inputs with a default may be missing; or a list of
            serialized tf.Examples.

        Returns:
          {(signature, output): value}.
        """
        feed: dict[str, Any] = {}
        tensors: dict[tuple[str, str], str] = {}
        for name in names:
            signature = self.signatures[name]
            values = {key: tf.make_ndarray(value) for key, value in signature.defaults.items()}
            values |= (
                given if isinstance(given, Mapping) else dict.fromkeys(signature.inputs, given)
            )
            feed |= {signature.inputs[key].name: value for key, value in values.items()}
            tensors |= {(name, key): info.name for key, info in signature.outputs.items()}
        # Fetch every tensor once, because signatures share outputs, and each fetch takes time.
        values = self.session.run({tensor: tensor for tensor in tensors.values()}, feed)
        return {output: values[tensor] for output, tensor in tensors.items()}


@contextlib.contextmanager
def load_export(directory: str) -> Iterator[Loaded]:
    """Load a SavedModel into a separate graph and session; close the session at the end.

    Args:
      directory: the folder of the SavedModel.

    Yields:
      The signatures. Within the context, the graph of the SavedModel is the default graph.
    """
    model = open_export(directory)
    with model.session.graph.as_default(), model.session:
        yield model


def open_export(directory: str) -> Loaded:
    """Load a SavedModel into a separate graph and session; the caller closes the session.

    Args:
      directory: the folder of the SavedModel.

    Returns:
      A `Loaded`, which calls the signatures of the SavedModel; its attribute `session` is the
      session.
    """
    graph, config = tf.Graph(), rows.on_cpu()
    # Give this session separate threads. With shared threads, training steps that call this model
    # could occupy all threads, and wait for ever for a thread that runs the model.
    config.use_per_session_threads = True
    session = tf1.Session(graph=graph, config=config)
    with graph.as_default():
        return Loaded(session, tf1.saved_model.load(session, ["serve"], directory))
