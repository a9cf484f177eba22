"""Imports modules at their first use, because TensorFlow takes seconds to import.

from mtl.deferred import tf, tf1, compat      # tensorflow, tf.compat.v1 and mtl.compat

with deferred.imports():
    from mtl import verbs

verbs.train(experiment, model_dir)            # imports mtl.verbs, and TensorFlow with it

Every module of `mtl` imports TensorFlow from `mtl.deferred`, so gin can build all parts of a run,
and their checks can report mistakes, before TensorFlow itself is imported. A module whose classes
inherit from classes of TensorFlow imports TensorFlow at once. A module that imports TensorFlow at
once is itself imported in a block `with deferred.imports()`. Type checkers see ordinary imports.

A module whose annotations name types of TensorFlow needs `from __future__ import annotations`,
because Python would import TensorFlow to evaluate the annotations.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any


class _Module:
    """Stands in for a module, and imports it when one of its attributes is first read."""

    def __init__(self, name: str, load: Callable[[], types.ModuleType] | None = None):
        self.__name__ = name
        self._load = load or (lambda: importlib.import_module(name))

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_loaded":
            self._loaded = self._load()
            return self._loaded
        return getattr(self._loaded, attribute)

    def __repr__(self):
        return f"<deferred module {self.__name__!r}>"


class _Package:
    """Stands in for a package in `from package import module`, and returns deferred modules."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return _Module(f"{self._name}.{attribute}")


def _load_tensorflow() -> types.ModuleType:
    # mtl.compat prepares the import of TensorFlow, and adds Estimator to it.
    importlib.import_module("mtl.compat")
    return importlib.import_module("tensorflow")


if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow.compat.v1 as tf1

    from mtl import compat
else:
    tf = _Module("tensorflow", _load_tensorflow)
    tf1 = _Module("tensorflow.compat.v1", lambda: _load_tensorflow().compat.v1)
    compat = _Module("mtl.compat")


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Delay the imports of a `with` block: each module is imported when it is first used."""
    before = builtins.__import__
    builtins.__import__ = _defer_import
    try:
        yield
    finally:
        builtins.__import__ = before


def _defer_import(
    name: str,
    globals: Any = None,
    locals: Any = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    if fromlist:
        return _Package(name)
    if "." in name:  # `import a.b` binds the package a, not the module a.b.
        raise ImportError(f"write 'from ... import ...' for {name}")
    return _Module(name)


__all__ = ["compat", "imports", "tf", "tf1"]
