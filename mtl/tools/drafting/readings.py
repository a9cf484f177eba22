"""Reads numbers with currencies, units or commas, after all values of a table are counted.

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

# Texts that may mean two numbers: 1.234 means 1234 if points separate thousands.
_THOUSANDS = re.compile(r"[+-]?(?:[1-9][0-9]{0,2}\.[0-9]{3}|[0-9]{1,3})")


def read_numbers(
    facts: Mapping[str, columns.Facts],
    gathered: Mapping[str, columns.Column],
    sample: pa.Table,
    labels: Collection[str] = (),
    number_forms: Mapping[str, str] = types.MappingProxyType({}),
    has_commas: bool = False,
) -> dict[str, columns.Facts]:
    """Return the facts of columns after texts such as $1,200 are converted to numbers.

    Args:
      facts: {column: the facts of the column}.
      gathered: {column: the object that gathered the facts}.
      sample: random rows of the table.
      labels: the columns to predict, in which few distinct whole numbers are classes.
      number_forms: {column: how the column writes the number 1.5 or 1234.5, such as "$1,234.5"}.
      has_commas: True if the comma in 1,234 is a decimal comma, so that the text means 1.234; False
        if it separates thousands.

    Raises:
      UserError: a column does not write its numbers as `number_forms` says.
    """
    values = {name: _list_values(column, gathered[name]) for name, column in facts.items()}
    texts = [column for column in facts.values() if column.kind == "text" and not column.is_code]
    column_forms = _find_forms({column.name: values[column.name] for column in texts}, has_commas)
    # If one column has decimal commas, the whole table is read with decimal commas.
    commas = has_commas or any(form.has_comma for form in column_forms.values())
    column_forms |= {n: _check_form(n, values[n], form) for n, form in number_forms.items()}
    updates = dict(zip(facts, map(_doubt_points, facts.values()), strict=True)) if commas else {}
    for name, form in column_forms.items():
        if name in number_forms or _is_quantity(name, values[name], form, labels):
            present = _without(values[name], form.words)
            updates[name] = _read_form(facts[name], gathered[name], sample[name], present, form)
    return {**facts, **updates}


def _find_forms(
    values: Mapping[str, Mapping[str, int]], has_commas: bool
) -> dict[str, forms.Found]:
    """Return {column: the form of its numbers}, for columns that have a form."""
    candidates = {name: forms.find_form(texts, has_commas) for name, texts in values.items()}
    column_forms = {name: form for name, form in candidates.items() if form}
    if not has_commas and any(form.has_comma for form in column_forms.values()):
        return _find_forms({name: values[name] for name in column_forms}, has_commas=True)
    return column_forms


def _list_values(facts: columns.Facts, column: columns.Column) -> dict[str, int]:
    """Return {text: number of rows}, without texts that mean a missing value among numbers."""
    return {text: n for text, n in facts.values.items() if text not in column.known_marks}


def _doubt_points(facts: columns.Facts) -> columns.Facts:
    """Add 1234 as a second reading (`twin`) of 1.234, for a table with decimal commas."""
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
    name: str, values: Mapping[str, int], form: forms.Found, labels: Collection[str]
) -> bool:
    """Return False for a label with few distinct whole numbers, because they are classes."""
    if name not in labels or len(values) > columns.FEW_CLASSES:
        return True
    plain = forms.read_values(_without(values, form.words), form.example)
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
    form: forms.Found,
) -> columns.Facts:
    """Return the facts of a column whose numbers have a form; other texts are missing values."""
    if not column.values.isdisjoint(form.words):
        return facts
    missing = {text: rows for text, rows in facts.values.items() if text not in present}
    if _is_plain(form.example, present):
        return column.summarize({"", *facts.marks, *missing}, sample)
    plain = forms.read_values(present, form.example)
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
        form=form.example,
        twin=form.twin,
        written=next((t for t in present if not re.fullmatch(columns.FLOAT, t)), min(present)),
        limits=sum(rows for text, rows in present.items() if forms.is_limit(text)),
    )
