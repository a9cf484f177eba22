"""Writes the result of a rehearsal as text.

print(rehearsal_text.describe(rehearsal.rehearse(experiment, "runs/digits")))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mtl import aligned, deferred
from mtl.deferred import tf1
from mtl.tools.debugging import layers

with deferred.imports():
    from mtl.tools.rehearsal import rehearsal


def describe(found: rehearsal.Rehearsed) -> str:
    """Return a page of text about the data, the model, the memory and the times of a run."""
    parts = {
        "Data": [*_tell_splits(found), "", *_tell_batch(found)],
        "Layers, for one row": layers.draw_tree(found.tree, found.tasks).splitlines(),
        "Predictions, for one row": _tell_predictions(found),
        "Memory for variables": _tell_memory(found),
        "Time": _tell_times(found),
    }
    blocks = ["\n".join([name, *(f"  {line}".rstrip() for line in parts[name])]) for name in parts]
    return "\n\n".join(blocks)


def _tell_splits(found: rehearsal.Rehearsed) -> list[str]:
    rows = [("split", "rows", "batches", "")]
    for name, split in found.splits.items():
        note = "the whole split" if split.is_whole else "the split has more rows"
        rows.append((name, f"{split.rows:,}", f"{split.batches:,}", note))
    return aligned.align_columns(rows, right=(1, 2))


def _tell_batch(found: rehearsal.Rehearsed) -> list[str]:
    rows = [("field", "read as", "type", "first batch")]
    for use, fields in (("feature", found.batch.features), ("label", found.batch.labels)):
        rows += [(name, use, *_tell_values(value)) for name, value in fields.items()]
    return aligned.align_columns(rows)


def _tell_values(value: Any) -> tuple[str, str]:
    """Return the type and the shape of the values of a field."""
    if isinstance(value, tf1.ragged.RaggedTensorValue):
        lengths = np.diff(value.row_splits)
        shape = f"[{len(lengths)}, {lengths.min()} to {lengths.max()}]"
        return _tell_type(value.flat_values), shape
    return _tell_type(value), str(list(np.shape(value)))


def _tell_type(value: Any) -> str:
    kind = np.asarray(value).dtype
    return "string" if kind.kind in "OSU" else kind.name


def _tell_predictions(found: rehearsal.Rehearsed) -> list[str]:
    rows = [("name", "type", "shape")]
    for name, (kind, shape) in found.predictions.items():
        rows.append((name, kind, f"[{', '.join('?' if n is None else str(n) for n in shape)}]"))
    return aligned.align_columns(rows)


def _tell_memory(found: rehearsal.Rehearsed) -> list[str]:
    weights = sum(scope.num_bytes for scope in found.tree)
    parameters = sum(scope.parameters for scope in found.tree)
    rows = [
        ("weights", f"{weights:,} bytes", f"{parameters:,} parameters"),
        ("optimizer and other state", f"{found.num_bytes - weights:,} bytes", ""),
        ("together", f"{found.num_bytes:,} bytes", ""),
    ]
    return aligned.align_columns(rows, right=(1,))


def _tell_times(found: rehearsal.Rehearsed) -> list[str]:
    if found.steps is None or found.batches is None:
        return [f"Nothing to train: step {found.first_step} of {found.last_step}."]
    per_sec = f"{found.batch_size / found.steps.secs:,.0f} examples/s"
    first = f"{_tell_secs(found.batches.first_secs)} for the first, which fills the buffer"
    rows: list[Sequence[str]] = [
        ("one batch of input", _tell_secs(found.batches.secs), first),
        ("one step with its input", _tell_secs(found.steps.secs), per_sec),
        *_estimate_times(found),
    ]
    return aligned.align_columns(rows, right=(1,))


def _estimate_times(found: rehearsal.Rehearsed) -> Iterator[Sequence[str]]:
    """Yield rows about the time of an evaluation and of the run."""
    if found.steps is None:
        return
    # The split of evaluations comes last, or is the only split.
    *_, held_out = found.splits.values()
    more = "" if held_out.is_whole else "at least "
    # The seconds leave out the first of several batches: add the mean time of a batch.
    evaluation = held_out.secs * held_out.batches / max(1, held_out.batches - 1)
    yield "one evaluation", _tell_secs(evaluation), f"{more}{held_out.rows:,} rows"
    steps = found.last_step - found.first_step
    secs, count = steps * found.steps.secs, found.evaluations
    if found.checkpoint_secs:
        # There is at least the evaluation at the end.
        count = max(1, round(secs / found.checkpoint_secs))
    note = f"{steps:,} steps, {count:,} evaluations, without exports"
    yield "the run", more + _tell_secs(secs + count * evaluation), note


def _tell_secs(secs: float) -> str:
    if secs < 1:
        return f"{1000 * secs:.3g} ms"
    if secs < 120:
        return f"{secs:.3g} s"
    return f"{secs / 60:.3g} min" if secs < 7200 else f"{secs / 3600:.3g} h"
