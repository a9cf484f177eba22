"""Finds the gin bindings that a run uses, starting from the class that is built first.

used = gin_usage.used(bindings, experiment.Experiment)

A binding is used if its class is built within the scope of the binding, and no binding of an inner
scope overrides it. If a later binding replaces the part that would use a binding, the unused
binding is dropped, and `tell_replaced` returns a warning. A binding is an error if neither the
built parts nor the replaced parts would use it, because its key may be misspelt.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mtl import checks
from mtl.configs import gin_files, gin_names

_SHOWN, _LONGEST = 4, 40


class Built(NamedTuple):
    """A class or function that a run builds.

    Attributes:
      target: the class or function.
      scope: the gin scope in which the class or function is built.
      selector: the name of the class or function in the gin file.
      bindings: {parameter of the class or function: the binding that sets it}.
    """

    target: Any
    scope: str
    selector: str
    bindings: Mapping[str, gin_files.Binding]


def list_built(bindings: Sequence[gin_files.Binding], root: Any) -> list[Built]:
    """Return `root` and the classes that `root` needs, in the order in which they are built.

    Args:
      bindings: the bindings of all files and flags, in order; the last binding of a key counts.
      root: the class that is built first.
    """
    _, walk = _walk_from(root, bindings)
    return list(walk.built.values())


def _walk_from(
    root: Any, bindings: Sequence[gin_files.Binding]
) -> tuple[dict[tuple[str, Any, str], gin_files.Binding], "_Walk"]:
    """Return the last binding of each key, and a `_Walk` over all parts that `root` uses."""
    effective = {binding.key: binding for binding in bindings}
    walk = _Walk(effective.values())
    walk.build(root, "")
    return effective, walk


def used(bindings: Sequence[gin_files.Binding], root: Any) -> list[gin_files.Binding]:
    """Return the bindings that hold when `root` is built.

    Args:
      bindings: the bindings of all files and flags, in order; the last binding of a key counts.
      root: the class that is built first.

    Raises:
      UserError: no part would ever use a binding, or a part contains itself.
    """
    effective, walk = _walk_from(root, bindings)
    for binding, use in walk.endless:
        raise gin_files.PlacedError(f"{binding.place}: {use!r} contains itself.")
    replaced = [binding for binding in bindings if effective[binding.key] is not binding]
    # A later binding may replace a part. Bindings that only the replaced part would use are not
    # misspelt.
    walk_of_replaced = _Walk(effective.values())
    for binding in replaced:
        walk_of_replaced.use(binding, binding.scope)
    for key, binding in effective.items():
        if key not in walk.used and key not in walk_of_replaced.used:
            problem = _explain_unused(binding, walk, effective.values())
            raise gin_files.PlacedError(f"{binding.place}: {problem}")
    return [binding for key, binding in effective.items() if key in walk.used]


def tell_replaced(bindings: Sequence[gin_files.Binding], root: Any) -> list[str]:
    """Return a warning for each binding that replaces a part whose settings are then unused.

    Unused settings of a file A cause no warning if the replacing binding is in a file that includes
    A, because the author of the including file knew the settings.

    Args:
      bindings: the bindings of all files and flags, in order; the last binding of a key counts.
      root: the class that is built first.

    Returns:
      One line for each warning; [] if no replaced part leaves a setting unused.
    """
    effective, walk = _walk_from(root, bindings)
    unused = [binding for key, binding in effective.items() if key not in walk.used]
    lines = []
    for binding in bindings:
        winner = effective[binding.key]
        if winner is binding or not unused:
            continue
        # Walk over the bindings that the part of the replaced `binding` would use.
        walk_of_replaced = _Walk(effective.values())
        walk_of_replaced.use(binding, binding.scope)
        dropped = [other for other in unused if other.key in walk_of_replaced.used]
        # Name each unused binding once: in the warning about the first replaced binding whose part
        # would use it.
        unused = [other for other in unused if other.key not in walk_of_replaced.used]
        lines += _tell_unused(winner, dropped)
    return lines


def _tell_unused(winner: gin_files.Binding, unused: Sequence[gin_files.Binding]) -> list[str]:
    """Return a warning that lists unused bindings; [] if there is nothing to list.

    The warning leaves out bindings of files that the file of `winner`, the replacing binding,
    includes: the author of that file knew the included bindings.
    """
    shown_bindings = [other for other in unused if winner.place.file not in other.within]
    if not shown_bindings:
        return []
    settings = _list_settings(sorted(shown_bindings, key=lambda other: bool(other.uses)))
    return [f"{winner.place} replaces {winner.name}, so that nothing uses {settings}."]


def _list_settings(bindings: Sequence[gin_files.Binding]) -> str:
    """List some bindings with their values, files and lines."""
    texts = [f"{b.name} = {_shorten_value(b)} ({b.place})" for b in bindings[:_SHOWN]]
    more = len(bindings) - _SHOWN
    return ", ".join(texts) + f" and {more} more" * (more > 0)


def _shorten_value(binding: gin_files.Binding) -> str:
    text = repr(binding.value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def covers(outer: str, inner: str) -> bool:
    """Return True if a binding of the scope `outer` applies in the scope `inner`.

    Args:
      outer: a scope such as "a"; "" applies everywhere.
      inner: a scope such as "a/b"; "" without a scope.
    """
    return not outer or f"{inner}/".startswith(f"{outer}/")


class Index:
    """Finds the bindings of a class quickly, because files may have thousands of bindings."""

    def __init__(self, bindings: Iterable[gin_files.Binding]):
        self._settings: dict[tuple[int, str], list[gin_files.Binding]] = {}
        self.macros: dict[str, list[gin_files.Binding]] = {}
        for binding in bindings:
            if binding.parameter:
                key = id(binding.target), binding.scope
                self._settings.setdefault(key, []).append(binding)
            else:
                self.macros.setdefault(binding.name, []).append(binding)

    def select_holding(self, target: Any, scope: str) -> dict[str, gin_files.Binding]:
        """Return the bindings that set parameters of a class in a scope.

        Args:
          target: the class or function.
          scope: the scope in which the class is built; "" without a scope.

        Returns:
          {parameter: the binding of the innermost scope that sets it}.
        """
        parts = scope.split("/") if scope else []
        # List the outermost scope first: in the returned map, bindings of inner scopes replace
        # bindings of outer scopes.
        scopes = ["", *("/".join(parts[: i + 1]) for i in range(len(parts)))]
        holding = [b for outer in scopes for b in self._settings.get((id(target), outer), ())]
        return {binding.parameter: binding for binding in holding}


class _Walk:
    """Collects the classes that are built, by scope, and the keys of the bindings that are used."""

    def __init__(self, bindings: Iterable[gin_files.Binding]):
        self._index = Index(bindings)
        self.built: dict[tuple[Any, str], Built] = {}
        self.endless: list[tuple[gin_files.Binding, Any]] = []
        self._within: list[Any] = []
        self.used: set[tuple[str, Any, str]] = set()

    def build(self, target: Any, scope: str, selector: str = "") -> None:
        """Visit the bindings that set parameters of `target` in `scope`."""
        if (target, scope) in self.built:
            return
        bindings = self._index.select_holding(target, scope)
        names = [selector, *(binding.selector for binding in bindings.values()), target.__name__]
        self.built[target, scope] = Built(target, scope, next(filter(None, names)), bindings)
        self._within.append((target, scope))
        for binding in bindings.values():
            self.use(binding, scope)
        self._within.pop()

    def use(self, binding: gin_files.Binding, scope: str) -> None:
        """Visit the value of a binding; a class named there without a scope is built in `scope`."""
        self.used.add(binding.key)
        for use in binding.uses:
            if isinstance(use, gin_files.Reference):
                # Record a part that contains itself, because gin would build the part up to
                # Python's recursion limit.
                if use.called and (use.target, use.scope or scope) in self._within:
                    self.endless.append((binding, use))
                self.build(use.target, use.scope or scope, use.selector)
            elif use in self._within:
                self.endless.append((binding, use))
            else:
                self._within.append(use)
                # Gin evaluates `%x` as `@x/gin.macro()`, so the name of the macro is the scope.
                for macro in self._index.macros.get(use.name, ()):
                    self.use(macro, use.name)
                self._within.pop()


def _explain_unused(
    binding: gin_files.Binding, walk: _Walk, bindings: Iterable[gin_files.Binding]
) -> str:
    """Explain to the user why no part of the run uses a binding."""
    if not binding.parameter:
        return _problem_of_macro(binding.name, walk, [other.name for other in bindings])
    scopes = sorted(scope for target, scope in walk.built if target is binding.target)
    problem = f"{binding.name} is not used by this run:"
    if not scopes:
        return f"{problem} nothing builds @{binding.selector}()."
    if not any(covers(binding.scope, scope) for scope in scopes):
        names = ", ".join(filter(None, scopes))
        place = f"in {names}" if names else f"without a scope, as @{binding.selector}()"
        hint = checks.nearest(binding.scope, scopes) or f"It is built {place}."
        return f"{problem} nothing builds @{binding.scope}/{binding.selector}(). {hint}"
    return f"{problem} inner scopes bind it again in {', '.join(scopes)}."


def _problem_of_macro(name: str, walk: _Walk, names: Iterable[str]) -> str:
    # A name with a dot is a setting of a class, not a macro.
    others = [other for other in names if other != name and "." not in other]
    hint = _setting_hint(name, walk) or checks.nearest(name, others)
    return f"no binding uses the macro {name!r}. {hint}".rstrip()


def _setting_hint(name: str, walk: _Walk) -> str:
    """Suggest a setting for an unused macro, if a built part has a setting of this name."""
    for target, _ in walk.built:
        if name in (gin_names.parameters(target) or ()):
            return f"Did you mean the setting {target.__name__}.{name}?"
    return ""
