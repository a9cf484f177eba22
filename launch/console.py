r"""The command `mtl`: the launchers under one name, for where the package is installed.

mtl train --gin_file gin_configs/experiments/digits_shared_bottom.gin
mtl evaluate --model_dir runs/digits_shared_bottom
mtl train --help
"""

import pathlib
import runpy
import sys

import mtl
from launch import here
from mtl import checks
from mtl.configs import imports

VERBS = (
    "new",
    "train",
    "stages",
    "cluster",
    "evaluate",
    "predict",
    "report",
    "explain",
    "compare",
    "affinity",
    "export",
    "prune",
    "warm_start",
    "clip_audit",
    "debug",
    "inspect",
    "parts",
    "doctor",
    "completion",
)


def main() -> int:
    """Run `python -m launch.<verb>` with the other arguments; 2 where there is no such verb."""
    verb, *rest = sys.argv[1:] or ["--help"]
    verb = verb.replace("-", "_") if not verb.startswith("-") else verb
    if verb in ("--help", "-h"):
        print(_help())
        return 0
    if verb == "--version":
        print(f"mtl {mtl.__version__}")
        return 0
    if verb not in VERBS:
        hint = checks.nearest(verb, VERBS)
        print(f"Error: there is no verb {verb!r}. {hint or _help()}", file=sys.stderr)
        return 2
    sys.argv[1:] = rest
    # As `python -m` does, so that absl finds the flags of the launcher under this name.
    sys.argv[0] = str(pathlib.Path(__file__).with_name(f"{verb}.py"))
    here.note()
    imports.guard()
    runpy.run_module(f"launch.{verb}", run_name="__main__", alter_sys=True)
    return 0


def _help() -> str:
    return f"mtl VERB [flags]: one of {', '.join(VERBS)}. 'mtl VERB --help' tells of its flags."
