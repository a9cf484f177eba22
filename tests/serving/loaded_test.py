"""A call fetches a tensor once, even if several signatures share it."""

import numpy as np
import tensorflow as tf

from mtl.serving import loaded


class Session:
    """Answers each fetch by its name, and notes what was fetched."""

    def run(self, fetches, feed):
        """Return {key: tensor}."""
        self.fetched, self.fed = list(fetches.values()), feed
        return {key: np.array(tensor) for key, tensor in fetches.items()}


def test_a_tensor_of_several_signatures_is_fetched_once():
    meta_graph, session = tf.compat.v1.MetaGraphDef(), Session()
    for name, outputs in {"a": {"x": "p:0"}, "all": {"a/x": "p:0", "b/x": "q:0"}}.items():
        signature = meta_graph.signature_def[name]
        signature.inputs["examples"].name = "examples:0"
        for key, tensor in outputs.items():
            signature.outputs[key].name = tensor
    found = loaded.Loaded(session, meta_graph)(["a", "all"], [b"row"])
    assert found == {("a", "x"): "p:0", ("all", "a/x"): "p:0", ("all", "b/x"): "q:0"}
    assert sorted(session.fetched) == ["p:0", "q:0"]
    assert session.fed == {"examples:0": [b"row"]}
