"""Fails one write of a process as a full disk does, whoever writes: Python or TensorFlow.

failing_writes.fail_at(3, "counted")   # the third from now on; "counted" gets a line for each
"""

import errno
import os

import tensorflow as tf

_WHY = os.strerror(errno.ENOSPC)


def fail_at(number, counted):
    """Fails the n-th write from now on; 0 fails none, and counts them."""
    written = open(counted, "w", buffering=1)  # noqa: SIM115  As long as the process lives.
    count = 0

    def is_failed(what):
        nonlocal count
        count += 1
        print(what, file=written)
        return count == number

    def of_python(function, name):
        def called(*args, **kwargs):
            if is_failed(name):
                raise OSError(errno.ENOSPC, _WHY, None if name == "fsync" else str(args[0]))
            return function(*args, **kwargs)

        return called

    def of_tensorflow(function, name, place):
        def called(*args, **kwargs):
            if is_failed(name):
                raise tf.errors.ResourceExhaustedError(None, None, f"{place(*args)}; {_WHY}")
            return function(*args, **kwargs)

        return called

    for name in ("fsync", "replace", "makedirs"):
        setattr(os, name, of_python(getattr(os, name), name))
    gfile = tf.io.gfile
    for name, where in (("copy", 1), ("rename", 1), ("makedirs", 0)):
        made = of_tensorflow(getattr(gfile, name), name, lambda *args, where=where: args[where])
        setattr(gfile, name, made)
    writer = gfile.GFile
    writer.write = of_tensorflow(writer.write, "GFile", lambda file, _: file.name)
    saver = tf.compat.v1.train.Saver
    saver.save = of_tensorflow(saver.save, "checkpoint", lambda *args: args[2])
    records = tf.io.TFRecordWriter
    records.write = of_tensorflow(records.write, "record", lambda *_: "records")
