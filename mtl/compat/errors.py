"""Turns failures of `import mtl.compat` into errors of one line with advice.

with errors.naming("tensorflow_estimator"):
    importlib.import_module("tensorflow_estimator")
# CompatError: mtl.compat must find tensorflow_estimator, got no such package. pip install ...
"""

import contextlib
import importlib.metadata
from collections.abc import Iterator

from mtl import checks, versions

_INSTALL = {
    "tensorflow": versions.REQUIREMENT,
    "tensorflow_estimator": versions.ESTIMATOR_REQUIREMENT,
}


class CompatError(checks.UserError, ImportError):
    """TensorFlow, tensorflow-estimator or Keras is missing, or its version does not fit."""


@contextlib.contextmanager
def naming(piece: str) -> Iterator[None]:
    """Turn errors about imports and missing names in a `with` block into a CompatError.

    Args:
      piece: the package, or the name in TensorFlow, that the block imports or changes, for the
        error message.

    Raises:
      CompatError: a package is missing, or this TensorFlow lacks a name that the block needs.
    """
    try:
        yield
    except CompatError:
        raise
    except (ImportError, AttributeError, KeyError) as error:
        package = getattr(error, "name", None)
        if isinstance(error, ModuleNotFoundError) and package in _INSTALL:
            raise CompatError(
                f"mtl.compat must find {package}, got no such package. "
                f"pip install '{_INSTALL[package]}'."
            ) from None
        if piece == "tensorflow":  # The original error explains more, such as file and line.
            raise
        raise CompatError(
            f"mtl.compat must prepare {piece} on TensorFlow {_find_version('tensorflow')}, got "
            f"{type(error).__name__}: {error}. TensorFlow {versions.described()} are known to "
            "work. python -m launch.doctor says more."
        ) from error


def _find_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"
