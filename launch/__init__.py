"""The command line: flags -> gin file -> `Experiment` -> one verb."""

import os
import sys
import warnings

from launch import imports
from mtl import versions

# So `python -m` calls itself while it imports this package, whatever launcher comes next.
if sys.argv[:1] == ["-m"]:
    imports.guard()


def silence_warnings() -> None:
    """Ignore Python's warnings of what libraries do, which no user of a launcher can change."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")


silence_warnings()
imports.quieten("tensorflow")  # Some notices come before it reads its log level, which mtl sets.
# If it is told later, as `mtl.compat` does, it has imported Keras 3 by then, for seconds.
if "tensorflow" not in sys.modules and versions.turns_to_keras_2():
    os.environ[versions.KERAS_SWITCH] = "1"
