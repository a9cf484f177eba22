"""Handwritten digits: 1,797 images of 8x8 pixels, which are part of this package.

tfds.Tfds.name = "mtl.datasets.digits.builder.Digits"
spec.Spec.features = {"image": ("uint8", (8, 8, 1))}
spec.Spec.labels = {"digit": "int64", "parity": "int64", "loops": "int64"}
"""
