"""Single defects that can be planted in a file, as changes of its text.

for defect in defects.find("mtl/heads/binary.py", text):
    broken = defect.plant(text)
"""

import ast
import dataclasses
from collections.abc import Iterator

_TURNED = {
    ast.Lt: ">",
    ast.Gt: "<",
    ast.LtE: ">=",
    ast.GtE: "<=",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
}
_SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
# A defect here would change only texts for people.
_TEXTS = (ast.JoinedStr, ast.Assert, ast.Raise)


@dataclasses.dataclass(frozen=True)
class Defect:
    """A defect: one change of the source of a module.

    Attributes:
      kind: the kind of change, such as "comparison turned round".
      line: the number of its first line, from 1.
      start: the position of its first byte.
      end: the position behind its last byte.
      new: the new text.
    """

    kind: str
    line: int
    start: int
    end: int
    new: str

    def plant(self, text: str) -> str:
        """Return the text with the defect."""
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()

    def read_old(self, text: str) -> str:
        """Return the text that the defect replaces."""
        return text.encode()[self.start : self.end].decode()


def find(text: str) -> list[Defect]:
    """Return all defects that a file could have; a few of them are not valid Python."""
    places = _Places(text)
    return [defect for node in _walk(ast.parse(text)) for defect in _list(node, places)]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _TEXTS):
            yield child
            yield from _walk(child)


def _list(node: ast.AST, places: "_Places") -> Iterator[Defect]:
    match node:
        case ast.Compare(ops=[op], left=left, comparators=[right]) if type(op) in _TURNED:
            yield places.put("comparison turned round", left, right, _TURNED[type(op)])
        case ast.BinOp(op=op, left=left, right=right) if not _is_text(left) and not _is_text(right):
            if type(op) in _SIGNS:
                yield places.put("sign", left, right, _SIGNS[type(op)])
            if isinstance(op, ast.Add | ast.Sub):
                yield places.replace("dropped term", node, places.read(left))
        case ast.Slice(lower=ast.Constant(value=int(n)) as bound):
            yield places.replace("off by one", bound, str(n + 1))
        case ast.Slice(upper=ast.Constant(value=int(n)) as bound):
            yield places.replace("off by one", bound, str(n + 1))
        case ast.keyword(arg="axis", value=ast.Constant(value=int(n)) as axis):
            yield places.replace("wrong axis", axis, str(0 if n else 1))
        case ast.Call(args=[first, second, *_]) if _can_swap(node):
            a, b = places.read(first), places.read(second)
            start, end = places.span(first)[0], places.span(second)[1]
            yield Defect("swapped arguments", first.lineno, start, end, f"{b}, {a}")
        case ast.If(test=test, orelse=[]) if not isinstance(node.body[0], ast.Raise):
            yield places.replace("skipped branch", test, "False")
        case ast.IfExp(test=test):
            yield places.replace("skipped branch", test, "False")
        case ast.AnnAssign(value=ast.Constant(value=bool(flag)) as value):
            yield places.replace("wrong default", value, str(not flag))
        case ast.AnnAssign(value=ast.Constant(value=int() | float() as number) as value):
            yield places.replace("wrong default", value, repr(number * 2 + 1))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _can_swap(node: ast.Call) -> bool:
    """Return True if the first two arguments differ, and neither is starred or text."""
    first, second = node.args[:2]
    is_plain = not any(isinstance(a, ast.Starred) or _is_text(a) for a in (first, second))
    return is_plain and ast.dump(first) != ast.dump(second)


def is_python(text: str) -> bool:
    """Return whether a text can be parsed."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


class _Places:
    """The bytes of a text at which its nodes stand."""

    def __init__(self, text: str):
        self._data = text.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def read(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self._data[start:end].decode()

    def replace(self, kind: str, node: ast.AST, new: str) -> Defect:
        return Defect(kind, node.lineno, *self.span(node), new)

    def put(self, kind: str, left: ast.AST, right: ast.AST, operator: str) -> Defect:
        """Return a defect that puts an operator between two operands; brackets there stay."""
        start, end = self.span(left)[1], self.span(right)[0]
        between = self._data[start:end].decode()
        closing = between[: len(between) - len(between.lstrip(" )\n"))]
        opening = between[len(between.rstrip(" (\n")) :]
        return Defect(kind, left.lineno, start, end, f"{closing}{operator}{opening}")
