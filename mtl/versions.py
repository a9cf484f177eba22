"""The TensorFlow and Python versions this project runs on, in one place; imports none of it.

versions.is_supported("2.21.0")     # True
versions.pythons("2.15.1")          # ('3.10', '3.11')
versions.REQUIREMENT                # 'tensorflow>=2.15,<2.22'
versions.installed("tf-keras")      # '2.21.0', or ''
versions.how_to_get("onnx")         # "pip install 'multitask-estimator[onnx]'"
"""

import importlib.metadata
import importlib.util
import os

PYTHONS = {
    "2.15": ("3.10", "3.11"),
    "2.16": ("3.10", "3.11", "3.12"),
    "2.17": ("3.10", "3.11", "3.12"),
    "2.18": ("3.10", "3.11", "3.12"),
    "2.19": ("3.10", "3.11", "3.12"),
    "2.20": ("3.10", "3.11", "3.12", "3.13"),
    "2.21": ("3.10", "3.11", "3.12", "3.13"),
}
"""TensorFlow minor version -> Python versions, of those supported here, that it has wheels for."""

REQUIREMENT = "tensorflow>=2.15,<2.22"
KERAS_SWITCH = "TF_USE_LEGACY_KERAS"
ESTIMATOR_REQUIREMENT = "tensorflow-estimator==2.15.0"

DISTRIBUTION = "multitask-estimator"
"""The name of this project for pip, which knows another project as `mtl`."""


def minor(version: str) -> str:
    """'2.21' of '2.21.0'."""
    return ".".join(version.split(".")[:2])


def is_supported(tensorflow_version: str) -> bool:
    """Return whether the gaps of this TensorFlow are known and filled."""
    return minor(tensorflow_version) in PYTHONS


def pythons(tensorflow_version: str) -> tuple[str, ...]:
    """Return the Python versions that this TensorFlow runs on."""
    return PYTHONS.get(minor(tensorflow_version), ())


def installed(package: str) -> str:
    """Return the version of a package, '' where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def how_to_get(extra: str) -> str:
    """Return the command that installs an extra of this project."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def turns_to_keras_2() -> bool:
    """Return whether `tf.keras` should become an installed tf-keras, as nobody has chosen."""
    is_there = importlib.util.find_spec("tf_keras") is not None
    is_open = KERAS_SWITCH not in os.environ and not installed("keras").startswith("2.")
    return is_there and is_open


def described() -> str:
    """'2.15 to 2.21'."""
    known = list(PYTHONS)
    return f"{known[0]} to {known[-1]}"
