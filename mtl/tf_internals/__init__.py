"""The private parts of TensorFlow that training, export and profiling need.

Only this package and `mtl.compat` import private modules of TensorFlow. The docstring of each
module says what the public API lacks. All modules work on every TensorFlow from 2.15 on.
"""
