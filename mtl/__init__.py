"""Multi-task training on TensorFlow's Estimator.

import mtl
model = mtl.fit(frame, tasks=["clicked", "minutes"])
model = mtl.train(experiment, "runs/adult")
model = mtl.load("runs/adult", checkpoint="best")
model.predict(frame)
"""

import importlib
import os
import warnings
from typing import Any

__version__ = "0.2.0"

# Level 3 hides log messages of TensorFlow's C++ code, such as warnings about a missing GPU.
# TensorFlow reads TF_CPP_MIN_LOG_LEVEL at its import; set the variable to "0" before the import to
# see all messages. At every level, TensorFlow raises errors as Python exceptions. `python -m
# launch.doctor` describes the machine.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# {public name: its module}. `import mtl` is fast, because each module is imported only when one of
# its public names is first used.
_VERBS = dict.fromkeys(("Metrics", "Model", "load", "train"), "from_python") | {"fit": "fitting"}


def __getattr__(name: str) -> Any:
    if name not in _VERBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with warnings.catch_warnings():  # Undoes changes of mtl.configs to warning filters.
        importlib.import_module("mtl.configs")  # mtl.configs must be imported before TensorFlow.
        module = importlib.import_module(f"mtl.{_VERBS[name]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_VERBS])
