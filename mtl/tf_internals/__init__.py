"""Access to private parts of TensorFlow that training, export and profiling need.

Only this package and `mtl.compat` import private modules of TensorFlow. All modules work with every
TensorFlow from 2.15 on.
"""
