"""Describes a data set by statistics, and compares two data sets to find drift.

Apache Arrow reads tables in files, block by block and without TensorFlow. The splits of a run are
read by the input pipeline of the run.
"""
