"""Programs that no test runs import modules and names that are there.

A module that moves breaks such a program without a sign: benchmarks, examples, tests/clients.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "examples", "tests/clients")
PROGRAMS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
OURS = ("benchmarks", "examples", "launch", "mtl", "tests")


def _find_module(name):
    """The file of a module or package of this repository, or None."""
    path = ROOT / name.replace(".", "/")
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.exists()), None)


def _list_names(file):
    """The names that a module defines or imports."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names


def _list_missing(program):
    for node in ast.walk(ast.parse(program.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.module.split(".")[0] not in OURS:
            continue
        package = _find_module(node.module)
        for alias in node.names:
            is_module = _find_module(f"{node.module}.{alias.name}") is not None
            if not is_module and (package is None or alias.name not in _list_names(package)):
                yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_imported_module_and_name_exists(program):
    assert not list(_list_missing(program))
