"""How values of the field types may be written, in files and in settings.

literals.parse("int64", "1.0")                           # 1; ValueError for "1.5"
literals.default("Spec field 'age'.default", "float32", "nan")
literals.whole(True)                                     # 1
"""

import math
import re
from typing import Any

import numpy as np

from mtl import checks

# How gin files, which have no literal for it, write the default of a number that stays missing.
NAN = "nan"
# What text may stand for 0 and 1, in these types.
TRUTH = {"false": "0", "true": "1"}
TRUTH_TYPES = ("bool", "int64")
RANGES = {"int64": (-(2**63), 2**63 - 1), "uint8": (0, 255), "bool": (0, 1)}
# The Python types that a default of each type may have; an int can stand for a float.
_PYTHON = {"float32": (float, int), "int64": int, "uint8": int, "bool": bool, "string": str}


def parse(dtype: str, value: Any) -> Any:
    """A Python value, or the text of one, as a value of the type.

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
    # Python also takes 1_000, TensorFlow does not.
    if isinstance(value, str) and "_" in value:
        raise ValueError
    try:
        return float(value)
    except OverflowError:
        raise ValueError from None


def _parse_int(value: Any, dtype: str) -> int:
    if isinstance(value, str):
        value = TRUTH.get(value.lower(), value) if dtype in TRUTH_TYPES else value
        found = re.fullmatch(r"([+-]?[0-9]+)(\.0*)?", value, re.ASCII)
        if not found:
            raise ValueError
        return int(found.group(1))
    number = whole(value)
    if number is None:
        raise ValueError
    return number


def whole(value: Any) -> int | None:
    """The integer that a number or a bool stands for, as 1 for 1.0 and True; None for others."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None


def default(where: str, dtype: str, value: Any) -> Any:
    """The default as a value of the type; fails unless it is one."""
    is_nan = isinstance(value, float) and math.isnan(value)
    if dtype != "string" and isinstance(value, str) and value.lower() == NAN:
        is_nan = True
    if dtype != "float32":
        fix = "Only a float32 can be a missing number." if is_nan else ""
        good = isinstance(value, _PYTHON[dtype]) and (dtype == "bool") == isinstance(value, bool)
        if not good:
            checks.fail(where, f"be a {dtype}", value, fix, checks.UserTypeError)
    elif is_nan:
        return math.nan
    elif not isinstance(value, _PYTHON[dtype]) or isinstance(value, bool):
        fix = f"A missing number is {NAN!r}."
        checks.fail(where, "be a float32", value, fix, checks.UserTypeError)
    else:
        checks.require(abs(value) <= float(np.finfo(np.float32).max), where, "be a float32", value)
    if dtype in RANGES:
        low, high = RANGES[dtype]
        checks.require(low <= value <= high, where, f"be a {dtype}", value)
    return value
