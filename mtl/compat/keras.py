"""Provides Keras 2 to the parts of tensorflow-estimator that need it.

Estimator itself does not need Keras. The canned estimators, the heads and model_to_estimator need
Keras 2. TensorFlow 2.15 includes Keras 2; for later versions, the package tf-keras provides it.

    keras.prefer_version_2()    # makes tf.keras tf-keras, if tf-keras is installed
    keras.guard()               # makes functions that need Keras 2 fail in one line without it
"""

import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
from collections.abc import Callable
from typing import cast

from mtl import checks, versions
from mtl.compat import errors

SWITCH = versions.KERAS_SWITCH
_PACKAGE = "tensorflow_estimator.python.estimator"

NEEDS_VERSION_2 = {
    "canned.baseline": r"Baseline\w+V2",
    "canned.dnn": r"DNN\w+|dnn_logit_fn_builder",
    "canned.dnn_linear_combined": r"DNN\w+",
    "canned.linear": r"Linear(Classifier|Estimator|Regressor)\w*|linear_logit_fn_builder",
    "canned.rnn": r"RNN\w+",
    "head.binary_class_head": r"\w+Head",
    "head.multi_class_head": r"\w+Head",
    "head.multi_head": r"\w+Head",
    "head.multi_label_head": r"\w+Head",
    "head.regression_head": r"\w+Head",
    "head.sequential_head": r"SequentialHeadWrapper",
    "keras_lib": r"model_to_estimator\w*",
}
"""{module of tensorflow_estimator: pattern of the public names in it that call Keras 2}."""


def prefer_version_2() -> None:
    """Make `tf.keras` the package tf-keras, if it is installed and TF_USE_LEGACY_KERAS is not set.

    Raises:
      CompatError: TF_USE_LEGACY_KERAS is set, but tf-keras is not installed.
    """
    is_set = os.environ.get(SWITCH) in ("1", "true", "True")
    is_installed = importlib.util.find_spec("tf_keras") is not None
    if is_set and not is_installed:
        raise errors.CompatError(
            f"{SWITCH} must be unset, as tf-keras is not installed, got "
            f"{os.environ[SWITCH]!r}. pip install tf-keras, or unset {SWITCH}."
        )
    if not versions.turns_to_keras_2():
        return
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        os.environ[SWITCH] = "1"
    # `tf.keras` is a lazy loader until its first use, and cannot be replaced later.
    elif not getattr(vars(tensorflow).get("keras"), "_tfll_initialized", True):
        os.environ[SWITCH] = "1"
        _redirect_imports()


def in_use() -> str:
    """Return the version of Keras that `tf.keras` refers to."""
    import tensorflow as tf

    package = tf.keras.Model.__module__.partition(".")[0]
    return importlib.import_module(package).__version__


def guard() -> None:
    """Let functions that need Keras 2 fail with instructions, if `tf.keras` is another version."""
    version = in_use()
    if version.startswith("2."):
        return
    for path, pattern in NEEDS_VERSION_2.items():
        module = importlib.import_module(f"{_PACKAGE}.{path}")
        for name, member in _public_members(module, pattern):
            refusal = _make_refusal(name.removesuffix("V2"), version)
            if inspect.isclass(member):
                setattr(member, "__init__", refusal)  # noqa: B010 - mypy refuses the assignment.
            else:
                _replace(member, refusal)


def how_to_get() -> str:
    """Return instructions for the user, after which `tf.keras` is Keras 2."""
    if importlib.util.find_spec("tf_keras") is None:
        minor = versions.minor(versions.installed("tensorflow"))
        return f"pip install 'tf-keras~={minor}.0' (the extra 'heads')."
    return f"Set {SWITCH}=1 before Python starts."


def _redirect_imports() -> None:
    """Make `from tensorflow.keras import ...` find tf-keras after TensorFlow was imported."""
    # All callers of this function have checked that tf-keras is installed.
    spec = cast(importlib.machinery.ModuleSpec, importlib.util.find_spec("tf_keras"))
    package = pathlib.Path(cast(str, spec.origin)).parent
    for name, version in (("tensorflow", "_v2"), ("tensorflow.compat.v1", "_v1")):
        module = importlib.import_module(name)
        module.__path__ = [str(package / "api" / version), *module.__path__]


def _public_members(module, pattern: str) -> list[tuple[str, Callable]]:
    return [
        (name, member)
        for name, member in vars(module).items()
        if re.fullmatch(pattern, name) and member.__module__ == module.__name__
    ]


def _make_refusal(name: str, version: str) -> Callable:
    """Return a function whose error says that `name` needs Keras 2, and how to install Keras 2."""

    def refuse(*args, **kwargs):
        checks.fail(name, "run on Keras 2", version, how_to_get(), errors.CompatError)

    return refuse


def _replace(function: Callable, replacement: Callable) -> None:
    """Replace a function in all modules of tensorflow_estimator that import it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tensorflow_estimator."):
            for key, value in list(vars(module).items()):
                # Every module that imports a function by name holds a separate reference to the
                # function.
                if value is function:
                    setattr(module, key, replacement)
