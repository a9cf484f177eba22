"""Stands in for modules for TPUs that TensorFlow 2.16 dropped.

tensorflow-estimator imports these modules on every machine, but uses them only on a TPU. Any name
can be imported from this module. Code that uses a class from this module fails, because only
TensorFlow 2.15 has the real classes for TPUs.
"""

from mtl.compat import errors


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return globals().setdefault(name, type(name, (_NeedsTPU,), {}))


class _NeedsTPU:
    """The base of the stand-ins for classes of TPUs; creating an instance raises an error."""

    def __init__(self, *args, **kwargs):
        raise errors.CompatError(
            f"tf.estimator.tpu must run on TensorFlow 2.15, got a newer version without "
            f"{type(self).__name__}. TPUEstimator with use_tpu=False works on every version."
        )
