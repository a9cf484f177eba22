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


def describe(rehearsed: rehearsal.Rehearsed) -> str:
    """Return a text about the data, the layers, the memory and the times of a rehearsed run."""
    parts = {
        "Data": [*_tell_splits(rehearsed), "", *_tell_batch(rehearsed)],
        "Layers, for one row": layers.draw_tree(rehearsed.tree, rehearsed.tasks).splitlines(),
        "Predictions, for one row": _tell_predictions(rehearsed),
        "Memory for variables": _tell_memory(rehearsed),
        "Time": _tell_times(rehearsed),
    }
    blocks = ["\n".join([name, *(f"  {line}".rstrip() for line in parts[name])]) for name in parts]
    return "\n\n".join(blocks)


def _tell_splits(rehearsed: rehearsal.Rehearsed) -> list[str]:
    rows = [("split", "rows", "batches", "")]
    for name, split in rehearsed.splits.items():
        note = "the whole split" if split.is_whole else "the split has more rows"
        rows.append((name, f"{split.rows:,}", f"{split.batches:,}", note))
    return aligned.align_columns(rows, right=(1, 2))


def _tell_batch(rehearsed: rehearsal.Rehearsed) -> list[str]:
    rows = [("field", "read as", "type", "first batch")]
    for use, fields in (("feature", rehearsed.batch.features), ("label", rehearsed.batch.labels)):
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


def _tell_predictions(rehearsed: rehearsal.Rehearsed) -> list[str]:
    rows = [("name", "type", "shape")]
    for name, (kind, shape) in rehearsed.predictions.items():
        rows.append((name, kind, f"[{', '.join('?' if n is None else str(n) for n in shape)}]"))
    return aligned.align_columns(rows)


def _tell_memory(rehearsed: rehearsal.Rehearsed) -> list[str]:
    weights = sum(scope.num_bytes for scope in rehearsed.tree)
    parameters = sum(scope.parameters for scope in rehearsed.tree)
    rows = [
        ("weights", f"{weights:,} bytes", f"{parameters:,} parameters"),
        ("optimizer and other state", f"{rehearsed.num_bytes - weights:,} bytes", ""),
        ("together", f"{rehearsed.num_bytes:,} bytes", ""),
    ]
    return aligned.align_columns(rows, right=(1,))


def _tell_times(rehearsed: rehearsal.Rehearsed) -> list[str]:
    if rehearsed.steps is None or rehearsed.batches is None:
        return [f"Nothing to train: step {rehearsed.first_step} of {rehearsed.last_step}."]
    per_sec = f"{rehearsed.batch_size / rehearsed.steps.secs:,.0f} examples/s"
    first = f"{_tell_secs(rehearsed.batches.first_secs)} for the first, which fills the buffer"
    rows: list[Sequence[str]] = [
        ("one batch of input", _tell_secs(rehearsed.batches.secs), first),
        ("one step with its input", _tell_secs(rehearsed.steps.secs), per_sec),
        *_estimate_times(rehearsed),
    ]
    return aligned.align_columns(rows, right=(1,))


def _estimate_times(rehearsed: rehearsal.Rehearsed) -> Iterator[Sequence[str]]:
    """Yield table rows with the estimated time of an evaluation and of the whole run."""
    if rehearsed.steps is None:
        return
    # The split of evaluations comes last, or is the only split.
    *_, held_out = rehearsed.splits.values()
    more = "" if held_out.is_whole else "at least "
    # `secs` leaves out the first of several batches, so add the mean time of a batch.
    evaluation = held_out.secs * held_out.batches / max(1, held_out.batches - 1)
    yield "one evaluation", _tell_secs(evaluation), f"{more}{held_out.rows:,} rows"
    steps = rehearsed.last_step - rehearsed.first_step
    secs, count = steps * rehearsed.steps.secs, rehearsed.evaluations
    if rehearsed.checkpoint_secs:
        # A run that saves checkpoints by time has at least the evaluation at its end.
        count = max(1, round(secs / rehearsed.checkpoint_secs))
    note = f"{steps:,} steps, {count:,} evaluations, without exports"
    yield "the run", more + _tell_secs(secs + count * evaluation), note


def _tell_secs(secs: float) -> str:
    if secs < 1:
        return f"{1000 * secs:.3g} ms"
    if secs < 120:
        return f"{secs:.3g} s"
    return f"{secs / 60:.3g} min" if secs < 7200 else f"{secs / 3600:.3g} h"
