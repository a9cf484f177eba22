"""Builds an `Experiment` from flags and gin files, and calls a function of `mtl.verbs` with it."""

import sys

from mtl.configs import imports

# While `python -m launch.<command>` imports this package, sys.argv[0] is "-m".
if sys.argv[:1] == ["-m"]:
    imports.guard()
