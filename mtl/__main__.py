"""The command `mtl` for `python -m mtl`: modules of the current folder come last."""

import sys

if __name__ == "__main__":
    # Python has put the current folder first, in which a file launch.py would be another one.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    from launch.console import main

    sys.exit(main())
