"""Reads outlines of the parts of `mtl` from their sources, without importing TensorFlow.

modules = outlines.Outlines()
heads = modules.load("mtl.heads")
binary = modules.get(heads, "Binary")         # with the settings and the checks of the class

Outlines check a gin file first: an error shows at once, and not after the seconds that TensorFlow
takes. A class or function is executed from its source once something reads its name. Values that
only TensorFlow or another package knows are `UNCLEAR`. If sources do not decide, for example code
of a user, outlines raise an UnclearError, and the modules themselves are imported. Tests compare
all outlines with the real classes.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from mtl.configs import gin_names

# The names in these modules depend on the installed TensorFlow.
_MOVING = "mtl.compat."
# These modules import quickly, and their exceptions must be the real ones.
_REAL = ("mtl.checks",)
_TEXTS_AND_ORDER = {"__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__", "__ne__"}
_TEXTS_AND_ORDER |= {"__repr__", "__str__"}
# All operators that Python may apply to a value.
_OPERATORS = {name for kind in (int, dict, str) for name in dir(kind) if name.startswith("__")}
_OPERATORS -= set(dir(object)) - _TEXTS_AND_ORDER
_OPERATORS |= {"__call__", "__enter__", "__instancecheck__", "__mro_entries__", "__next__"}
_OPERATORS |= {"__subclasscheck__"}


class _Unclear:
    """A value that only an import shows: not None, with unclear attributes; other uses raise."""

    def __getattr__(self, name: str) -> "_Unclear":
        return self

    @property  # type: ignore[misc]
    def __class__(self):  # isinstance reads it.
        _raise_unclear(self)


def _raise_unclear(*values: Any) -> NoReturn:
    raise gin_names.UnclearError


for _name in _OPERATORS:
    setattr(_Unclear, _name, _raise_unclear)

UNCLEAR = _Unclear()


@dataclasses.dataclass(frozen=True)
class _From:
    """The target of `from module import name`."""

    module: str
    name: str


class _Module(types.ModuleType):
    """The outline of a module; it makes each name when the name is read."""

    __names__: "_Names"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.__names__[name]
        except KeyError:
            raise AttributeError(name) from None


class _Names(dict):
    """The globals of a module; `find` makes missing names."""

    def __init__(self, module: str, find: Any):
        super().__init__(__name__=module, __unclear_setting__=_make_unclear_setting)
        self._find = find

    def __missing__(self, name: str) -> Any:
        return self._find(self["__name__"], name)


class Outlines(gin_names.Modules):
    """Outlines of the modules of `mtl`, and of the classes in them."""

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}
        self._making: set[tuple[str, str]] = set()
        self._source = functools.cache(self._read_source)
        self._class_names = functools.cache(self._scan_classes)
        self._statements = functools.cache(self._parse)

    def load(self, name: str) -> types.ModuleType:
        """Return the outline of a module.

        Raises:
          ModuleNotFoundError: the module is missing; the message is Python's.
          gin_names.UnclearError: it is outside `mtl`, and its import may do anything.
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
        module = _Module(name)
        module.__file__, module.__names__ = spec.origin, _Names(name, self._find)
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        self._modules[name] = module
        return module

    def loaded(self, name: str) -> types.ModuleType | None:
        """Return the outline of a module that is loaded already, or None."""
        return self._modules.get(name)

    def get(self, found: Any, attribute: str) -> Any:
        """Return the outline of a module or a part; None if the name does not exist.

        Raises:
          gin_names.UnclearError: the name is neither.
        """
        if found is None:
            return None
        if attribute.startswith("_") or not isinstance(found, _Module):
            raise gin_names.UnclearError(attribute)
        value = getattr(found, attribute, None)
        is_module = isinstance(value, types.ModuleType)
        if value is not None and not is_module and not dataclasses.is_dataclass(value):
            raise gin_names.UnclearError(attribute)
        return value

    def list_classes(self, module: types.ModuleType) -> list[str]:
        """Return the names of the classes and functions in a module."""
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

    def _find(self, module: str, name: str) -> Any:
        """Return the value of a name in a module; `UNCLEAR` if the source does not decide.

        Raises:
          KeyError: the module has no such name.
        """
        names, key = self._modules[module].__names__, (module, name)
        statement = self._statements(module).get(name)
        if statement is None and not self._has_module(module, name):
            raise KeyError(name)
        if key in self._making:
            raise gin_names.UnclearError(f"{module}.{name}")
        self._making.add(key)
        try:
            names[name] = self._make(module, name, statement)
        except Exception:  # An unclear value may cause it.
            names[name] = UNCLEAR
        finally:
            self._making.remove(key)
        return names[name]

    def _has_module(self, package: str, name: str) -> bool:
        is_package = hasattr(self.load(package), "__path__")
        return is_package and self._spec_of(f"{package}.{name}") is not None

    def _make(self, module: str, name: str, statement: ast.stmt | _From | None) -> Any:
        match statement:
            case _From(origin, named) if _is_own(origin):
                return self._import(f"{origin}.{named}", origin, named)
            case _From(origin, named) if _is_standard(origin):
                return getattr(importlib.import_module(origin), named)
            case ast.Import(names=[ast.alias(name=origin, asname=alias)]) if _is_standard(origin):
                imported = importlib.import_module(origin)
                return imported if alias else sys.modules[origin.partition(".")[0]]
            case ast.ClassDef() | ast.FunctionDef() | ast.Assign() | ast.AnnAssign() as node:
                names = self._modules[module].__names__
                _execute(node, names, str(self.load(module).__file__))
                return names[name]
            case None:
                return self._modules.get(f"{module}.{name}", UNCLEAR)
        return UNCLEAR

    def _import(self, whole: str, origin: str, name: str) -> Any:
        """Return the object of `from origin import name`; `whole` is its full name."""
        if whole in _REAL:
            return importlib.import_module(whole)
        if origin in _REAL:
            return getattr(importlib.import_module(origin), name)
        return self.load(whole) if self._spec_of(whole) else getattr(self.load(origin), name)

    def _spec_of(self, name: str) -> Any:
        parent = name.rpartition(".")[0]
        return _find_spec(name, getattr(self.load(parent), "__path__", ()))

    def _read_source(self, module: str) -> str:
        return pathlib.Path(str(self.load(module).__file__)).read_text(encoding="utf-8")

    def _scan_classes(self, module: str) -> set[str]:
        """Return the classes that a module defines, by a search in its text: parsing is slower."""
        return set(re.findall(r"^class (\w+)", self._source(module), re.MULTILINE))

    # One case for each kind of statement.
    def _parse(self, module: str) -> Mapping[str, ast.stmt | _From]:  # noqa: C901
        """Return {name: the statement that binds it} of a module, in the order of its source."""
        found: dict[str, ast.stmt | _From] = {}
        for node in ast.parse(self._source(module)).body:
            match node:
                case ast.ClassDef() | ast.FunctionDef():
                    found[node.name] = node
                case ast.ImportFrom(module=str() as origin, level=0):
                    for alias in node.names:
                        found[alias.asname or alias.name] = _From(origin, alias.name)
                case ast.Assign(targets=[ast.Subscript() | ast.Attribute(), *_]):
                    raise gin_names.UnclearError(f"{module} line {node.lineno}")
                case ast.Import() | ast.Assign() | ast.AnnAssign() | ast.If() | ast.With():
                    stored = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.alias)))
                    for name in stored:
                        if isinstance(name, ast.alias):
                            found[name.asname or name.name.partition(".")[0]] = node
                        elif isinstance(name.ctx, ast.Store):
                            found[name.id] = node
                case ast.Expr(value=ast.Constant()):  # The docstring of a module, or of a name.
                    pass
                case ast.Expr() if ast.unparse(node).startswith("os.environ."):
                    pass
                case _:  # It may change the value of a name.
                    raise gin_names.UnclearError(f"{module} line {node.lineno}")
        return found


