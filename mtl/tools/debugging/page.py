"""Writes the page of a broken step, debug/step_<n>/summary.md, and its rows as JSON lines.

print(page.write(report, "runs/a/debug/step_20", command, {17: "split 'train' example 1302"}))
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from mtl.deferred import tf
from mtl.files import atomic
from mtl.tools.debugging import findings as findings_lib

FILES = ("summary.md", "rows.jsonl")
_SHOWN_ROWS = 8
_SHOWN_ROOTS = 10
_SHOWN_TENSORS = 12
# Characters of a value in a row: a list or an image would fill the page.
_LONGEST = 60
_NOTHING = (
    "Every op with finite inputs had finite outputs, or its outputs did not affect losses, "
    "gradients or variables."
)


def write(
    report: findings_lib.Report,
    folder: str,
    command: str,
    places: Mapping[int, str],
) -> str:
    """Write the page and the rows of the first root, and return a short text to print.

    `places` gives the positions of the batch's rows in their split, {row: place}.

    Args:
      report: the report on the step.
      folder: the folder of the page; it is made if it is missing.
      command: the command that repeats the replay.
      places: the positions of the batch's rows in their split, {row: place}.
    """
    tf.io.gfile.makedirs(folder)
    first = report.findings[0] if report.findings else None
    numbers = first.rows.numbers if first else ()
    records = [
        {**record, "place": places.get(record["row"], "")}
        for record in findings_lib.read_rows(report.replayed, numbers)
    ]
    atomic.write(os.path.join(folder, FILES[0]), _write_page(report, command, records))
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    atomic.write(os.path.join(folder, FILES[1]), "".join(lines))
    return _write_brief(report, os.path.join(folder, FILES[0]), places)


def _write_brief(report: findings_lib.Report, path: str, places: Mapping[int, str]) -> str:
    """Return a few lines for a terminal."""
    step = report.replayed.step
    if not report.findings:
        return f"Step {step}: nothing is broken in it. {_NOTHING}\nPage: {path}"
    found = report.findings[0]
    lines = [f"Step {step}: {found.cause}", *_describe(found, places)]
    lines += [f"  grew     {_describe_growth(growth)}" for growth in report.growth[:1]]
    others = len(report.findings) - 1
    lines += [f"  and      {others} more {'op' if others == 1 else 'ops'}"] if others else []
    return "\n".join([*lines, f"Page: {path}"])


def _describe(found: findings_lib.Finding, places: Mapping[int, str]) -> list[str]:
    lines = [f"  op       {found.root.node.name} ({found.root.node.kind})"]
    lines += [f"  of       the gradient of {found.origin.forward}"] if found.origin.forward else []
    lines += [f"  line     {line}" for line in found.origin.lines[:1]]
    lines += [f"  tasks    {', '.join(found.tasks) or 'none'}"]
    lines += [f"  rows     {_list_numbers(found.rows.numbers) or found.rows.evidence}"]
    lines += [f"           {places[n]}" for n in found.rows.numbers[:_SHOWN_ROWS] if n in places]
    return lines + ([f"  fields   {', '.join(found.fields)}"] if found.fields else [])


def _write_page(report: findings_lib.Report, command: str, records: Sequence[Any]) -> str:
    step = report.replayed.step
    lines = [f"# Step {step}", ""]
    if not report.findings:
        lines += [f"Nothing is broken in this step. {_NOTHING}", ""]
    for index, finding in enumerate(report.findings[:_SHOWN_ROOTS]):
        lines += _write_section(finding, report, records if index == 0 else ())
    left = len(report.findings) - _SHOWN_ROOTS
    lines += [f"{left} more ops are left out.", ""] if left > 0 else []
    lines += _tell_growth(report)
    lines += ["## Repeat it", "", "```", command, f"{command} --cli", "```", ""]
    if report.replayed.before is None:
        lines += [
            "No checkpoint is older than the step before this one, so an op may have been broken "
            "in earlier steps too.",
            "",
        ]
    return "\n".join(lines)


def _write_section(
    found: findings_lib.Finding, report: findings_lib.Report, records: Sequence[Any]
) -> list[str]:
    lines = [f"## {_begin_sentence(found.cause)}", "", "| what | |", "| -- | -- |"]
    lines += [f"| {name} | {value} |" for name, value in _list_facts(found).items() if value]
    lines += ["", *_write_table("Inputs", found.inputs), *_write_table("Outputs", found.outputs)]
    # Writers are listed by the variable that the broken op reads.
    read = found.root.node.inputs[0].rpartition(":")[0] if found.root.node.inputs else ""
    for kind, inputs in report.writers.get(read, ()):
        lines += _write_table(f"Inputs of {kind} in the step before, for `{read}`", inputs)
    if records:
        lines += ["Rows of the batch, all of them in `rows.jsonl`:", "", "```"]
        lines += [_shorten_record(record) for record in records[:_SHOWN_ROWS]]
        lines += ["```", ""]
    return lines


def _list_facts(found: findings_lib.Finding) -> dict[str, str]:
    """Return {name: value} of the table of a finding; a value may be empty."""
    node, origin = found.root.node, found.origin
    return {
        "op": f"`{node.name}` ({node.kind})",
        "gradient of": f"`{origin.forward}`" if origin.forward else "",
        "part": f"`{found.part}`" if found.part else "",
        "line": "<br>".join(f"`{_escape_cell(line)}`" for line in origin.lines),
        "tasks whose loss depends on it": ", ".join(found.tasks) or "none",
        "what it breaks": "a loss" if found.root.reaches_loss else "gradients or variables alone",
        "rows": _list_numbers(found.rows.numbers) or "all, or none that stands out",
        "found by": f"{_escape_cell(found.rows.evidence)}",
        "odd fields of these rows": ", ".join(found.fields) or "none",
    }


def _write_table(title: str, summaries: Sequence[findings_lib.Summary]) -> list[str]:
    if not summaries:
        return []
    header = "| tensor | type | shape | least | greatest | zeros | not finite | step before |"
    rows = [
        f"| `{s.tensor}` | {s.kind} | {list(s.shape)} | {_write_number(s.least)} "
        f"| {_write_number(s.greatest)} | {s.zeros:,} | {s.bad:,} "
        f"| {_write_number(s.greatest_before)} |"
        for s in summaries[:_SHOWN_TENSORS]
    ]
    note = '"Step before": the greatest absolute value one step earlier.'
    return [f"{title}. {note}", "", header, "|" + " -- |" * 8, *rows, ""]


def _tell_growth(report: findings_lib.Report) -> list[str]:
    if not report.growth:
        return []
    lines = [f"| `{g.variable}` | {g.before:.3g} | {g.now:.3g} |" for g in report.growth]
    return [
        "## Variables that grew in the update before",
        "",
        "If a variable grows tenfold in one step, the learning rate may be too high.",
        "",
        "| variable | greatest before | greatest now |",
        "| -- | -- | -- |",
        *lines,
        "",
    ]


def _describe_growth(growth: findings_lib.Growth) -> str:
    return (
        f"{growth.variable} from {growth.before:.3g} to {growth.now:.3g} in one step: "
        "the learning rate may be too high"
    )


def _list_numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN_ROWS]))
    return shown + (f" and {len(numbers) - _SHOWN_ROWS} more" if len(numbers) > _SHOWN_ROWS else "")


def _write_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _escape_cell(text: str) -> str:
    # Lines of code hold both signs, which would end a cell of Markdown or its code.
    return text.replace("|", "\\|").replace("`", "'")


def _begin_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shorten_record(record: Mapping[str, Any]) -> str:
    short = {}
    for name, value in record.items():
        text = json.dumps(value, ensure_ascii=False)
        short[name] = value if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return json.dumps(short, ensure_ascii=False)
