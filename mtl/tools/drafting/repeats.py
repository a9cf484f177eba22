"""Finds doubts about splits: repeated rows, splits of few rows, and classes of few rows.

repeats.tell_repeats(table, ["age", "clicked"], is_drawn=True)
"""

from collections.abc import Mapping, Sequence

import numpy as np

from mtl import checks
from mtl.tools.drafting import inspection, tasks, telling

# Repeated rows may be chance if their share is below `_SHARE_OF_ROWS`, or if each column has fewer
# distinct values than the share `_SHARE_OF_VALUES` of the rows.
_SHARE_OF_ROWS, _SHARE_OF_VALUES = 0.01, 0.25
_FEW_ROWS, _FEW_POSITIVES = 30, 10


def tell_repeats(table: inspection.Inspection, names: Sequence[str], is_drawn: bool) -> list[str]:
    """Return a sentence about rows that have the same values in all given columns.

    Args:
      table: the facts of the table; the rows of test files, if there are any, come last.
      names: the columns to compare: inputs and labels.
      is_drawn: True if test rows are drawn at random.
    """
    rows = len(table.places)
    values = [telling.encode_texts(table.sample[name]) for name in names]
    if rows < _FEW_ROWS or max(len(np.unique(codes)) for codes in values) < _SHARE_OF_VALUES * rows:
        return []
    numbers = _number_rows(values)
    if is_drawn:
        repeated = rows - len(np.unique(numbers))
        sentence = (
            f"{repeated:,} of {rows:,} rows repeat another row in all inputs and labels. A model "
        )
        sentence += "looks too good if test rows repeat training rows: drop them from the file."
        return [sentence] if repeated > _SHARE_OF_ROWS * rows else []
    is_test = table.places >= sum(map(table.rows_of.__getitem__, table.dialect.paths))
    if not is_test.any():
        return []
    repeated = int(np.isin(numbers[is_test], numbers[~is_test]).sum())
    sentence = (
        f"{repeated:,} of {is_test.sum():,} test rows repeat a training row in all inputs and "
    )
    sentence += "labels: the model looks too good on them."
    return [sentence] if repeated > _SHARE_OF_ROWS * is_test.sum() else []


def _number_rows(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return a number for each row [N]; rows that are equal in all columns get the same number."""
    numbers = np.zeros(len(values[0]), np.int64)
    for codes in values:
        # Renumber the rows after each column, because a product of all counts would overflow int64.
        pairs = numbers * (int(codes.max()) + 1) + codes
        numbers = np.unique(pairs, return_inverse=True)[1].ravel()
    return numbers


def tell_splits(
    table: inspection.Inspection,
    chosen_tasks: Sequence[tasks.Task],
    shares: Mapping[str, float],
) -> list[str]:
    """Return sentences about splits with few rows, or with few rows of a class.

    Args:
      table: the facts of the table.
      chosen_tasks: the tasks, each with its label and its head.
      shares: {split: its share of the rows}, without splits that have separate files.

    Raises:
      UserError: a split has no rows.
    """
    sentences = []
    flags = {"validation": "--validation", "calibration": "--calibration"}
    rows = sum(map(table.rows_of.__getitem__, table.dialect.paths))
    for split, share in shares.items():
        rule = f"leave a row for the {split} split, of {rows:,}"
        checks.require(share * rows >= 1, flags.get(split, "--holdout"), rule, share)
        if share * rows < _FEW_ROWS:
            sentences.append(f"The {split} split has about {share * rows:.0f} rows of {rows:,}.")
        else:
            sentences += _tell_classes(split, share * rows, chosen_tasks)
    return sentences


def _tell_classes(split: str, rows: float, chosen_tasks: Sequence[tasks.Task]) -> list[str]:
    """Return sentences about binary tasks with few rows of one class in a split."""
    sentences = []
    for task in chosen_tasks:
        if task.metric == "auc":
            few = rows * float(min(np.mean(task.target == 1), np.mean(task.target == 0)))
            where = f"The {split} split has about {few:.1f} rows of a class of {task.label!r}"
            sentences += [f"{where}: its metrics are noise."] if few < _FEW_POSITIVES else []
    return sentences
