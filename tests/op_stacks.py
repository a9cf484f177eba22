"""Spares every op of a graph the stack that TensorFlow keeps of it: a seventh of the time of tests.

The stack only says in an error of TensorFlow's where an op was made; below pytest it has about a
hundred frames. `MTL_OP_STACKS=1 pytest ...` keeps the stacks.
"""

import functools
import os

from tensorflow.python.framework import ops


def leave_out() -> None:
    """For all graphs of this process and of its forks; their ops have no `traceback`."""
    if os.environ.get("MTL_OP_STACKS") != "1":
        ops._create_c_op = functools.partial(ops._create_c_op, extract_traceback=False)
