"""The command line: flags -> gin file -> `Experiment` -> one verb."""

import sys

from mtl.configs import imports

# While `python -m` imports this package, sys.argv[0] is "-m", for every launcher.
if sys.argv[:1] == ["-m"]:
    imports.guard()
