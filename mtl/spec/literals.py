"""Parses values of fields, as texts in files or as settings.

literals.parse_literal("int64", "1.0")                           # 1; ValueError for "1.5"
literals.parse_default("Spec field 'age'.default", "float32", "nan")
literals.whole(True)                                     # 1
literals.decode_text("field 'word'", b"red")             # "red"

A float32 is a decimal number, such as 1, -1.5, .5, 5. or 1e-3, or nan, inf or infinity in upper or
lower case. An integer consists of digits, and only zeros may follow a decimal point. A number may
have a sign. The words true and false, in any case, are 1 and 0, except in uint8. Digits are ASCII.
Spaces, thousands separators, hexadecimal numbers and numbers out of the range of the type are
errors.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from mtl import checks

# This text means NaN as a default in gin files, because gin has no literal for NaN.
NAN = "nan"

# The spaces that `tf.strings.strip` drops. Python's `strip` also drops other spaces, such as
# U+2028.
SPACES = " \t\n\v\f\r"


def _in_any_case(word: str) -> str:
    """Return a pattern that ignores case; a flag would match letters such as a dotless i."""
    return "".join(f"[{letter.upper()}{letter}]" for letter in word)


# Python's re and TensorFlow's RE2 agree on the patterns below. The number parsers of Python and
# TensorFlow would accept more texts than these patterns.
INFINITE = rf"[+-]?{_in_any_case('inf')}(?:{_in_any_case('inity')})?"
FINITE = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
FLOAT = rf"(?:{FINITE}|{INFINITE}|[+-]?{_in_any_case('nan')})"
INT = r"([+-]?[0-9]+)(?:\.0*)?"
# {word: 0 or 1}, and the types of integers for which these words are valid.
TRUTH = {_in_any_case("false"): "0", _in_any_case("true"): "1"}
TRUTH_TYPES = ("bool", "int64")
# Numbers from this number on round to infinity in float32.
_FLOAT32_END = 2.0**128 - 2.0**103
RANGES = {"int64": (-(2**63), 2**63 - 1), "uint8": (0, 255), "bool": (0, 1)}
_LARGEST = (2 - 2.0**-23) * 2.0**127  # The largest float32, computed without NumPy.
_RANGES_OF_DEFAULTS = {**RANGES, "float32": (-_LARGEST, _LARGEST)}
# {type: Python types of a default}; an int is also a valid default of a float.
_PYTHON: Mapping[str, Any] = {
    "float32": (float, int),
    "int64": int,
    "uint8": int,
    "bool": bool,
    "string": str,
}


def parse_literal(dtype: str, value: Any) -> Any:
    """Convert a Python value, or a text, to a value of a type.

    Args:
      dtype: float32, int64, uint8, bool or string.
      value: a text, or a number for types other than string.

    Returns:
      A str, a float or an int; bools become 0 or 1.

    Raises:
      ValueError: the value does not suit the type; the error has no message.
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
    # This call raises a ValueError for half of a surrogate pair, which JSON may hold.
    value.encode()
    return value


def _parse_float(value: Any) -> float:
    is_text = isinstance(value, str)
    if is_text and not re.fullmatch(FLOAT, value):
        return _parse_truth(value)
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    is_infinite = math.isinf(number) and not (is_text and re.fullmatch(FINITE, value))
    if abs(number) >= _FLOAT32_END and not is_infinite:
        raise ValueError
    return number


def _parse_truth(text: str) -> float:
    truth = [number for word, number in TRUTH.items() if re.fullmatch(word, text)]
    if not truth:
        raise ValueError
    return float(truth[0])


def _parse_int(value: Any, dtype: str) -> int:
    if isinstance(value, str):
        for word, truth in TRUTH.items() if dtype in TRUTH_TYPES else ():
            value = truth if re.fullmatch(word, value) else value
        match = re.fullmatch(INT, value)
        if not match:
            raise ValueError
        return int(match.group(1))
    number = whole(value)
    if number is None:
        raise ValueError
    return number


def whole(value: Any) -> int | None:
    """Return the integer that equals a number or a bool, such as 1 for 1.0 or True.

    Args:
      value: the number, the bool or another value.

    Returns:
      The integer; None for fractions, infinity, NaN, and values of other types than int, float and
      bool.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None


def decode_text(where: str, value: Any) -> Any:
    """Decode bytes as UTF-8; return all other values unchanged.

    Raises:
      UserError: the bytes are not UTF-8. Replacing invalid bytes by U+FFFD could make two texts
        equal.
    """
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        checks.fail(where, "be UTF-8", value)


def parse_default(where: str, dtype: str, value: Any) -> Any:
    """Convert a default to a value of a type.

    Args:
      where: the name of the setting, for errors.
      dtype: float32, int64, uint8, bool or string.
      value: a value of the matching Python type; for float32, also an int or "nan".

    Returns:
      The default in the type `dtype`; `math.nan` for a missing float32.

    Raises:
      UserTypeError: the value has another Python type.
      UserError: the number is out of the range of the type, or is infinite.
    """
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
