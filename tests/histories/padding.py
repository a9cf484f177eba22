"""Exports that get padded rows: arrays of any width, with the lengths of the rows."""

import numpy as np
import tensorflow as tf

from mtl import verbs
from tests import signatures


def assert_padding_changes_nothing(made, model_dir, rows, fillers):
    """Fail unless rows of two widths get the same bits, and the predictions made in process.

    Args:
      made: the experiment.
      model_dir: the folder of its run.
      rows: {feature: values of the first rows of the held-out split}.
      fillers: {feature that is a list: the value that pads it}.
    """
    (version,) = (model_dir / "export" / "latest").iterdir()
    served = signatures.load(version, "raw")
    found = []
    for more in (0, 7):
        given = {name: values for name, values in rows.items() if name not in fillers}
        for name, filler in fillers.items():
            width = max(map(len, rows[name])) + more
            padded = [[*own, *[filler] * (width - len(own))] for own in rows[name]]
            given[name] = np.array(padded, object if isinstance(filler, bytes) else np.int64)
            given[f"{name}/length"] = np.array([len(own) for own in rows[name]], np.int64)
        found.append(served(**{name: tf.constant(values) for name, values in given.items()}))
    count = len(next(iter(rows.values())))
    in_process = list(verbs.predict(made, str(model_dir)))[:count]
    for key, values in found[0].items():
        np.testing.assert_array_equal(found[1][key], values)
        if key in in_process[0] and values.dtype == tf.float32:
            expected = [row[key] for row in in_process]
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
