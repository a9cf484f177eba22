"""The command line: flags -> gin file -> `Experiment` -> one verb."""

import sys

from mtl.configs import imports

# So `python -m` calls itself while it imports this package, whatever launcher comes next.
if sys.argv[:1] == ["-m"]:
    imports.guard()
