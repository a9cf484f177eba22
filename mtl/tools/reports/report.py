"""Writes the report of a run, with results, curves, data, settings and commands to repeat the run.

page = report.describe_run(experiment, "runs/digits", most_rows=100_000)
report.write("report.html", page)
"""

import collections
import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from mtl import checks
from mtl import experiment as experiment_lib
from mtl.checkpoints import flat_settings
from mtl.files import atomic
from mtl.tools.reports import (
    baselines,
    blocks,
    curve_sections,
    held_out,
    page,
    record,
    row_sections,
    size_sections,
    splits,
)

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


_CHOSEN = (
    "The best checkpoint was chosen on the same rows that its metrics come from. On other rows, "
    "expect slightly worse metrics."
)
_BETTER, _UNKNOWN = "better", "unknown"
_TRIVIAL = "a trivial model, which knows only the labels"
_WORSE = f"No better than {_TRIVIAL}"
_UNCLEAR = "Better than a trivial model, but the difference may be due to chance"
_UNDEFINED = (
    "Metric undefined, so not compared: no held-out label has a weight above 0, or all labels are "
    "of one class, or a prediction is NaN"
)
_DOUBTFUL = (_WORSE, _UNCLEAR, _UNDEFINED)


class _Reading(NamedTuple):
    """Predictions and counts of a run's rows, and errors that occurred while reading rows."""

    seen: held_out.Seen | None
    facts: Sequence[splits.Facts]
    problems: Sequence[str]


def write(path: str, whole: blocks.Page) -> int:
    """Write a page as one HTML file, atomically.

    Args:
      path: the path of the file.
      whole: the page to write.

    Returns:
      The size of the file in bytes.
    """
    content = page.render(whole).encode()
    atomic.write(path, content)
    return len(content)


def describe_run(
    experiment: experiment_lib.Experiment, model_dir: str, most_rows: int
) -> blocks.Page:
    """Read the folder of a run, and return a page with the report.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run, which stays unchanged.
      most_rows: the largest number of rows to read from each split; 0 to read no rows.

    Raises:
      UserError: a file in the folder is damaged.
    """
    run = record.read_run(experiment, model_dir)
    with run.holding():
        return _describe_run(run, most_rows)


def _describe_run(run: record.Run, most_rows: int) -> blocks.Page:
    reading = _read_data(run, most_rows)
    verdicts = _judge(run, reading.seen)
    parts = [
        ("verdict", "Verdict", _tell_verdict(run, verdicts)),
        ("data", "Data", row_sections.tell_data(run, reading.facts, reading.problems)),
        ("curves", "Curves", curve_sections.tell_curves(run, verdicts)),
        ("evaluation", "Evaluation", row_sections.tell_evaluation(run, verdicts, reading.seen)),
        ("balancing", "Balancing", curve_sections.tell_balancing(run)),
        ("experts", "Experts and gates", curve_sections.tell_gates(run)),
        ("size", "Size, sparsity and speed", size_sections.tell_size(run)),
        ("samples", "Samples with large gradients", size_sections.tell_samples(run)),
        ("problems", "Problems", size_sections.tell_problems(run, reading.problems)),
        ("configuration", "Configuration", _tell_settings(run)),
        ("commands", "Repeat, predict, serve", size_sections.tell_commands(run)),
    ]
    state, mood = run.state
    return blocks.Page(
        title=run.name,
        state=state,
        mood=mood,
        lead=_write_lead(run, verdicts),
        sections=[blocks.Section(*part) for part in parts if not isinstance(part[2], str)],
        left_out=[f"{title}: {why}" for _, title, why in parts if isinstance(why, str)],
    )


