"""Multi-task training on TensorFlow's Estimator."""

__version__ = "0.2.0"
