"""Resolves names from the import statements of gin files: modules, and the classes in them.

names = gin_names.Names(trust.Trusted())
names.add(statement)                          # from mtl import heads
names.resolve("heads.Binary")                 # the class, or None
names.full("Binary")                          # "heads.Binary"
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import sys
from typing import Any

from gin import config_parser

from mtl import checks
from mtl.configs import imports, old_names, trust

_DEEPEST = 30


class Names:
    """The names that import statements bind, as gin's dynamic registration sees them."""

    def __init__(self, trusted: trust.Trusted):
        self._trusted = trusted
        self._modules: dict[str, Any] = {}
        self._imports: dict[str, str] = {}
        self._imported: dict[str, Any] = {}

    def add(self, statement: config_parser.ImportStatement) -> None:
        """Import the module of a statement.

        Raises:
          UserError: the module, or a module that it imports, is missing; or the module exits.
        """
        statement = old_names.current_statement(statement)
        self._trusted.check_module(statement.module)
        module = import_module(statement.module)
        name = statement.bound_name()
        # `import a.b` binds `a` and is used as `a.b.X`; other statements bind one name.
        whole = name if statement.is_from or statement.alias else statement.module
        self._modules[name] = module if whole == name else sys.modules.get(name)
        self._imports[whole] = statement.format()
        self._imported[whole] = module

    def update(self, other: Names) -> None:
        """Add the names in `other`."""
        self._modules |= other._modules
        self._imports |= other._imports
        self._imported |= other._imported

    @property
    def imports(self) -> tuple[str, ...]:
        """The import statements."""
        return tuple(self._imports.values())

    def resolve(self, selector: str) -> Any:
        """Return the object of a full selector, or None."""
        name, *attributes = selector.split(".")
        found = self._modules.get(name)
        for attribute in attributes:
            self._trusted.check_step(selector, found)
            found = getattr(found, attribute, None)
        # Gin files build classes and functions; other attributes, such as constants, are not for
        # them.
        if not callable(found):
            return None
        self._trusted.check_target(selector, found)
        return found

    def known(self, selector: str) -> str:
        """Return the selector itself if it is a full one; fail otherwise."""
        selector = old_names.current_selector(selector)
        if not self.resolve(selector):
            raise checks.UserError(self.unknown(selector))
        return selector

    def full(self, selector: str) -> str:
        """Return the full selector that ends with `selector`.

        Raises:
          UserError: none ends with it, or several do.
        """
        selector = old_names.current_selector(selector)
        if self.resolve(selector):
            return selector
        ending = [full for full in self._list_selectors() if full.endswith(f".{selector}")]
        # By class: two imports of the same class, such as from a package and its module, are no
        # conflict. The first one gives the name.
        found = {self._find_class(full): full for full in reversed(ending)}
        if len(found) > 1:
            listed = " or ".join(sorted(found.values()))
            raise checks.UserError(f"{selector!r} can be {listed}: write one of these.")
        if not found:
            raise checks.UserError(self.unknown(selector))
        return next(iter(found.values()))

    def unknown(self, selector: str) -> str:
        """Return why a selector names nothing, with a suggestion."""
        first, _, last = selector.rpartition(".")
        removal = old_names.find_removal(last, self._list_modules(first))
        if removal:
            return removal
        module = self._modules.get(first)
        what = f"{first!r} has no class {last!r}." if module else f"{selector!r} is not imported."
        classes = self._list_selectors()
        same = [full for full in classes if full.rpartition(".")[2] == last]
        hint = checks.nearest(selector, same or classes)
        lasts = {full.rpartition(".")[2]: full for full in classes}
        if not hint:
            close = checks.closest(last, lasts)
            hint = f"Did you mean {lasts[close]!r}?" if close else ""
        known = ", ".join(sorted(self._modules)) or "nothing"
        return f"{what} {hint or f'Imported are: {known}.'}"

    def _list_modules(self, ending: str) -> list[str]:
        """Return the full names of the imported modules whose bound name ends with `ending`."""
        found = {whole: module.__name__ for whole, module in self._imported.items()}
        return [name for whole, name in found.items() if f".{whole}".endswith(f".{ending}")]

    def _list_selectors(self) -> list[str]:
        """Return the full selectors of all objects in the imported modules."""
        return [
            f"{whole}.{name}"
            for whole, module in self._imported.items()
            for name in list_classes(module)
        ]

    def _find_class(self, full: str) -> Any:
        whole, _, name = full.rpartition(".")
        return getattr(self._imported[whole], name, None)


