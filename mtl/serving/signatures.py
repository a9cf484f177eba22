"""The signatures of an export.

serving_default            tf.Examples -> every prediction of every task, "<task>/<name>"
lean                       tf.Examples -> the predictions in `Serving.outputs`
<task>                     tf.Examples -> the task's predictions, "<name>"
<task>/classify            tf.Examples -> scores and classes, for the Classify call
<task>/regress             tf.Examples -> outputs, for the Regress call
raw, raw/lean, raw/<task>  the same predictions for features as tensors
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mtl import checks
from mtl import spec as spec_lib
from mtl.deferred import compat, tf
from mtl.serving import inputs, settings
from mtl.tf_internals import saved_model


def add_signatures(model_fn: Callable[..., Any], serving: settings.Serving) -> Callable[..., Any]:
    """Return a `model_fn` with the signature "lean" and the features of `Serving.passthrough`.

    Args:
      model_fn: builds the graph from features, labels and a mode.
      serving: the settings of exports.
    """

    def build(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
        spec = model_fn(features, labels, mode)
        if mode != compat.estimator.ModeKeys.PREDICT:
            return spec
        predict = compat.estimator.export.PredictOutput
        # Copy the features, because a server cannot fetch a tensor that it feeds.
        copies = {name: tf.identity(features[name]) for name in serving.passthrough}
        outputs = dict(spec.export_outputs)
        if serving.outputs:
            for name in serving.outputs:
                checks.one_of("Serving.outputs", name, spec.predictions)
            outputs[settings.LEAN] = predict({n: spec.predictions[n] for n in serving.outputs})
        for name, output in outputs.items():
            if isinstance(output, predict):
                _require_free(name, copies, output.outputs)
                outputs[name] = predict({**output.outputs, **copies})
        return spec._replace(export_outputs=outputs)

    return build


def _require_free(signature: str, names: Iterable[str], outputs: Mapping[str, Any]) -> None:
    """Fail if a passed-through feature has the name of a prediction."""
    for name in names:
        rule = f"have another name than the outputs of the signature {signature!r}"
        fix = "Give the feature another name."
        checks.require(name not in outputs, "Serving.passthrough", rule, name, fix)


def finish_signatures(
    directory: str, serving: settings.Serving, spec: spec_lib.Spec
) -> dict[str, str]:
    """Set final names and defaults in a SavedModel of Estimator, and remove paths of this machine.

    Args:
      directory: the folder of the SavedModel.
      serving: the settings of exports.
      spec: the features of the model.

    Returns:
      {asset: the path from which it was copied}.
    """
    defaults = {
        name: tf.make_tensor_proto(value, shape=value.shape)
        for name, value in inputs.raw_defaults(spec).items()
    }
    with saved_model.edited(directory) as meta_graph:
        texts = _take_signatures(meta_graph)
        # Always write the default signature, for clients that name no signature.
        if not serving.chooses(settings.DEFAULT):
            texts[settings.DEFAULT] = texts.get(settings.LEAN, texts[settings.DEFAULT])
        for name in filter(lambda n: n == settings.DEFAULT or serving.chooses(n), texts):
            signature = meta_graph.signature_def[name]
            signature.MergeFromString(texts[name])
            for key, value in defaults.items() if is_raw(name) else ():
                signature.defaults[key].CopyFrom(value)
        return forget_paths(meta_graph)


def forget_paths(meta_graph: Any) -> dict[str, str]:
    """Remove paths of this machine from a graph.

    Args:
      meta_graph: the MetaGraphDef of a SavedModel, which this function changes.

    Returns:
      {asset: the path of its source file}.
    """
    sources = _forget_asset_paths(meta_graph)
    _forget_source_paths(meta_graph)
    return sources


def _take_signatures(meta_graph: Any) -> dict[str, bytes]:
    """Remove the signatures from a graph; return {final name: the serialized signature}."""
    items = [(_final_name(name), value) for name, value in meta_graph.signature_def.items()]
    texts = {
        name: signature.SerializeToString()
        for name, signature in items
        # Leave out signatures with which Estimator treats a single text feature as tf.Examples.
        if not is_raw(name) or signature.method_name == tf.saved_model.PREDICT_METHOD_NAME
    }
    meta_graph.signature_def.clear()
    return texts


def _final_name(estimator_name: str) -> str:
    """Return the final name of a signature, from the name that Estimator gives it.

    `raw:serving_default` becomes `raw`, and `raw:<task>` becomes `raw/<task>`; other names stay.
    """
    prefix, colon, name = estimator_name.partition(":")
    if not colon:
        return estimator_name
    return prefix if name == settings.DEFAULT else f"{prefix}/{name}"


def is_raw(name: str) -> bool:
    """Return True if a signature takes features as tensors instead of tf.Examples."""
    return name.split("/")[0] == settings.RAW


def _forget_asset_paths(meta_graph: Any) -> dict[str, str]:
    """Remove the paths of assets from constants and tables, and return {asset: path}.

    When a SavedModel is loaded, TensorFlow finds each asset by its name, and feeds its new path to
    the graph.
    """
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    names = {}
    for constant, name in saved_model.assets(meta_graph).items():
        path = nodes[constant].attr["value"].tensor.string_val
        names[path[0]] = name.encode()
        path[0] = name.encode()
    for node in nodes.values():
        for old, new in names.items():
            if "shared_name" in node.attr:  # `node.attr[...]` would create the attribute.
                node.attr["shared_name"].s = node.attr["shared_name"].s.replace(old, new)
    return {name.decode(): path.decode() for path, name in names.items()}


def _forget_source_paths(meta_graph: Any) -> None:
    """Cut the folders from the paths of warm-start files, which a SavedModel never reads."""
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    for node in nodes.values():
        path = nodes[node.input[0].partition(":")[0]] if node.op == "RestoreV2" else None
        if path is not None and path.op == "Const":  # A saver gets its path as an input.
            (prefix,) = path.attr["value"].tensor.string_val
            path.attr["value"].tensor.string_val[0] = os.path.basename(prefix)
