"""Functions stay simple: branches and lines of each are counted, with a few exceptions in all."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
MOST, MOST_LINES = 10, 60
# None may have more branches than this, and of all functions so many may have more than MOST.
LIMIT, SHARE = 15, 0.005
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp)


def _list_functions():
    """(place, complexity, lines) of each function of the packages, nested ones among them."""
    for top in ("mtl", "launch"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, _FUNCTIONS):
                    place = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                    yield place, _count_ways(node), node.end_lineno - node.lineno + 1


def _count_ways(function):
    """1, and one more for each branch, loop, condition and operand of a function."""
    total, left = 1, list(function.body)
    while left:
        node = left.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue  # Counted by itself.
        if isinstance(node, _BRANCHES):
            total += 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        left.extend(ast.iter_child_nodes(node))
    return total


def test_ways_are_counted():
    lines = ("def f(a):", "  if a and a > 1:", "    return [b for b in a if b]", "  return a or 1")
    assert _count_ways(ast.parse("\n".join(lines)).body[0]) == 6


@pytest.mark.medium
def test_functions_are_simple_and_short():
    functions = list(_list_functions())
    assert len(functions) > 4000
    too_long = [place for place, _, lines in functions if lines > MOST_LINES]
    assert too_long == []
    complex_ones = [(place, ways) for place, ways, _ in functions if ways > MOST]
    assert [place for place, ways in complex_ones if ways > LIMIT] == []
    assert len(complex_ones) < SHARE * len(functions), complex_ones
