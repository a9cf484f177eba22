"""Functions that check one value. An error is one line: the place, the rule, the value and a fix.

checks.positive("LogitAdjustment.tau", tau)
checks.one_of("MLP.activation", activation, ACTIVATIONS)
"""

import collections
import dataclasses
import difflib
import inspect
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NoReturn

# An error quotes at most `_LONGEST` characters of a value, and has at most `_LONGEST_LINE`
# characters.
_LONGEST = 500
_LONGEST_LINE = 2000
# Matches line ends, control codes of terminals, and characters that UTF-8 cannot encode.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Errors leave out the addresses of objects in memory, which do not help a reader.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# The login in a URL. In http, the whole login is secret, because it may be a token. In other
# schemes, only the text after the colon is secret: `wasbs://container@account` has no password.
_LOGIN = re.compile(r"(?i)(\bhttps?://|://[^\s/'\"<>:@]*:)[^\s/'\"<>]+(?=@)")
_PASSWORD = re.compile(r"(?i)([?&;](?:password|passwd|pwd|token|secret|api_?key)=)[^\s&;'\"<>]+")
_BEARER = re.compile(r"(?i)\b((?:Bearer|Basic) )[\w.~+/=\-]{8,}")
_INT64 = range(-(2**63), 2**63)
_FLOAT32 = 3.4028235e38


class UserError(ValueError):
    """A mistake that the user can fix: printed as one line without a traceback, with exit code 2.

    The message may quote the content of files or answers of servers, which can contain any
    characters. Line ends are escaped, secrets are masked, and a very long line loses its middle.
    """

    def __init__(self, line: str = ""):
        # Escape before masking, because a line end inside a password would end the match of its
        # pattern.
        line = mask(escape(line))
        fits = len(line) <= _LONGEST_LINE
        super().__init__(line if fits else f"{line[: _LONGEST_LINE - 505]} ... {line[-500:]}")


class UserTypeError(UserError, TypeError):
    """A `UserError` for a value of the wrong type."""


def escape(text: str) -> str:
    """Return a text as one line of UTF-8; line ends and control characters become codes."""
    return _UNPRINTABLE.sub(lambda match: repr(match.group())[1:-1], text)


def mask(text: str) -> str:
    """Return a text with `***` for the passwords and tokens in its addresses and headers."""
    for secret in (_LOGIN, _PASSWORD, _BEARER):
        text = secret.sub(r"\1***", text)
    return text


def fail(where: str, rule: str, value: Any, fix: str = "", error: type = UserError) -> NoReturn:
    """Raise `<where> must <rule>, got <value>. <fix>`.

    Args:
      where: the setting, such as "MLP.units".
      rule: the rule for its value, such as "be positive", which follows the word "must".
      value: the value of the user, which the message quotes.
      fix: a sentence of advice.
      error: the class of the error.
    """
    got = _shorten_text(_ADDRESS.sub("", repr(value)))
    raise error(f"{_shorten_text(where)} must {rule}, got {got}." + (f" {fix}" if fix else ""))


def _shorten_text(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:200]} ... {text[-50:]}"


def require(condition: bool, where: str, rule: str, value: Any, fix: str = "") -> None:
    """Fail unless `condition` holds.

    Args:
      condition: True if the value is allowed.
      where: the setting, such as "MLP.units".
      rule: the rule for its value, such as "be positive", which follows the word "must".
      value: the value of the user, which the message quotes.
      fix: a sentence of advice.

    Raises:
      UserError: `condition` is False.
    """
    if not condition:
        fail(where, rule, value, fix)


def nearest(value: Any, choices: Iterable[Any]) -> str:
    """Return `Did you mean 'x'?` for the choice closest to `value`; "" if no choice is close."""
    match = closest(value, choices)
    return f"Did you mean {match!r}?" if match else ""


def closest(value: Any, choices: Iterable[Any]) -> str | None:
    """Return the choice that is spelled most like `value`; None if no choice is close.

    Args:
      value: a wrong value, which is compared as a text.
      choices: the allowed values, which are compared as texts.

    Returns:
      The text of a choice.
    """
    matches = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    return matches[0] if matches else None


