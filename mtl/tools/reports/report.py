"""Writes the report of a run: its results, its course, its data, and how to repeat it.

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

_Found = TypeVar("_Found")


_CHOSEN = (
    "The best checkpoint was chosen on the same rows as its metrics. On other rows, expect a "
    "little less."
)
_BETTER, _UNKNOWN = "better", "unknown"
_WORSE = "No better than a trivial model, which knows the labels alone"
_UNCLEAR = "Better than a trivial model by no more than chance may bring"
_UNDEFINED = (
    "Undefined, and so not compared: no held-out label has a weight above 0, or all are of one "
    "class, or a prediction is NaN"
)
_DOUBTFUL = (_WORSE, _UNCLEAR, _UNDEFINED)


class _Looked(NamedTuple):
    """The results of reading the data, or None, and the problems that prevented it."""

    seen: held_out.Seen | None
    facts: Sequence[splits.Facts]
    problems: Sequence[str]


def write(path: str, whole: blocks.Page) -> int:
    """Write a page atomically as one HTML file; return its size in bytes."""
    content = page.render(whole).encode()
    atomic.write(path, content)
    return len(content)


def describe_run(
    experiment: experiment_lib.Experiment, model_dir: str, most_rows: int
) -> blocks.Page:
    """Read the folder of a run and return its report.

    Args:
      experiment: the settings of the run.
      model_dir: its folder, which stays unchanged.
      most_rows: how many rows of each split are read at most; 0 reads none.

    Raises:
      UserError: a file in the folder is damaged.
    """
    run = record.read_run(experiment, model_dir)
    with run.holding():
        return _describe_run(run, most_rows)


def _describe_run(run: record.Run, most_rows: int) -> blocks.Page:
    looked = _look(run, most_rows)
    verdicts = _judge(run, looked.seen)
    built = [
        ("verdict", "Verdict", _tell_verdict(run, verdicts)),
        ("data", "Data", row_sections.tell_data(run, looked.facts, looked.problems)),
        ("curves", "Curves", curve_sections.tell_curves(run, verdicts)),
        ("evaluation", "Evaluation", row_sections.tell_evaluation(run, verdicts, looked.seen)),
        ("balancing", "Balancing", curve_sections.tell_balancing(run)),
        ("experts", "Experts and gates", curve_sections.tell_gates(run)),
        ("size", "Size, sparsity and speed", size_sections.tell_size(run)),
        ("samples", "Samples with large gradients", size_sections.tell_samples(run)),
        ("problems", "Problems", size_sections.tell_problems(run, looked.problems)),
        ("configuration", "Configuration", _tell_settings(run)),
        ("commands", "Repeat, predict, serve", size_sections.tell_commands(run)),
    ]
    state, mood = run.state
    return blocks.Page(
        title=run.name,
        state=state,
        mood=mood,
        lead=_write_lead(run, verdicts),
        sections=[blocks.Section(*one) for one in built if not isinstance(one[2], str)],
        left_out=[f"{title}: {why}" for _, title, why in built if isinstance(why, str)],
    )


def _write_lead(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list[str]:
    today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    heads = run.experiment.model.heads
    kinds = ", ".join(f"{head.name} ({type(head).__name__})" for head in heads[:12])
    more = f" and {len(heads) - 12} more" if len(heads) > 12 else ""
    lines = [f"{len(heads)} task{'s' * (len(heads) > 1)}: {kinds}{more}"]
    if run.best_step is not None:
        chosen = run.experiment.best.metric
        lines.append(f"The best checkpoint is at step {run.best_step:,}, by {chosen}.")
    elif run.shown_step is not None:
        lines.append(f"No checkpoint is the best: this shows the last, at step {run.shown_step:,}.")
    if run.is_training:
        lines.append("This run is still training: this shows its checkpoints so far.")
    return [*lines, f"Written on {today}."]


def _look(run: record.Run, most_rows: int) -> _Looked:
    """Read at most `most_rows` rows of each split; return problems instead of raising them."""
    if most_rows <= 0:
        return _Looked(None, (), [])
    problems: list[str] = []
    experiment, data = run.experiment, run.experiment.data
    # A report without its data is still of use: problems are listed, and the page goes on.
    facts = [
        _try_finding(problems, splits.look_at, experiment, split, most_rows)
        for split in dict.fromkeys((data.train_split, data.eval_split))
    ]
    seen = None
    if run.checkpoint:
        predict = held_out.predict_rows
        seen = _try_finding(problems, predict, experiment, run.model_dir, run.checkpoint, most_rows)
    return _Looked(seen, [one for one in facts if one], problems)


def _try_finding(
    problems: list[str], find: Callable[..., _Found], *arguments: Any
) -> _Found | None:
    try:
        return find(*arguments)
    except checks.UserError as error:
        # Both splits may lack the same file.
        if str(error) not in problems:
            problems.append(str(error))
        return None


def _judge(run: record.Run, seen: held_out.Seen | None) -> list[baselines.Verdict]:
    # Metrics belong to the whole split: a sample of its rows would have other baselines.
    tasks = seen.tasks if seen and seen.is_whole else {}
    metrics = run.metrics
    judged = [
        baselines.judge(head, metrics, tasks.get(head.name)) for head in run.experiment.model.heads
    ]
    return [one for one in judged if one]


def _tell_verdict(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list | str:
    if not run.metrics:
        return "no checkpoint is evaluated yet, or the event files of the evaluations are gone."
    told: list[Any] = [blocks.Text(line, mood) for line, mood in _sum_up(run, verdicts)]
    if len(run.evaluated_steps) > 1 and run.best_step is not None:
        told.append(blocks.Text(_CHOSEN, "note"))
    shown = sorted(verdicts, key=lambda one: one.rank)
    few = shown[: row_sections.MOST_TASKS]
    # Chosen by skill, but shown in the order of the tasks.
    told.append(blocks.Verdicts([one for one in verdicts if one in few]))
    if len(shown) > len(few):
        told.append(
            blocks.Text(f"{len(few)} of {len(shown)} tasks, those with least skill.", "note")
        )
    return told


def _sum_up(run: record.Run, verdicts: Sequence[baselines.Verdict]) -> list[tuple[str, str]]:
    """Return a summary of the verdicts, each line with its mood."""
    tasks = _group_by_outcome(verdicts)
    better, unknown = len(tasks[_BETTER]), len(tasks[_UNKNOWN])
    lines = []
    # No task is worse, unclear or undefined.
    if better and better + unknown == len(verdicts):
        every = {1: "The task beats", 2: "Both tasks beat"}.get(better)
        every = every or f"All {better} tasks beat"
        lines.append((f"{every} a trivial model, which knows the labels alone.", ""))
    for what in _DOUBTFUL:
        if tasks[what]:
            lines.append((f"{what}: {_list_some(tasks[what])}.", "warning"))
    if unknown:
        lines.append((f"{unknown} of {len(verdicts)} tasks have no trivial model here.", "note"))
    last = run.last_evaluated
    if last is not None and run.best_step is not None and run.best_step < last:
        line = f"Step {run.best_step:,} was the best: no evaluation up to step {last:,} was better."
        lines.append((line, ""))
    return lines


def _group_by_outcome(verdicts: Sequence[baselines.Verdict]) -> Mapping[str, list[str]]:
    """Return {outcome: its tasks}; undefined tasks come with their metrics."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    for one in verdicts:
        name = f"{one.task} ({one.metric})" if one.is_undefined else one.task
        found[_find_outcome(one)].append(name)
    return found


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
    # Settings that somebody chose come first; the page folds all others.
    own = [one for one in all_settings if not one.is_default]
    defaults = [one for one in all_settings if one.is_default]
    header = ["part", "setting", "value", "default"]
    return [
        blocks.Table(
            header,
            [
                [
                    _name_part(one),
                    one.name,
                    flat_settings.cut(one.value),
                    blocks.Quiet(_told_default(one)),
                ]
                for one in own
            ],
            f"{len(own)} settings differ from their defaults, or have none and had to be set.",
        ),
        blocks.Fold(
            f"{len(defaults)} settings at their defaults",
            [
                blocks.Table(
                    header[:3],
                    [[_name_part(one), one.name, flat_settings.cut(one.value)] for one in defaults],
                )
            ],
        ),
    ]


def _name_part(setting: flat_settings.Setting) -> str:
    return f"{setting.part or 'experiment'} ({setting.kind})"


def _told_default(setting: flat_settings.Setting) -> str:
    return "" if setting.default is None else flat_settings.cut(setting.default)
