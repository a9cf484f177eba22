r"""Tables that clean characters of texts, before texts are cut into words.

tables = characters.read_tables(lowercase=True)
characters.clean("Émile\u200b", lowercase=True)               # "emile"

The rules are the same as in BERT's tokenizer (J. Devlin et al., "BERT: Pre-training of Deep
Bidirectional Transformers for Language Understanding", NAACL 2019, arXiv:1810.04805): control
characters, U+FFFD and private characters are removed; spaces of all kinds and line breaks become a
space. Conversion to lower case also removes accents, which are marks (Mn) in the canonical
decomposition. The rules treat each character separately, so tables can hold the rules, and a served
graph needs no library. The tables use the Unicode version of the Python that builds the graph, and
an export contains the tables.
"""

import dataclasses
import functools
import itertools
import unicodedata

import numpy as np

# The kinds of characters that determine how a text is cut into words.
LETTER, SPACE, ALONE = 0, 1, 2

# The number of code points of Unicode.
_END = 0x110000
# Tables over all code points are cut into pages of this size, and equal pages are stored once.
_PAGE = 256
# The ranges of code points that may hold characters. The ten planes of Unicode from 0x40000 to
# 0xDFFFF hold no characters in any version.
_IN_USE = (range(0x40000), range(0xE0000, _END))
_ALWAYS_SPACES = "\t\n\r"
# BERT treats each ideograph in these ranges as a word.
_IDEOGRAPHS = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0x2F800, 0x2FA20),
)


@dataclasses.dataclass(frozen=True)
class Paged:
    """A table with a number for each code point, in pages of 256 numbers.

    Attributes:
      pages: the numbers of P distinct pages, int32 [P, 256].
      page_of: int32 [4352], the index of the page for the upper bits of a code point.
    """

    pages: np.ndarray
    page_of: np.ndarray


@dataclasses.dataclass(frozen=True)
class Tables:
    """The tables that clean texts in the graph.

    Attributes:
      row_of: the row of `expansions` for each code point; 0 if the code point is not replaced.
      expansions: int32 [E, K], the code points that replace one code point, padded with -1.
      kinds: the kind of each clean code point: LETTER, SPACE or ALONE.
    """

    row_of: Paged
    expansions: np.ndarray
    kinds: Paged


def clean(text: str, lowercase: bool) -> str:
    """Clean a text in Python, with the same result as in the graph.

    Args:
      text: the text to clean.
      lowercase: True also converts letters to lower case, and removes accents.

    Returns:
      The clean text, which may be longer or shorter than `text`.
    """
    return "".join(_clean_one(character, lowercase) for character in text)


def _clean_one(character: str, lowercase: bool) -> str:
    """Return the text that replaces a character: none, one or several characters."""
    category = unicodedata.category(character)
    if character in _ALWAYS_SPACES or category[0] == "Z":
        return " "
    if category in ("Cc", "Cf", "Co", "Cs") or character == "\ufffd":
        return ""
    if not lowercase:
        return character
    parts = unicodedata.normalize("NFD", character)
    return "".join(part.lower() for part in parts if unicodedata.category(part) != "Mn")


def _find_kind(character: str) -> int:
    if character == " ":
        return SPACE
    category = unicodedata.category(character)[0]
    is_punctuation = category == "P" or (character.isascii() and category == "S")
    return ALONE if is_punctuation else LETTER


@functools.cache
def read_tables(lowercase: bool) -> Tables:
    """Build the tables, once in each process; this takes a fifth of a second.

    Args:
      lowercase: True also converts letters to lower case, and removes accents.

    Returns:
      The tables. All callers get the same cached arrays, so do not change the arrays.
    """
    rows: dict[str, int] = {"\0": 0}  # Row 0 means no replacement; NUL never replaces a character.
    row_of, kinds = np.zeros(_END, np.int32), np.zeros(_END, np.int32)
    for point in itertools.chain(*_IN_USE):
        character = chr(point)
        if unicodedata.category(character) == "Cn":
            continue
        kinds[point] = _find_kind(character)
        clean = _clean_one(character, lowercase)
        if clean != character:
            row_of[point] = rows.setdefault(clean, len(rows))
    for ideographs in _IDEOGRAPHS:
        kinds[ideographs.start : ideographs.stop] = ALONE
    expansions = np.full([len(rows), max(map(len, rows))], -1, np.int32)
    for text, row in rows.items():
        expansions[row, : len(text)] = [ord(character) for character in text]
    return Tables(_cut_pages(row_of), expansions, _cut_pages(kinds))


def _cut_pages(values: np.ndarray) -> Paged:
    places: dict[bytes, int] = {}
    pages = values.reshape(-1, _PAGE)
    page_of = [places.setdefault(page.tobytes(), len(places)) for page in pages]
    distinct_pages = np.frombuffer(b"".join(places), values.dtype).reshape(-1, _PAGE)
    return Paged(distinct_pages, np.asarray(page_of, np.int32))
