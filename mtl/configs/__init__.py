"""Gin files as experiments: read, checked, written, compared, and how far they are trusted.

To import it silences warnings of libraries, and prepares the import of TensorFlow.
"""

from mtl.configs import imports

imports.silence_warnings()
imports.prepare_tensorflow()
