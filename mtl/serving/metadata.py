"""Writes and reads the description of a SavedModel, the file `assets.extra/model.json`.

metadata.add_metadata(path, step=500)
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import mtl
from mtl import spec as spec_lib
from mtl import types
from mtl.deferred import tf
from mtl.files import checksums
from mtl.serving import settings
from mtl.spec import literals
from mtl.tf_internals import saved_model

FILE = "model.json"
_FOLDER, _ASSETS, _PORTABLE = "assets.extra", "assets", "portable"
_FIX = "Export it again with launch.export."


def describe_export(
    serving: settings.Serving, spec: spec_lib.Spec, heads: Sequence[types.Head]
) -> dict[str, Any]:
    """Describe a model for clients.

    Args:
      serving: the settings of exports.
      spec: the features of the model.
      heads: the heads of the tasks.

    Returns:
      {"model": name, "inputs": {feature: type, shape and default}, "tasks": {task: head, classes
      and unit}, "passthrough": features, "tensorflow" and "mtl": version}, as JSON values.
    """
    return {
        "model": serving.model_name,
        "inputs": {name: _describe_field(field) for name, field in spec.feature_fields.items()},
        "tasks": {head.name: _describe_task(head, serving.units) for head in heads},
        "passthrough": list(serving.passthrough),
        "tensorflow": tf.__version__,
        "mtl": mtl.__version__,
    }


def _describe_field(field: spec_lib.Field) -> dict[str, Any]:
    entry = {"dtype": field.dtype, "shape": list(field.shape), "required": field.is_required}
    if field.default is None:
        return entry
    # Write NaN as a text, because JSON has no NaN.
    is_nan = isinstance(field.default, float) and math.isnan(field.default)
    return {**entry, "default": literals.NAN if is_nan else field.default}


def _describe_task(head: types.Head, units: Mapping[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"head": type(head).__name__}
    classes = types.read_member(head, types.ClassHead, "class_names")
    if classes:
        entry["classes"] = list(classes)
    return {**entry, "unit": units[head.name]} if head.name in units else entry


def read_metadata(directory: str) -> dict[str, Any]:
    """Return the description of a SavedModel; {} if there is none.

    Raises:
      UserError: the file model.json has changed since the export.
    """
    path = os.path.join(directory, _FOLDER, FILE)
    return checksums.read_json(path, _FIX) if tf.io.gfile.exists(path) else {}


def list_files(directory: str) -> dict[str, str]:
    """Compute the checksums of the graphs and the vocabularies of an export.

    Args:
      directory: the folder of the SavedModel.

    Returns:
      {file, relative to `directory`: checksum}, for the graph, and for all files in the folders
      `assets` and `portable`.
    """
    # Leave out variables, for which TensorFlow itself writes and checks checksums.
    paths = [saved_model.FILE]
    for name in (_ASSETS, _PORTABLE):
        for folder, _, files in tf.io.gfile.walk(os.path.join(directory, name)):
            paths += [os.path.relpath(os.path.join(folder, file), directory) for file in files]
    return {path: checksums.of_file(os.path.join(directory, path)) for path in sorted(paths)}


def require_intact(directory: str) -> None:
    """Fail if a file of a SavedModel has changed since it was written.

    TensorFlow checks only variables, and an optimised export has no variables.

    Raises:
      UserError: a file with a recorded checksum is missing or has changed.
    """
    metadata = read_metadata(directory)
    # Exports of earlier versions of mtl have only the checksums of vocabularies.
    vocabularies = metadata.get("assets", {}).items()
    assets = {os.path.join(_ASSETS, name): checksum for name, checksum in vocabularies}
    for path, checksum in {**assets, **metadata.get("files", {})}.items():
        checksums.require(os.path.join(directory, path), checksum, _FIX)


def spec_of(directory: str) -> spec_lib.Spec | None:
    """Return the features that a SavedModel takes as input.

    Args:
      directory: the folder of the SavedModel.

    Returns:
      A specification without labels; None if the SavedModel has no description.

    Raises:
      UserError: the file model.json has changed since the export.
    """
    fields = read_metadata(directory).get("inputs")
    return fields and spec_lib.Spec(
        features={name: (field["dtype"], tuple(field["shape"])) for name, field in fields.items()},
        labels={},
        defaults={name: field["default"] for name, field in fields.items() if "default" in field},
    )


def add_metadata(directory: str, **facts: Any) -> None:
    """Add entries to the description of a SavedModel.

    Args:
      directory: the folder of the SavedModel.
      **facts: JSON values; they replace existing entries of the same names.

    Raises:
      UserError: the file model.json has changed since it was written.
    """
    description = {**read_metadata(directory), **facts}
    tf.io.gfile.makedirs(os.path.join(directory, _FOLDER))
    checksums.write_json(os.path.join(directory, _FOLDER, FILE), description)
