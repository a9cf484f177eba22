"""Lets the command `mtl` import modules of the current folder.

here.note()                                   # when `mtl` starts
here.open_to(None)                            # after flags are parsed: all modules of the folder
here.open_to(["ours"])                        # or only the packages of --trusted_packages
here.make_command("train")                    # a command whose process finds the same modules

With the command `mtl`, Python searches the current folder after all installed modules. With `python
-m launch.<verb>`, Python searches the current folder before installed modules.
"""

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from typing import Any

# The code of a new process removes "", the current folder, which Python's option -c puts first in
# sys.path.
_START = "import sys; sys.path[0] or sys.path.pop(0); from launch.console import main; "
_START += "sys.exit(main())"
# The current folder; None with `python -m launch.<verb>`, and with Python's safe path.
_folder: str | None = None


def note() -> None:
    """Remember the current folder, unless Python's safe path is on."""
    global _folder
    _folder = None if getattr(sys.flags, "safe_path", False) else os.getcwd()


def open_to(packages: Sequence[str] | None) -> None:
    """Let Python import modules from the current folder.

    Args:
      packages: the packages that may be imported; None for all modules.
    """
    if _folder is None:
        return
    if packages is None:
        # Append the folder, so that Python finds installed modules first.
        sys.path.append(_folder)
    else:
        # Append the finder, so that Python asks it only if no other finder finds a module.
        sys.meta_path.append(_Finder(_folder, packages))


def make_command(verb: str) -> list[str]:
    """Return the command that runs a verb in a new process with the same importable modules.

    Args:
      verb: the name of a module in `launch`, such as "train".

    Returns:
      The program and its first arguments; flags of the verb may follow.
    """
    if _folder is None:
        return [sys.executable, "-m", f"launch.{verb}"]
    return [sys.executable, "-c", _START, verb]


class _Finder:
    """Finds the packages with given names in a folder, and no other packages."""

    def __init__(self, folder: str, packages: Sequence[str]):
        self._folder = folder
        # Keep only the first word of each name: to import ours.towers, Python must find the package
        # ours.
        self._names = {package.partition(".")[0] for package in packages}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        # Leave modules inside a package, for which `path` is set, to Python's finders.
        if path is not None or name not in self._names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._folder], target)
