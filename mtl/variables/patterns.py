"""Patterns, which choose variables by name, in the same way in all settings.

    regularization.Regularization.l2 = {"^network/.*/kernel$": 1e-4}

A pattern is a regular expression. A pattern matches a variable if `re.search` finds it anywhere in
the variable's full name, such as `network/hidden_0/kernel` (with scopes, without `:0`). So the
pattern `hidden_0` also matches `hidden_01`. To match only `hidden_0`, write `/hidden_0/`, or anchor
the pattern with `^` and `$`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from mtl import checks
from mtl.deferred import tf
from mtl.tf_internals import shards


def check_patterns(where: str, patterns: Collection[str]) -> None:
    """Check that a setting is a list of regular expressions.

    Args:
      where: the name of the setting, for error messages.
      patterns: the value of the setting; [] is valid.

    Raises:
      UserError: the value is a single text, a map or not a collection; or an entry is not a regular
        expression.
    """
    is_list = isinstance(patterns, Collection) and not isinstance(patterns, (str, Mapping))
    checks.require(is_list, where, "be a list of patterns", patterns)
    for pattern in patterns:
        checks.is_a(where, pattern, str, "hold patterns")
        try:
            re.compile(pattern)
        except re.error as error:
            checks.fail(where, "hold regular expressions", pattern, f"{error}.".capitalize())


Variable: TypeAlias = "tf.Variable | str"
"""A variable, or its name."""

_COPY = re.compile(r"(/replica_\d+)?:\d+$")


def variable_name(variable: Variable) -> str:
    """Return the full name of a variable, with which `matches` compares patterns.

    The copies of a variable on all replicas have the same name. Shards of a table have the table's
    name.

    Args:
      variable: a variable, or a name, which is returned unchanged.

    Returns:
      The name of the variable with its scopes, without ":0".
    """
    if isinstance(variable, str):
        return variable
    shard = shards.find_shard(variable)
    return shard.name if shard else shard_name(variable)


def shard_name(variable: tf.Variable) -> str:
    """Return the name of a variable in the graph, without ":0".

    Args:
      variable: a variable, or a shard, whose name is `<table>/part_<n>`. All copies of a variable
        on replicas get the same name.
    """
    return _COPY.sub("", variable.name)


def matches(pattern: str, variable: Variable) -> bool:
    """Return True if a pattern matches the name of a variable.

    Args:
      pattern: a regular expression; it may match any part of the name.
      variable: a variable, or its name.
    """
    return re.search(pattern, variable_name(variable)) is not None


def select_variables(
    where: str, pattern: str, variables: Sequence[Variable], rule: str = "match a variable"
) -> list[Variable]:
    """Return the variables that match a pattern.

    Args:
      where: the name of the setting, for error messages.
      pattern: a regular expression; it may match any part of the name.
      variables: variables, or their names.
      rule: the rule of the setting, for errors.

    Raises:
      UserError: no variable matches; the message has the most similar names of variables and
        scopes.
    """
    matching = [variable for variable in variables if matches(pattern, variable)]
    if not matching:
        checks.fail(where, rule, pattern, _suggest_names(pattern, variables))
    return matching


def _suggest_names(pattern: str, variables: Sequence[Variable]) -> str:
    names = [variable_name(variable) for variable in variables]
    pieces = {piece for path in names for piece in _split_path(path)}
    plain = re.sub(r"[\^$\\]|\.\*", "", pattern)
    nearest = difflib.get_close_matches(plain, sorted(pieces), n=3)
    if nearest:
        return f"Nearest: {', '.join(nearest)}."
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"Variables: {', '.join(names[:5]) or '(none)'}{rest}."


def _split_path(path: str) -> list[str]:
    """Return the scopes and pieces of a name: `a/b/c` -> a, a/b, a/b/c, a, b, c."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)] + parts
