"""Imports that happen when a module is first used, as that of TensorFlow takes seconds.

with deferred.imports():
    import tensorflow as tf
    from mtl.runs import verbs

verbs.train(experiment, model_dir)            # here mtl.runs.verbs is imported, and TensorFlow

The launchers use it, and what they need before they know that they will train. It is for modules
alone: no names out of them. A type checker sees the plain statements within the block.

A module with annotations of deferred names needs `from __future__ import annotations`. Otherwise
Python evaluates the annotations at once, and imports TensorFlow.
"""

import builtins
import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any


class _Module:
    """A module, imported as soon as something of it is asked for."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self.__name__), attribute)

    def __repr__(self):
        return f"<deferred module {self.__name__!r}>"


class _Package:
    """What `from package import module` takes its modules from."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return _Module(f"{self._name}.{attribute}")


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Defer the import statements within it, which are of whole modules."""
    before = builtins.__import__
    builtins.__import__ = _defer
    try:
        yield
    finally:
        builtins.__import__ = before


def _defer(
    name: str,
    globals: Any = None,
    locals: Any = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    if fromlist:
        return _Package(name)
    if "." in name:  # Python would take the first of the packages.
        raise ImportError(f"write 'from ... import ...' for {name}")
    return _Module(name)
