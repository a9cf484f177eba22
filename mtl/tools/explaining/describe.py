"""Turns an explanation into a page that looks like a report.

report.write("explain.html", describe.describe(explanation))
"""

import datetime
from typing import Any

from mtl.checkpoints import run_directory
from mtl.tools.explaining import (
    dependence_section,
    explanation,
    gradient_section,
    importance_section,
    prediction_section,
)
from mtl.tools.reports import blocks

_TRAINED = (
    "The model was trained on these rows, and may have memorized some. On new rows, importance may "
    "differ."
)


def describe(found: explanation.Explanation) -> blocks.Page:
    """Return an explanation as a page."""
    parts: list[tuple[str, str, list[Any]]] = [
        ("importance", "Which fields matter", importance_section.tell_importance(found)),
        ("predictions", "Single predictions", prediction_section.tell_predictions(found)),
        ("dependence", "Partial dependence", dependence_section.tell_dependence(found)),
        ("gradients", "Gradients of the tasks", gradient_section.tell_gradients(found)),
    ]
    return blocks.Page(
        title=f"{run_directory.name_run(found.model_dir)} explained",
        state=f"step {found.step:,}",
        mood="",
        lead=_write_lead(found),
        # Sections without results are left out; the lines in `left_out` give the reasons.
        sections=[blocks.Section(*part) for part in parts if part[2]],
        left_out=found.left_out,
    )


def _write_lead(found: explanation.Explanation) -> list[str]:
    today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    tasks, rows = found.tasks, found.held
    more = f" and {len(tasks) - 12} more" if len(tasks) > 12 else ""
    sample = f"All {rows.size:,} rows"
    if rows.size < found.total:
        sample = f"{rows.size:,} rows, drawn at random from the {found.total:,}"
    lines = [
        f"{len(tasks)} task{'s' * (len(tasks) > 1)}: {', '.join(tasks[:12])}{more}",
        f"{sample} of the split {rows.split}, explained with the checkpoint {found.path}.",
    ]
    # On training rows, importance also reflects memorized rows.
    if rows.split == found.experiment.data.train_split:
        lines.append(_TRAINED)
    return [*lines, f"Written on {today}."]
