"""Finds the origin of an op: the lines of code that created the op, and its part of the model.

place = origin.find_origin(graph, "balancing/gradients/head/digit/Log_grad/Reciprocal")
place.line                                               # "my_heads.py:31 in loss: tf.math.log(x)"
"""

from __future__ import annotations

import dataclasses
import linecache
import os
import re
import sysconfig
from collections.abc import Sequence

import mtl
from mtl.deferred import tf
from mtl.tf_internals import graphs

_OURS = os.path.dirname(os.path.abspath(mtl.__file__))
_MODEL = os.path.join(_OURS, "model") + os.sep
_LAYERS = os.path.join(_OURS, "layers") + os.sep
_STANDARD = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = re.compile(r"/(site|dist)-packages/")
_FRAMEWORKS = re.compile(r"/(site|dist)-packages/(tensorflow|keras|tf_keras|absl|gin)[^/]*/")
_PART = re.compile(r"(?:^|/)((?:features|network|head|auxiliary)/[^/]+(?:/[^/]+)*)")


@dataclasses.dataclass(frozen=True)
class Origin:
    """The code that created an op, and the part of the model that the op belongs to.

    Attributes:
      forward: for an op that computes a gradient, the name of its forward op; otherwise "".
      part: the scope of the op, such as head/digit or network/trunk/block_0; "" outside of the
        model.
      lines: the lines of code that created the op, as "<file>:<line> in <function>: <text>": first
        a line of the user's code, then a line of this package.
    """

    forward: str
    part: str
    lines: tuple[str, ...]


def find_origin(graph: tf.Graph, name: str) -> Origin:
    """Return the origin of an op; for an op that computes a gradient, the origin of its forward op.

    Args:
      graph: the graph in which Python built the op.
      name: the name of the op; see `step_dump.Node` for names of ops in a loop or a branch.
    """
    operation = graphs.find_operation(graph, name)
    if operation is None:
        return Origin("", find_part(name), ())
    forward = graphs.forward_operation(operation)
    source = forward if forward is not None else operation
    lines = _list_lines(source)
    forward_name = forward.name if forward is not None else ""
    return Origin(forward_name, find_part(forward_name or name), lines)


def find_part(name: str) -> str:
    """Return the scope of an op in the model.

    Args:
      name: the name of the op.

    Returns:
      A scope such as "head/digit"; "" if the op lies outside of the model.
    """
    match = _PART.search(name.rpartition("/")[0])
    return match.group(1) if match else ""


def _list_lines(operation: tf.Operation) -> tuple[str, ...]:
    """Return the innermost line of the user's code, and the innermost line of this package."""
    # Ops that TensorFlow itself creates have no traceback. A traceback lists
    # the outermost call first.
    frames = [(f.filename, f.lineno, f.name) for f in operation.traceback or ()]
    inside = _within_model(frames)
    user_frames = [frame for frame in inside if _is_of_user(frame[0])]
    return tuple(_describe_frame(*frame) for frame in (*user_frames[-1:], *_keep_ours(inside)[-1:]))


def _keep_ours(frames: Sequence[tuple]) -> Sequence[tuple]:
    """Return the frames in this package; leave out frames in `mtl/layers` if there are others."""
    package_frames = [
        frame for frame in frames if os.path.abspath(frame[0]).startswith(_OURS + os.sep)
    ]
    # The code that calls a layer says more about the origin of an op than the code of the layer.
    return [
        f for f in package_frames if not os.path.abspath(f[0]).startswith(_LAYERS)
    ] or package_frames


def _describe_frame(file: str, line: int, function: str) -> str:
    return f"{_shorten(file)}:{line} in {function}: {linecache.getline(file, line).strip()}"


def _within_model(frames: Sequence[tuple]) -> Sequence[tuple]:
    """Return the frames from the first call in `mtl/model` on, without frames of the command."""
    is_model = [os.path.abspath(frame[0]).startswith(_MODEL) for frame in frames]
    return frames[is_model.index(True) if any(is_model) else 0 :]


def _is_of_user(file: str) -> bool:
    path = os.path.abspath(file)
    # Generated code, such as a method of a dataclass, has no file.
    if not os.path.exists(path) or path.startswith(_OURS + os.sep) or _FRAMEWORKS.search(path):
        return False
    # Installed packages may contain the layers of the user, but lie inside the folder of the
    # standard library.
    return bool(_INSTALLED.search(path)) or not path.startswith(_STANDARD)


def _shorten(file: str) -> str:
    path = os.path.abspath(file)
    # Shorten files of this package to paths such as mtl/heads/binary.py, wherever it is installed.
    here = os.path.dirname(_OURS) if path.startswith(_OURS + os.sep) else os.getcwd()
    short = os.path.relpath(path, here)
    return file if short.startswith("..") else short
