"""Rendered images of spheres and boxes, with exact maps of classes, depth and normals.

tfds.Tfds.name = "mtl.datasets.scenes.builder.Scenes"
spec.Spec.features = {"image": ("uint8", (32, 32, 3))}
spec.Spec.labels = {"kind": ("int64", (32, 32)), "depth": ("float32", (32, 32))}
"""
