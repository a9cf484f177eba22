"""Reads, checks, writes and compares gin files, and limits the code that gin files can run.

Importing this package hides warnings of libraries, and prepares the import of TensorFlow.
"""

from mtl.configs import imports

imports.silence_warnings()
imports.prepare_tensorflow()
