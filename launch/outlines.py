"""What gin files can name of `mtl`, read off its sources, for which TensorFlow is not imported.

modules = outlines.Outlines()
heads = modules.load("mtl.heads")
binary = modules.get(heads, "Binary")         # has the name and the settings of the class

A gin file is checked by them first: a misspelt name shows at once, and not after the seconds that
TensorFlow takes. Where sources do not settle it, as for code of a user, they raise an UnclearError,
and the modules themselves decide. Tests hold all outlines against what they stand for.
"""

import ast
import dataclasses
import functools
import importlib.machinery
import importlib.util
import pathlib
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from launch import gin_names

# Its modules take the names that the installed TensorFlow has.
_MOVING = "mtl.compat."
# Bases that bring no settings.
_NEUTRAL = ("Protocol", "abc.ABC", "Generic")
_DATACLASS = "dataclasses.dataclass"
_MAKERS = ("__init__", "__new__", "__init_subclass__", "__class_getitem__")


@dataclasses.dataclass(frozen=True)
class _From:
    """What `from module import name` binds."""

    module: str
    name: str


class Outlines(gin_names.Modules):
    """Stand-ins of the modules of `mtl`, and of the classes in them."""

    def __init__(self) -> None:
        self._modules: dict[str, types.ModuleType] = {}
        self._find = functools.cache(self._find_anew)
        self._source = functools.cache(self._read_source)
        self._class_names = functools.cache(self._scan_classes)
        self._statements = functools.cache(self._parse)

    def load(self, name: str) -> types.ModuleType:
        """Return the outline of a module.

        Raises:
          ModuleNotFoundError: there is none, as Python says it.
          gin_names.UnclearError: it is none of `mtl`, and may do anything when it is imported.
        """
        if name in self._modules:
            return self._modules[name]
        parent = name.rpartition(".")[0]
        package = self.load(parent) if parent else None
        spec = _find_spec(name, getattr(package, "__path__", ()) if parent else None)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if not _is_own(name) or not (spec.origin or "").endswith(".py"):
            raise gin_names.UnclearError(name)
        module = types.ModuleType(name)
        module.__file__ = spec.origin
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        self._modules[name] = module
        return module

    def loaded(self, name: str) -> types.ModuleType | None:
        """Return the outline of a module that was loaded before."""
        return self._modules.get(name)

    def get(self, found: Any, attribute: str) -> Any:
        """Return the outline of a module or of a part, None where there is no such name.

        Raises:
          gin_names.UnclearError: it is something else.
        """
        if attribute.startswith("_"):
            raise gin_names.UnclearError(attribute)
        if found is None:
            return None
        if not isinstance(found, types.ModuleType):
            raise gin_names.UnclearError(attribute)
        value = self._find(found.__name__, attribute)
        if isinstance(value, type) and not dataclasses.is_dataclass(value):
            raise gin_names.UnclearError(attribute)
        return value

    def list_classes(self, module: types.ModuleType) -> list[str]:
        """Return the names of the classes and functions that are within a module."""
        name = module.__name__
        return [own for own in self._statements(name) if self._is_listed(name, own, name)]

    def _is_listed(self, module: str, name: str, within: str) -> bool:
        if name.startswith("_") or not f"{module}.".startswith(f"{within}."):
            return False
        if name in self._class_names(module):
            return True
        match self._statements(module).get(name):
            case _From(origin, named) if _is_own(origin) and not self._spec_of(f"{origin}.{named}"):
                return self._is_listed(origin, named, within)
            case ast.FunctionDef(decorator_list=decorators):
                return not any("cache" in ast.unparse(decorator) for decorator in decorators)
            case ast.Assign(value=ast.Lambda()) | ast.AnnAssign(value=ast.Lambda()):
                return True
        return False

    def _find_anew(self, module: str, name: str) -> Any:
        """Return what a name of a module stands for; None where there is no such name."""
        match self._statements(module).get(name):
            case ast.ClassDef() as node:
                return self._make(module, node)
            case _From(origin, named) if _is_own(origin):
                whole = f"{origin}.{named}"
                return self.load(whole) if self._spec_of(whole) else self._find(origin, named)
            case None if self._spec_of(f"{module}.{name}") is None:
                return None
            case None if f"{module}.{name}" in self._modules:
                return self._modules[f"{module}.{name}"]
        raise gin_names.UnclearError(f"{module}.{name}")

    def _spec_of(self, name: str) -> Any:
        parent = name.rpartition(".")[0]
        return _find_spec(name, getattr(self.load(parent), "__path__", ()))

    def _read_source(self, module: str) -> str:
        return pathlib.Path(str(self.load(module).__file__)).read_text(encoding="utf-8")

    def _scan_classes(self, module: str) -> set[str]:
        """Return the classes that a module defines; parsing it takes longer."""
        return set(re.findall(r"^class (\w+)", self._source(module), re.MULTILINE))

    def _parse(self, module: str) -> Mapping[str, ast.stmt | _From]:
        """Return what binds each name of a module, in the order of its source."""
        found: dict[str, ast.stmt | _From] = {}
        for node in ast.parse(self._source(module)).body:
            match node:
                case ast.ClassDef() | ast.FunctionDef():
                    found[node.name] = node
                case ast.ImportFrom(module=str() as origin, level=0):
                    for alias in node.names:
                        found[alias.asname or alias.name] = _From(origin, alias.name)
                case ast.Import() | ast.Assign() | ast.AnnAssign() | ast.If() | ast.With():
                    stored = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.alias)))
                    for name in stored:
                        if isinstance(name, ast.alias):
                            found[name.asname or name.name.partition(".")[0]] = node
                        elif isinstance(name.ctx, ast.Store):
                            found[name.id] = node
                case ast.Expr():  # It binds no name.
                    pass
                case _:
                    raise gin_names.UnclearError(f"{module} line {node.lineno}")
        return found

    def _make(self, module: str, node: ast.ClassDef) -> type:
        """Return a class with the settings of the one that a statement defines."""
        bases = [self._base(module, base) for base in node.bases]
        names: dict[str, Any] = {"__module__": module, "__qualname__": node.name}
        names["__annotations__"] = {}
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names["__annotations__"][name] = _kind(statement.annotation)
                    if statement.value is not None:
                        names[name] = _default(statement.value)
                case ast.FunctionDef(name=name) if name in _MAKERS:
                    raise gin_names.UnclearError(f"{module}.{node.name}.{name}")
                case ast.FunctionDef() | ast.Assign() | ast.Expr() | ast.Pass():
                    pass
                case _:
                    raise gin_names.UnclearError(f"{module} line {statement.lineno}")
        if node.keywords:
            raise gin_names.UnclearError(f"{module}.{node.name}")
        made = type(node.name, tuple(base for base in bases if base), names)
        for decorator in node.decorator_list:
            made = _decorated(made, decorator)
        return made

    def _base(self, module: str, node: ast.expr) -> type | None:
        """Return the outline of a base; None for one without settings."""
        text = ast.unparse(node)
        if text.partition("[")[0] in _NEUTRAL:
            return None
        first, *rest = text.split(".")
        found = self._find(module, first)
        for name in rest:
            if not isinstance(found, types.ModuleType):
                raise gin_names.UnclearError(text)
            found = self._find(found.__name__, name)
        if not isinstance(found, type):
            raise gin_names.UnclearError(text)
        return found


