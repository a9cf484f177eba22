"""Shared parts of the fuzzers: seeded cases, their outcomes, and ways to damage a file.

MTL_FUZZ_CASES=2000 pytest tests/fuzz          # 2,000 cases of each test; by default a few
MTL_FUZZ_CASES=817:818 pytest tests/fuzz -k x  # a case that failed, as its failure says

A case passes as "right" with the right result, or as "refused" with a clear, one-line UserError.
"""

import collections
import os
import random
import re
import traceback
from collections.abc import Callable, Sequence

import pytest

from mtl import checks

_VARIABLE = "MTL_FUZZ_CASES"
_LONGEST = 2000
# Phrases of internal errors in Python, TensorFlow and protobuf.
_INTERNAL = re.compile(
    r"Traceback| at 0x|'?NoneType'?|object (is not|has no|cannot)|\{\{(function_)?node"
    r"|\b(Type|Key|Attribute|Index|Unicode\w+|Assertion|Recursion|Overflow|ZeroDivision)Error\b"
    r"|not (iterable|subscriptable|callable|supported between)|unhashable|positional argument"
    r"|unpack|invalid literal for|keyword argument|out of range|Errno|codec can't"
)


def numbers(few: int) -> range:
    """Return the numbers of the cases: the first `few`, or the range in MTL_FUZZ_CASES."""
    first, _, end = os.environ.get(_VARIABLE, str(few)).rpartition(":")
    return range(int(first or 0), int(end))


def run(name: str, few: int, case: Callable[[random.Random], str]) -> collections.Counter[str]:
    """Run a case for each number; return {outcome: count}.

    Fails after the last case, and tells how to repeat the first failure of each kind.
    """
    outcomes: collections.Counter[str] = collections.Counter()
    failures: dict[str, list[str]] = {}
    for number in numbers(few):
        try:
            outcomes[case(random.Random(f"{name} {number}"))] += 1
        except Exception as error:
            outcomes["failed"] += 1
            frame = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} in {frame.filename}:{frame.lineno}"
            said = f"{_VARIABLE}={number}:{number + 1} ({name}): {kind}: {str(error)[:1500]}"
            failures.setdefault(kind, []).append(said)
    print(f"{name}: {dict(outcomes)}")
    if failures:
        told = "\n".join(f"[{len(said)} times] {said[0]}" for said in failures.values())
        pytest.fail(f"{outcomes['failed']} of {outcomes.total()} cases:\n{told}", pytrace=False)
    return outcomes


def refused(error: checks.UserError) -> str:
    """Return the message of an error; fail unless it is one clear line."""
    line = str(error)
    assert line.strip() and len(line.splitlines()) == 1 and "\n" not in line, repr(line)
    assert len(line) <= _LONGEST, line
    internal = _INTERNAL.search(line)
    assert not internal, f"says {internal.group()!r}: {line}"
    return line


def damaged(draw: random.Random, data: bytes, splice: Sequence[bytes] = ()) -> bytes:
    """Return the bytes with one to three faults; `splice` are pieces to insert."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = _damaged_once(draw, data, draw.choice(splice or (b"",)))
    return data


def _damaged_once(draw: random.Random, data: bytes, piece: bytes) -> bytes:
    start = draw.randrange(len(data) + 1)
    end = min(len(data), start + draw.choice((1, 1, 2, 8, 64)))
    head, middle, tail = data[:start], data[start:end], data[end:]
    lines = data.splitlines(keepends=True) or [b""]
    line = draw.randrange(len(lines))
    flipped = bytes(byte ^ 1 << draw.randrange(8) for byte in middle[:1])
    return draw.choice(
        (
            head,
            head + tail,
            head + middle * 2 + tail,
            head + b"\0" * len(middle) + tail,
            head + draw.randbytes(len(middle)) + tail,
            head + flipped + middle[1:] + tail,
            head + piece + tail,
            head + piece + middle + tail,
            b"".join(lines[:line] + lines[line + 1 :]),
            b"".join(lines[: line + 1] + lines[line:]),
            b"".join(draw.sample(lines[:50], len(lines[:50])) + lines[50:]),
        )
    )
