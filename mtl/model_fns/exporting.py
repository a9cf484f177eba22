"""Exports any Estimator; the export is published only if it predicts like the Estimator.

path = model_fns.export(estimator, "models/clicks", spec, make_dataset)
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from mtl import checks, deferred, serving
from mtl import spec as spec_lib
from mtl.checkpoints import mismatch, run_directory
from mtl.deferred import compat, tf

with deferred.imports():
    from mtl.tools.runtimes import added

_log = logging.getLogger(__name__)

_DEFAULTS = serving.Serving()


def export(
    estimator: compat.estimator.Estimator,
    folder: str,
    spec: spec_lib.Spec,
    make_dataset: Callable[[], tf.data.Dataset],
    settings: serving.Serving = _DEFAULTS,
    checkpoint: str = "latest",
) -> str:
    """Publish a checkpoint of an Estimator as a SavedModel, `folder/<version>`.

    Before an export is published, a check loads the SavedModel from its files. The export must
    predict the rows of `make_dataset` like the Estimator, from tf.Examples and from tensors;
    docs/serving.md lists all checks. An output in `export_outputs` of the `model_fn` is compared
    with the prediction `<output>` or `<signature>/<output>`.

    Args:
      estimator: an Estimator that predicts {name: [B, ...]} from {feature: [B, ...]}.
      folder: the folder of all versions.
      spec: the fields that clients send to the server.
      make_dataset: a function that returns a dataset of batches {feature: [B, ...]}, on which the
        export is checked.
      settings: the settings of the export.
      checkpoint: "latest" for the last checkpoint of the Estimator, or a path.

    Returns:
      The path of the new version.

    Raises:
      RefusedError: the export predicts other values than the Estimator, so nothing is published.
      UserError: an argument is wrong, the checkpoint is missing or does not fit the graph, or an
        output cannot be compared.
    """
    checks.is_a("export: estimator", estimator, compat.estimator_v1.Estimator, "be an Estimator")
    checks.is_a("export: folder", folder, (str, os.PathLike), "be a path")
    folder = os.fspath(folder)
    checks.is_a("export: spec", spec, spec_lib.Spec, "be a spec.Spec")
    _require_features(make_dataset, spec)
    path = run_directory.checkpoint_path(estimator.model_dir, checkpoint)
    run_directory.require_writable("export: folder", folder)
    plain_model_fn = functools.partial(estimator.model_fn, config=estimator.config)
    model_fn = serving.add_signatures(_require_comparable(plain_model_fn), settings)
    model_fn = mismatch.refuse_mismatch(model_fn, path)
    exported = compat.estimator.Estimator(model_fn, config=estimator.config)
    add_files = added.choose_files(settings)
    read_rows = functools.partial(serving.read_rows, make_dataset, spec)
    exporter = serving.Exporter(
        settings, spec, (), read_rows, estimator.model_dir, add_files=add_files
    )
    return exporter(exported, folder, path)


def _require_features(make_dataset: Callable[[], tf.data.Dataset], spec: spec_lib.Spec) -> None:
    """Raise a UserError unless a function returns a dataset {feature: ...} without labels."""
    where, rule = "export: make_dataset", "return a tf.data.Dataset of {feature: [B, ...]}"
    checks.require(callable(make_dataset), where, f"{rule}, as a function", make_dataset)
    with tf.Graph().as_default():
        dataset = make_dataset()
        checks.is_a(where, dataset, tf.data.Dataset, rule)
        element = dataset.element_spec
    fix = "Leave out the labels: dataset.map(lambda features, labels: features)."
    checks.require(isinstance(element, dict), where, rule, element, fix)
    rule = f"return the features of the spec, {', '.join(sorted(spec.features))}"
    checks.require(element.keys() == spec.features.keys(), where, rule, sorted(element))
    for name, field in spec.feature_fields.items():
        given, wanted = getattr(element[name], "dtype", None), tf.as_dtype(field.dtype)
        # The checks convert rows to the types of the spec; this conversion must not change values.
        fits = given is None or _group_type(given) == _group_type(wanted)
        fits |= given is not None and given.is_integer and wanted.is_floating
        checks.require(fits, f"{where}: {name!r}", f"be {wanted.name}, as in the spec", given)


def _group_type(dtype: tf.DType) -> str:
    """Return a name that types share if they hold the same values, up to their range."""
    if dtype.is_integer or dtype.is_bool:
        return "integer"
    return "float" if dtype.is_floating else dtype.name


def _require_comparable(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `model_fn` that raises a UserError if an output of its export cannot be compared."""

    def build_and_check(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
        spec = model_fn(features, labels, mode)
        if mode == compat.estimator.ModeKeys.PREDICT:
            where = "export: the predictions of the model_fn"
            checks.is_a(where, spec.predictions, Mapping, "be {name: tensor}")
            predictions = {
                text: value
                for name, value in spec.predictions.items()
                for text in _list_names(name)
            }
            spec = spec._replace(predictions=predictions)
            _check_outputs(spec.export_outputs, predictions)
            for name, value in predictions.items():
                is_of_rows = value.shape.rank != 0
                checks.require(is_of_rows, f"{where}: {name!r}", "have a value for each row", value)
        return spec

    return build_and_check


def _list_names(name: Any) -> list[str]:
    """Return the names that a prediction may have in signatures.

    `tf.estimator.MultiHead` names a prediction by a head and an output. The signature `predict` of
    a `MultiHead` has the output "<head>/<output>", and the signature `<head>/predict` has the
    output "<output>".
    """
    if not isinstance(name, tuple):
        return [name]
    head, output = name
    return [f"{head}/{output}", f"{head}/predict/{output}"]


def _check_outputs(signatures: Mapping[str, Any], predictions: Mapping[str, tf.Tensor]) -> None:
    predict = compat.estimator.export.PredictOutput
    for name, output in signatures.items():
        if not isinstance(output, predict):
            _log.warning("Signature %r is not compared: its outputs have other names.", name)
            continue
        for key in output.outputs:
            if f"{name}/{key}" not in predictions:
                where = f"export: output {key!r} of signature {name!r}"
                names = list(predictions)
                fix = f"The predictions are {names}."
                checks.require(key in names, where, "have the name of a prediction", key, fix)
