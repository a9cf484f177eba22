"""Draws the layers of a model in SVG: a box for each scope, in the colour of its tasks.

layers_picture.draw(tree, ["digit", "parity"])
"""

import itertools
from collections.abc import Sequence

from mtl.tools.debugging import layers
from mtl.tools.drawing import figures, texts

_LINE, _INDENT, _MOST_INDENT, _WIDTH = 26, 22, 240, 860
# The x-coordinates of the left edges of the columns.
_COLUMNS = {"output": 440, "parameters": 560, "tasks": 670}
# Colours of scopes that all tasks use, that several tasks use (grey), and that one task uses.
_OF_ALL, _OF_SOME, _OF_TASKS = "c0", "c5", ("c1", "c2", "c3", "c4", "c6", "c7")


def draw(tree: Sequence[layers.Scope], tasks: Sequence[str]) -> str:
    """Draw a box for every scope of a model, without the variables.

    Args:
      tree: the scopes of the model.
      tasks: the names of all tasks of the model.

    Returns:
      The picture in SVG.
    """
    boxes = [box for scope in tree for box in _list_boxes(scope, 0)]
    indent = min(_INDENT, _MOST_INDENT / max([1, *(depth for _, depth in boxes)]))
    task_colors = itertools.cycle(_OF_TASKS)
    colors: dict[tuple[str, ...], str] = {(task,): next(task_colors) for task in tasks}
    colors[tuple(tasks)] = _OF_ALL
    parts = [texts.write("scope", texts.put(14, 18))]
    parts += [texts.write(name, texts.put(x, 18)) for name, x in _COLUMNS.items()]
    for number, (scope, depth) in enumerate(boxes):
        x, y = 6 + indent * depth, _LINE * (number + 1)
        box = f'width="{texts.trim(_WIDTH - x - 6)}" height="{_LINE - 4}" rx="3"'
        color = colors.get(scope.tasks, _OF_SOME)
        parts.append(f'<rect class="box {color}" {texts.put(x, y)} {box}/>')
        edges = [x + 8, *_COLUMNS.values(), _WIDTH]
        for text, (start, end) in zip(
            _tell_scope(scope, tasks), itertools.pairwise(edges), strict=True
        ):
            at = texts.put(start, y + 15)
            parts.append(texts.write(text, at, width=end - start - 12, style="told"))
    return figures.draw_picture("Layers by task", _WIDTH, _LINE * (len(boxes) + 1) + 6, parts)


def _list_boxes(scope: layers.Scope, depth: int) -> list[tuple[layers.Scope, int]]:
    below = [box for child in scope.children for box in _list_boxes(child, depth + 1)]
    return [(scope, depth), *below] if scope.variable is None else []


def _tell_scope(scope: layers.Scope, tasks: Sequence[str]) -> list[str]:
    """Return name, output shape, number of parameters and tasks of a scope as texts."""
    shape = "×".join("?" if size is None else str(size) for size in scope.output or ())
    count = f"{scope.parameters:,}" if scope.parameters else ""
    shared = "all" if len(scope.tasks) == len(tasks) else ", ".join(scope.tasks)
    return [scope.name.rpartition("/")[2], shape, count, shared]
