"""Inputs that are later than the steps that take them, on machines of any speed.

rows = dataset.map(lambda x: tf.numpy_function(brakes.Brake(least_secs=0.2), [x], x.dtype))
"""

import time


class Brake:
    """Returns its argument after a delay.

    Args:
      least_secs: the least delay; it grows to three times the time since the last call ended.
    """

    def __init__(self, least_secs):
        self._least_secs, self._ended = least_secs, float("inf")

    def __call__(self, value):
        # Steps that are slower than their input leave a gap between two batches.
        gap = time.monotonic() - self._ended
        time.sleep(max(self._least_secs, 3 * gap))
        self._ended = time.monotonic()
        return value
