"""The names of TensorFlow that tensorflow-estimator's sources use, from their syntax trees.

for path in sources.files():
    for use in sources.uses(path): use.dotted, use.missing, use.call
"""

import ast
import dataclasses
import importlib
import inspect
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import tensorflow_estimator

ROOT = pathlib.Path(tensorflow_estimator.__file__).parent
TEST_UTILITIES = ("testing_utils.py", "testing_utils_v1.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Use:
    """One TensorFlow name in a source, followed as far as modules and classes go."""

    dotted: str
    line: int
    missing: bool
    value: Any = None
    call: ast.Call | None = None

    def misfit(self) -> str | None:
        """Return the error if the call's arguments do not fit the signature, or None."""
        if self.missing or self.call is None or not callable(self.value):
            return None
        arguments = [*self.call.args, *self.call.keywords]
        if any(isinstance(a, ast.Starred) or getattr(a, "arg", "") is None for a in arguments):
            return None
        try:
            signature = inspect.signature(self.value)
        except (TypeError, ValueError):  # written in C
            return None
        try:
            signature.bind(*self.call.args, **{k.arg: k.value for k in self.call.keywords})
        except TypeError as error:
            return f"{self.dotted}: {error}"
        return None


def files() -> list[pathlib.Path]:
    """Every module of the wheel, the tests that it ships left out."""
    return [path for path in ROOT.rglob("*.py") if not path.name.endswith(TEST_UTILITIES)]


def uses(path: pathlib.Path) -> Iterator[Use]:
    """All TensorFlow names that the file at `path` imports, reads or calls."""
    tree = ast.parse(path.read_text())
    loaded = {}
    for local, dotted, line in _imports(tree):
        try:
            loaded[local] = (dotted, _load(dotted))
            yield Use(dotted=dotted, line=line, missing=False)
        except ImportError:
            yield Use(dotted=dotted, line=line, missing=True)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        local, parts = _chain(node)
        if local in loaded:
            yield _follow(*loaded[local], parts, node.lineno, calls.get(id(node)))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """(local name, dotted name, line) of everything imported from TensorFlow."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "tensorflow":
                    yield alias.asname or alias.name, alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow."):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}", node.lineno


def _chain(node: ast.AST) -> tuple[str | None, list[str]]:
    """('tf', ['compat', 'v1', ...]) of a name or an attribute expression, or (None, [])."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, parts[::-1]) if isinstance(node, ast.Name) else (None, [])


def _load(dotted: str) -> Any:
    parent, _, name = dotted.rpartition(".")
    if not parent:
        return importlib.import_module(name)
    module = importlib.import_module(parent)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(dotted)


def _follow(dotted, value, parts, line, call) -> Use:
    """Follows `value.a.b.c` through modules and classes; instances are not looked into."""
    for part in parts:
        if not isinstance(value, types.ModuleType | type):
            return Use(dotted=dotted, line=line, missing=False, value=value)
        dotted = f"{dotted}.{part}"
        if not hasattr(value, part):
            return Use(dotted=dotted, line=line, missing=True)
        value = getattr(value, part)
    return Use(dotted=dotted, line=line, missing=False, value=value, call=call)