def _write_lead(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list[str]:
    today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    heads = run.experiment.model.heads
    kinds = ", ".join(f"{head.name} ({type(head).__name__})" for head in heads[:12])
    more = f" and {len(heads) - 12} more" if len(heads) > 12 else ""
    lines = [f"{len(heads)} task{'s' * (len(heads) > 1)}: {kinds}{more}"]
    if run.best_step is not None:
        metric = run.experiment.best.metric
        lines.append(f"The best checkpoint is at step {run.best_step:,}, by {metric}.")
    elif run.shown_step is not None:
        lines.append(
            "There is no best checkpoint: metrics come from the last one, at step "
            f"{run.shown_step:,}."
        )
    if run.is_training:
        lines.append("This run is still training: the page shows its results so far.")
    return [*lines, f"Written on {today}."]


def _read_data(run: record.Run, most_rows: int) -> _Reading:
    """Read at most `most_rows` rows of each split; return errors instead of raising them."""
    if most_rows <= 0:
        return _Reading(None, (), [])
    problems: list[str] = []
    experiment, data = run.experiment, run.experiment.data
    # A report is useful even if the data cannot be read, so the page lists errors.
    facts = [
        _try_finding(problems, splits.look_at, experiment, split, most_rows)
        for split in dict.fromkeys((data.train_split, data.eval_split))
    ]
    seen = None
    if run.checkpoint:
        predict = held_out.predict_rows
        seen = _try_finding(problems, predict, experiment, run.model_dir, run.checkpoint, most_rows)
    if seen is not None and run.describe_change(seen.total, seen.hashes):
        problems.append(run.describe_change(seen.total, seen.hashes))
    return _Reading(seen, [split_facts for split_facts in facts if split_facts], problems)


def _try_finding(
    problems: list[str], find: Callable[..., _Result], *arguments: Any
) -> _Result | None:
    try:
        return find(*arguments)
    except checks.UserError as error:
        # If both splits fail for the same reason, list the reason only once.
        if str(error) not in problems:
            problems.append(str(error))
        return None


def _judge(run: record.Run, seen: held_out.Seen | None) -> list[baselines.Verdict]:
    # Metrics come from the whole split, so baselines must not come from a sample of its rows, or
    # from rows that came later.
    is_same = (
        seen is not None and seen.is_whole and not run.describe_change(seen.total, seen.hashes)
    )
    tasks = seen.tasks if seen is not None and is_same else {}
    metrics = run.metrics
    verdicts = [
        baselines.judge(head, metrics, tasks.get(head.name)) for head in run.experiment.model.heads
    ]
    return [verdict for verdict in verdicts if verdict]


def _tell_verdict(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list | str:
    if not run.metrics:
        return "no checkpoint is evaluated yet, or the event files of the evaluations are gone."
    parts: list[Any] = [blocks.Text(line, mood) for line, mood in _sum_up(run, verdicts)]
    if len(run.evaluated_steps) > 1 and run.best_step is not None:
        parts.append(blocks.Text(_CHOSEN, "note"))
    ranking = sorted(verdicts, key=lambda verdict: verdict.rank)
    doubtful = ranking[: row_sections.MOST_TASKS]
    # Show the tasks with the lowest skill scores, but in the order of the experiment.
    parts.append(blocks.Verdicts([verdict for verdict in verdicts if verdict in doubtful]))
    if len(ranking) > len(doubtful):
        parts.append(
            blocks.Text(
                f"{len(doubtful)} of {len(ranking)} tasks are shown, the tasks with the lowest "
                "skill scores.",
                "note",
            )
        )
    return parts


def _sum_up(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list[tuple[str, str]]:
    """Return lines that sum up the comparisons of all tasks, and whether each line is a warning."""
    tasks = _group_by_outcome(verdicts)
    better, unknown = len(tasks[_BETTER]), len(tasks[_UNKNOWN])
    lines = []
    # Write the line about tasks that beat the trivial model only if no task is worse, unclear or
    # undefined.
    if better and better + unknown == len(verdicts):
        lines.append((f"{_count_tasks(better, len(verdicts))} {_TRIVIAL}.", ""))
    for outcome in _DOUBTFUL:
        if tasks[outcome]:
            lines.append((f"{outcome}: {_list_some(tasks[outcome])}.", "warning"))
    if unknown:
        line = f"{unknown} of {len(verdicts)} tasks have no trivial model to compare with."
        lines.append((line, "note"))
    last_step = run.last_evaluated
    if last_step is not None and run.best_step is not None and run.best_step < last_step:
        step = f"{run.best_step:,}"
        line = f"Step {step} was the best: no evaluation up to step {last_step:,} was better."
        lines.append((line, ""))
    return lines


def _count_tasks(better: int, total: int) -> str:
    """Return the beginning of a sentence about the number of tasks that beat a trivial model."""
    if better < total:
        return f"{better} of {total} tasks {'beats' if better == 1 else 'beat'}"
    return {1: "The task beats", 2: "Both tasks beat"}.get(better, f"All {better} tasks beat")


def _group_by_outcome(verdicts: Sequence[baselines.Verdict]) -> Mapping[str, list[str]]:
    """Return {outcome: tasks}; a task with an undefined metric is listed with the metric's name."""
    tasks: dict[str, list[str]] = collections.defaultdict(list)
    for verdict in verdicts:
        name = f"{verdict.task} ({verdict.metric})" if verdict.is_undefined else verdict.task
        tasks[_find_outcome(verdict)].append(name)
    return tasks


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


def _find_outcome(verdict: baselines.Verdict) -> str:
    if verdict.is_undefined:
        return _UNDEFINED
    if verdict.is_better is None:
        return _UNKNOWN
    if not verdict.is_better:
        return _WORSE
    return _BETTER if verdict.is_clear else _UNCLEAR


def _tell_settings(run: record.Run) -> list:
    all_settings = list(flat_settings.flatten(run.experiment))
    # Settings that the user has changed come first; a fold hides all settings with defaults.
    changed_settings = [setting for setting in all_settings if not setting.is_default]
    defaults = [setting for setting in all_settings if setting.is_default]
    header = ["part", "setting", "value", "default"]
    return [
        blocks.Table(
            header,
            [
                [
                    _name_part(setting),
                    setting.name,
                    flat_settings.cut(setting.value),
                    blocks.Quiet(_write_default(setting)),
                ]
                for setting in changed_settings
            ],
            f"{len(changed_settings)} settings differ from their defaults, or have no default.",
        ),
        blocks.Fold(
            f"{len(defaults)} settings at their defaults",
            [
                blocks.Table(
                    header[:3],
                    [
                        [_name_part(setting), setting.name, flat_settings.cut(setting.value)]
                        for setting in defaults
                    ],
                )
            ],
        ),
    ]


def _name_part(setting: flat_settings.Setting) -> str:
    return f"{setting.part or 'experiment'} ({setting.kind})"


def _write_default(setting: flat_settings.Setting) -> str:
    return "" if setting.default is None else flat_settings.cut(setting.default)
