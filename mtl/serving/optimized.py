"""Rewrites exports for speed and size: variables become constants, weights get fewer bits.

serving.Serving.optimized = @serving.Optimized()
serving.Optimized.weights = "int8"
"""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.files import storage
from mtl.serving import dead_units, folding, graphs, loaded, weights
from mtl.tf_internals import saved_model

# Rounding changes a float32 weight by up to 6e-8 of its value, a float16 weight by up to 5e-4, and
# an int8 weight by up to 4e-3 of the largest weight in the channel. The errors of many weights add
# up in an output, so outputs get larger tolerances.
_TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "int8": 0.1}
# A protocol buffer holds less than 2 GiB, of which 1 MiB is reserved for the nodes of the graph.
_MAX_BYTES = 2**31 - 2**20
# The collections of initialisers; the second is `tf.compat.v1.saved_model.LEGACY_INIT_OP_KEY`.
_INITIALISERS = ("saved_model_main_op", "legacy_init_op")


@checks.dataclass
class Optimized:
    """Rewrites an export for speed: turns variables into constants, and computes constant ops once.

    The export leaves out units that add nothing after pruning (`mtl.serving.dead_units`), and nodes
    that no output of a signature needs; see `Serving.signatures`. A server needs less memory to
    load the export, but a warm start cannot read variables from the export.

    Attributes:
      weights: the format of stored weights: "float32"; "float16", with half the size; or "int8",
        with a quarter of the size and a step size for each channel. Ops compute in float32.
      tolerance: the largest difference from the outputs of the Estimator, relative for outputs
        above 1; None for 1e-5 with float32, 0.01 with float16 and 0.1 with int8. With float16 and
        int8, the check compares only numbers, because a class may change on a tie.
    """

    weights: Annotated[str, checks.OneOf(weights.KINDS)] = "float32"
    tolerance: checks.Positive | None = None

    @property
    def keeps_graph(self) -> bool:
        return False

    @property
    def allowed(self) -> float:
        """The largest allowed difference of an output from the prediction of the Estimator."""
        return _TOLERANCES[self.weights] if self.tolerance is None else self.tolerance

    def __call__(self, directory: str) -> None:
        """Rewrite the SavedModel in `directory`.

        Raises:
          UserError: the weights do not fit into a graph file of 2 GB.
        """
        fix = "Leave Serving.optimized out: variables then get a separate file."
        rule, size = f"have weights of less than {_MAX_BYTES} bytes", _count_bytes(directory)
        checks.require(size < _MAX_BYTES, "an optimised export", rule, size, fix)
        with loaded.load_export(directory) as model:
            names = _find_needed(model.meta_graph)
            graph = folding.fold_graph(model.session, names)
        graph = dead_units.remove_units(graph, names)
        if self.weights != "float32":
            weights.pack_weights(graph, self.weights)
        _replace_graph(directory, graph.pruned(names))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AsTrained:
    """Writes exports with the trained graph: with variables and, after pruning, with all units."""

    @property
    def keeps_graph(self) -> bool:
        return True

    @property
    def allowed(self) -> float:
        """The largest allowed difference of an output from the prediction of the Estimator."""
        return _TOLERANCES["float32"]

    def __call__(self, directory: str) -> None:
        """Leave the SavedModel in `directory` unchanged."""


def _count_bytes(directory: str) -> int:
    files = storage.listed(os.path.join(directory, "variables"))
    return sum(tf.io.gfile.stat(file).length for file in files)


def _find_needed(meta_graph: tf.compat.v1.MetaGraphDef) -> set[str]:
    """Return the names of all input and output nodes, and of nodes that fill lookup tables."""
    infos = [
        info
        for signature in meta_graph.signature_def.values()
        for info in (*signature.outputs.values(), *signature.inputs.values())
    ]
    ops = [name for key in _INITIALISERS for name in meta_graph.collection_def[key].node_list.value]
    return {graphs.name_of(name) for name in (*(info.name for info in infos), *ops)}


def _replace_graph(directory: str, graph_def: tf.compat.v1.GraphDef) -> None:
    kept_keys = (*_INITIALISERS, tf1.saved_model.ASSETS_KEY)
    with saved_model.edited(directory) as meta_graph:
        meta_graph.graph_def.CopyFrom(graph_def)
        # Remove the definition of the saver, whose ops were removed together with the variables.
        meta_graph.ClearField("saver_def")
        for name in set(meta_graph.collection_def) - set(kept_keys):
            del meta_graph.collection_def[name]
    tf.io.gfile.rmtree(os.path.join(directory, "variables"))
