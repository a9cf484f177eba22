"""Writes an experiment that was built in Python as a gin file.

text = gin_writing.write(experiment)         # for `config.save`

If all parts of a class have the same settings, the settings are bound without a scope. If the parts
of a class differ, each part gets a scope, named after its `name` or after the setting that contains
the part.
"""

import dataclasses
import importlib
import inspect
import math
import pprint
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mtl import checks, spec
from mtl.configs import gin_names

_START = "from __gin__ import dynamic_registration"
_WIDTH = 96
_FIX = "Define the code in a module that can be imported, so that commands can read the run."


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part, with its class and pairs (setting, value) of the settings to write."""

    kind: type
    settings: tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class _Code:
    """Code in a value, such as `@heads.Binary()`, which is written without quotes."""

    text: str

    def __repr__(self):
        return self.text


def write(experiment: Any) -> str:
    """Return the text of a gin file that builds an experiment.

    Raises:
      UserError: a gin file cannot name a part, such as a class that a notebook defines.
    """
    return _Writer().write(experiment)


class _Writer:
    """Writes a gin file: collects imports and parts, in the order of their first use."""

    def __init__(self):
        self._imports: dict[str, str] = {}  # {name in the file: import statement}.
        self._modules: dict[str, str] = {}  # {module: its name in the file}.
        self._scopes: dict[_Part, str] = {}
        # Classes in the order of their first use, which is also their order in the file.
        self._kinds: dict[type, list[_Part]] = {}

    def write(self, root: Any) -> str:
        tree = self._read(type(root).__name__, root)
        self._choose_scopes(tree, "")
        blocks = [self._bind_part(part) for parts in self._kinds.values() for part in parts]
        imports = sorted(self._imports.values())
        return "\n".join([_START, *imports, "", *filter(None, blocks)]) + "\n"

    def _read(self, where: str, value: Any) -> Any:
        """Replace each part in a value by a `_Part`; fail if gin cannot write the value."""
        if checks.is_part(value):
            return self._read_part(where, value)
        if isinstance(value, Mapping):
            pairs = {
                _simplify_number(key): self._read(f"{where}[{key!r}]", value[key]) for key in value
            }
            return _Items("{}", tuple(pairs.items()))
        if isinstance(value, (list, tuple)):
            items = [self._read(f"{where}[{at}]", item) for at, item in enumerate(value)]
            return _Items("[]" if isinstance(value, list) else "()", tuple(items))
        if inspect.isfunction(value):
            target = value if _find_homes(value) else inspect.unwrap(value)  # Gin wraps functions.
            _require_name(where, target)
            return _Function(target)
        value = _simplify_number(value)
        is_literal = value is None or isinstance(value, (bool, int, float, str))
        rule = "be a part, a function or plain values"
        checks.require(is_literal, where, rule, value, "A gin file can hold no other value.")
        gin_names.check_value(where, value)
        return value

    def _read_part(self, where: str, part: Any) -> _Part:
        kind = type(part)
        _require_name(where, kind)
        settings = []
        for field in dataclasses.fields(part):
            if not field.init:  # The class computes this field, so gin cannot set it.
                continue
            value = getattr(part, field.name)
            inner = f"{kind.__name__}.{field.name}"
            simple = self._read(inner, _without_nan(part, value))
            default = _find_default(field)
            if default is not dataclasses.MISSING:
                default = self._read(inner, _without_nan(part, default))
            # Compare by `repr`, which differs for 1 and True. Always write a setting whose default
            # has changed between versions.
            if repr(default) != repr(simple) or "earlier" in field.metadata:
                settings.append((field.name, simple))
        return _Part(kind, tuple(settings))

    def _name_target(self, target: Any) -> str:
        """Add the import of a class or function to the gin file, and return its name there."""
        return f"{self._import_module(_find_homes(target)[0])}.{target.__name__}"

    def _import_module(self, module: str) -> str:
        """Return a module's name for the gin file: its last word, with a number if ambiguous."""
        if module not in self._modules:
            package, _, last = module.rpartition(".")
            name, number = last, 2
            # The paths of two modules may end in the same word, such as `base`, so add a number.
            while name in self._imports:
                name, number = f"{last}_{number}", number + 1
            alias = "" if name == last else f" as {name}"
            statement = f"from {package} import {last}{alias}" if package else f"import {last}"
            self._modules[module], self._imports[name] = name, statement + alias * (not package)
        return self._modules[module]

    def _choose_scopes(self, value: Any, place: str) -> None:
        """Choose a gin scope for each part, except for parts that are alone in their class."""
        for part, where in _walk_parts(value, place):
            parts_of_class = self._kinds.setdefault(part.kind, [])
            if part not in parts_of_class:
                parts_of_class.append(part)
                self._scopes[part] = where
        for parts in self._kinds.values():
            scopes: set[str] = set()
            for part in parts:
                # Without scopes, all parts of a class would get the same settings, because gin
                # binds by class.
                base = _propose_scope(part, self._scopes[part]) if len(parts) > 1 else ""
                scope, number = base, 2
                while scope in scopes:
                    scope, number = f"{base}_{number}", number + 1
                scopes.add(scope)
                self._scopes[part] = scope

    def _bind_part(self, part: _Part) -> str:
        """Return the text of the bindings of a part."""
        key = self._refer_to(part).strip("@()")
        lines = []
        for setting, value in part.settings:
            text = pprint.pformat(self._spell(value), width=_WIDTH, sort_dicts=False)
            # A backslash continues a long line, because gin ends a binding at the end of the line.
            is_long = len(key) + len(setting) + len(text) > _WIDTH or "\n" in text
            gap = " \\\n    " if is_long else " "
            lines.append(f"{key}.{setting} ={gap}" + text.replace("\n", "\n    "))
        return "\n".join(lines) + "\n" if lines else ""

    def _spell(self, value: Any) -> Any:
        """Return a value in Python's notation, with references in place of parts."""
        if isinstance(value, _Part):
            return _Code(self._refer_to(value))
        if isinstance(value, _Function):
            return _Code(f"@{self._name_target(value.target)}")
        if not isinstance(value, _Items):
            return value
        if value.brackets == "{}":
            return {key: self._spell(item) for key, item in value.items}
        items = [self._spell(item) for item in value.items]
        return items if value.brackets == "[]" else tuple(items)

    def _refer_to(self, part: _Part) -> str:
        scope = self._scopes[part]
        return (
            f"@{scope}/{self._name_target(part.kind)}()"
            if scope
            else f"@{self._name_target(part.kind)}()"
        )


