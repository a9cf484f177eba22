"""The choice of a head for a label, from the values of the label.

task = tasks.choose_task(facts, found)
task.head, task.settings, task.why           # "Binary", {}, "two classes, '1' in 12.3%"
"""

import dataclasses
import itertools
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl.tools.drafting import columns, inspection, telling

_MOST_CLASSES = 1000
# Limits of a hint about a rare positive class, and about a class with too few rows.
_RARE, _FEW_ROWS = 0.01, 20
_AFFIRMED = ("yes", "true", "y", "t", "1", "positive")
# A column that alone scores at least this much is likely known only after the label.
_LEAKS = {"auc": 0.99, "r2": 0.98, "skill": 0.98}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A label, and the head that learns it.

    Attributes:
      label: the column.
      name: the name of the task: the column, limited to letters, digits and "_" of ASCII.
      dtype: "int64", "float32" or "string" for the label's field.
      head: the class of the head: "Binary", "MultiClass" or "Regression".
      settings: {setting of the head: value} for the gin file.
      why: the reason in a few words, with figures.
      hints: sentences about other heads, and about rare classes.
      target: the label in the sample [N], encoded for the metric: see `telling`.
      metric: "auc" for two classes, "skill" for more, "r2" for numbers.
    """

    label: str
    name: str
    dtype: str
    head: str
    settings: Mapping[str, Any]
    why: str
    hints: tuple[str, ...]
    target: np.ndarray
    metric: str

    def measure_alone(self, codes: np.ndarray) -> float:
        """Return the metric of a column alone; NaN below 100 labelled rows.

        Args:
          codes: the encoded column [N]: see `telling`.
        """
        measure = getattr(telling, f"measure_{self.metric}")
        return measure(codes, self.target)

    def is_leak(self, alone: float) -> bool:
        """Return True if the metric of a column alone suggests target leakage."""
        return bool(alone >= _LEAKS[self.metric])


def choose_task(facts: columns.Facts, found: inspection.Inspection) -> Task:
    """Choose the head of a label.

    Raises:
      UserError: the label is empty or constant, or has more than two values that are neither
        quantities nor at most 1,000 texts, such as dates or numbers with leading zeros.
    """
    values, where = facts.values, f"--task {facts.name!r}"
    checks.require(facts.present > 0, where, "hold a label", f"none in {facts.rows:,} rows")
    one = next(iter(values))
    marks = [mark for mark in facts.marks if mark]
    fix = f"Is a class of that name? Then --value {marks[0]!r}." if marks else ""
    got = f"{one!r} in all rows that have a label"
    checks.require(facts.distinct > 1, where, "vary", got, fix)
    gaps = _tell_gaps(facts)
    if facts.distinct == 2:
        return _choose_binary(facts, found, gaps)
    if facts.is_number and not facts.is_code:
        if facts.kind == "int" and facts.distinct <= columns.FEW_CLASSES:
            return _choose_classes(facts, found, gaps)
        return _choose_number(facts, found, gaps)
    fix = "Is it an id, a date or free text?"
    is_label = facts.kind == "text" and facts.distinct <= _MOST_CLASSES
    rule = f"be a number, or have at most {_MOST_CLASSES} classes"
    checks.require(is_label, where, rule, f"{facts.distinct:,} values, such as {one!r}", fix)
    return _choose_classes(facts, found, gaps)


def _tell_gaps(facts: columns.Facts) -> str:
    """Return the share of missing labels, and the words that stand for them; "" for none."""
    if not facts.missing:
        return ""
    marks = ", ".join(repr(mark) for mark in facts.marks if mark)
    named = f" ({marks})" if marks else ""
    return f"; missing in {facts.missing / facts.rows:.1%}{named}, which weighs nothing"


def _choose_binary(facts: columns.Facts, found: inspection.Inspection, gaps: str) -> Task:
    positive = _find_positive(facts)
    (negative,) = set(facts.values) - {positive}
    is_bit = facts.kind == "int" and {float(negative), float(positive)} == {0.0, 1.0}
    is_plain = is_bit or {negative.lower(), positive.lower()} == {"true", "false"}
    # Other numbers stay text, as text keeps 1.0 apart from 1, unless a file stores numbers.
    is_stored = _is_stored(facts, found)
    read = int if is_stored else str
    share = facts.values[positive] / facts.present
    hints = [f"Only {share:.2%} are {positive!r}: PR-AUC tells more than accuracy."] * (
        share < _RARE
    )
    texts = found.texts(facts.name)
    labels = np.array([np.nan if t is None else float(t == positive) for t in texts.to_pylist()])
    return Task(
        label=facts.name,
        name=_scope(facts.name),
        dtype="int64" if is_plain or is_stored else "string",
        head="Binary",
        settings={} if is_plain else {"positive": [read(positive)], "negative": [read(negative)]},
        why=f"two classes, {positive!r} in {share:.1%}{gaps}",
        hints=tuple(hints),
        target=labels,
        metric="auc",
    )


def _is_stored(facts: columns.Facts, found: inspection.Inspection) -> bool:
    """Return True if the files store whole numbers, and not their texts."""
    return facts.kind == "int" and facts.name in found.dialect.numbers


def _find_positive(facts: columns.Facts) -> str:
    """Return the positive class of two: "yes" or 1, else the greater number or rarer text."""
    values = sorted(facts.values, key=facts.values.__getitem__)
    affirmed = [text for text in values if text.lower() in _AFFIRMED]
    if len(affirmed) == 1:
        return affirmed[0]
    return max(values, key=float) if facts.is_number else values[0]


def _choose_classes(facts: columns.Facts, found: inspection.Inspection, gaps: str) -> Task:
    names = sorted(facts.values, key=float) if facts.is_number else sorted(facts.values)
    count = len(names)
    is_plain = facts.is_number and [float(name) for name in names] == list(range(count))
    is_stored = _is_stored(facts, found)  # Such a label is matched with the class by its value.
    rarest = min(names, key=lambda name: facts.values[name])
    hints = ["heads.Ordinal and heads.Regression know the order of numbers."] * facts.is_number
    if facts.values[rarest] < _FEW_ROWS:
        hints.append(f"Class {rarest!r} has {facts.values[rarest]} rows: too few to learn it.")
    return Task(
        label=facts.name,
        name=_scope(facts.name),
        dtype="int64" if is_plain or is_stored else "string",
        head="MultiClass",
        settings={"classes": count if is_plain else names},
        why=f"{count} classes, the rarest, {rarest!r}, in {facts.values[rarest]:,} rows{gaps}",
        hints=tuple(hints),
        target=telling.encode_texts(found.texts(facts.name)),
        metric="skill",
    )


def _choose_number(facts: columns.Facts, found: inspection.Inspection, gaps: str) -> Task:
    labels = found.numbers(facts.name)
    written = f", written as in {facts.written!r}" if facts.form else ""
    known = labels[np.isfinite(labels)]
    mean, spread, hints = float(known.mean()), float(known.std()), []
    prior, zeros = _round_mean(mean, spread), float((known == 0).mean())
    is_heavy = facts.least >= 0 and float(np.quantile(known, 0.99)) > mean + 5 * spread / 2
    if facts.least >= 0 and zeros > 0.3:
        hints.append(
            f"{zeros:.0%} are 0: heads.ZeroInflatedLogNormal and heads.Tweedie are made for that."
        )
    elif is_heavy and facts.kind == "int":
        hints.append("A heavy tail: heads.Poisson is made for counts, heads.Tweedie for amounts.")
    elif is_heavy:
        hints.append(
            "A heavy tail: loss_type 'huber' follows it less, heads.Tweedie allows for it."
        )
    return Task(
        label=facts.name,
        name=_scope(facts.name),
        dtype="float32",
        head="Regression",
        # Predictions start at the mean; the loss counts errors in standard deviations.
        settings={"prior": prior, "unit": _round(spread)},
        why=f"a number, mean {prior:.10g}, standard deviation {spread:.4g}{written}{gaps}",
        hints=tuple(hints),
        target=labels,
        metric="r2",
    )


def _round(number: float) -> float:
    return float(f"{number:.4g}")


def _round_mean(mean: float, spread: float) -> float:
    """Return the mean to about a thousandth of the deviation, since all values may be near it."""
    return round(mean, 3 - math.floor(math.log10(spread))) if spread > 0 else mean


def _scope(column: str) -> str:
    plain = unicodedata.normalize("NFKD", column).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_]+", "_", plain).strip("_")
    return name if name[:1].isalpha() else f"task_{name}".rstrip("_")


def tell_apart(chosen: Sequence[Task]) -> list[Task]:
    """Return the tasks with unique names: a repeated name `task` becomes `task_2`."""
    names: list[str] = []
    for task in chosen:
        numbered = (f"{task.name}_{number}" for number in itertools.count(2))
        others = [*names, *(other.name for other in chosen if other is not task)]
        is_free = task.name not in names
        names.append(task.name if is_free else next(n for n in numbered if n not in others))
    return [dataclasses.replace(t, name=name) for t, name in zip(chosen, names, strict=True)]
