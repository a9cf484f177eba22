"""Turns texts of cells into numbers and times, with the meaning that they have in training.

numbers, words = cells.split_numbers(pa.array(["5", "+5", "1.50", "NA"]))

`mtl.spec.literals` says which texts are numbers. Arrow reads a few other texts as numbers, and
refuses some of these.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtl.spec import literals

# As a number, a code such as a postal code would lose its leading zero.
_CODE = r"^0[0-9]+$"
_HEX = r"^0[xX]"
_TRUTH = rf"^(?:{'|'.join(literals.TRUTH)})$"
_TRUE = r"^[tT]"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = rf"^{_DATE}(?:[T ][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]+)?)?)?"
_ZONE = r"(?:Z|[+-][0-9]{2}:?[0-9]{2})"
# The first cells of a column show at little cost if it holds other values.
_FIRST = 64
_FAILED = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


def match(texts: pa.Array, pattern: str) -> pa.Array:
    """Return True for each text with a match of an RE2 pattern, bool [N]."""
    return pc.match_substring_regex(texts, pattern)


def has_codes(texts: pa.Array) -> bool:
    """Return True if a text has digits behind a leading zero, as postal codes may."""
    padded = _find_padded(texts)
    return bool(len(padded)) and pc.any(match(padded, _CODE)).as_py()


def _find_padded(texts: pa.Array) -> pa.Array:
    """Return texts that start with 0 and go on; a pattern would take ten times as long."""
    zeros = texts.filter(pc.starts_with(texts, "0"))
    return zeros.filter(pc.greater(pc.binary_length(zeros), 1))


def split_numbers(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Split texts into numbers and other texts.

    Args:
      texts: texts [N] without nulls.

    Returns:
      The numbers, int64 or float64 [M], and the other texts [N - M].
    """
    numbers = _cast_texts(texts)
    if numbers is not None:
        return numbers, texts[:0]
    is_number = match(texts, rf"^{literals.FLOAT}$")
    number_texts = pc.utf8_ltrim(texts.filter(is_number), "+")
    numbers = _cast_texts(number_texts)
    if numbers is None:  # Arrow can cast every text that matches the pattern.
        numbers = pc.cast(number_texts, pa.float64()).to_numpy()
    return numbers, texts.filter(pc.invert(is_number))


def _cast_texts(texts: pa.Array) -> np.ndarray | None:
    """Return texts as numbers if Arrow reads all of them like `mtl.spec.literals`; else None."""
    try:
        # A few texts go first, as a text that Arrow refuses costs ten times as much.
        pc.cast(texts[:_FIRST], pa.int64())
        numbers = pc.cast(texts, pa.int64())
    except _FAILED:
        return _cast_floats(texts)
    padded = _find_padded(texts)
    if len(padded) and pc.any(match(padded, _HEX)).as_py():
        return None
    return numbers.to_numpy()


def _cast_floats(texts: pa.Array) -> np.ndarray | None:
    try:
        pc.cast(texts[:_FIRST], pa.float64())
        floats = pc.cast(texts, pa.float64()).to_numpy()
    except _FAILED:
        return None
    # Arrow also reads nan(1), and refuses all other texts that are not numbers.
    odd = texts.filter(pa.array(~np.isfinite(floats)))
    is_known = not len(odd) or pc.all(match(odd, rf"^{literals.FLOAT}$")).as_py()
    return floats if is_known else None


def are_truth(texts: pa.Array) -> bool:
    """Return True if all texts are true or false, in any case."""
    return pc.all(match(texts, _TRUTH)).as_py()


def to_truth(texts: pa.Array) -> np.ndarray:
    """Return 1 for true and 0 for false, int64 [N]."""
    return match(texts, _TRUE).to_numpy(zero_copy_only=False).astype(np.int64)


def split_times(texts: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Split texts into ISO dates or times and other texts.

    Args:
      texts: texts [N] without nulls; a time without a zone counts as UTC.

    Returns:
      The times in microseconds since 1970, int64 [M], and the other texts [N - M].
    """
    # Two casts, since Arrow reads times with a zone only as a type that has one.
    is_plain, is_zoned = (match(texts, f"{_TIME}{end}$") for end in ("", _ZONE))
    times, others = [], [texts.filter(pc.invert(pc.or_(is_plain, is_zoned)))]
    for is_chosen, kind in ((is_plain, pa.timestamp("us")), (is_zoned, pa.timestamp("us", "UTC"))):
        some = texts.filter(is_chosen)
        try:
            times.append(to_microseconds(pc.cast(some, kind)))
        except _FAILED:  # For example, the month 13, or nanoseconds.
            others.append(some)
    joined = np.concatenate([np.zeros([0], np.int64), *times])
    return joined, pa.concat_arrays(others)


def to_microseconds(times: pa.Array) -> np.ndarray:
    """Return dates, times of a day or timestamps, without nulls, as microseconds, int64 [N]."""
    if pa.types.is_time(times.type):
        return times.cast(pa.time64("us")).cast(pa.int64()).to_numpy()
    zone = times.type.tz if pa.types.is_timestamp(times.type) else None
    # Unsafe: nanoseconds are cut, which a safe cast refuses.
    return times.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64()).to_numpy()