def list_classes(module: Any) -> list[str]:
    """Return the public classes and functions of a module, except those from other packages."""
    return [name for name, value in vars(module).items() if _is_own(module, name, value)]


def import_module(name: str) -> Any:
    """Import a module that a user names.

    Raises:
      UserError: the module, or a module that it imports, is missing; or the module exits.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise checks.UserError(_import_problem(name, error)) from error
    except SystemExit as error:
        # The exit would end this process; with code 0 the run would look finished.
        problem = f"importing {name!r} ended Python, by sys.exit({error.code!r})"
        fix = "Keep what a script does under if __name__ == '__main__'."
        raise checks.UserError(f"{problem}. {fix}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise checks.UserError(imports.failure(name, error)) from error


def _import_problem(module: str, error: ModuleNotFoundError) -> str:
    absent = error.name or ""
    if not f"{module}.".startswith(f"{absent}."):
        return f"importing {module!r} failed: {error}."
    parent, _, name = absent.rpartition(".")
    package = sys.modules.get(parent)
    if package and inspect.isclass(getattr(package, name, None)):
        above, _, last = parent.rpartition(".")
        fix = f"Import its module, 'from {above} import {last}', and write '{last}.{name}'."
        return f"{absent!r} is a class. {fix}"
    siblings = [info.name for info in pkgutil.iter_modules(getattr(package, "__path__", None))]
    return f"there is no module {absent!r}. {checks.nearest(name, siblings)}".rstrip()


def parameters(target: Any) -> list[str] | None:
    """Return the parameters of a class or function; None if it takes any."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    # With **settings any name may be right.
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        return None
    return list(signature.parameters)


def check_parameter(selector: str, parameter: str, target: Any) -> None:
    """Fail unless `target`, which a file calls `selector`, has the parameter.

    Args:
      selector: the name of the class in the file, for the error.
      parameter: the setting that the file binds.
      target: the class or function.
    """
    known = parameters(target)
    if known is not None and parameter not in known:
        hint = checks.nearest(parameter, known)
        has = f"It has: {', '.join(known)}."
        raise checks.UserError(
            " ".join(filter(None, [f"{selector} has no parameter {parameter!r}.", hint, has]))
        )


def check_value(name: str, value: Any, depth: int = 0) -> None:
    """Fail on values that gin files may not hold.

    Such values are: values that gin cannot write, infinity, also as 1e999, deep lists, parts as
    keys, and passwords.

    Args:
      name: the key of the binding, for the error.
      value: Python literals, with references and macros in them.
      depth: the number of lists and maps around the value.
    """
    checks.require(depth <= _DEEPEST, name, f"hold at most {_DEEPEST} lists in one another", "more")
    if isinstance(value, dict):
        for key in value:
            checks.is_a(name, key, (str, int, float), "have texts or numbers as keys")
        # Keys are checked like values: a text key may hold a password as well.
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        for item in value:
            check_value(name, item, depth + 1)
    elif isinstance(value, str):
        checks.no_password(name, value)
    elif isinstance(value, float):
        fix = "A float ends at 1.8e308."
        checks.require(math.isfinite(value), name, "hold finite numbers", value, fix)


def _is_own(module: Any, name: str, value: Any) -> bool:
    is_buildable = inspect.isclass(value) or inspect.isfunction(value)
    if not is_buildable or name.startswith("_"):
        return False
    # Names that a module imports from elsewhere do not count. A package also has the names that its
    # modules define.
    return f"{value.__module__}.".startswith(f"{module.__name__}.")
