"""Lists the versions of TensorFlow and Python that this project supports.

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
"""{minor version of TensorFlow: the supported Python versions for which wheels exist}."""

REQUIREMENT = "tensorflow>=2.15,<2.22"
KERAS_SWITCH = "TF_USE_LEGACY_KERAS"
ESTIMATOR_REQUIREMENT = "tensorflow-estimator==2.15.0"

DISTRIBUTION = "multitask-estimator"
"""The name of this project for pip, because another project is named `mtl` on the package index."""


def minor(version: str) -> str:
    """Return the minor version, such as '2.21' for '2.21.0'."""
    return ".".join(version.split(".")[:2])


def is_supported(tensorflow_version: str) -> bool:
    """Return True if this project supports a version of TensorFlow."""
    return minor(tensorflow_version) in PYTHONS


def pythons(tensorflow_version: str) -> tuple[str, ...]:
    """Return the supported Python versions for a version of TensorFlow; () if unsupported."""
    return PYTHONS.get(minor(tensorflow_version), ())


def installed(package: str) -> str:
    """Return the version of a package; '' if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def how_to_get(extra: str) -> str:
    """Return the pip command that installs an optional extra of this project, such as "onnx"."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def turns_to_keras_2() -> bool:
    """Return True if mtl should make `tf.keras` the package tf-keras.

    The result is True if tf-keras is installed, TF_USE_LEGACY_KERAS is not set, and the package
    keras is not Keras 2.
    """
    has_keras_2 = importlib.util.find_spec("tf_keras") is not None
    is_unset = KERAS_SWITCH not in os.environ and not installed("keras").startswith("2.")
    return has_keras_2 and is_unset


def described() -> str:
    """Return the supported versions of TensorFlow as text, '2.15 to 2.21'."""
    names = list(PYTHONS)
    return f"{names[0]} to {names[-1]}"
