"""Describes data sets, and compares two of them: statistics, drift, pages, tensorflow-metadata.

Tables of files are read by Apache Arrow, in blocks and without TensorFlow. The splits of a run are
read by its pipeline.
"""
