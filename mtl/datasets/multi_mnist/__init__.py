"""MultiMNIST: two handwritten digits in one image, made from the files of MNIST.

tfds.Tfds.name = "mtl.datasets.multi_mnist.builder.MultiMnist"
tfds.Tfds.manual_dir = "data/mnist"
spec.Spec.labels = {"left": "int64", "right": "int64"}
"""
