"""The private parts of TensorFlow that training, export and profiling need.

No other room but `mtl.compat` imports TensorFlow's private modules. Each module here says what the
public API lacks, and works on every TensorFlow from 2.15 on.
"""
