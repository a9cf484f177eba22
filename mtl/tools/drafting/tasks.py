"""Chooses a head for a label from the values of the label.

task = tasks.choose_task(facts, table)
task.head, task.settings, task.why           # "Binary", {}, "two classes, '1' in 12.3%"
"""

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl.serving import settings as serving_settings
from mtl.spec import literals
from mtl.tools.drafting import amounts, columns, inputs, inspection, lines, telling

_MOST_CLASSES, _SHARE_OF_CLASSES = 1000, 0.25
# A positive class is rare below the share `_RARE`, and a class with fewer rows than
# `_FEW_ROWS` is too small.
_RARE, _FEW_ROWS = 0.05, 20
# Each scale lists words in ascending order. The classes of an ordered label may be some of the
# words of a scale.
_SCALES = (
    ("very low", "low", "medium", "moderate", "high", "very high"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
    ("very bad", "bad", "poor", "fair", "average", "good", "very good", "excellent"),
    ("never", "rarely", "sometimes", "often", "usually", "always"),
    ("none", "mild", "moderate", "severe"),
    ("xxs", "xs", "s", "m", "l", "xl", "xxl"),
    ("small", "medium", "large", "extra large"),
)
_AFFIRMED = ("yes", "true", "y", "t", "1", "positive")
# If a column alone reaches this limit of the metric, the column probably reveals the label. The
# column may also reveal the label if 1 minus its metric is at most 3 times 1 minus the limit of the
# metric.
_LEAKS = {"auc": 0.99, "r2": 0.98, "skill": 0.98}
_DOUBTFUL = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A label, and the head that learns the label.

    Attributes:
      label: the name of the column.
      name: the name of the task: the column's name in ASCII letters, digits and "_".
      dtype: the type of the label's field: "int64", "float32" or "string".
      head: the class of the head, such as "Binary", "Ordinal" or "Poisson".
      settings: {setting of the head: value} for the gin file.
      why: the reason for the head in a few words, with figures.
      hints: sentences about other heads, and about rare classes.
      target: the label of each row in the sample [N], in the form that functions of `telling` read:
        0 or 1 for two classes, the numbers from 1 for more classes, and other numbers unchanged.
      metric: "auc" for two classes, "skill" for more classes, "r2" for numbers.
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
        """Return the metric with a column as the only input; NaN for fewer than 100 labelled rows.

        Args:
          codes: the encoded column [N], from `telling`.
        """
        measure = getattr(telling, f"measure_{self.metric}")
        return measure(codes, self.target)

    def find_leak(
        self, alone: float, codes: np.ndarray, numbers: np.ndarray | None
    ) -> tuple[str, bool]:
        """Return evidence that a column reveals the label, and whether the evidence is strong.

        Args:
          alone: the metric with the column as the only input.
          codes: the encoded column [N].
          numbers: the numbers of the column [N]; None for texts.

        Returns:
          The evidence as text, such as "alone predicts 'y', AUC 0.995", and True if the figure in
          the text reaches the limit for strong evidence; ("", False) without evidence.
        """
        name = repr(self.label)
        figures = [(alone, _LEAKS[self.metric], f"alone predicts {name}, {self.metric.upper()}")]
        # A value may reveal the label merely because it is present, like a date of return.
        present = np.minimum(codes, 1)
        if self.metric == "r2":
            if numbers is not None:
                rank = telling.measure_rank(numbers, self.target)
                figures.append((rank, _LEAKS["r2"], f"sorts rows like {name}, R2 of ranks"))
            uses = ((codes, "values for ranges"), (present, "values only in a range"))
            for values, words in uses:
                share = telling.measure_order(values, self.target)
                figures.append((share, _LEAKS["skill"], f"has {words} of {name}, skill"))
        if self.metric == "skill":
            for values in (codes, present):
                if values.max() <= columns.FEW_CLASSES:
                    # The label may determine the column, as a year determines its decade.
                    share = telling.measure_skill(self.target, values + 1)
                    figures.append((share, _LEAKS["skill"], f"follows from {name}, skill"))
        return _choose_leak(figures)


def _choose_leak(figures: Sequence[tuple[float, float, str]]) -> tuple[str, bool]:
    """Return the strongest evidence of a leak as text, and whether its metric reaches `_LEAKS`."""
    distances = [(1 - figure, 1 - limit, words) for figure, limit, words in figures]
    distances = [entry for entry in distances if entry[0] == entry[0]]  # Drop NaN.
    if not distances:
        return "", False
    # Divide 1 minus a metric by 1 minus the limit of the metric, to compare different metrics.
    off, most, words = min(distances, key=lambda entry: entry[0] / entry[1])
    evidence = f"{words} {1 - off:.3f}" if off <= _DOUBTFUL * most else ""
    return evidence, off <= most


def choose_task(facts: columns.Facts, table: inspection.Inspection) -> Task:
    """Choose a head for a label.

    Args:
      facts: the facts of the label.
      table: the facts of the table, with a sample of its rows.

    Raises:
      UserError: the label is empty or constant; has infinite numbers that the files store as
        numbers; has numbers that JSON stores as texts; or has more than two values that are neither
        quantities nor classes, such as dates, ids, or more than 1,000 texts.
    """
    values, where = facts.values, f"--task {facts.name!r}"
    checks.require(facts.present > 0, where, "hold a label", f"none in {facts.rows:,} rows")
    value = next(iter(values))
    marks = [mark for mark in facts.marks if mark]
    fix = f"Is {marks[0]!r} a class? Then set --value {marks[0]!r}." if marks else ""
    got = f"{value!r} in all rows that have a label"
    checks.require(facts.distinct > 1, where, "vary", got, fix)
    _require_finite(facts, table, where)
    rule, fix = "hold numbers in JSON, or null", "In JSON, a text cannot mean a missing number."
    is_odd = inputs.is_odd_in_json(facts, table)
    checks.require(not is_odd, where, rule, f"texts such as {facts.written or value!r}", fix)
    gaps = _tell_gaps(facts)
    groups = _group_spellings(facts)
    if len(groups) == 2:
        return _choose_binary(facts, table, gaps, groups)
    if facts.is_quantity:
        rule = "vary"
        checks.require(len(groups) > 1, where, rule, f"the number {value} in all rows with a label")
        if facts.kind == "int" and len(groups) <= columns.FEW_CLASSES:
            return _choose_classes(facts, table, gaps, groups)
        return _choose_number(facts, table, gaps)
    _require_classes(facts, table.dialect, where)
    return _choose_classes(facts, table, gaps, {text: [text] for text in facts.values})


def _require_finite(facts: columns.Facts, table: inspection.Inspection, where: str) -> None:
    """Fail if a file stores infinite labels as numbers, which no setting makes missing values."""
    odd = [mark for mark in facts.marks if columns.is_infinite(mark)]
    is_stored = facts.name in table.dialect.numbers
    fix = "Write these labels as nulls, or as finite numbers."
    checks.require(not (odd and is_stored), where, "hold finite numbers", odd, fix)


def _require_classes(facts: columns.Facts, dialect: lines.Dialect, where: str) -> None:
    """Fail if a label has too many distinct texts for classes."""
    value, rule = next(iter(facts.values)), f"be a number, or have at most {_MOST_CLASSES} classes"
    is_label = facts.kind == "text" and facts.distinct <= _MOST_CLASSES
    got, fix = (
        f"{facts.distinct:,} values, such as {value!r}",
        "Is the label an id, a date or free text?",
    )
    checks.require(is_label or facts.is_code, where, rule, got, fix)
    # Texts such as 9h 5m, which no reader takes for numbers, have nearly as many values as rows.
    are_few = facts.distinct <= max(columns.FEW_CLASSES, _SHARE_OF_CLASSES * facts.present)
    got = f"{facts.distinct:,} values in {facts.present:,} rows, such as {value!r}"
    fix = "Is the label a duration, a time or an id? Write durations as numbers, such as minutes."
    if facts.words:
        flags = dialect.ask_missing(*facts.words)
        fix = f"Most are numbers. If the others mean a missing label: {flags}"
    checks.require(are_few, where, "be a number, or have classes that repeat", got, fix)


def _group_spellings(facts: columns.Facts) -> dict[str, list[str]]:
    """Return {value: its spellings, most frequent first}: 1 equals 1.0, and yes equals Yes."""
    groups: dict[str, list[str]] = {}
    for text in sorted(facts.values, key=facts.values.__getitem__, reverse=True):
        groups.setdefault(_read_value(facts, text), []).append(text)
    return {texts[0]: texts for texts in groups.values()}


def _read_value(facts: columns.Facts, text: str) -> str:
    if not facts.is_quantity:
        return text.casefold()
    number = literals.parse_literal("int64" if facts.kind == "int" else "float32", text)
    return repr(number)


def _tell_gaps(facts: columns.Facts) -> str:
    """Return the share of missing labels, and the texts that mean a missing label; "" for none."""
    if not facts.missing:
        return ""
    marks = ", ".join(repr(mark) for mark in facts.marks if mark)
    named = f" ({marks})" if marks else ""
    return f"; missing in {facts.missing / facts.rows:.1%}{named}, which weighs nothing"


def _choose_binary(
    facts: columns.Facts,
    table: inspection.Inspection,
    gaps: str,
    groups: Mapping[str, Sequence[str]],
) -> Task:
    counts = _count_groups(facts, groups)
    positive = _find_positive(facts, counts)
    (negative,) = {*groups} - {positive}
    dtype, settings = _name_both(facts, table, groups[positive], groups[negative])
    share = counts[positive] / facts.present
    hints = []
    if share < _RARE:
        # Training starts at this share, so it need not learn first how rare the class is.
        settings = {**settings, "prior": float(f"{share:.3g}")}
        hints.append(
            f"Only {share:.2%} are {positive!r}: training starts from this prior. PR-AUC says more "
            f"than accuracy, and a Binary.threshold below 0.5 finds more of the {positive!r}."
        )
    spelled = [texts for texts in groups.values() if len(texts) > 1]
    hints += [f"{', '.join(map(repr, texts))} are one class." for texts in spelled]
    texts = table.texts(facts.name).to_pylist()
    labels = np.array([np.nan if t is None else float(t in groups[positive]) for t in texts])
    return Task(
        label=facts.name,
        name=_scope(facts.name),
        dtype=dtype,
        head="Binary",
        settings=settings,
        why=f"two classes, {positive!r} in {share:.1%}{gaps}",
        hints=tuple(hints),
        target=labels,
        metric="auc",
    )


def _count_groups(facts: columns.Facts, groups: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return {class: number of rows}, with the rows of all spellings of the class."""
    return {name: sum(map(facts.values.__getitem__, texts)) for name, texts in groups.items()}


def _name_both(
    facts: columns.Facts,
    table: inspection.Inspection,
    positive: Sequence[str],
    negative: Sequence[str],
) -> tuple[str, dict[str, Any]]:
    """Return the type of the field of a label with two classes, and the settings of its head."""
    is_whole = facts.is_quantity and facts.kind == "int"
    plain = [texts[0].lower().partition(".")[0] for texts in (negative, positive)]
    if plain in (["false", "true"], ["0", "1"] if is_whole else []):
        return "int64", {}
    is_spelled = len(positive) + len(negative) > 2
    # Read two numbers besides 0 and 1 as numbers only if the file stores numbers, or writes a class
    # in several ways. Otherwise, labels stay texts, which keeps the label 1.0 apart from 1.
    if is_whole and any((is_spelled, _is_stored(facts, table))):
        return "int64", {
            "positive": [_read_whole(positive[0])],
            "negative": [_read_whole(negative[0])],
        }
    if facts.kind == "float" and facts.name in table.dialect.numbers:
        return "float32", {"positive": [float(positive[0])], "negative": [float(negative[0])]}
    return "string", {"positive": [*positive], "negative": [*negative]}


def _is_stored(facts: columns.Facts, table: inspection.Inspection) -> bool:
    """Return True if the files store whole numbers as numbers, not as texts."""
    return facts.kind == "int" and facts.name in table.dialect.numbers


def _find_positive(facts: columns.Facts, counts: Mapping[str, int]) -> str:
    """Return the positive class: "yes" or 1, or else the larger number or the rarer text."""
    names = sorted(counts, key=counts.__getitem__)
    affirmed = [text for text in names if text.lower() in _AFFIRMED]
    if len(affirmed) == 1:
        return affirmed[0]
    return max(names, key=float) if facts.is_number else names[0]


def _choose_classes(
    facts: columns.Facts,
    table: inspection.Inspection,
    gaps: str,
    groups: Mapping[str, Sequence[str]],
) -> Task:
    is_number = facts.is_quantity
    counts = _count_groups(facts, groups)
    names = sorted(counts, key=float) if is_number else sorted(counts)
    ordered = [] if is_number else _order_words(names)
    is_plain = is_number and list(map(float, names)) == list(range(len(names)))
    is_spelled = is_number and len(facts.values) > len(names)
    # With a type of numbers, a label matches a class by its value, not by its spelling.
    is_whole = is_number and any((is_plain, is_spelled, _is_stored(facts, table)))
    names = list(map(_write_whole, names)) if is_spelled else names
    rarest = min(counts, key=counts.__getitem__)
    return Task(
        label=facts.name,
        name=_scope(facts.name),
        dtype="int64" if is_whole else "string",
        head="Ordinal" if ordered else "MultiClass",
        settings={"classes": len(names) if is_plain else ordered or names},
        why=f"{len(names)} classes, the rarest, {rarest!r}, in {counts[rarest]:,} rows{gaps}",
        hints=tuple(_hint_classes(facts, table.dialect, counts, ordered)),
        target=_number_classes(table, facts.name, is_number),
        metric="skill",
    )


def _order_words(names: Sequence[str]) -> list[str]:
    """Return classes in ascending order, such as low and high; [] if they have no order."""
    places = {name.casefold(): name for name in names}
    for scale in _SCALES:
        if places.keys() <= {*scale} and len(places) == len(names):
            return [places[word] for word in scale if word in places]
    return []


def _write_whole(text: str) -> str:
    return str(_read_whole(text))


def _read_whole(text: str) -> int:
    try:
        return int(text)  # An integer is exact, also beyond 2^53.
    except ValueError:
        return int(float(text))


def _hint_classes(
    facts: columns.Facts,
    dialect: lines.Dialect,
    counts: Mapping[str, int],
    ordered: Sequence[str],
) -> list[str]:
    """Return sentences about ordered classes, rare classes, and values that may not be classes."""
    is_number = facts.is_quantity
    hints = _hint_numbers(facts) if is_number else _hint_words(facts, ordered)
    rarest = min(counts, key=counts.__getitem__)
    if counts[rarest] < _FEW_ROWS:
        hint = f"Class {rarest!r} has {counts[rarest]} rows: too few to learn it."
        ask = f" If it means a missing label: {dialect.ask_missing(rarest)}"
        hints.append(hint if is_number else f"{hint}{ask}")
    hints += [
        f"If class {name!r}, in {rows:,} rows, means a missing label: {dialect.ask_missing(name)}"
        for name, rows in counts.items()
        if name in columns.MARKS_OF_NUMBERS and name != rarest
    ]
    return hints


def _hint_numbers(facts: columns.Facts) -> list[str]:
    others = "heads.Ordinal, heads.Regression"
    others += " or, for counts, heads.Poisson" if facts.least >= 0 else ""
    return [f"Few different whole numbers are read as classes. If their order matters: {others}."]


def _hint_words(facts: columns.Facts, ordered: Sequence[str]) -> list[str]:
    hints = ["The words have an order. If not: heads.MultiClass."] * bool(ordered)
    spelled = [texts for texts in _group_spellings(facts).values() if len(texts) > 1]
    return hints + [f"Classes {', '.join(map(repr, t))} differ only in case." for t in spelled]


def _number_classes(table: inspection.Inspection, name: str, is_number: bool) -> np.ndarray:
    """Return the class of each row in the sample [N], from 1; 0 for missing labels."""
    if not is_number:
        return telling.encode_texts(table.texts(name))
    numbers = table.numbers(name)
    codes = np.searchsorted(np.unique(numbers[np.isfinite(numbers)]), numbers)
    return np.where(np.isfinite(numbers), codes + 1, 0)


def _choose_number(facts: columns.Facts, table: inspection.Inspection, gaps: str) -> Task:
    labels = table.numbers(facts.name)
    written = f", written as in {facts.written!r}" if facts.form else ""
    present = labels[np.isfinite(labels)]
    choice = amounts.choose_head(present, is_whole=facts.kind == "int")
    spread = float(present.std())
    mean = amounts.round_mean(float(present.mean()), spread)
    return Task(
        label=facts.name,
        name=_scope(facts.name),
        dtype="float32",
        head=choice.head,
        settings=choice.settings,
        why=f"a number, mean {mean:.10g}, standard deviation {spread:.4g}{written}{gaps}",
        hints=(choice.hint,) * bool(choice.hint),
        target=labels,
        metric="r2",
    )


def _scope(column: str) -> str:
    # The name of a task is also the name of a signature in exports.
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", column) and column not in serving_settings.RESERVED:
        return column
    # NFKD separates an accent from its letter, and ASCII drops the accent: é becomes e.
    plain = unicodedata.normalize("NFKD", column).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_]+", "_", plain).strip("_")
    is_valid = name[:1].isalpha() and name not in serving_settings.RESERVED
    return name if is_valid else f"task_{name}".rstrip("_")


def tell_apart(chosen: Sequence[Task]) -> list[Task]:
    """Give the tasks unique names: a repeated name `task` becomes `task_2`.

    A task with the exact name of its column keeps this name, so that no other task takes it.
    """
    owners = {task.name: task.label for task in reversed(chosen)}
    owners |= {task.name: task.label for task in chosen if task.name == task.label}
    for task in chosen:
        if owners[task.name] != task.label:
            owners[_number(task.name, owners)] = task.label
    names = {label: name for name, label in owners.items()}
    return [dataclasses.replace(task, name=names[task.label]) for task in chosen]


def _number(name: str, taken: Container[str]) -> str:
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(name for name in numbered if name not in taken)
