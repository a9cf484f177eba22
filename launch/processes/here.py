"""Lets the command `mtl` import modules of the current folder.

here.note()                                   # when `mtl` starts
here.open_to(None)                            # after flags are parsed: all modules of the folder
here.open_to(["ours"])                        # or only the packages of --trusted_packages
here.make_command("train")                    # a command whose process finds the same modules

The command `mtl` finds modules in the current folder, after all installed modules. With
`python -m launch.<verb>`, Python puts the current folder first, before installed modules.
"""

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from typing import Any

# With -c, Python puts "" (the current folder) first in its path, and this code removes it.
_START = "import sys; sys.path[0] or sys.path.pop(0); from launch.console import main; "
_START += "sys.exit(main())"
# The current folder; None in `python -m launch.<verb>`, and with Python's safe path.
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
        # At the end, so that Python finds installed modules first.
        sys.path.append(_folder)
    else:
        # At the end, so that Python asks this finder only if no other finder knows a module.
        sys.meta_path.append(_Finder(_folder, packages))


def make_command(verb: str) -> list[str]:
    """Return the command of a verb, for a process that finds the same modules as this process."""
    if _folder is None:
        return [sys.executable, "-m", f"launch.{verb}"]
    return [sys.executable, "-c", _START, verb]


class _Finder:
    """A finder that knows only some packages in a folder."""

    def __init__(self, folder: str, packages: Sequence[str]):
        self._folder = folder
        # To import ours.towers, Python must find the package ours.
        self._names = {package.partition(".")[0] for package in packages}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        # `path` is set for modules inside a package, which Python finds in the package's folder.
        if path is not None or name not in self._names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._folder], target)
