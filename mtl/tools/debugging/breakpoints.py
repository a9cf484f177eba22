"""Calls a function under pdb, with a breakpoint at the start of another function.

values = breakpoints.call_under_pdb(run, stop_in=networks.MLP.__call__)
"""

import bdb
import pdb
from collections.abc import Callable
from typing import Any, TypeVar

_Returned = TypeVar("_Returned")


def call_under_pdb(run: Callable[[], _Returned], stop_in: Callable[..., Any]) -> _Returned:
    """Call `run` under pdb, which stops in the terminal at the first line of `stop_in`.

    Args:
      run: the function to call.
      stop_in: a function of Python code that `run` calls.

    Returns:
      The result of `run`.

    Raises:
      bdb.BdbQuit: the user ended the debugger, or standard input is not a terminal.
    """
    code = stop_in.__code__
    # Skip the line of `def`, which a call does not execute.
    lines = [line for *_, line in code.co_lines() if line and line > code.co_firstlineno]
    first = min(lines, default=code.co_firstlineno)  # For a function in one line: this line.
    # Without `nosigint`, pdb would replace the launcher's handler for Ctrl-C.
    debugger = pdb.Pdb(nosigint=True)
    debugger.rcLines += [f"tbreak {code.co_filename}:{first}", "continue"]
    results: list[_Returned] = []
    debugger.runcall(lambda: results.append(run()))
    if not results:  # Not all versions of Python raise BdbQuit when the user ends the debugger.
        raise bdb.BdbQuit
    return results[0]