def is_a(where: str, value: Any, kind: type | tuple[type, ...], rule: str) -> None:
    """Fail unless `value` is an instance of `kind`, and fits into a tensor.

    Bools and NaN do not count as numbers, and a text may not contain the character NUL.

    Args:
      where: the name of the setting, for the error message.
      value: the value of the setting.
      kind: the allowed type or types.
      rule: the rule in the error, which follows the word "must", such as "be a text".

    Raises:
      UserTypeError: the value has another type.
      UserError: a number exceeds int64 or float32, or a text holds NUL.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        fail(where, rule, value, error=UserTypeError)
    match value:
        case bool():
            pass
        case int():
            # Fail here, because a larger integer fails only when it is converted to a tensor.
            require(value in _INT64, where, "be an int64", value)
        case float() if not math.isinf(value):
            # This condition also refuses NaN, because every comparison with NaN is False.
            require(abs(value) <= _FLOAT32, where, "be a float32", value)
        case str():
            require("\0" not in value, where, "hold no character NUL", value)


def no_password(where: str, text: str) -> None:
    """Fail if a URL in `text` has a password or token: a run saves and shows its settings.

    Args:
      where: the name of the setting, for the error message.
      text: the value of the setting; a text without "://" passes.

    Raises:
      UserError: the text has a password or token, which the error masks.
    """
    fix = "Set it in the environment instead; MLflow reads MLFLOW_TRACKING_USERNAME and "
    fix += "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_URI for a database."
    is_free = "://" not in text or mask(text) == text
    require(is_free, where, "hold no password, as runs save and show their settings", text, fix)


def texts(where: str, values: Any, rule: str) -> None:
    """Fail unless `values` is a list of texts.

    Args:
      where: the name of the setting, for the error message.
      values: the value of the setting, a list or a tuple.
      rule: the rule in the error, which follows the word "must", such as "be a list of texts".

    Raises:
      UserTypeError: the value is not a list, or an item is not a text.
    """
    is_a(where, values, (list, tuple), rule)
    for value in values:
        is_a(where, value, str, rule)


def mapping(where: str, value: Any, rule: str) -> None:
    """Fail unless `value` is a map from texts.

    Args:
      where: the name of the setting, for the error message.
      value: the value of the setting, a map; its keys must be texts, and its values may be
        anything.
      rule: the rule in the error, which follows the word "must", such as "map tasks to numbers".
    """
    is_a(where, value, Mapping, rule)
    for key in value:
        is_a(where, key, str, rule)


def is_built(value: Any) -> bool:
    """Return True if a part was built (`@X()` in gin), and False for a class (`@X`)."""
    return not isinstance(value, type)


def is_part(value: object) -> bool:
    """Return True if a value is an instance of a dataclass, as all built parts are."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def require_part(
    where: str,
    value: Any,
    example: str,
    arguments: int | None = None,
    attributes: Iterable[str] = (),
) -> None:
    """Fail unless `value` is a callable instance, not a class, with the given attributes.

    Args:
      where: the name of the setting, for the error message.
      value: the value of the setting.
      example: a part as gin names it, without "@" and "()".
      arguments: how many positional arguments a call must take; None does not check this.
      attributes: names that the part must have.
    """
    is_right = callable(value) and is_built(value) and all(hasattr(value, a) for a in attributes)
    require(is_right, where, f"be a part such as @{example}()", value, "Mind the parentheses.")
    if arguments is not None:
        try:
            # `bind` checks the number of arguments without calling the part.
            inspect.signature(value).bind(*[None] * arguments)
        except TypeError:
            fail(where, f"be a part such as @{example}()", value, error=UserTypeError)


def number(where: str, value: float, rule: str = "be a number") -> None:
    """Fail unless `value` is a finite number.

    Args:
      where: the name of the setting, for the error message.
      value: the value of the setting.
      rule: the rule in the error for a value of another type, which follows the word "must".

    Raises:
      UserTypeError: the value is not a number.
      UserError: the value is infinite or NaN, or exceeds int64 or float32.
    """
    is_a(where, value, (int, float), rule)
    require(math.isfinite(value), where, "be finite", value)


