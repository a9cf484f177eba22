"""Lets the command `mtl` import modules of the current folder.

here.note()                                   # when `mtl` starts: Python has not added the folder
here.open_to(None)                            # once flags are read: any module, after all others
here.open_to(["ours"])                        # or only the packages of --trusted_packages
here.make_command("train")                    # a command whose process imports the same modules

A run finds modules in the current folder, but an installed module of the same name wins. With
`python -m launch.<verb>`, Python itself puts the folder first, and then the folder wins.
"""

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from typing import Any

# With -c, Python puts "" (the current folder) first in its path: it is removed again.
_START = "import sys; sys.path[0] or sys.path.pop(0); from launch.console import main; "
_START += "sys.exit(main())"
# None in `python -m launch.<verb>`, and with Python's safe path.
_folder: str | None = None


def note() -> None:
    """Remember the current folder, unless Python's safe path is on."""
    global _folder
    _folder = None if getattr(sys.flags, "safe_path", False) else os.getcwd()


def open_to(packages: Sequence[str] | None) -> None:
    """Let Python import from the folder: only these packages, or any module if None."""
    if _folder is None:
        return
    if packages is None:
        # At the end: an installed module of the same name wins.
        sys.path.append(_folder)
    else:
        # Python asks it only for modules that no other finder knows.
        sys.meta_path.append(_Finder(_folder, packages))


def make_command(verb: str) -> list[str]:
    """Return the command of a launcher that finds the same modules as this process."""
    if _folder is None:
        return [sys.executable, "-m", f"launch.{verb}"]
    return [sys.executable, "-c", _START, verb]


class _Finder:
    """Finds only some packages in a folder."""

    def __init__(self, folder: str, packages: Sequence[str]):
        self._folder = folder
        # Trust in ours.towers needs the package ours.
        self._names = {package.partition(".")[0] for package in packages}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        # `path` is set for modules within a package: these are found by the package itself.
        if path is not None or name not in self._names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._folder], target)
