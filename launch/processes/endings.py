"""Ends a launcher: a mistake is one line and exit code 2, an interrupt 130, a bug a traceback.

endings.run(main)
endings.fail("unexpected argument 'x'")
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import tqdm

from launch.processes import streams, unknown_flags
from mtl import checks
from mtl.configs import imports
from mtl.files import storage


def run(main: Callable[[], None]) -> None:
    """Call `main`, and end the process if it fails."""
    with imports.finished():
        try:
            with streams.guarded(), storage.explain_storage_errors():
                main()
        except checks.UserError as error:
            # One line, whatever a library has put into the message.
            fail(str(error).splitlines()[0])
        except KeyboardInterrupt:
            # 128 + SIGINT, as a shell reports it.
            sys.exit(130)
        except (Exception, SystemExit) as error:  # A package may end Python when it is imported.
            problem = imports.problem(error)
            if problem is None:
                raise
            fail(problem)


def fail(message: str) -> NoReturn:
    """End the process with this line and exit code 2."""
    # tqdm clears a progress bar first.
    tqdm.tqdm.write(f"Error: {message}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    """Parses the arguments of launchers without TensorFlow; a mistake is one line."""

    def __init__(self, module: str, told: str | None):
        plain = argparse.RawDescriptionHelpFormatter
        prog = f"python -m {module}"
        super().__init__(prog=prog, description=told, formatter_class=plain, allow_abbrev=False)

    def read(self, args: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments; fail at an unknown one."""
        known = self._option_string_actions
        # Before argparse, which names the unknown flag without a hint, or reports a missing one
        # first.
        for flag in (arg.partition("=")[0] for arg in args):
            if flag.startswith("--") and flag not in ("--", *known):
                names = [option.lstrip("-") for option in known if option.startswith("--")]
                hint = unknown_flags.explain(flag, names)
                raise checks.UserError(f"unknown flag {flag!r}. {hint}")
        found, others = self.parse_known_intermixed_args(args)
        if others:
            rule = "every argument is a flag, and a glob stands in quotes"
            raise checks.UserError(f"unexpected argument {others[0]!r}: {rule}. See --help.")
        return found

    def error(self, message: str) -> NoReturn:
        raise checks.UserError(f"{message.removeprefix('argument ')}. See --help.")