def positive(where: str, value: float) -> None:
    """Fail unless `value` is a finite number above zero.

    Raises:
      UserTypeError: the value is not a number.
      UserError: the value is 0, negative, infinite or NaN.
    """
    bound(where, value)
    number(where, value)


def bound(where: str, value: float) -> None:
    """Fail unless `value` is a number above zero; infinity is allowed, and means no bound.

    Raises:
      UserTypeError: the value is not a number.
      UserError: the value is 0, negative or NaN.
    """
    is_a(where, value, (int, float), "be a number above 0")
    require(value > 0, where, "be above 0", value)


def at_least(where: str, value: float, least: float) -> None:
    """Fail unless `value` is a finite number of at least `least`.

    Args:
      where: the name of the setting, for the error message.
      value: the value of the setting.
      least: the smallest allowed value.
    """
    is_a(where, value, (int, float), f"be a number of at least {least}")
    require(value >= least, where, f"be at least {least}", value)
    number(where, value)


def rate(where: str, value: float) -> None:
    """Fail unless `value` is a number in [0, 1).

    Raises:
      UserTypeError: the value is not a number.
      UserError: the value is NaN, or outside of [0, 1).
    """
    is_a(where, value, (int, float), "be a number in [0, 1)")
    require(0 <= value < 1, where, "be in [0, 1)", value)


def one_of(where: str, value: Any, choices: Iterable[Any]) -> None:
    """Fail unless `value` is among `choices`; the error names the most similar choice.

    Args:
      where: the name of the setting, for the error message.
      value: the value of the setting; if `choices` is a map or set, a value that cannot be hashed
        fails.
      choices: the allowed values; the error lists them in this order.
    """
    # Make a list of an iterator, which would be empty after the search.
    choices = choices if isinstance(choices, Collection) else list(choices)
    try:
        is_known = value in choices
    except TypeError:  # A list has no hash, so it cannot be looked up in a map.
        is_known = False
    if not is_known:
        choices = list(choices)
        names = ", ".join(map(str, choices)) or "(nothing)"
        fail(where, f"be one of {names}", value, nearest(value, choices))


def unique(where: str, names: Iterable[str]) -> None:
    """Fail if a name occurs twice.

    Args:
      where: the name of the setting, for the error message.
      names: the value of the setting, a list of names; a single text is refused.

    Raises:
      UserTypeError: an item is not a text.
      UserError: a name occurs twice, or the value is not a list.
    """
    # A single text is not a list of names, although Python iterates over its letters.
    is_list = isinstance(names, Iterable) and not isinstance(names, str)
    require(is_list, where, "be a list of texts", names)
    texts(where, names := list(names), "hold names")
    repeated = sorted(name for name, count in collections.Counter(names).items() if count > 1)
    require(not repeated, where, "hold each name once", repeated)


def scope_name(where: str, value: str) -> None:
    """Fail unless `value` is valid as the name of a variable scope, a file and a folder.

    A name consists of letters, digits, "_", "-" and ".", and does not start with "_" or "-".

    Raises:
      UserTypeError: the value is not a text.
      UserError: the value has characters that a name may not have, or is "." or "..".
    """
    is_a(where, value, str, "be a name")
    is_scope = re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_.\-]*", value) is not None
    require(is_scope, where, "consist of letters, digits, '_', '-' and '.'", value)
    require(value not in (".", ".."), where, "name no folder", value)


def whole(where: str, value: int, least: int) -> None:
    """Fail unless `value` is a whole number of at least `least`.

    Raises:
      UserTypeError: the value is not a whole number.
      UserError: the value is below `least`, or exceeds int64.
    """
    is_a(where, value, int, "be a whole number")
    at_least(where, value, least)


def has(where: str, value: Any, names: Iterable[str], rule: str) -> None:
    """Fail unless `value` is a built part with the attributes `names`.

    Args:
      where: the name of the setting, for the error message.
      value: the value of the setting, a built part; a class is refused.
      names: the names of the attributes.
      rule: the rule in the error, which follows the word "must".

    Raises:
      UserError: the value is a class, or lacks an attribute.
    """
    has_all = is_built(value) and all(hasattr(value, name) for name in names)
    require(has_all, where, rule, value)
