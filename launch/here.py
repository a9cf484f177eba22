"""The current folder as a place of modules, for the command `mtl`.

here.note()                                   # as `mtl` starts, which Python has told nothing
here.open_to(None)                            # once flags are read: any module, after all others
here.open_to(["ours"])                        # or the packages of --trusted_packages alone
here.make_command("train")                    # the same for a process that this one starts

A run finds the modules beside its gin file, and a module there never stands before one that is
installed. `python -m launch.<verb>` has put the folder first before our code runs.
"""

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from typing import Any

_START = "import sys; sys.path[0] or sys.path.pop(0); from launch.console import main; "
_START += "sys.exit(main())"
_folder: str | None = None


def note() -> None:
    """Keep the current folder in mind; Python's safe path, where it is on, leaves it out."""
    global _folder
    _folder = None if getattr(sys.flags, "safe_path", False) else os.getcwd()


def open_to(packages: Sequence[str] | None) -> None:
    """Have Python look into the folder as well, for these packages alone or for all."""
    if _folder is None:
        return
    if packages is None:
        sys.path.append(_folder)
    else:
        sys.meta_path.append(_Finder(_folder, packages))


def make_command(verb: str) -> list[str]:
    """Return the command of a launcher, which finds its modules as this process does."""
    if _folder is None:
        return [sys.executable, "-m", f"launch.{verb}"]
    return [sys.executable, "-c", _START, verb]


class _Finder:
    """Finds some packages in a folder, and nothing else there."""

    def __init__(self, folder: str, packages: Sequence[str]):
        self._folder = folder
        self._names = {package.partition(".")[0] for package in packages}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if path is not None or name not in self._names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._folder], target)