@dataclasses.dataclass(frozen=True)
class _Function:
    """Stands for a function that is the value of a setting."""

    target: Any


@dataclasses.dataclass(frozen=True)
class _Items:
    """A hashable form of a list, of a tuple, or of the pairs of a map."""

    brackets: str
    items: tuple[Any, ...]


def _require_name(where: str, target: Any) -> None:
    name = f"{target.__module__}.{target.__qualname__}"
    rule = "be a class or function that a gin file can name"
    checks.require(bool(_find_homes(target)), where, rule, name, _FIX)


def _find_homes(target: Any) -> list[str]:
    """Return the modules from which a gin file can import a class or function.

    The list may contain the module that defines the class or function, and the package of the
    module. If a notebook defines the class or function, the list is empty.
    """
    module = target.__module__
    package = module.rpartition(".")[0]
    return [home for home in (package, module) if home and _exports_target(home, target)]


def _exports_target(home: str, target: Any) -> bool:
    # A class of `__main__` cannot be imported, because `__main__` is another module in another
    # process.
    if home == "__main__":
        return False
    try:
        loaded = importlib.import_module(home)
    except ImportError:
        return False
    is_listed = home == target.__module__ or target.__name__ in getattr(loaded, "__all__", ())
    # A file cannot import a nested class, or a class whose name has been assigned to another
    # object.
    return is_listed and vars(loaded).get(target.__qualname__) is target


def _walk_parts(value: Any, place: str) -> Iterator[tuple[_Part, str]]:
    """Yield every part in a value with the setting that contains it, the outermost part first."""
    if isinstance(value, _Part):
        yield value, place
        for setting, inner in value.settings:
            yield from _walk_parts(inner, setting)
    elif isinstance(value, _Items):
        for item in value.items:
            yield from _walk_parts(item[1] if value.brackets == "{}" else item, place)


def _propose_scope(part: _Part, place: str) -> str:
    """Return a gin scope for a part: its setting `name`, or the setting that holds the part."""
    name = dict(part.settings).get("name")
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name):
        return name
    return place


def _find_default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _simplify_number(value: Any) -> Any:
    """Convert a NumPy number to a Python number; return other values unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _without_nan(part: Any, value: Any) -> Any:
    """Write NaN in the defaults of a Spec as "nan", because gin files have no literal for NaN."""
    if not isinstance(part, spec.Spec) or not isinstance(value, Mapping):
        return value
    return {k: "nan" if isinstance(v, float) and math.isnan(v) else v for k, v in value.items()}
