"""Adds the file and line of a setting to errors that are raised while gin builds parts.

raise checks.UserError(gin_errors.explain(error, bindings))
# train.gin line 12: MLP.activation must be one of relu, tanh, got 'rleu'. Did you mean 'relu'?
"""

import re
from collections.abc import Sequence

from mtl import checks
from mtl.configs import gin_files, gin_usage

# Matches the line that gin appends to an error for each constructor on the stack, innermost first.
_CALL = re.compile(r"In call to configurable '([\w.]+)' \(.*\)(?: in scope '([^']*)')?$", re.M)
_MISSING = re.compile(r"missing \d+ required .*")


def explain(error: Exception, bindings: Sequence[gin_files.Binding]) -> str:
    """Return the message of an error, with the file and line of the wrong setting before it.

    Args:
      error: the error that was raised while gin called the constructors.
      bindings: all bindings of the files, with their files and lines.
    """
    message = str(error).splitlines()[0]
    call = _CALL.search(str(error))
    if call is None:
        return message
    name, scope = call.group(1), call.group(2) or ""
    missing = _MISSING.search(message)
    if missing and isinstance(error, TypeError):
        return _tell_lacking(name, scope, re.findall(r"'(\w+)'", missing.group()), bindings)
    if not isinstance(error, checks.UserError):
        # Name the part in an error of Python, such as "'NoneType' object is not iterable".
        message = f"{name} cannot be built: {type(error).__name__}: {message}"
    return put_place(message, name, scope, bindings)


def _tell_lacking(
    name: str, scope: str, settings: Sequence[str], bindings: Sequence[gin_files.Binding]
) -> str:
    """Return advice to bind the required settings that are missing."""
    places = {
        (use.target.__name__, use.scope): (binding.place, use)
        for binding in bindings
        for use in binding.uses
        if isinstance(use, gin_files.Reference)
    }
    place, use = places.get((name, scope), (None, name))
    key = repr(use).strip("@()'")
    names = " and ".join(f"{key}.{setting}" for setting in settings)
    return f"{place}: {use!r} needs a binding of {names}." if place else f"bind {names}."


def put_place(
    message: str, name: str, scope: str | None, bindings: Sequence[gin_files.Binding]
) -> str:
    """Return a message that starts with the file and line of its setting, if they are known.

    Args:
      message: an error that starts with "<class>.<setting>", or quotes the wrong value.
      name: the name of the class.
      scope: the gin scope in which the class was built; None if the scope is unknown.
      bindings: all bindings of the gin files.
    """
    of_class = [binding for binding in bindings if _sets_class(binding, name, scope)]
    of_setting = _list_named(of_class, name, message)
    # The binding of the innermost scope has set the value, because inner scopes override outer
    # scopes.
    innermost = sorted(of_setting, key=lambda binding: len(binding.scope))
    return f"{innermost[-1].place}: {message}" if of_setting else message


def _list_named(
    bindings: Sequence[gin_files.Binding], name: str, message: str
) -> list[gin_files.Binding]:
    """Return the bindings that a message is about, by the setting or the value that it names."""
    setting = re.match(rf"{name}\.(\w+)", message)
    matches = [binding for binding in bindings if setting and binding.parameter == setting.group(1)]
    if matches:
        return matches
    word = re.search(r"'[^']*'", message)
    return [binding for binding in bindings if word and word.group() in repr(binding.value)]


def _sets_class(binding: gin_files.Binding, name: str, scope: str | None) -> bool:
    """Return True if a binding sets a class in a scope, or in any scope if `scope` is None."""
    if not binding.target or binding.selector.rpartition(".")[2] != name:
        return False
    return scope is None or gin_usage.covers(binding.scope, scope)
