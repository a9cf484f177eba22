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

# What TensorFlow's C++ says of a machine without a GPU, and of rows that an export is tried on. It
# reads this when it is imported; whoever wants to see all sets it to "0" before. Any error comes as
# an exception as well, and `python -m launch.doctor` tells what was found.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# {name: its module}, looked up when they are asked for: `import mtl` imports nothing else.
_VERBS = dict.fromkeys(("Metrics", "Model", "load", "train"), "from_python") | {"fit": "fitting"}


def __getattr__(name: str) -> Any:
    if name not in _VERBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with warnings.catch_warnings():  # What reads gin files silences those of libraries.
        importlib.import_module("mtl.configs")  # Before TensorFlow, whose import it prepares.
        module = importlib.import_module(f"mtl.{_VERBS[name]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_VERBS])
