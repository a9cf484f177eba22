r"""Runs the command `mtl`, which an installation of the package provides.

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
        "doctor": "check the installation",
        "completion": "complete verbs, flags and files in bash or zsh",
    },
    "Train": {
        "train": "train, evaluate and export the model of a gin file",
        "stages": "train several gin files in order",
        "cluster": "train in several processes of this machine",
        "warm_start": "show the first value of each variable of a run",
        "prune": "cut weights of a finished run",
    },
    "Judge": {
        "evaluate": "print the metrics of every task on a split",
        "report": "write one page about a run",
        "compare": "show runs side by side",
        "explain": "show which fields matter, and explain single predictions",
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
        "debug": "replay the step at which a run failed",
    },
}
VERBS = tuple(verb for group in _GROUPS.values() for verb in group)


def main() -> int:
    """Run the verb in the first argument like `python -m launch.<verb>`.

    Returns:
      The exit code; 2 for an unknown verb.
    """
    verb, *rest = sys.argv[1:] or ["--help"]
    # Accept "-" for "_": `mtl clip-audit` runs the module clip_audit.
    verb = verb.replace("-", "_") if not verb.startswith("-") else verb
    if verb in ("--help", "-h"):
        print(_write_help())
        return 0
    if verb == "--version":
        print(f"mtl {mtl.__version__}")
        return 0
    if verb not in VERBS:
        hint = checks.nearest(verb, VERBS)
        names = f"The verbs are {', '.join(VERBS)}."
        print(f"Error: there is no verb {verb!r}. {hint or names}", file=sys.stderr)
        return 2
    sys.argv[1:] = rest
    # Set the script's name as `python -m` does, because absl finds the command's flags by this
    # name.
    sys.argv[0] = str(pathlib.Path(__file__).with_name(f"{verb}.py"))
    # Remember the current folder: sys.path begins with the folder of the script `mtl` instead.
    here.note()
    imports.guard()
    runpy.run_module(f"launch.{verb}", run_name="__main__", alter_sys=True)
    return 0


def _write_help() -> str:
    lines = ["mtl VERB [flags]", ""]
    for group, verbs in _GROUPS.items():
        lines.append(group)
        lines += [f"  {verb:<12}{meaning}" for verb, meaning in verbs.items()]
    return "\n".join([*lines, "", "mtl VERB --help lists the flags of a verb."])
