"""Spares every op of a graph the stack that TensorFlow keeps of it: a seventh of the time of tests.

The stack only says in an error of TensorFlow's where an op was made; below pytest it has about a
hundred frames. `MTL_OP_STACKS=1 pytest ...` keeps the stacks.
"""

import os

from tensorflow.python.util import tf_stack


def leave_out() -> None:
    """For all graphs of this process and of its forks."""
    if os.environ.get("MTL_OP_STACKS") == "1":
        return
    stack = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: stack
