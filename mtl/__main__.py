"""Runs the command `mtl` for `python -m mtl`."""

import sys

if __name__ == "__main__":
    # Python has put the current folder first: a file launch.py there would hide our package.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    from launch.console import main

    sys.exit(main())
