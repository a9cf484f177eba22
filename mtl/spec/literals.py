"""How values of the field types may be written, in files and in settings.

literals.parse_literal("int64", "1.0")                           # 1; ValueError for "1.5"
literals.parse_default("Spec field 'age'.default", "float32", "nan")
literals.whole(True)                                     # 1
literals.decode_text("field 'word'", b"red")             # "red"

A float32 in a text is decimal, as 1, -1.5, .5, 5. or 1e-3, or it is nan, inf or infinity, in any
case; an integer has digits, and behind a point only zeros. Both may have a sign. Digits are those
of ASCII; spaces, separators of thousands, hexadecimal numbers and what is beyond its type are none.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from mtl import checks

# How gin files, which have no literal for it, write the default of a number that stays missing.
NAN = "nan"


def _in_any_case(word: str) -> str:
    """Return a pattern; by a flag Python would take dotless i for i, and RE2 a long s for s."""
    return "".join(f"[{letter.upper()}{letter}]" for letter in word)


# Patterns that Python's re and TensorFlow's RE2 read alike: each reads more numbers by itself.
INFINITE = rf"[+-]?{_in_any_case('inf')}(?:{_in_any_case('inity')})?"
FINITE = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
FLOAT = rf"(?:{FINITE}|{INFINITE}|[+-]?{_in_any_case('nan')})"
INT = r"([+-]?[0-9]+)(?:\.0*)?"
# What text may stand for 0 and 1, in these types.
TRUTH = {_in_any_case("false"): "0", _in_any_case("true"): "1"}
TRUTH_TYPES = ("bool", "int64")
# From here on float32 rounds to infinity.
_FLOAT32_END = 2.0**128 - 2.0**103
RANGES = {"int64": (-(2**63), 2**63 - 1), "uint8": (0, 255), "bool": (0, 1)}
_LARGEST = (2 - 2.0**-23) * 2.0**127  # Of float32; NumPy is not there when a gin file is checked.
_RANGES_OF_DEFAULTS = {**RANGES, "float32": (-_LARGEST, _LARGEST)}
# The Python types that a default of each type may have; an int can stand for a float.
_PYTHON: Mapping[str, Any] = {
    "float32": (float, int),
    "int64": int,
    "uint8": int,
    "bool": bool,
    "string": str,
}


def parse_literal(dtype: str, value: Any) -> Any:
    """Return a Python value, or the text of one, as a value of the type.

    Raises:
      ValueError: it is none; without a word.
    """
    if dtype == "string":
        return _require_text(value)
    if dtype == "float32":
        return _parse_float(value)
    number = _parse_int(value, dtype)
    low, high = RANGES[dtype]
    if not low <= number <= high:
        raise ValueError
    return number


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    # Half of a pair of surrogates, as JSON may hold it, is no text: a ValueError, too.
    value.encode()
    return value


def _parse_float(value: Any) -> float:
    is_text = isinstance(value, str)
    if is_text and not re.fullmatch(FLOAT, value):
        raise ValueError
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    is_infinite = math.isinf(number) and not (is_text and re.fullmatch(FINITE, value))
    if abs(number) >= _FLOAT32_END and not is_infinite:
        raise ValueError
    return number


def _parse_int(value: Any, dtype: str) -> int:
    if isinstance(value, str):
        for word, truth in TRUTH.items() if dtype in TRUTH_TYPES else ():
            value = truth if re.fullmatch(word, value) else value
        found = re.fullmatch(INT, value)
        if not found:
            raise ValueError
        return int(found.group(1))
    number = whole(value)
    if number is None:
        raise ValueError
    return number


def whole(value: Any) -> int | None:
    """Return the integer that a number or a bool stands for, as 1 for 1.0 and True, or None."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None


def decode_text(where: str, value: Any) -> Any:
    """Return bytes as text, and anything else as it is.

    Raises:
      UserError: they are not UTF-8. With a mark in place of such bytes, two texts may become one.
    """
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        checks.fail(where, "be UTF-8", value)


def parse_default(where: str, dtype: str, value: Any) -> Any:
    """Return the default as a value of the type; fail unless it is one."""
    if dtype == "float32":
        if _is_nan(value):
            return math.nan
        fix = f"A missing number is {NAN!r}."
    else:
        fix = "Only a float32 can be a missing number." if _is_nan(value) else ""
    if not isinstance(value, _PYTHON[dtype]) or (dtype == "bool") != isinstance(value, bool):
        checks.fail(where, f"be a {dtype}", value, fix, checks.UserTypeError)
    if dtype in _RANGES_OF_DEFAULTS:
        low, high = _RANGES_OF_DEFAULTS[dtype]
        checks.require(low <= value <= high, where, f"be a {dtype}", value)
    return value


def _is_nan(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == NAN
    return isinstance(value, float) and math.isnan(value)
