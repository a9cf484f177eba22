"""Describes a data set by statistics, and compares two data sets to find drift.

Apache Arrow reads tables in files, block by block and without TensorFlow. The input pipeline of a
run reads the splits of the run.
"""
