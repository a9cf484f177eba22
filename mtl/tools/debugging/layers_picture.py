"""Draws the layers of a model in SVG: a box for each scope, coloured by its tasks.

layers_picture.draw(tree, ["digit", "parity"])
"""

from collections.abc import Sequence
from xml.sax import saxutils

from mtl.tools.debugging import layers

_LINE, _INDENT, _WIDTH = 26, 22, 860
# Colors of scopes that all tasks share, that some share (grey), and of single tasks.
_ALL, _SOME = "#4c6a92", "#8a8f98"
_OWN = ("#b5533c", "#3f8f5f", "#8c5fa8", "#b08a2e", "#2f8a99", "#a8486f")


def draw(tree: Sequence[layers.Scope], tasks: Sequence[str]) -> str:
    """Return the picture of nested scopes, without variables."""
    boxes = [box for scope in tree for box in _list_boxes(scope, 0)]
    colours: dict[tuple[str, ...], str] = {tuple(tasks): _ALL}
    if len(tasks) > 1:
        colours |= {(task,): _OWN[i % len(_OWN)] for i, task in enumerate(tasks)}
    height = _LINE * len(boxes) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (scope, depth) in enumerate(boxes):
        x, y = 6 + _INDENT * depth, 6 + _LINE * number
        colour = colours.get(scope.tasks, _SOME)
        lines.append(
            f'<rect x="{x}" y="{y}" width="{_WIDTH - x - 6}" height="{_LINE - 4}" rx="3" '
            f'fill="{colour}"/>'
        )
        lines += [
            _text(x + 8, y, scope.name.rpartition("/")[2]),
            _text(_WIDTH - 420, y, _shape(scope)),
            _text(_WIDTH - 290, y, f"{scope.parameters:,} parameters" if scope.parameters else ""),
            _text(_WIDTH - 130, y, "all" if len(scope.tasks) == len(tasks) else _tasks(scope)),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _list_boxes(scope: layers.Scope, depth: int) -> list[tuple[layers.Scope, int]]:
    below = [box for child in scope.children for box in _list_boxes(child, depth + 1)]
    return [(scope, depth), *below] if scope.variable is None else []


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y + 15}" fill="#ffffff">{saxutils.escape(text)}</text>'


def _shape(scope: layers.Scope) -> str:
    return (
        "" if scope.output is None else "×".join("?" if d is None else str(d) for d in scope.output)
    )


def _tasks(scope: layers.Scope) -> str:
    return ", ".join(scope.tasks)
