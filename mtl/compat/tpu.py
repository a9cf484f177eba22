"""Replaces modules for TPUs that TensorFlow 2.16 dropped.

tensorflow-estimator imports them on every machine, but uses them only on a TPU. Any name can be
imported from here; its use is an error, because it needs a TPU and TensorFlow 2.15.
"""

from mtl.compat import errors


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return globals().setdefault(name, type(name, (_NeedsTPU,), {}))


class _NeedsTPU:
    """A class that fails when it is used."""

    def __init__(self, *args, **kwargs):
        raise errors.CompatError(
            f"tf.estimator.tpu must run on TensorFlow 2.15, got a newer version without "
            f"{type(self).__name__}. TPUEstimator with use_tpu=False works on every version."
        )
