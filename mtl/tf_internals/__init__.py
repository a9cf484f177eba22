"""The private parts of TensorFlow that training, export and profiling need.

Only this room and `mtl.compat` import TensorFlow's private modules. The docstring of a module names
the gap in the public API. All modules work on every TensorFlow from 2.15 on.
"""
