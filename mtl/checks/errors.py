"""Errors of one line: the place of a mistake, the rule, the value that came and a fix."""

import difflib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

_LONGEST = 500
_LONGEST_LINE = 2000
# Ends of lines, what a terminal takes for a command, and what UTF-8 cannot hold.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# Where an object lies in memory tells nobody anything.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# What stands for the one who logs in: all of it in the address of a web server, where it may be a
# token, and behind the colon elsewhere, as in `wasbs://container@account` nothing is secret.
_LOGIN = re.compile(r"(?i)(\bhttps?://|://[^\s/'\"<>:@]*:)[^\s/'\"<>]+(?=@)")
_PASSWORD = re.compile(r"(?i)([?&;](?:password|passwd|pwd|token|secret|api_?key)=)[^\s&;'\"<>]+")
_BEARER = re.compile(r"(?i)\b((?:Bearer|Basic) )[\w.~+/=\-]{8,}")


class UserError(ValueError):
    """A mistake that the user can fix: shown as one line, without a traceback, with exit code 2.

    It may quote files and servers, which can hold anything. Line ends are escaped, secrets are
    masked, and a very long line loses its middle.
    """

    def __init__(self, line: str = ""):
        line = mask(escape(line))
        fits = len(line) <= _LONGEST_LINE
        super().__init__(line if fits else f"{line[: _LONGEST_LINE - 505]} ... {line[-500:]}")


class UserTypeError(UserError, TypeError):
    """A `UserError` for a value of the wrong kind."""


def escape(text: str) -> str:
    """Return a text as one line of UTF-8: ends of lines and commands are written as codes."""
    return _UNPRINTABLE.sub(lambda found: repr(found.group())[1:-1], text)


def mask(text: str) -> str:
    """Return a text with `***` for the passwords and tokens in its addresses and headers."""
    for secret in (_LOGIN, _PASSWORD, _BEARER):
        text = secret.sub(r"\1***", text)
    return text


def fail(where: str, rule: str, value: Any, fix: str = "", error: type = UserError) -> NoReturn:
    """Raise `<where> must <rule>, got <value>. <fix>`."""
    got = _shortened(_ADDRESS.sub("", repr(value)))
    raise error(f"{_shortened(where)} must {rule}, got {got}." + (f" {fix}" if fix else ""))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:200]} ... {text[-50:]}"


def require(condition: bool, where: str, rule: str, value: Any, fix: str = "") -> None:
    """Fail unless `condition` holds."""
    if not condition:
        fail(where, rule, value, fix)


def nearest(value: Any, choices: Iterable[Any]) -> str:
    """Return `Did you mean 'x'?` for the closest of `choices`, or nothing."""
    match = closest(value, choices)
    return f"Did you mean {match!r}?" if match else ""


def closest(value: Any, choices: Iterable[Any]) -> str | None:
    """Return the one of `choices` that looks most like `value`, if any does."""
    matches = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    return matches[0] if matches else None
