"""Converts numbers in human formats, such as $1,234.50, to plain numbers.

form = written_numbers.read_form("Csv.number_forms['price']", "$1,234.5")
written_numbers.to_plain(form, "($12.50)")                  # "-12.50"
written_numbers.to_plain(form, "12 km")                     # "12 km, not as $1,234.5": no number
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

from mtl import checks

# Spaces between digits and beside units, including no-break spaces.
_SPACE = "[ \u00a0\u202f\u2009]"
_MINUS = "\u2212\u2013-"  # In brackets of a pattern, a hyphen at the end means no range.
_LIMIT, _LIMIT_BEHIND = "(?:[<>]=?|[\u2264\u2265])?", r"\+?"
_EXAMPLE = re.compile(r"(<?)([^0-9]*?)1(?:([,. '])234)?([.,])5([^0-9].*)?")
_RULE = "write the number 1.5 or 1234.5, such as '1,5', '$1,234.5' or '1.5 km'"


class Form(NamedTuple):
    """A number format, as patterns that Python, TensorFlow and Arrow interpret in the same way.

    Attributes:
      pattern: a pattern that matches a whole text in this format.
      rewrites: (pattern, replacement), in order, which turn a matching text into a plain number.
      mark: a text to append to texts in other formats, so that none of these texts is a valid
        number. For example, 1.234 must not be read as a number if the format is "1,5".
    """

    pattern: str
    rewrites: tuple[tuple[str, str], ...]
    mark: str


def read_form(where: str, example: Any) -> Form:
    """Derive a number format from an example, such as "$1,234.5"; see `Csv.number_forms`.

    Args:
      where: the name of the setting, with which the error message begins.
      example: the number 1.5 or 1234.5 as a file writes it, such as "$1,234.5".

    Raises:
      UserError: the example does not write the number 1.5 or 1234.5; the error names `where`.
    """
    checks.is_a(where, example, str, _RULE)
    match = _EXAMPLE.fullmatch(example)
    if match is None or match.group(3) == match.group(4):
        checks.fail(where, _RULE, example)
    limits, before, thousands, point, behind = match.groups(default="")
    parts = before.strip(), thousands, point, behind.strip()
    return _make_form(f", not as {example}", bool(limits), *parts)


@functools.cache
def _make_form(
    mark: str, limits: bool, before: str, thousands: str, point: str, behind: str
) -> Form:
    space = f"{_SPACE}*"
    separator = _SPACE if thousands == " " else re.escape(thousands)
    integer = f"[0-9]{{1,3}}(?:{separator}[0-9]{{3}})+|[0-9]+" if thousands else "[0-9]+"
    decimal = re.escape(point)
    number = f"((?:(?:{integer})(?:{decimal}[0-9]*)?|{decimal}[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    start = f"{_escape(before)}{space}" if before else ""
    end = f"{space}{_escape(behind)}" if behind else ""
    # The patterns in `ways` have the groups 1 to 8, for signs and numbers. The first entry of
    # `rewrites` writes the sign that was found before the number that was found.
    sign = f"([+{_MINUS}])"
    # A number may have a prefix, such as $. A sign may precede or follow the prefix, or a minus may
    # follow the number. A number in brackets is negative.
    ways = (
        f"{sign}{space}{start}{number}{end}",
        f"{start}{sign}?{number}{end}",
        f"{start}{number}([{_MINUS}]){end}",
        rf"(\(){space}{start}{number}{end}{space}\)",
    )
    expression = f"{_LIMIT}{space}(?:{'|'.join(ways)}){_LIMIT_BEHIND}" if limits else "|".join(ways)
    pattern = f"^(?:{expression})$"
    rewrites = [(pattern, r"\1\3\6\7\2\4\5\8"), (f"[({_MINUS}]", "-")]
    rewrites += [(separator, "")] if thousands else []
    rewrites += [(decimal, ".")] if point != "." else []
    return Form(pattern, tuple(rewrites), mark)


def _escape(text: str) -> str:
    """Escape a text for a pattern, in which a space matches any kind of space, or nothing."""
    return f"{_SPACE}*".join(map(re.escape, text.split()))


def to_plain(form: Form, text: str) -> str:
    """Convert a text to a plain number; append `form.mark` to a text in another format.

    Args:
      form: the format in which the number may be written.
      text: the whole text of a cell, without outer spaces.

    Returns:
      A plain number, such as "-12.50"; or `text` with `form.mark` behind it.
    """
    if not re.fullmatch(form.pattern, text):
        return text + form.mark
    for pattern, replacement in form.rewrites:
        text = re.sub(pattern, replacement, text)
    return text


def check_forms(where: str, examples: Any) -> None:
    """Fail unless `examples` maps fields to examples of written numbers.

    Args:
      where: the name of the setting, with which the error message begins.
      examples: {field: the number 1.5 or 1234.5 as a file writes it}.

    Raises:
      UserError: the value has another type, or an example is neither 1.5 nor 1234.5 in some format.
    """
    checks.mapping(where, examples, "map fields to the number 1.5 or 1234.5 as they write it")
    for field, example in examples.items():
        read_form(f"{where}[{field!r}]", example)


def check_marks(where: str, marks: Any) -> None:
    """Fail unless `marks` maps fields to lists of texts.

    Args:
      where: the name of the setting, with which the error message begins.
      marks: {field: texts that mark an absent value}.

    Raises:
      UserError: the value has another type.
    """
    rule = "map fields to lists of texts"
    checks.mapping(where, marks, rule)
    for field, texts in marks.items():
        checks.is_a(f"{where}[{field!r}]", texts, (list, tuple), "be a list of texts")
        for text in texts:
            checks.is_a(f"{where}[{field!r}]", text, str, "hold texts")
