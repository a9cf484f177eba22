"""Restores `tf.estimator`, and the names in TensorFlow that tensorflow-estimator needs.

A name is added to TensorFlow only if TensorFlow lacks it. Only `mtl.compat.collectives` changes a
function that TensorFlow has, because the original function would end some runs, even on TensorFlow
2.15.

    estimator, estimator_v1 = install.install()     # `import mtl.compat` calls it
"""

import importlib
import re
import sys
import types

from mtl.compat import errors, keras, modules

_API = "tensorflow_estimator.python.estimator.api"
_HOOK = "CheckpointInputPipelineHook"
# Matches the names of TensorFlow's modules that repeat its namespace, such as compat.v1.compat.v2.
_PARENT = re.compile(r"tensorflow(\._api\.v2)?(\.compat\.v[12])*")
_DATA = re.compile(_PARENT.pattern + r"\.data\.experimental")


def install() -> tuple[types.ModuleType, types.ModuleType]:
    """Make tensorflow-estimator importable, and return its v2 and v1 namespaces."""
    keras.prefer_version_2()
    modules.install()
    with errors.naming("tensorflow"):
        importlib.import_module("tensorflow")
    with errors.naming("tensorflow.python.distribute.cross_device_utils"):
        importlib.import_module("mtl.compat.collectives").install()
    with errors.naming("tensorflow.python.util.tf_export"):
        _restore_export_names()
    with errors.naming("tensorflow_estimator"):
        _forget_failed_import()
        v2 = importlib.import_module(f"{_API}._v2.estimator")
        v1 = importlib.import_module(f"{_API}._v1.estimator")
    with errors.naming("tf.compat"):
        _attach_names(v1, v2)
    with errors.naming("tf.keras"):
        keras.guard()
    return v2, v1


def _restore_export_names() -> None:
    """Add the API name "estimator", which TensorFlow 2.16 has removed, to `tf_export` again."""
    from tensorflow.python.util import tf_export

    if hasattr(tf_export, "ESTIMATOR_API_NAME"):
        return
    tf_export.ESTIMATOR_API_NAME = "estimator"
    for table, suffix in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
        like = type(table[tf_export.TENSORFLOW_API_NAME])
        table["estimator"] = like(
            f"_estimator_api_names{suffix}", f"_estimator_api_constants{suffix}"
        )


def _forget_failed_import() -> None:
    """Remove modules of an earlier `import tensorflow_estimator` that failed."""
    if "tensorflow_estimator" not in sys.modules:
        # Import again all modules that a failed import may have left incomplete.
        for name in [name for name in sys.modules if name.startswith("tensorflow_estimator.")]:
            del sys.modules[name]


def _attach_names(v1: types.ModuleType, v2: types.ModuleType) -> None:
    """Add the dropped names to `tensorflow` and to every copy of its compat.v1 and compat.v2."""
    from mtl.compat import input_pipeline

    for name in ("compat.v1", "compat.v2", "data.experimental", "compat.v1.data.experimental"):
        importlib.import_module(f"tensorflow.{name}")
    for name, module in list(sys.modules.items()):
        if _PARENT.fullmatch(name) and not hasattr(module, "estimator"):
            vars(module)["estimator"] = v1 if name.endswith(".v1") else v2
        if _DATA.fullmatch(name) and not hasattr(module, _HOOK):
            vars(module)[_HOOK] = input_pipeline.CheckpointInputPipelineHook
