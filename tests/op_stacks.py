"""Spares every op of a graph the stack that TensorFlow keeps of it: a seventh of the time of tests.

pytestmark = pytest.mark.keeps_op_stacks

The stack only says in an error where an op was made; below pytest it has about a hundred frames.
`launch.debug` tells it, and its tests keep the stacks by a mark. `MTL_OP_STACKS=1 pytest ...` keeps
those of all tests.
"""

import os

from tensorflow.python.util import tf_stack

_extract = tf_stack.extract_stack


def turn_on(is_on: bool) -> None:
    """For all ops that this process makes from now on, and its forks."""
    keeps = is_on or os.environ.get("MTL_OP_STACKS") == "1"
    # Of functions that are running: the code of a module is freed when it has been imported, and
    # TensorFlow reads it where an op fails.
    stack = _extract()
    tf_stack.extract_stack = _extract if keeps else lambda stacklevel=1: stack
