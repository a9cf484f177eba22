"""Spares every op of a graph the stack that TensorFlow keeps of it: a tenth of the time of tests.

pytestmark = pytest.mark.keeps_op_stacks

The stack only says in an error where an op was made; below pytest it has about a hundred frames.
`launch.debug` and profiles tell it, and their tests keep the stacks by a mark.
`MTL_OP_STACKS=1 pytest ...` keeps those of all tests.
"""

import functools
import os

from tensorflow.python.framework import ops

_create = ops._create_c_op
_create_without = functools.partial(_create, extract_traceback=False)


def turn_on(is_on: bool) -> None:
    """For all ops that this process makes from now on, and its forks; others have no traceback."""
    keeps = is_on or os.environ.get("MTL_OP_STACKS") == "1"
    ops._create_c_op = _create if keeps else _create_without


def are_on() -> bool:
    """Return True if ops keep their stacks."""
    return ops._create_c_op is _create