def _execute(node: ast.stmt, names: _Names, file: str) -> None:
    """Let Python execute a statement of a module."""
    if isinstance(node, ast.ClassDef):
        for place, statement in enumerate(node.body):
            if isinstance(statement, ast.AnnAssign):
                node.body[place] = _without_annotation(statement, names)
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef):
            part.returns = None
        elif isinstance(part, ast.arg):
            part.annotation = None
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        node = ast.Assign([node.target], node.value)
    _read(node, names)
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(node, node)], []))
    exec(compile(module, file, "exec"), names)


def _without_annotation(statement: ast.AnnAssign, names: _Names) -> ast.stmt:
    """Return the statement of a setting, or the value of a ClassVar, without its type."""
    text = ast.unparse(statement.annotation)
    if "InitVar" in text or "KW_ONLY" in text:
        raise gin_names.UnclearError(text)
    if re.match(r"(typing\.)?ClassVar\b", text):
        value = statement.value
        return ast.Assign([statement.target], value, lineno=0) if value else ast.Pass()
    statement.annotation = ast.Name("object", ast.Load())
    if statement.value is not None and _is_unclear_default(statement.value, names):
        statement.value = ast.Call(ast.Name("__unclear_setting__", ast.Load()), [], [])
    return statement


def _is_unclear_default(value: ast.expr, names: _Names) -> bool:
    if isinstance(value, ast.Constant):
        return False
    _read(value, names)
    try:
        return eval(compile(ast.Expression(value), "", "eval"), names) is UNCLEAR
    except gin_names.UnclearError:
        return True


def _make_unclear_setting() -> Any:
    """Return a dataclass field with an unclear default, which cannot be a default itself."""
    return dataclasses.field(default_factory=lambda: UNCLEAR)


def _read(node: ast.AST, names: _Names) -> None:
    """Make the names that Python reads when it executes a statement.

    Python asks a dict such as `_Names` for missing names only inside functions.
    """
    for name in _names_read(node):
        with contextlib.suppress(KeyError):  # The name is built in, or the statement binds it.
            names[name]


def _names_read(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    inner: Iterator[Any] = ast.iter_child_nodes(node)
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        decorators = getattr(node, "decorator_list", [])
        inner = filter(None, [*decorators, *node.args.defaults, *node.args.kw_defaults])
    for part in inner:
        yield from _names_read(part)


def _is_own(name: str) -> bool:
    return f"{name}.".startswith("mtl.") and not f"{name}.".startswith(_MOVING)


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


@functools.cache
def _find_spec_in(name: str, path: tuple[str, ...]) -> Any:
    return importlib.machinery.PathFinder.find_spec(name, list(path))


def _find_spec(name: str, path: Any) -> Any:
    """Return the spec of a module, found without an import; `path` is the path of its package."""
    if path is not None:
        return _find_spec_in(name, tuple(path))
    try:
        return importlib.util.find_spec(name)
    except ValueError as error:  # For example for `__main__`.
        raise gin_names.UnclearError(name) from error
