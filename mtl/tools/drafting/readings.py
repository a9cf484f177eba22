"""The numbers of columns that are written as people write them, found after a pass over all rows.

facts = readings.read_numbers(facts, gathered, sample, labels=["price"])
facts["price"].form, facts["price"].kind                     # "$1,234.5", "float"
"""

import dataclasses
import re
import types
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from mtl import checks
from mtl.tools.drafting import columns, forms

# Texts that are numbers either way: 1.234 is 1234 where points stand between thousands.
_THOUSANDS = re.compile(r"[+-]?(?:[1-9][0-9]{0,2}\.[0-9]{3}|[0-9]{1,3})")


def read_numbers(
    facts: Mapping[str, columns.Facts],
    gathered: Mapping[str, columns.Column],
    sample: pa.Table,
    labels: Collection[str] = (),
    number_forms: Mapping[str, str] = types.MappingProxyType({}),
    has_commas: bool = False,
) -> dict[str, columns.Facts]:
    """Return the facts, where texts of numbers become numbers, and a few words missing values.

    Args:
      facts: {column: facts}.
      gathered: {column: what the facts were taken from}.
      sample: random rows of the table.
      labels: columns in which few whole numbers are classes.
      number_forms: {column: the number 1.5 or 1234.5 as the column writes it}.
      has_commas: whether a comma in the table rather stands before a fraction.

    Raises:
      UserError: a column is not of the form in `number_forms`.
    """
    values = {name: _list_values(own, gathered[name]) for name, own in facts.items()}
    texts = [own for own in facts.values() if own.kind == "text" and not own.is_code]
    found = _find_forms({own.name: values[own.name] for own in texts}, has_commas)
    # One column with decimal commas tells how the whole table writes numbers.
    commas = has_commas or any(own.has_comma for own in found.values())
    found |= {name: _check_form(name, values[name], own) for name, own in number_forms.items()}
    read = dict(zip(facts, map(_doubt_points, facts.values()), strict=True)) if commas else {}
    for name, own in found.items():
        if name in number_forms or _is_quantity(name, values[name], own, labels):
            present = _without(values[name], own.words)
            read[name] = _read_form(facts[name], gathered[name], sample[name], present, own)
    return {**facts, **read}


def _find_forms(
    values: Mapping[str, Mapping[str, int]], has_commas: bool
) -> dict[str, forms.Found]:
    """Return {column: its form}, of columns that have one."""
    found = {name: forms.find_form(own, has_commas) for name, own in values.items()}
    known = {name: own for name, own in found.items() if own}
    if not has_commas and any(own.has_comma for own in known.values()):
        return _find_forms({name: values[name] for name in known}, has_commas=True)
    return known


def _list_values(facts: columns.Facts, column: columns.Column) -> dict[str, int]:
    """Return {text: rows} without texts that mean a missing value among numbers."""
    return {text: n for text, n in facts.values.items() if text not in column.known_marks}


def _doubt_points(facts: columns.Facts) -> columns.Facts:
    """Return the facts; where 1.234 may be 1234 in a table of decimal commas, with the twin."""
    may_be = facts.kind == "float" and all(_THOUSANDS.fullmatch(text) for text in facts.values)
    return dataclasses.replace(facts, twin="1.234,5") if may_be else facts


def _check_form(name: str, values: Mapping[str, int], example: str) -> forms.Found:
    words = forms.list_words(values, example)
    where = f"--number_form {name!r}"
    if words is None:
        first = next(iter(values), "")
        odd = next((text for text in values if not forms.is_of(text, example)), first)
        checks.fail(where, f"hold numbers such as {example!r}", odd)
    return forms.Found(example=example, words=tuple(words))


def _is_quantity(
    name: str, values: Mapping[str, int], found: forms.Found, labels: Collection[str]
) -> bool:
    """Return False for a label of few whole numbers or limits: they are classes."""
    if name not in labels or len(values) > columns.FEW_CLASSES:
        return True
    plain = forms.read_values(_without(values, found.words), found.example)
    return not all(re.fullmatch(columns.INT, text) for text in plain)


def _without(values: Mapping[str, int], words: Sequence[str]) -> dict[str, int]:
    return {text: rows for text, rows in values.items() if text not in words}


def _is_plain(example: str, texts: Collection[str]) -> bool:
    return example == "1.5" and all(re.fullmatch(columns.FLOAT, text) for text in texts)


def _read_form(
    facts: columns.Facts,
    column: columns.Column,
    sample: pa.ChunkedArray,
    present: Mapping[str, int],
    found: forms.Found,
) -> columns.Facts:
    """Return the facts of a column of numbers of a form; its other texts are missing values."""
    if not column.values.isdisjoint(found.words):
        return facts
    missing = {text: rows for text, rows in facts.values.items() if text not in present}
    if _is_plain(found.example, present):
        return column.summarize({"", *facts.marks, *missing}, sample)
    plain = forms.read_values(present, found.example)
    numbers = list(map(float, plain))
    return dataclasses.replace(
        facts,
        kind="float",
        missing=facts.missing + sum(missing.values()),
        marks={**facts.marks, **missing},
        distinct=len({*numbers}),
        values=plain,
        least=min(numbers),
        greatest=max(numbers),
        words={},
        form=found.example,
        twin=found.twin,
        written=next((t for t in present if not re.fullmatch(columns.FLOAT, t)), ""),
        limits=sum(rows for text, rows in present.items() if forms.is_limit(text)),
    )
