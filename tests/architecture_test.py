"""The rooms of docs/architecture.md: imports point down, no file circles, gin in one room."""

import ast
import functools
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROWS = re.search(r"<!-- rows -->\n\n```\n(.*?)```", PAGE, re.S).group(1).splitlines()
ROW = {room: len(ROWS) - i for i, line in enumerate(ROWS) for room in line.split()}
ROW[""] = len(ROWS)  # mtl/__init__.py looks up what it offers when that is asked for.


def _module(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_module(path): path for top in ("mtl", "launch") for path in (ROOT / top).rglob("*.py")}


@functools.cache
def _imports(module):
    """(line, imported module) of all imports, also in functions, TYPE_CHECKING and by name."""
    found = []
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(node.lineno, name if name in FILES else node.module) for name in names]
        elif isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found += [(node.lineno, a.value) for a in node.args if isinstance(a, ast.Constant)]
    return found


def _room(module):
    """'launch', 'heads' of mtl.heads.binary, '' of mtl itself."""
    top, _, rest = module.partition(".")
    # mtl/__main__.py is the command `mtl`, and no part of the package.
    is_launcher = top == "launch" or rest == "__main__"
    return "launch" if is_launcher else rest.partition(".")[0]


def test_every_room_stands_in_a_row():
    assert set(ROW) == {_room(module) for module in FILES}


@pytest.mark.medium
def test_imports_point_down():
    wrong = [
        f"{FILES[module].relative_to(ROOT)}:{line}: {_room(module)} imports {_room(name)}"
        for module in FILES
        for line, name in _imports(module)
        if name in FILES and _room(name) and _room(name) != _room(module)
        if ROW[_room(name)] >= ROW[_room(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_imports_in_a_circle():
    within = {module: {name for _, name in _imports(module) if name in FILES} for module in FILES}
    packages = {module for module in FILES if FILES[module].name == "__init__.py"}
    # A package re-exports its modules: they may name it, as they load it.
    graph = {module: names - {module} - packages for module, names in within.items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_one_room_knows_gin():
    found = {_room(module) for module in FILES for _, name in _imports(module) if name == "gin"}
    assert found == {"configs"}


def test_only_launchers_and_users_import_data_sets():
    users = {
        _room(module)
        for module in FILES
        for _, name in _imports(module)
        if name in FILES and _room(name) == "datasets"
    }
    assert users <= {"datasets", "launch"}


def test_the_package_does_not_import_its_launcher():
    inside = [module for module in FILES if _room(module) != "launch"]
    assert not [m for m in inside for _, name in _imports(m) if _room(name) == "launch"]
