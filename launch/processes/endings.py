"""Ends a command: exit code 2 and one line for a mistake, 130 for Ctrl-C, a traceback for a bug.

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
    """Call `main`, and end the process if `main` fails.

    Args:
      main: the function that does the work of a command.

    Raises:
      SystemExit: with code 2 after a `UserError` or a failed import, and code 130 after Ctrl-C. All
        errors that are not listed here are raised unchanged.
    """
    with imports.finished():
        try:
            with streams.guarded(), storage.explain_storage_errors():
                main()
        except checks.UserError as error:
            # Print only the first line of a message, which may come from a library.
            fail(str(error).splitlines()[0])
        except KeyboardInterrupt:
            # Exit with 128 + SIGINT, the code that shells report for Ctrl-C.
            sys.exit(130)
        except (Exception, SystemExit) as error:  # An imported package may call sys.exit.
            problem = imports.problem(error)
            if problem is None:
                raise
            fail(problem)


def fail(message: str) -> NoReturn:
    """End the process with an error line and exit code 2.

    Args:
      message: the line, without the word "Error".

    Raises:
      SystemExit: always.
    """
    # `tqdm.write` first clears a progress bar.
    tqdm.tqdm.write(f"Error: {message}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    """Parses the arguments of commands that do not use absl; mistakes become errors of one line.

    Args:
      module: the module of the command, such as "launch.new".
      told: the description for --help.
    """

    def __init__(self, module: str, told: str | None):
        plain = argparse.RawDescriptionHelpFormatter
        prog = f"python -m {module}"
        super().__init__(prog=prog, description=told, formatter_class=plain, allow_abbrev=False)

    def read(self, args: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments.

        Raises:
          UserError: an argument is unknown, missing or wrong.
        """
        options = self._option_string_actions
        # Check flags before argparse does: argparse gives no hint, or first reports a missing flag.
        for flag in (arg.partition("=")[0] for arg in args):
            if flag.startswith("--") and flag not in ("--", *options):
                names = [option.lstrip("-") for option in options if option.startswith("--")]
                hint = unknown_flags.explain(flag, names)
                raise checks.UserError(f"unknown flag {flag!r}. {hint}")
        namespace, others = self.parse_known_intermixed_args(args)
        if others:
            rule = "every argument is a flag, and a glob needs quotes"
            raise checks.UserError(f"unexpected argument {others[0]!r}: {rule}. See --help.")
        return namespace

    def error(self, message: str) -> NoReturn:
        raise checks.UserError(f"{message.removeprefix('argument ')}. See --help.")
