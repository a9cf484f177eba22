"""The command line: flags -> gin file -> `Experiment` -> one verb."""

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator

from launch import imports

# So `python -m` calls itself while it imports this package, whatever launcher comes next.
if sys.argv[:1] == ["-m"]:
    imports.guard()

# What TensorFlow's C++ says on a machine without a GPU is not for a user's eyes; what goes wrong
# comes as an exception as well. `python -m launch.doctor` tells what was found.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def silence_warnings() -> None:
    """Ignore Python's warnings of what libraries do, which no user of a launcher can change."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")


silence_warnings()


@contextlib.contextmanager
def _stderr_held_back() -> Iterator[None]:
    """Keep what C++ writes to standard error, and show it only if the block fails."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _needs_tensorflow() -> bool:
    """Return whether the launcher that is called needs it; its import takes seconds."""
    called_as = ["launch.new"], ["mtl", "new"]
    words = [os.path.basename(word) for word in sys.orig_argv]
    first = words.index("-m") + 1 if "-m" in words else 1
    return not any(words[first : first + len(names)] == names for names in called_as)


# These notices come before TensorFlow reads its log level. Whoever needs it says what is wrong with
# it: the doctor in its report, the others in a line.
if _needs_tensorflow():
    with contextlib.suppress(Exception, SystemExit), _stderr_held_back():
        import tensorflow  # noqa: F401
