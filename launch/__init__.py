"""The command line: flags and gin files become an `Experiment` for a function in `mtl.verbs`."""

import sys

from mtl.configs import imports

# While `python -m launch.<command>` imports this package, sys.argv[0] is "-m".
if sys.argv[:1] == ["-m"]:
    imports.guard()
