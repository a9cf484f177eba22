"""Imports replacements for modules that TensorFlow dropped.

If TensorFlow still has a module, no replacement is imported.

    modules.install()
    from tensorflow.python.distribute import estimator_training   # from mtl on TensorFlow 2.16
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import cast

_ESTIMATOR = "tensorflow_estimator.python.estimator"

STAND_INS = {
    # Needed for the distribute coordinator: the modules `estimator`, `run_config` and `training` of
    # tensorflow_estimator import this module.
    "tensorflow.python.distribute.estimator_training": "mtl.compat.estimator_training",
    # Needed for TPUs: tpu_estimator imports these modules, but TPUEstimator(use_tpu=False) does not
    # call them.
    "tensorflow.python.tpu.session_support": "mtl.compat.tpu",
    "tensorflow.python.tpu.tpu_embedding": "mtl.compat.tpu",
    "tensorflow.python.tpu.tpu_embedding_gradient": "mtl.compat.tpu",
}
"""{dropped module: the module of mtl that replaces it}."""

ALIASES = {
    # Names of tf.estimator that import statements use.
    "tensorflow.estimator": f"{_ESTIMATOR}.api._v2.estimator",
    "tensorflow.compat.v1.estimator": f"{_ESTIMATOR}.api._v1.estimator",
    "tensorflow.compat.v2.estimator": f"{_ESTIMATOR}.api._v2.estimator",
    # Modules of TensorFlow 2.15 that only import tensorflow_estimator.
    "tensorflow.python.estimator": _ESTIMATOR,
    "tensorflow.python.tpu.async_checkpoint": f"{_ESTIMATOR}.tpu.async_checkpoint",
    "tensorflow.python.tpu.error_handling": f"{_ESTIMATOR}.tpu.error_handling",
    "tensorflow.python.tpu.tpu_config": f"{_ESTIMATOR}.tpu.tpu_config",
    "tensorflow.python.tpu.tpu_context": f"{_ESTIMATOR}.tpu.tpu_context",
    "tensorflow.python.tpu.tpu_estimator": f"{_ESTIMATOR}.tpu.tpu_estimator",
    "tensorflow.python.tpu.util": f"{_ESTIMATOR}.tpu.util",
}
"""{dropped name of a module: its name in tensorflow_estimator}; submodules are renamed, too."""


def install() -> None:
    """Register the finder of replacement modules in `sys.meta_path`, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def successor(name: str) -> str | None:
    """Return the name of the module that replaces a dropped module; None if no module does."""
    if name in STAND_INS:
        return STAND_INS[name]
    for old, new in ALIASES.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the replacement of a dropped module; both names refer to the same module."""

    def find_spec(self, name, path=None, target=None):
        if successor(name) is None or self._is_in_tensorflow(name, path):
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def _is_in_tensorflow(self, name: str, path) -> bool:
        """Return True if TensorFlow still has a module, and its parent module is no alias."""
        parent = name.rpartition(".")[0]
        is_below_alias = parent in sys.modules and sys.modules[parent].__name__ != parent
        if is_below_alias:
            return False
        return importlib.machinery.PathFinder.find_spec(name, path) is not None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        # A successor exists, because `find_spec` returns a spec only for modules with a
        # replacement.
        module = importlib.import_module(cast(str, successor(spec.name)))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        # The import system has set the spec of the dropped name, so restore the spec of the
        # replacement.
        spec = cast(importlib.machinery.ModuleSpec, module.__spec__)
        module.__spec__ = spec.loader_state
