"""Measures text of a picture, and cuts it to a width.

svg_text.measure("0.99995")                       # about 44, in the units of a figure
svg_text.cut("a_very_long_name", 60)              # "a_very_l…"
"""

import unicodedata

# Widths of letters at size 10.5 in a wide sans serif font, as the reader's font is unknown.
_NARROW, _SLIM, _USUAL, _CAPITAL, _WIDE = 3.6, 4.6, 6.8, 8.4, 10.6
_KINDS = {
    **dict.fromkeys("ijlI.,:;|!' ", _NARROW),
    **dict.fromkeys("frt()[]/-", _SLIM),
    **dict.fromkeys("mwMWOQ@%+=<>~…", _WIDE),
}


def measure(text: str) -> float:
    """Return the largest width that a text may have."""
    return sum(map(_measure_letter, text))


def _measure_letter(letter: str) -> float:
    if letter in _KINDS:
        return _KINDS[letter]
    if unicodedata.combining(letter):
        return 0.0
    if not letter.isascii():
        return _WIDE
    return _CAPITAL if letter.isupper() else _USUAL


def cut(text: str, width: float) -> str:
    """Return the part of a text that fits, with "…" in place of the rest."""
    if measure(text) <= width:
        return text
    kept = text
    while kept and measure(f"{kept}…") > width:
        kept = kept[:-1]
    return f"{kept}…"
