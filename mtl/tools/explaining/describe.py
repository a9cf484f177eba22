"""Makes a page of an explanation, in the form of a report.

report.write("explain.html", describe.describe(found))
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
    "The model was trained on these rows: what it learned of them by heart counts as importance, "
    "and says little of other rows."
)


def describe(found: explanation.Explanation) -> blocks.Page:
    """Return the page."""
    built: list[tuple[str, str, list[Any]]] = [
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
        # Parts without results are left out; `left_out` says why.
        sections=[blocks.Section(*one) for one in built if one[2]],
        left_out=found.left_out,
    )


def _write_lead(found: explanation.Explanation) -> list[str]:
    today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    tasks, rows = found.tasks, found.held
    more = f" and {len(tasks) - 12} more" if len(tasks) > 12 else ""
    which = f"All {rows.size:,} rows"
    if rows.size < found.total:
        which = f"{rows.size:,} rows, drawn at random from the {found.total:,}"
    lines = [
        f"{len(tasks)} task{'s' * (len(tasks) > 1)}: {', '.join(tasks[:12])}{more}",
        f"{which} of the split {rows.split}, by {found.path}.",
    ]
    # On training rows, importance also counts rows that the model knows by heart.
    if rows.split == found.experiment.data.train_split:
        lines.append(_TRAINED)
    return [*lines, f"Written on {today}."]
