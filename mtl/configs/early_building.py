"""Builds the parts of a run from outlines: their checks refuse it before any import.

early_building.build(bindings, modules.get(modules.load("mtl.experiment"), "Experiment"))
"""

import inspect
from collections.abc import Sequence
from typing import Any

from mtl import checks
from mtl.configs import gin_errors, gin_files, gin_usage, outlines


def build(bindings: Sequence[gin_files.Binding], root: Any) -> Any:
    """Return the object that gin would build for `root`, if bindings name outlines.

    A part with unclear checks is `outlines.UNCLEAR`, also inside the part that holds it.

    Raises:
      UserError: the error of gin's building, with file and line.
    """
    return _Building(bindings).build(root, "")


class _Building:
    """The built parts, by outline and scope."""

    def __init__(self, bindings: Sequence[gin_files.Binding]):
        self._bindings, self._index = bindings, gin_usage.Index(bindings)
        self._macros = {b.name: b for b in bindings if not b.parameter}
        self._built: dict[tuple[Any, str], Any] = {}

    def build(self, target: Any, scope: str) -> Any:
        """Return the part that gin builds in a scope."""
        if (target, scope) not in self._built:
            self._built[target, scope] = self._build_anew(target, scope)
        return self._built[target, scope]

    def _build_anew(self, target: Any, scope: str) -> Any:
        held = self._index.select_holding(target, scope)
        given = {name: self._find_value(b.value, scope) for name, b in held.items()}
        name, parameters = target.__name__, inspect.signature(target).parameters.values()
        many = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        required = [p.name for p in parameters if p.default is p.empty and p.kind not in many]
        lacking = [parameter for parameter in required if parameter not in given]
        if lacking:
            line = gin_errors.tell_lacking(name, scope, lacking, self._bindings)
            raise checks.UserError(line)
        try:
            return target(**given)
        except checks.UserError as error:
            line = gin_errors.put_place(str(error), name, scope, self._bindings)
            raise checks.UserError(line) from error
        except Exception:  # An unclear value of an outline may cause it.
            return outlines.UNCLEAR

    def _find_value(self, value: Any, scope: str) -> Any:
        """Return the value of a binding, with the parts and macros in it."""
        if isinstance(value, gin_files.Reference):
            if not value.called:
                return outlines.UNCLEAR
            return self.build(value.target, value.scope or scope)
        if isinstance(value, gin_files.Macro):
            return self._find_value(self._macros[value.name].value, value.name)
        if isinstance(value, dict):
            return {key: self._find_value(item, scope) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._find_value(item, scope) for item in value)
        return value
