"""Finds the classes that gin files name, by the import statements of the files.

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
    """Holds the names that the import statements of a gin file bind."""

    def __init__(self, trusted: trust.Trusted):
        self._trusted = trusted
        self._modules: dict[str, Any] = {}
        self._imports: dict[str, str] = {}
        self._imported: dict[str, Any] = {}

    def add(self, statement: config_parser.ImportStatement) -> None:
        """Import the module that an import statement names.

        Raises:
          UserError: the module, or a module that it imports, is missing; or the module exits.
        """
        statement = old_names.current_statement(statement)
        self._trusted.check_module(statement.module)
        module = import_module(statement.module)
        name = statement.bound_name()
        # `import a.b` binds `a`, and files write `a.b.X`; other statements bind their last name.
        whole = name if statement.is_from or statement.alias else statement.module
        self._modules[name] = module if whole == name else sys.modules.get(name)
        self._imports[whole] = statement.format()
        self._imported[whole] = module

    def update(self, other: Names) -> None:
        """Add the names that the import statements of another gin file bind."""
        self._modules |= other._modules
        self._imports |= other._imports
        self._imported |= other._imported

    @property
    def imports(self) -> tuple[str, ...]:
        """The import statements as texts."""
        return tuple(self._imports.values())

    def resolve(self, selector: str) -> Any:
        """Return the class or function that a selector names.

        Args:
          selector: a name as in the file, such as "heads.Binary".

        Returns:
          The class or function; None if the selector names neither.

        Raises:
          UserError: the selector names code that is not trusted.
        """
        name, *attributes = selector.split(".")
        target = self._modules.get(name)
        for attribute in attributes:
            self._trusted.check_step(selector, target)
            target = getattr(target, attribute, None)
        # Gin files may name only classes and functions, but not constants, for example.
        if not callable(target):
            return None
        self._trusted.check_target(selector, target)
        return target

    def known(self, selector: str) -> str:
        """Check that a selector names a class; return it with the current name of its module.

        Raises:
          UserError: the selector names no class or function.
        """
        selector = old_names.current_selector(selector)
        if not self.resolve(selector):
            raise checks.UserError(self.unknown(selector))
        return selector

    def full(self, selector: str) -> str:
        """Complete a short selector such as "Binary" to a full selector such as "heads.Binary".

        Raises:
          UserError: no imported class has this name, or several imported classes have this name.
        """
        selector = old_names.current_selector(selector)
        if self.resolve(selector):
            return selector
        matches = [full for full in self._list_selectors() if full.endswith(f".{selector}")]
        # A class that a file imports twice, from a package and from its module, has the name of its
        # first import.
        by_class = {self._find_class(full): full for full in reversed(matches)}
        if len(by_class) > 1:
            names = " or ".join(sorted(by_class.values()))
            raise checks.UserError(f"{selector!r} can be {names}: write one of these.")
        if not by_class:
            raise checks.UserError(self.unknown(selector))
        return next(iter(by_class.values()))

    def unknown(self, selector: str) -> str:
        """Explain why a selector names no class, with a suggestion."""
        first, _, last = selector.rpartition(".")
        removal = old_names.find_removal(last, self._list_modules(first))
        if removal:
            return removal
        module = self._modules.get(first)
        problem = f"{selector!r} is not imported."
        if module:
            problem = f"{first!r} has no class {last!r}."
        classes = self._list_selectors()
        namesakes = [full for full in classes if full.rpartition(".")[2] == last]
        hint = checks.nearest(selector, namesakes or classes)
        lasts = {full.rpartition(".")[2]: full for full in classes}
        if not hint:
            close = checks.closest(last, lasts)
            hint = f"Did you mean {lasts[close]!r}?" if close else ""
        imported = ", ".join(sorted(self._modules)) or "nothing"
        return f"{problem} {hint or f'The file imports: {imported}.'}"

    def _list_modules(self, ending: str) -> list[str]:
        """Return the full names of the modules that a file imports as `ending`."""
        modules = {whole: module.__name__ for whole, module in self._imported.items()}
        return [name for whole, name in modules.items() if f".{whole}".endswith(f".{ending}")]

    def _list_selectors(self) -> list[str]:
        """Return the full selectors of all classes and functions in the imported modules."""
        return [
            f"{whole}.{name}"
            for whole, module in self._imported.items()
            for name in list_classes(module)
        ]

    def _find_class(self, full: str) -> Any:
        whole, _, name = full.rpartition(".")
        return getattr(self._imported[whole], name, None)


def list_classes(module: Any) -> list[str]:
    """Return the names of the public classes and functions that a module defines."""
    return [name for name, value in vars(module).items() if _is_own(module, name, value)]


def import_module(name: str) -> Any:
    """Import a module that a gin file or a flag names.

    Raises:
      UserError: the module, or a module that it imports, is missing; or the module exits.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise checks.UserError(_import_problem(name, error)) from error
    except SystemExit as error:
        # Catch `sys.exit` of a module, which would end this process; with code 0, the process would
        # seem to have succeeded.
        problem = f"importing {name!r} ended Python, by sys.exit({error.code!r})"
        fix = "Put the code of a script under if __name__ == '__main__'."
        raise checks.UserError(f"{problem}. {fix}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise checks.UserError(imports.failure(name, error)) from error


def _import_problem(module: str, error: ModuleNotFoundError) -> str:
    module_name = error.name or ""
    if not f"{module}.".startswith(f"{module_name}."):
        return f"importing {module!r} failed: {error}."
    parent, _, name = module_name.rpartition(".")
    package = sys.modules.get(parent)
    if package and inspect.isclass(getattr(package, name, None)):
        above, _, last = parent.rpartition(".")
        fix = f"Import its module, 'from {above} import {last}', and write '{last}.{name}'."
        return f"{module_name!r} is a class. {fix}"
    siblings = [info.name for info in pkgutil.iter_modules(getattr(package, "__path__", None))]
    return f"there is no module {module_name!r}. {checks.nearest(name, siblings)}".rstrip()


def parameters(target: Any) -> list[str] | None:
    """Return the parameter names of a class or function; None if any name is allowed."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    # A function with **settings accepts any parameter name.
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        return None
    return list(signature.parameters)


def check_parameter(selector: str, parameter: str, target: Any) -> None:
    """Fail unless a class or function has the parameter that a gin file binds.

    Args:
      selector: the name of the class in the file, for the error.
      parameter: the setting that the file binds.
      target: the class or function.
    """
    names = parameters(target)
    if names is not None and parameter not in names:
        hint = checks.nearest(parameter, names)
        has = f"It has: {', '.join(names)}."
        raise checks.UserError(
            " ".join(filter(None, [f"{selector} has no parameter {parameter!r}.", hint, has]))
        )


def check_value(name: str, value: Any, depth: int = 0) -> None:
    """Fail if a value is not allowed in gin files.

    Values that gin cannot write are not allowed: infinity (also as 1e999), deeply nested lists, and
    keys other than texts and numbers. Passwords are not allowed, because runs save their settings.

    Args:
      name: the key of the binding, for the error.
      value: Python literals, which may contain references and macros.
      depth: the number of lists and maps around the value.
    """
    checks.require(depth <= _DEEPEST, name, f"nest at most {_DEEPEST} lists or maps", "more")
    if isinstance(value, dict):
        for key in value:
            checks.is_a(name, key, (str, int, float), "have texts or numbers as keys")
        # Check keys like values, because a key may also contain a password.
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
    # Leave out names that a module imports from other packages. Names that a package imports from
    # its own modules belong to the package.
    return f"{value.__module__}.".startswith(f"{module.__name__}.")
