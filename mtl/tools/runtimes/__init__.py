"""Writes exports for runtimes other than TensorFlow Serving, such as ONNX and TensorFlow Lite."""
