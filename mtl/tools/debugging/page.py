"""Writes a page about a broken step, debug/step_<n>/summary.md, and the rows as JSON lines.

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
# The largest number of characters of a value, because a list or an image would fill the page.
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
    """Write a page about a broken step, and a file with the rows that broke the first broken op.

    Args:
      report: the report on the step.
      folder: the folder of the page, which is created if it is missing.
      command: the shell command that repeats the replay of the step.
      places: {row of the batch: the row's place in the split, as text}.

    Returns:
      A short text about the step to print.
    """
    tf.io.gfile.makedirs(folder)
    first_finding = report.findings[0] if report.findings else None
    numbers = first_finding.rows.numbers if first_finding else ()
    records = [
        {**record, "place": places.get(record["row"], "")}
        for record in findings_lib.read_rows(report.replayed, numbers)
    ]
    atomic.write(os.path.join(folder, FILES[0]), _write_page(report, command, records))
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    atomic.write(os.path.join(folder, FILES[1]), "".join(lines))
    return _write_brief(report, os.path.join(folder, FILES[0]), places)


def _write_brief(report: findings_lib.Report, path: str, places: Mapping[int, str]) -> str:
    """Return a short text about a broken step for a terminal."""
    step = report.replayed.step
    if not report.findings:
        return f"Step {step}: nothing is broken in this step. {_NOTHING}\nPage: {path}"
    finding = report.findings[0]
    lines = [f"Step {step}: {finding.cause}", *_describe(finding, places)]
    lines += [f"  grew     {_describe_growth(growth)}" for growth in report.growth[:1]]
    count = len(report.findings) - 1
    lines += [f"  and      {count} more {'op' if count == 1 else 'ops'}"] if count else []
    return "\n".join([*lines, f"Page: {path}"])


def _describe(finding: findings_lib.Finding, places: Mapping[int, str]) -> list[str]:
    lines = [f"  op       {finding.root.node.name} ({finding.root.node.kind})"]
    lines += (
        [f"  of       the gradient of {finding.origin.forward}"] if finding.origin.forward else []
    )
    lines += [f"  line     {line}" for line in finding.origin.lines[:1]]
    lines += [f"  tasks    {', '.join(finding.tasks) or 'none'}"]
    lines += [f"  rows     {_list_numbers(finding.rows.numbers) or finding.rows.evidence}"]
    lines += [f"           {places[n]}" for n in finding.rows.numbers[:_SHOWN_ROWS] if n in places]
    return lines + ([f"  fields   {', '.join(finding.fields)}"] if finding.fields else [])


def _write_page(report: findings_lib.Report, command: str, records: Sequence[Any]) -> str:
    step = report.replayed.step
    lines = [f"# Step {step}", ""]
    if not report.findings:
        lines += [f"Nothing is broken in this step. {_NOTHING}", ""]
    for index, finding in enumerate(report.findings[:_SHOWN_ROOTS]):
        lines += _write_section(finding, report, records if index == 0 else ())
    count = len(report.findings) - _SHOWN_ROOTS
    lines += [f"{count} more ops are left out.", ""] if count > 0 else []
    lines += _tell_growth(report)
    lines += ["## Repeat it", "", "```", command, f"{command} --cli", "```", ""]
    if report.replayed.before is None:
        lines += [
            "The step before could not be replayed, because no older checkpoint exists. "
            "Without it, a listed op may have been broken in earlier steps already.",
            "",
        ]
    return "\n".join(lines)


def _write_section(
    finding: findings_lib.Finding, report: findings_lib.Report, records: Sequence[Any]
) -> list[str]:
    lines = [f"## {_begin_sentence(finding.cause)}", "", "| what | |", "| -- | -- |"]
    lines += [f"| {name} | {value} |" for name, value in _list_facts(finding).items() if value]
    lines += [
        "",
        *_write_table("Inputs", finding.inputs),
        *_write_table("Outputs", finding.outputs),
    ]
    # If the broken op reads a variable, show the ops that wrote the variable in the step before.
    variable = finding.root.node.inputs[0].rpartition(":")[0] if finding.root.node.inputs else ""
    for kind, inputs in report.writers.get(variable, ()):
        lines += _write_table(f"Inputs of {kind} in the step before, for `{variable}`", inputs)
    if records:
        lines += ["Rows of the batch, all of them in `rows.jsonl`:", "", "```"]
        lines += [_shorten_record(record) for record in records[:_SHOWN_ROWS]]
        lines += ["```", ""]
    return lines


def _list_facts(finding: findings_lib.Finding) -> dict[str, str]:
    """Return facts about a broken op as {name: value}, for a table; a value may be empty."""
    node, origin = finding.root.node, finding.origin
    return {
        "op": f"`{node.name}` ({node.kind})",
        "gradient of": f"`{origin.forward}`" if origin.forward else "",
        "part": f"`{finding.part}`" if finding.part else "",
        "line": "<br>".join(f"`{_escape_cell(line)}`" for line in origin.lines),
        "tasks whose loss depends on it": ", ".join(finding.tasks) or "none",
        "effect": "breaks a loss"
        if finding.root.reaches_loss
        else "breaks only gradients or variables",
        "rows": _list_numbers(finding.rows.numbers) or "all, or none that stands out",
        "evidence": f"{_escape_cell(finding.rows.evidence)}",
        "fields with odd values in these rows": ", ".join(finding.fields) or "none",
    }


def _write_table(title: str, summaries: Sequence[findings_lib.Summary]) -> list[str]:
    if not summaries:
        return []
    header = "| tensor | type | shape | smallest | largest | zeros | not finite | step before |"
    rows = [
        f"| `{s.tensor}` | {s.kind} | {list(s.shape)} | {_write_number(s.least)} "
        f"| {_write_number(s.greatest)} | {s.zeros:,} | {s.bad:,} "
        f"| {_write_number(s.greatest_before)} |"
        for s in summaries[:_SHOWN_TENSORS]
    ]
    note = 'The column "step before" has the largest absolute value one step earlier.'
    return [f"{title}. {note}", "", header, "|" + " -- |" * 8, *rows, ""]


def _tell_growth(report: findings_lib.Report) -> list[str]:
    if not report.growth:
        return []
    lines = [f"| `{g.variable}` | {g.before:.3g} | {g.now:.3g} |" for g in report.growth]
    return [
        "## Variables that grew in the last update before this step",
        "",
        "If a variable grows tenfold in one step, the learning rate may be too high.",
        "",
        "| variable | largest value before | largest value now |",
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
    # Escape "|", which would end a cell of a Markdown table, and "`", which
    # would end code in a cell.
    return text.replace("|", "\\|").replace("`", "'")


def _begin_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shorten_record(record: Mapping[str, Any]) -> str:
    short = {}
    for name, value in record.items():
        text = json.dumps(value, ensure_ascii=False)
        short[name] = value if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return json.dumps(short, ensure_ascii=False)
