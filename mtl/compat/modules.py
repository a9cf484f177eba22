"""Finds the successors of modules that TensorFlow dropped.

A TensorFlow that still ships a module keeps its own.

    modules.install()
    from tensorflow.python.distribute import estimator_training   # ours from TensorFlow 2.16 on
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from typing import cast

_ESTIMATOR = "tensorflow_estimator.python.estimator"

STAND_INS = {
    # Estimator's use of the distribute coordinator; imported by estimator, run_config, training.
    "tensorflow.python.distribute.estimator_training": "mtl.compat.estimator_training",
    # TPU only; tpu_estimator imports them, and TPUEstimator(use_tpu=False) never calls them.
    "tensorflow.python.tpu.session_support": "mtl.compat.tpu",
    "tensorflow.python.tpu.tpu_embedding": "mtl.compat.tpu",
    "tensorflow.python.tpu.tpu_embedding_gradient": "mtl.compat.tpu",
}
"""Dropped modules that are written anew here."""

ALIASES = {
    # Ways of writing tf.estimator in an import statement.
    "tensorflow.estimator": f"{_ESTIMATOR}.api._v2.estimator",
    "tensorflow.compat.v1.estimator": f"{_ESTIMATOR}.api._v1.estimator",
    "tensorflow.compat.v2.estimator": f"{_ESTIMATOR}.api._v2.estimator",
    # Forwarding modules that TensorFlow 2.15 still had.
    "tensorflow.python.estimator": _ESTIMATOR,
    "tensorflow.python.tpu.async_checkpoint": f"{_ESTIMATOR}.tpu.async_checkpoint",
    "tensorflow.python.tpu.error_handling": f"{_ESTIMATOR}.tpu.error_handling",
    "tensorflow.python.tpu.tpu_config": f"{_ESTIMATOR}.tpu.tpu_config",
    "tensorflow.python.tpu.tpu_context": f"{_ESTIMATOR}.tpu.tpu_context",
    "tensorflow.python.tpu.tpu_estimator": f"{_ESTIMATOR}.tpu.tpu_estimator",
    "tensorflow.python.tpu.util": f"{_ESTIMATOR}.tpu.util",
}
"""Other names of tensorflow_estimator's own modules, submodules included."""


def install() -> None:
    """Register the finder, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def successor(name: str) -> str | None:
    """Return the module that stands in for the dropped module `name`, or None."""
    if name in STAND_INS:
        return STAND_INS[name]
    for old, new in ALIASES.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads a dropped module as its successor: the same module object under both names."""

    def find_spec(self, name, path=None, target=None):
        if successor(name) is None or self._is_there(name, path):
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def _is_there(self, name: str, path) -> bool:
        """Return whether TensorFlow ships `name` itself; below an alias, files are not its own."""
        parent = name.rpartition(".")[0]
        aliased = parent in sys.modules and sys.modules[parent].__name__ != parent
        return not aliased and importlib.machinery.PathFinder.find_spec(name, path) is not None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        # `find_spec` returns a spec only if there is a successor.
        module = importlib.import_module(cast(str, successor(spec.name)))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        # The import system has put the alias's spec on the module; it keeps its own.
        spec = cast(importlib.machinery.ModuleSpec, module.__spec__)
        module.__spec__ = spec.loader_state
