"""Measures, shortens and writes the texts in a picture.

texts.measure("0.99995")                          # about 44, in the units of a picture
texts.shorten("a_very_long_name", 60)             # "a_ve…ame"
"""

import html
import re
import unicodedata

SIZE = 10.5
# The widths of letters in a wide sans-serif font, because the font of the reader is unknown.
_NARROW, _SLIM, _USUAL, _CAPITAL, _WIDE = 3.6, 4.6, 6.8, 8.4, 10.6
_KINDS = {
    **dict.fromkeys("ijlI.,:;|!' ", _NARROW),
    **dict.fromkeys("frt()[]/-", _SLIM),
    **dict.fromkeys("mwMWOQ@%+=<>~…", _WIDE),
}
# The rounding error of a sum of widths.
_ROUNDING = 1e-6
# Characters that XML forbids, and that browsers do not display.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def measure(text: str) -> float:
    """Return the largest width that a text may have, in units of a picture."""
    return sum(map(_measure_letter, text))


def _measure_letter(letter: str) -> float:
    if letter in _KINDS:
        return _KINDS[letter]
    if unicodedata.combining(letter):
        return 0.0
    # Other letters, such as Chinese letters, are wider than Latin letters.
    if not letter.isascii():
        return _WIDE
    return _CAPITAL if letter.isupper() else _USUAL


def shorten(text: str, width: float) -> str:
    """Shorten a text that is too long for a width: "…" replaces its middle.

    Args:
      text: the text to shorten.
      width: the room for the text, in units of a picture.
    """
    if measure(text) <= width + _ROUNDING:
        return text
    # At most `width / _NARROW` letters fit, even if all letters are narrow.
    for size in range(min(len(text) - 1, int(width / _NARROW)), 0, -1):
        # Keep both ends, because names of variables or columns often differ at the end.
        short = f"{text[: (size + 1) // 2]}…{text[len(text) - size // 2 :]}"
        if measure(short) <= width:
            return short
    return "…"


def wrap(text: str, width: float) -> list[str]:
    """Break a text into lines at spaces; a word that is longer than a line gets a line.

    Args:
      text: the text to break into lines.
      width: the room for a line, in units of a picture.

    Returns:
      The lines; [] for a text without words.
    """
    lines: list[str] = []
    for word in text.split():
        if lines and measure(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def escape(text: str) -> str:
    """Escape a text for XML, with "�" in place of characters that XML forbids."""
    return html.escape(replace_unprintable(text))


def replace_unprintable(text: str) -> str:
    """Return a text with "�" in place of characters that XML forbids."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def write(text: str, place: str, anchor: str = "start", width: float = 1e9, style: str = "") -> str:
    """Return a text element of SVG; the mouse pointer shows a shortened text in full.

    Args:
      text: the text to write.
      place: the SVG attributes of the position, as `put` returns them.
      anchor: the part of the text that lies at the position: "start", "middle" or "end".
      width: the room for the text, in units of a picture.
      style: the class of the text in the style sheet.
    """
    short = shorten(text, width)
    whole = f"<title>{escape(text)}</title>" if short != text else ""
    kind = f' class="{style}"' if style else ""
    return f'<text {place} text-anchor="{anchor}"{kind}>{whole}{escape(short)}</text>'


def put(x: float, y: float) -> str:
    """Return the SVG attributes of a position.

    Args:
      x: the distance from the left edge, in units of a picture.
      y: the distance from the top, in units of a picture.

    Returns:
      A text such as 'x="12" y="4.5"'.
    """
    return f'x="{trim(x)}" y="{trim(y)}"'


def trim(value: float) -> str:
    """Return a number as text, with at most one decimal place."""
    return f"{value:.1f}".removesuffix(".0")
