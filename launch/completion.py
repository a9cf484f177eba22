"""Writes a shell script that completes verbs, flags and files of `mtl` in bash or zsh.

mtl completion bash > ~/.mtl_completion      # once for each version of mtl
source ~/.mtl_completion                     # in ~/.bashrc or ~/.zshrc
python -m launch.completion bash             # the same, in a clone of the repository
"""

import ast
import functools
import pathlib
import sys
from collections.abc import Iterator

from launch import console
from launch.processes import endings
from mtl import checks

# The first lines of each script: zsh needs `bashcompinit` to run completions of bash.
_SHELLS = {"bash": "", "zsh": "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"}
_FOLDER = pathlib.Path(__file__).parent
# The script for all shells. If no word fits, the shell completes names of files.
_SCRIPT = """\
_mtl() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{verbs}"
  elif [[ "$current" == -* ]]; then
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _mtl mtl"""


def list_flags(verb: str) -> list[str]:
    """Return the flags of a verb; read its source code, because an import would take seconds.

    Args:
      verb: the name of a module in `launch`, such as "train".

    Returns:
      The flags with "--", such as "--gin_file"; "--help" is the first.
    """
    names = dict.fromkeys(flag for module in _list_modules(verb) for flag in _read_flags(module))
    return ["--help", *names]


def write_script(shell: str) -> str:
    """Return the completion script of a shell.

    Raises:
      UserError: the shell is neither bash nor zsh.
    """
    checks.one_of("The shell", shell, _SHELLS)
    # Write all flags into the script, because starting Python for each completion takes too long.
    cases = "\n".join(f'      {v}) words="{" ".join(list_flags(v))}" ;;' for v in console.VERBS)
    return _SHELLS[shell] + _SCRIPT.format(verbs=" ".join(console.VERBS), cases=cases)


def _list_modules(verb: str) -> list[str]:
    """Return the module of a verb, and all modules of `launch` that this module imports."""
    modules, pending = dict[str, None](), [verb]
    while pending:
        module = pending.pop()
        if module not in modules and (_FOLDER / f"{module}.py").exists():
            modules[module] = None
            for node in ast.walk(_parse_module(module)):
                if isinstance(node, ast.ImportFrom) and node.module == "launch":
                    pending += [alias.name for alias in node.names]
    return list(modules)


def _read_flags(module: str) -> Iterator[str]:
    """Yield the flags that a module defines with absl or argparse."""
    for node in ast.walk(_parse_module(module)):
        if not isinstance(node, ast.Call):
            continue
        # The called function is an attribute, as in `flags.DEFINE_string`, or a name, as in `add`.
        function = getattr(node.func, "attr", getattr(node.func, "id", ""))
        value = getattr(node.args[0], "value", None) if node.args else None
        first = value if isinstance(value, str) else ""
        if function == "define_checkpoint":
            yield "--checkpoint"
        # Skip the DEFINE_string of `define_checkpoint` in `app`: every verb imports `app`, but only
        # some define --checkpoint.
        elif function.startswith("DEFINE_") and (module, first) != ("app", "checkpoint"):
            yield f"--{first}"
        elif function in ("add", "add_argument") and first.startswith("--"):
            yield first


@functools.cache
def _parse_module(module: str) -> ast.Module:
    return ast.parse((_FOLDER / f"{module}.py").read_text(encoding="utf-8"))


def main() -> None:
    """Print the completion script for the shell that the argument names."""
    if {"--help", "-h"} & set(sys.argv):
        print(__doc__)
        return
    rule = "be bash or zsh"
    checks.require(len(sys.argv) == 2, "The shell", rule, " ".join(sys.argv[1:]) or None)
    print(write_script(sys.argv[1]))


if __name__ == "__main__":
    endings.run(main)
