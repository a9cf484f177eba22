"""Exports in the formats of other runtimes: ids as inputs, ONNX, TensorFlow Lite."""
