"""Turns an explanation into a page in the style of a report.

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


def describe(explained: explanation.Explanation) -> blocks.Page:
    """Return an explanation as a page."""
    parts: list[tuple[str, str, list[Any]]] = [
        ("importance", "Which fields matter", importance_section.tell_importance(explained)),
        ("predictions", "Single predictions", prediction_section.tell_predictions(explained)),
        ("dependence", "Partial dependence", dependence_section.tell_dependence(explained)),
        ("gradients", "Gradients of the tasks", gradient_section.tell_gradients(explained)),
    ]
    return blocks.Page(
        title=f"{run_directory.name_run(explained.model_dir)} explained",
        state=f"step {explained.step:,}",
        mood="",
        lead=_write_lead(explained),
        # Leave out sections without results; `Explanation.left_out` gives the reasons.
        sections=[blocks.Section(*part) for part in parts if part[2]],
        left_out=explained.left_out,
    )


def _write_lead(explained: explanation.Explanation) -> list[str]:
    today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    tasks, rows = explained.tasks, explained.held
    more = f" and {len(tasks) - 12} more" if len(tasks) > 12 else ""
    sample = f"All {rows.size:,} rows"
    if rows.size < explained.total:
        sample = f"{rows.size:,} rows, drawn at random from the {explained.total:,}"
    lines = [
        f"{len(tasks)} task{'s' * (len(tasks) > 1)}: {', '.join(tasks[:12])}{more}",
        f"{sample} of the split {rows.split}, explained with the checkpoint {explained.path}.",
    ]
    # On training rows, importance also reflects rows that the model has memorized.
    if rows.split == explained.experiment.data.train_split:
        lines.append(_TRAINED)
    return [*lines, f"Written on {today}."]
