r"""The command `mtl`: all launchers under one name, once the package is installed.

mtl train --gin_file gin_configs/experiments/digits_shared_bottom.gin
mtl evaluate --model_dir runs/digits_shared_bottom
mtl train --help
"""

import pathlib
import runpy
import sys

import mtl
from launch.processes import here
from mtl import checks
from mtl.configs import imports

_GROUPS = {
    "Begin": {
        "data": "describe tables, or compare two: statistics and drift",
        "new": "write a gin file for a table",
        "parts": "list the parts that a gin file can build",
        "doctor": "show what is installed and works here",
        "completion": "complete verbs, flags and files in bash or zsh",
    },
    "Train": {
        "train": "train, evaluate and export the model of a gin file",
        "stages": "train several gin files in order",
        "cluster": "train in several processes of this machine",
        "warm_start": "show what each variable would start from",
        "prune": "cut weights of a finished run",
    },
    "Judge": {
        "evaluate": "print the metrics of every task on a split",
        "report": "write one page about a run",
        "compare": "show runs side by side",
        "explain": "show which fields matter, and why a row is predicted so",
        "affinity": "propose which tasks to train together",
        "clip_audit": "find samples whose gradients are large or clipped",
    },
    "Use": {
        "predict": "predict every task for the rows of files",
        "export": "write a SavedModel for TF Serving",
        "serve": "serve exports on this machine",
    },
    "Find mistakes": {
        "inspect": "show layers, tensors and code of a model",
        "debug": "replay the step at which a run broke",
    },
}
VERBS = tuple(verb for group in _GROUPS.values() for verb in group)


def main() -> int:
    """Run `python -m launch.<verb>` with the other arguments; return 2 for an unknown verb."""
    verb, *rest = sys.argv[1:] or ["--help"]
    # `mtl clip-audit` means the module clip_audit.
    verb = verb.replace("-", "_") if not verb.startswith("-") else verb
    if verb in ("--help", "-h"):
        print(_write_help())
        return 0
    if verb == "--version":
        print(f"mtl {mtl.__version__}")
        return 0
    if verb not in VERBS:
        hint = checks.nearest(verb, VERBS)
        known = f"Verbs are {', '.join(VERBS)}."
        print(f"Error: there is no verb {verb!r}. {hint or known}", file=sys.stderr)
        return 2
    sys.argv[1:] = rest
    # As `python -m` does, so that absl finds the flags of the launcher under this name.
    sys.argv[0] = str(pathlib.Path(__file__).with_name(f"{verb}.py"))
    # `mtl` is a script: Python's path begins with its folder, not with the current one.
    here.note()
    imports.guard()
    runpy.run_module(f"launch.{verb}", run_name="__main__", alter_sys=True)
    return 0


def _write_help() -> str:
    lines = ["mtl VERB [flags]", ""]
    for group, verbs in _GROUPS.items():
        lines.append(group)
        lines += [f"  {verb:<12}{told}" for verb, told in verbs.items()]
    return "\n".join([*lines, "", "mtl VERB --help lists the flags of a verb."])
