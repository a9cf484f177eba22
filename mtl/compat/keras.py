"""Keras 2 for the parts of tensorflow-estimator that are built on it.

Estimator itself needs no Keras. The canned estimators, the heads and model_to_estimator call
Keras 2, which comes with TensorFlow 2.15 and, from 2.16 on, as the package tf-keras.

    keras.prefer_version_2()    # turns tf.keras to tf-keras, if it is installed
    keras.guard()               # functions that need Keras 2 refuse in one line without it
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

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
"""Module of tensorflow_estimator -> pattern of the public names in it that call Keras 2."""


def prefer_version_2() -> None:
    """Set `tf.keras` to an installed tf-keras, unless TF_USE_LEGACY_KERAS or its use decided."""
    switched = os.environ.get(SWITCH) in ("1", "true", "True")
    installed = importlib.util.find_spec("tf_keras") is not None
    if switched and not installed:
        raise errors.CompatError(
            f"{SWITCH} must be unset where tf-keras is not installed, got "
            f"{os.environ[SWITCH]!r}. pip install tf-keras, or unset {SWITCH}."
        )
    if not versions.turns_to_keras_2():
        return
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        os.environ[SWITCH] = "1"
    elif not getattr(vars(tensorflow).get("keras"), "_tfll_initialized", True):
        os.environ[SWITCH] = "1"
        _redirect_imports()


def in_use() -> str:
    """Return the version of the Keras behind `tf.keras`."""
    import tensorflow as tf

    package = tf.keras.Model.__module__.partition(".")[0]
    return importlib.import_module(package).__version__


def collect_updates(model: Any, inputs: Any) -> None:
    """Add the updates and penalties of a Keras model to the collections of the graph.

    The updates of a call on these inputs, as of batch normalisation, join UPDATE_OPS. The losses of
    its weights, of its activities and of `add_loss` join REGULARIZATION_LOSSES. Inputs that are new
    tensors tell one call from another: pass them through `tf.identity` if you call a model twice.

    Raises:
      UserError: a loss is not a scalar.
    """
    import tensorflow as tf

    from mtl.compat import graphs

    tf1 = tf.compat.v1
    for update in model.get_updates_for(inputs):
        tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    # Losses of a call are kept, and those of weights are computed anew wherever they are asked for.
    kept = model.losses
    for loss in model.losses:
        is_of_call = any(loss is other for other in kept)
        if is_of_call and not graphs.depends_on(loss, inputs):
            continue
        rule = "be a scalar, such as a mean over rows"
        checks.require(loss.shape.rank == 0, f"loss {loss.op.name!r}", rule, loss.shape)
        tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, loss)


@contextlib.contextmanager
def computing(dtype: Any) -> Iterator[None]:
    """Let layers made in this context compute in `dtype`, with weights of 32 bits."""
    import tensorflow as tf

    if dtype == tf.float32 or not in_use().startswith("2."):
        yield
        return
    precision = tf.keras.mixed_precision
    before = precision.global_policy()
    precision.set_global_policy(f"mixed_{tf.as_dtype(dtype).name}")
    try:
        yield
    finally:
        precision.set_global_policy(before)


def is_cast(weight: Any) -> bool:
    """Return True if layers get a weight cast to the type in which they compute."""
    return hasattr(weight, "_cast_dtype")


def guard() -> None:
    """If `tf.keras` is not Keras 2, let functions that need it refuse and name the remedy."""
    version = in_use()
    if version.startswith("2."):
        return
    for path, pattern in NEEDS_VERSION_2.items():
        module = importlib.import_module(f"{_PACKAGE}.{path}")
        for name, member in _public_members(module, pattern):
            refusal = _refusal(name.removesuffix("V2"), version)
            if inspect.isclass(member):
                setattr(member, "__init__", refusal)  # noqa: B010 - mypy refuses the assignment.
            else:
                _replace(member, refusal)


def how_to_get() -> str:
    """Return instructions to make `tf.keras` Keras 2."""
    if importlib.util.find_spec("tf_keras") is None:
        minor = versions.minor(versions.installed("tensorflow"))
        return f"pip install 'tf-keras~={minor}.0' (the extra 'heads')."
    return f"Set {SWITCH}=1 before Python starts."


def _redirect_imports() -> None:
    """Make `from tensorflow.keras import ...` find tf-keras after TensorFlow was imported."""
    # Callers have found tf-keras.
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


def _refusal(name: str, version: str) -> Callable:
    """Return a function that says that `name` needs Keras 2, and how to get it."""

    def refuse(*args, **kwargs):
        checks.fail(name, "run on Keras 2", version, how_to_get(), errors.CompatError)

    return refuse


def _replace(function: Callable, replacement: Callable) -> None:
    """Put `replacement` wherever tensorflow_estimator's modules hold `function`."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tensorflow_estimator."):
            for key, value in list(vars(module).items()):
                if value is function:
                    setattr(module, key, replacement)
