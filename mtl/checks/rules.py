"""Defines checks of settings, such as limits or choices, and names for common types of settings.

units: checks.Count = 64                                     # 1, 2, ...
kind: Annotated[str, checks.OneOf(["mean", "sum"])] = "mean"

`launch.parts` shows the text of a check, such as "at least 1", beside the type of the setting.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

from mtl.checks import values

Check = Callable[[str, Any], None]
# The classes of checks have `eq=False`, because annotations hash checks, and lists in checks have
# no hash.


@dataclasses.dataclass(frozen=True, eq=False)
class AtLeast:
    """Accepts finite numbers of at least `least`."""

    least: float

    def __str__(self) -> str:
        return f"at least {self.least}"

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is a finite number of at least `least`."""
        values.at_least(where, value, self.least)


@dataclasses.dataclass(frozen=True, eq=False)
class AtMost:
    """Accepts numbers up to `most`."""

    most: float

    def __str__(self) -> str:
        return f"at most {self.most:,}"

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is at most `most`."""
        values.require(value <= self.most, where, f"be at most {self.most:,}", value)


@dataclasses.dataclass(frozen=True, eq=False)
class In:
    """Accepts numbers in an interval, such as `(0, 1]`.

    Attributes:
      interval: two limits, such as "(0, 1]". A square bracket includes its limit; a parenthesis
        excludes it.
    """

    interval: str

    def __str__(self) -> str:
        return f"in {self.interval}"

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` lies in the interval."""
        rule = f"be in {self.interval}"
        values.is_a(where, value, (int, float), f"be a number in {self.interval}")
        least, most = map(float, self.interval[1:-1].split(","))
        is_above = value > least or (value == least and self.interval[0] == "[")
        is_below = value < most or (value == most and self.interval[-1] == "]")
        values.require(is_above and is_below, where, rule, value)


@dataclasses.dataclass(frozen=True, eq=False)
class OneOf:
    """Accepts the values in `choices`; the error names the choice most similar to a wrong value.

    Attributes:
      choices: the allowed values; the error lists them in this order.
    """

    choices: Iterable[Any]

    def __str__(self) -> str:
        return "one of " + ", ".join(map(str, self.choices))

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is one of the choices."""
        values.one_of(where, value, self.choices)


@dataclasses.dataclass(frozen=True, eq=False)
class Is:
    """Accepts instances of the given types.

    Attributes:
      kind: the allowed type or types; a bool passes only if `kind` is bool.
      rule: the rule in the error, which follows the word "must", such as "be a text".
    """

    kind: type | tuple[type, ...]
    rule: str

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is an instance of `kind`."""
        values.is_a(where, value, self.kind, self.rule)


@dataclasses.dataclass(frozen=True, eq=False)
class Map:
    """Accepts maps whose keys are texts.

    Attributes:
      rule: the rule in the error, which follows the word "must", such as "map tasks to numbers".
    """

    rule: str

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is a map from texts."""
        values.mapping(where, value, self.rule)


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Accepts a part that was built, such as `@example()`, but not the class `@example`.

    Attributes:
      example: the name of a suitable class in gin, for the error message.
      arguments: the number of positional arguments with which the part can be called; None skips
        this check.
      attributes: the names that the part must have.
    """

    example: str
    arguments: int | None = None
    attributes: Collection[str] = ()

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is a built part that takes `arguments` and has `attributes`."""
        values.require_part(where, value, self.example, self.arguments, self.attributes)


@dataclasses.dataclass(frozen=True, eq=False)
class PartClass:
    """Accepts a class, such as `@example` without brackets, or a function that builds a part.

    The setting holds the class itself, which the code calls whenever it needs a new instance.

    Attributes:
      example: the name of a suitable class in gin, for the error message.
      attributes: names that instances of the class have, but functions do not have.
    """

    example: str
    attributes: Collection[str] = ()

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is a class or a function."""
        is_part = values.is_built(value) and any(hasattr(value, a) for a in self.attributes)
        rule = f"be a class without brackets, such as @{self.example}"
        values.require(callable(value) and not is_part, where, rule, value)


@dataclasses.dataclass(frozen=True, eq=False)
class Scheduled:
    """Accepts a number that passes `check`, or a schedule such as `@example()`.

    Attributes:
      check: the check for a number, which is not called for a schedule.
      example: the name of a suitable schedule in gin, for the error message.
    """

    check: Check
    example: str

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is a number that passes the check, or a schedule."""
        if isinstance(value, (int, float)):
            self.check(where, value)
            return
        # `@X` without parentheses is the class, which is callable as well.
        is_built = values.is_built(value)
        rule = f"be a number or a schedule such as @{self.example}()"
        fix = "" if is_built else "Mind the parentheses."
        values.require(is_built and callable(value), where, rule, value, fix)
        # A schedule takes one argument, the global step.
        values.require_part(where, value, self.example, arguments=1)


@dataclasses.dataclass(frozen=True, eq=False)
class Has:
    """Accepts a part that was built and has the attributes `names`.

    Attributes:
      names: the names of the attributes.
      rule: the rule in the error, which follows the word "must".
    """

    names: Collection[str]
    rule: str

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `value` is an instance, not a class, and has the attributes in `names`."""
        values.has(where, value, self.names, self.rule)


@dataclasses.dataclass(frozen=True, eq=False)
class Filled:
    """Accepts lists and maps with at least one value.

    Attributes:
      rule: the rule in the error, which follows the word "must", such as "hold a size".
    """

    rule: str

    def __call__(self, where: str, value: Any) -> None:
        """Fail for an empty list or map."""
        items = dict(value) if isinstance(value, Mapping) else list(value)
        values.require(bool(items), where, self.rule, items)


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """Accepts values for which `holds` returns True.

    Attributes:
      rule: the rule in the error, which follows the word "must".
      holds: called with the value; returns True if the value is allowed.
    """

    rule: str
    holds: Callable[[Any], bool]

    def __call__(self, where: str, value: Any) -> None:
        """Fail unless `holds` returns True for `value`."""
        values.require(self.holds(value), where, self.rule, value)


Count = Annotated[int, AtLeast(1)]
"""1, 2, ..."""

Natural = Annotated[int, AtLeast(0)]
"""0, 1, 2, ..."""

Positive = Annotated[float, values.positive]
"""A finite number above 0."""

Bound = Annotated[float, values.bound]
"""A number above 0; infinity means that there is no bound."""

NotNegative = Annotated[float, AtLeast(0)]
"""A finite number of at least 0."""

Rate = Annotated[float, values.rate]
"""A number in [0, 1)."""

Name = Annotated[str, values.scope_name]
"""A name that is valid for a variable scope, a file and a folder."""

Names = Annotated[Sequence[str], values.unique]
"""A list of different texts."""

SomeNames = Annotated[Sequence[str], values.unique, Filled("hold a name")]
"""A list of one or more different texts."""
