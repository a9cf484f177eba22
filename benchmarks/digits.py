"""Reads the digits of this repository as arrays, for benchmarks beside other libraries.

for split, (pixels, labels) in digits.read().items():    # "train" and "test"
    ...
"""

import numpy as np

from mtl import spec
from mtl.data import pipeline, tfds


def read() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return {split: (pixels from 0 to 16, uint8 [N, 64]; labels, int64 [N])}."""
    data = pipeline.Pipeline(
        source=tfds.Tfds(name="mtl.datasets.digits.builder.Digits"),
        spec=spec.Spec(features={"image": ("uint8", (8, 8, 1))}, labels={"digit": "int64"}),
        batch_size=2000,  # Each split is one batch.
    )
    splits = {}
    for split in ("train", "test"):
        ((features, labels),) = data.one_pass(split)
        splits[split] = features["image"].numpy().reshape(-1, 64), labels["digit"].numpy()
    return splits