def _is_own(name: str) -> bool:
    return f"{name}.".startswith("mtl.") and not f"{name}.".startswith(_MOVING)


@functools.cache
def _find_spec_in(name: str, path: tuple[str, ...]) -> Any:
    return importlib.machinery.PathFinder.find_spec(name, list(path))


def _find_spec(name: str, path: Any) -> Any:
    """Return where a module is that no import has to look for; `path` is that of its package."""
    if path is not None:
        return _find_spec_in(name, tuple(path))
    try:
        return importlib.util.find_spec(name)
    except ValueError as error:  # Such as of `__main__`.
        raise gin_names.UnclearError(name) from error


def _kind(annotation: ast.expr) -> Any:
    """Return an annotation that makes of a dataclass's name what the real one does."""
    text = ast.unparse(annotation)
    if "InitVar" in text or "KW_ONLY" in text:
        raise gin_names.UnclearError(text)
    return typing.ClassVar if re.match(r"(typing\.)?ClassVar\b", text) else object


def _default(value: ast.expr) -> Any:
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "dataclasses.field"):
        return None
    given = _constants(value.keywords, ("init", "kw_only"))
    if any(keyword.arg in ("default", "default_factory") for keyword in value.keywords):
        given["default"] = None
    return dataclasses.field(**given)


def _decorated(made: type, decorator: ast.expr) -> type:
    text = ast.unparse(decorator)
    if text == "runtime_checkable":
        return made
    if text.partition("(")[0] != _DATACLASS:
        raise gin_names.UnclearError(text)
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    given = _constants(keywords, ("init", "kw_only"))
    return dataclasses.dataclass(**given, eq=False, repr=False)(made)


def _constants(keywords: list[ast.keyword], names: tuple[str, ...]) -> dict[str, Any]:
    found = {}
    for keyword in keywords:
        if keyword.arg in names:
            if not isinstance(keyword.value, ast.Constant):
                raise gin_names.UnclearError(ast.unparse(keyword))
            found[keyword.arg] = keyword.value.value
    return found
