"""Runs the command `mtl` for `python -m mtl`."""

import sys

if __name__ == "__main__":
    # Python puts the current folder first into sys.path: a file launch.py in this folder would hide
    # the package `launch`.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    from launch.console import main

    sys.exit(main())
