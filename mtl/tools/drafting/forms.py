"""Finds the form in which a column writes numbers with currencies, units or commas: $1,234.50.

form = forms.find_form({"$12.50": 3, "$1,200": 1, "TBD": 1})
form.example, form.words                                     # "$1,234.5", ("TBD",)
"""

import collections
import dataclasses
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence

from mtl.data import written_numbers

# Word processors replace a hyphen by a minus sign or an en dash.
_MINUS = "\u2212\u2013"
_NUMBER = "(?:[0-9][0-9.,'\u00a0\u202f\u2009 ]*[0-9]|[0-9][.,]?|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?"
_SIGN = f"[+{_MINUS}-]?"
_BESIDE = rf"[^\d\s.,'()<>+{_MINUS}-]"
# The parts of a number in order: a limit such as <, a currency, the number,
# a unit, and + as in 10+.
_PARTS = re.compile(
    rf"([<>]=?|[\u2264\u2265])?\s*\(?\s*{_SIGN}\s*({_BESIDE}{{1,4}}\.?)?\s*{_SIGN}"
    rf"({_NUMBER})\s*({_BESIDE}[^\d()+]{{0,11}})?[{_MINUS}-]?\s*\)?(\+)?"
)
# The ways to write the number 1.5 or 1234.5, without a unit. A column gets the first way of writing
# that fits its numbers.
_WAYS = ("1.5", "1,234.5", "1,5", "1.234,5", "1 234,5", "1 234.5", "1'234.5")
# Pairs of ways that mean different numbers for a text such as 1,234 or 1.234.
_TWINS = {"1,234.5": "1,5", "1.5": "1.234,5"}
_COMMAS = ("1,5", "1.234,5", "1 234,5")
_CURRENCIES = "EUR USD GBP CHF JPY CNY INR AUD CAD SEK NOK DKK PLN CZK BRL Rs Rs. kr kr. Fr. US$"
# The same limits as in `columns` for words in a column of numbers.
_FEW_WORDS, _SHARE_OF_WORDS = 3, 0.1
_LOOKED_AT, _LOOK_LIKE_NUMBERS = 200, 0.7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """The form in which a column writes numbers.

    Attributes:
      example: how the column writes the number 1.5 or 1234.5, such as "$1,234.5", for
        `Csv.number_forms`.
      words: the few texts of the column that are not numbers in the form of `example`.
      twin: another form that also fits all texts, but means other numbers; "" if there is none.
    """

    example: str
    words: tuple[str, ...] = ()
    twin: str = ""

    @property
    def has_comma(self) -> bool:
        """True if a comma separates the fraction, as in 1,5."""
        return any(way in self.example for way in _COMMAS)


def find_form(values: Mapping[str, int], prefers_comma: bool = False) -> Found | None:
    """Return the form of the numbers in a column; None if the column has no form.

    Up to 3 distinct texts may differ from the returned form, if these texts occur in at most 0.1
    times as many rows as the numbers in this form.

    Args:
      values: {text: number of rows}, without missing values.
      prefers_comma: True to read an ambiguous 1,234 as 1.234, and an ambiguous 1.234 as 1234.
    """
    examples = _list_examples(values)
    all_words = {way: list_words(values, example) for way, example in examples.items()}
    fits = {way: words for way, words in all_words.items() if words is not None}
    if not fits:
        return None
    # The best way fits the most rows; if several ways fit equally, the first of `_WAYS` is chosen.
    way = min(fits, key=lambda way: (sum(map(values.__getitem__, fits[way])), _WAYS.index(way)))
    twin = _TWINS.get(way, "")
    is_twin = fits.get(twin) == fits[way] and _differ(values, way)
    twin = twin if is_twin else ""
    if twin and prefers_comma:
        way, twin = twin, way
    return Found(example=examples[way], words=tuple(fits[way]), twin=examples.get(twin, ""))


def _list_examples(values: Mapping[str, int]) -> dict[str, str]:
    """Return {way to write numbers: an example with the column's unit}; {} without numbers."""
    if not _look_like_numbers(list(values)[:_LOOKED_AT]):
        return {}
    parts = {text: match for text in values if (match := _PARTS.fullmatch(text))}
    rows = collections.Counter[tuple[str, str]]()
    for text, match in parts.items():
        rows[match.group(2) or "", (match.group(4) or "").strip()] += values[text]
    return _write_examples(parts, *rows.most_common(1)[0][0])


def _write_examples(parts: Mapping[str, re.Match[str]], before: str, behind: str) -> dict[str, str]:
    # Do not read codes as numbers, because a code would lose its leading zero. Texts with letters
    # before the digits are ids, unless the letters are a currency.
    has_codes = any(re.match("0[0-9]", match.group(3)) for match in parts.values())
    if has_codes or (before and not _is_currency(before)):
        return {}
    limit = "<" if any(map(is_limit, parts)) else ""
    start = f"{limit}{before}{' ' * before.isalpha()}"
    end = f"{' ' * behind[:1].isalpha()}{behind}"
    return {way: f"{start}{way}{end}" for way in _WAYS}


def is_limit(text: str) -> bool:
    """Return True if a text is a limit, such as <0.5 or 10+."""
    return text.startswith(("<", ">", "\u2264", "\u2265")) or text.endswith("+")


def looks_like_number(text: str) -> bool:
    """Return True if a text is a number, perhaps with a unit, or a limit such as <0.5."""
    return _PARTS.fullmatch(text) is not None


def _look_like_numbers(texts: Sequence[str]) -> bool:
    fits = list(map(looks_like_number, texts))
    return bool(fits) and sum(fits) >= _LOOK_LIKE_NUMBERS * len(fits)


def _is_currency(text: str) -> bool:
    has_sign = any(unicodedata.category(letter) == "Sc" for letter in text)
    return has_sign or text in _CURRENCIES.split()


def list_words(values: Mapping[str, int], example: str) -> list[str] | None:
    """Return the texts that do not have the form of an example; None if there are many.

    Args:
      values: {text: number of rows}, without missing values.
      example: how the form writes the number 1.5 or 1234.5, such as "$1,234.5".
    """
    words = [text for text in values if not is_of(text, example)]
    rows = sum(map(values.__getitem__, words))
    numbers = sum(values.values()) - rows
    are_few = len(words) <= _FEW_WORDS and rows <= _SHARE_OF_WORDS * numbers
    return words if are_few else None


def is_of(text: str, example: str) -> bool:
    """Return True if a text is a number that is written in the same form as `example`.

    Args:
      text: the text, as the file writes it.
      example: how the form writes the number 1.5 or 1234.5, such as "$1,234.5".
    """
    form = written_numbers.read_form("a form", example)
    return re.fullmatch(form.pattern, text) is not None


def _differ(texts: Collection[str], way: str) -> bool:
    """Return True if a text has the comma or point that two ways of writing read differently."""
    character = "," if way == "1,234.5" else "."
    return any(character in text for text in texts)


def read_values(values: Mapping[str, int], example: str) -> dict[str, int]:
    """Convert texts in one form to plain numbers, {plain number: number of rows}.

    Args:
      values: {text: number of rows}; all texts have the form of `example`.
      example: how the form writes the number 1.5 or 1234.5, such as "$1,234.5".
    """
    form = written_numbers.read_form("a form", example)
    plain = collections.Counter[str]()
    for text, rows in values.items():
        plain[written_numbers.to_plain(form, text)] += rows
    return dict(plain)
