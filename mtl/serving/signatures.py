"""The signatures of an export, by name.

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
    """Return a `model_fn` that gives predictions the export outputs in `serving`.

    Args:
      model_fn: builds the graph from features, labels and a mode.
      serving: the settings; other modes than PREDICT stay as they are.
    """

    def chosen(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
        spec = model_fn(features, labels, mode)
        if mode != compat.estimator.ModeKeys.PREDICT:
            return spec
        predict = compat.estimator.export.PredictOutput
        # A copy: a server cannot fetch a tensor that it feeds.
        passed = {name: tf.identity(features[name]) for name in serving.passthrough}
        outputs = dict(spec.export_outputs)
        if serving.outputs:
            for name in serving.outputs:
                checks.one_of("Serving.outputs", name, spec.predictions)
            outputs[settings.LEAN] = predict({n: spec.predictions[n] for n in serving.outputs})
        for name, output in outputs.items():
            if isinstance(output, predict):
                _require_free(name, passed, output.outputs)
                outputs[name] = predict({**output.outputs, **passed})
        return spec._replace(export_outputs=outputs)

    return chosen


def _require_free(signature: str, passed: Iterable[str], outputs: Mapping[str, Any]) -> None:
    """Fail if a feature would replace a prediction."""
    for name in passed:
        rule = f"be called as no output of the signature {signature!r}"
        fix = "Give the feature another name."
        checks.require(name not in outputs, "Serving.passthrough", rule, name, fix)


def finish_signatures(
    directory: str, serving: settings.Serving, spec: spec_lib.Spec
) -> dict[str, str]:
    """Set the final names and defaults in Estimator's export, and remove paths of this machine.

    Returns:
      {asset: the path it was copied from}.
    """
    defaults = {
        name: tf.make_tensor_proto(value, shape=value.shape)
        for name, value in inputs.raw_defaults(spec).items()
    }
    with saved_model.edited(directory) as meta_graph:
        written = _take_signatures(meta_graph)
        # Clients that name no signature get this one, so it always exists.
        if not serving.chooses(settings.DEFAULT):
            written[settings.DEFAULT] = written.get(settings.LEAN, written[settings.DEFAULT])
        for name in filter(lambda n: n == settings.DEFAULT or serving.chooses(n), written):
            signature = meta_graph.signature_def[name]
            signature.MergeFromString(written[name])
            for key, value in defaults.items() if is_raw(name) else ():
                signature.defaults[key].CopyFrom(value)
        return forget_paths(meta_graph)


def forget_paths(meta_graph: Any) -> dict[str, str]:
    """Remove paths of this machine from a graph, and return {asset: the path it came from}."""
    sources = _forget_asset_paths(meta_graph)
    _forget_source_paths(meta_graph)
    return sources


def _take_signatures(meta_graph: Any) -> dict[str, bytes]:
    """Remove the signatures from the graph, and return them by their final names."""
    items = [(_final_name(name), own) for name, own in meta_graph.signature_def.items()]
    written = {
        name: signature.SerializeToString()
        for name, signature in items
        # Estimator treats a single feature that is text as serialized tf.Examples.
        if not is_raw(name) or signature.method_name == tf.saved_model.PREDICT_METHOD_NAME
    }
    meta_graph.signature_def.clear()
    return written


def _final_name(written: str) -> str:
    """Return `raw:serving_default` -> `raw`, `raw:<task>` -> `raw/<task>`.

    Other names stay.
    """
    prefix, colon, name = written.partition(":")
    if not colon:
        return written
    return prefix if name == settings.DEFAULT else f"{prefix}/{name}"


def is_raw(name: str) -> bool:
    """Return whether a signature takes features as tensors."""
    return name.split("/")[0] == settings.RAW


def _forget_asset_paths(meta_graph: Any) -> dict[str, str]:
    """Remove old paths from constants and tables, and return {asset: path}.

    Loaders feed assets by their names.
    """
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    names = {}
    for constant, name in saved_model.assets(meta_graph).items():
        path = nodes[constant].attr["value"].tensor.string_val
        names[path[0]] = name.encode()
        path[0] = name.encode()
    for node in nodes.values():
        for old, new in names.items():
            if "shared_name" in node.attr:  # Asking for it would create it.
                node.attr["shared_name"].s = node.attr["shared_name"].s.replace(old, new)
    return {name.decode(): path.decode() for path, name in names.items()}


def _forget_source_paths(meta_graph: Any) -> None:
    """Remove the paths that tables load initial values from: a served model holds its values."""
    nodes = {node.name: node for node in meta_graph.graph_def.node}
    for node in nodes.values():
        path = nodes[node.input[0].partition(":")[0]] if node.op == "RestoreV2" else None
        if path is not None and path.op == "Const":  # A saver feeds its path.
            (prefix,) = path.attr["value"].tensor.string_val
            path.attr["value"].tensor.string_val[0] = os.path.basename(prefix)
