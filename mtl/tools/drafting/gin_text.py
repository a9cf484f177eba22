"""Writes the gin file of a plan, ready for a training; comments in the file give the reasons.

text = gin_text.write_gin(plan, "visits", "python -m launch.new --data visits.csv --task clicked")
"""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, spec
from mtl.tools.drafting import columns, inputs, plans
from mtl.tools.drafting import tasks as tasks_lib

# {part: (its name in gin, a comment, further settings)}
_PARTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "numbers": ("features.Numeric", "Numbers, by mean and standard deviation.", {}),
    "numbers_with_gaps": (
        "gaps/features.Numeric",
        "Numbers with gaps: a flag marks missing values.",
        {"missing_flags": True},
    ),
    "logs": ("log/features.Numeric", "Numbers with heavy tails: their logarithms.", {"log": True}),
    "logs_with_gaps": (
        "log_gaps/features.Numeric",
        "Numbers with heavy tails and gaps.",
        {"log": True, "missing_flags": True},
    ),
    "bins": (
        "features.PiecewiseLinear",
        "Numbers by position in bins with equally many rows, so that curves can be learned.",
        {},
    ),
    "log_bins": (
        "log/features.PiecewiseLinear",
        "Logarithms of numbers, by their position in bins with equally many rows.",
        {"log": True},
    ),
    "categories": (
        "features.Categorical",
        "A vector for each value that occurs twice or more, and one for all other values.",
        {},
    ),
    "hashes": ("features.Hashed", "Values that do not fit into a vocabulary: by hash.", {}),
    "weighted_categories": (
        "weighted/features.Categorical",
        "Lists with weights: the weighted mean of the vectors of their values.",
        {},
    ),
    "weighted_hashes": (
        "weighted/features.Hashed",
        "Lists with weights and too many values: the weighted mean, by hash.",
        {},
    ),
    "signed_categories": (
        "signed/features.Categorical",
        "Lists with weights, some below 0: the weighted sum.",
        {"pooling": "sum"},
    ),
    "signed_hashes": (
        "signed/features.Hashed",
        "Lists with too many values, and weights below 0: the weighted sum, by hash.",
        {"pooling": "sum"},
    ),
    "texts": ("features.Text", "Free text: the mean of the vectors of its words.", {}),
}


_KINDS_OF_LISTS = {"list": '("string", (None,))', "list of int64": '("int64", (None,))'}
_WITH_WEIGHTS = " with weights"
# The keys of `_PARTS` for lists with weights, whose columns become lookups of `features.Weighted`.
_OF_WEIGHTS = ("weighted_categories", "weighted_hashes", "signed_categories", "signed_hashes")


def write_gin(plan: plans.Plan, name: str, command: str) -> str:
    """Return the text of the gin file of a plan.

    Args:
      plan: the decisions about tasks, inputs and splits.
      name: the name of the gin file, without ".gin", and of the exported model.
      command: the command that writes the file, for a comment.
    """
    table = plan.table
    labels = " and ".join(task.label for task in plan.tasks)
    lines = [
        f"# {labels} from {', '.join(list(table.rows_of)[:3])}: {table.rows:,} rows, "
        f"{len(table.dialect.columns)} columns.",
        f"# Written by: {command}",
        "# `python -m launch.parts NAME` lists all settings of a part, such as Binary.",
        "#",
        f"#     python -m launch.train --gin_file {name}.gin",
        *_imports(plan),
        'include "gin_configs/defaults.gin"',
        'include "gin_configs/networks/shared_bottom_mlp.gin"',
        "",
        *_source(plan),
        "",
        *_spec(plan),
        "",
        *_columns(plan),
        "",
        *_heads(plan),
        "",
        *_run(plan, name),
    ]
    return join_lines(lines) + "\n"


def join_lines(lines: Iterable[str]) -> str:
    """Join lines to a text, and escape unprintable characters.

    Without the escaping, a line break in a file name would end a comment, and start a statement of
    gin.
    """
    return "\n".join(map(checks.escape, lines))


def _imports(plan: plans.Plan) -> list[str]:
    names = {"experiment", "features", "heads", "model", "networks", "serving", "spec"}
    parts = {part for chosen in plan.used for part in chosen.parts}
    names |= {"histories"} if "texts" in parts else set()
    dialect = plan.table.dialect
    data = [dialect.source.partition(".")[0], "pipeline"]
    data += ["csv"] if dialect.is_arrow and _bind_cells(plan) else []
    data += _list_split_modules(plan.holdout)
    return [
        "from __gin__ import dynamic_registration",
        *(f"from mtl import {name}" for name in sorted(names)),
        *(f"from mtl.data import {name}" for name in sorted(data)),
        *(["from mtl.features import tokenizers"] if "texts" in parts else []),
        "from mtl.optimization import optimizers",
        "from mtl.optimization import schedules",
        "from mtl.optimization import update",
    ]


def _list_split_modules(holdout: plans.Holdout) -> list[str]:
    """Return the module of the part that splits the training files; [] if nothing splits them."""
    if holdout.has_splits and not holdout.time:
        return ["splits"]
    if holdout.files:
        return []
    return ["field_splits" if holdout.key or holdout.time else "subset"]


def _source(plan: plans.Plan) -> list[str]:
    dialect, holdout = plan.table.dialect, plan.holdout
    train = dialect.paths[0] if len(dialect.paths) == 1 else list(dialect.paths)
    files = {"train": train, **({"test": holdout.files} if holdout.files else {})}
    lines = [
        "experiment.Experiment.data = @pipeline.Pipeline()",
        "pipeline.Pipeline.spec = @spec.Spec()",
        *_bind(f"{dialect.source}.files", files),
        *_source_settings(plan),
    ]
    lines += _splits(plan)
    if plan.holdout.validation:
        lines += ["# Validation rows choose the best checkpoint, and test rows measure it."]
        lines += ["pipeline.Pipeline.eval_split = 'validation'"]
    if plan.holdout.calibration:
        lines += ["# Calibration rows calibrate the finished run: see docs/calibration.md."]
    lines += [f"pipeline.Pipeline.batch_size = {plan.batch_size}"]
    if plan.in_memory:  # Training shuffles all rows in memory, so it needs no shuffle buffer.
        return lines
    if plan.shuffle_buffer > 10_000:
        lines += ["# A large buffer, because the file is sorted by a label."]
    return [*lines, f"pipeline.Pipeline.shuffle_buffer = {plan.shuffle_buffer}"]


def _source_settings(plan: plans.Plan) -> list[str]:
    dialect = plan.table.dialect
    if dialect.is_json:
        return []
    return _arrow_settings(plan) if dialect.is_arrow else _csv_settings(plan)


def _arrow_settings(plan: plans.Plan) -> list[str]:
    sheet = plan.table.dialect.sheet
    sheet_lines = _bind("arrow.Arrow.sheet", sheet) if sheet else []
    cells = _bind_cells(plan)
    if not cells:
        return sheet_lines
    return [
        *sheet_lines,
        "# csv.Csv says how to read texts; it reads no file here.",
        "arrow.Arrow.cells = @csv.Csv()",
        "csv.Csv.files = {'none': ''}",
        *cells,
    ]


def _bind_cells(plan: plans.Plan) -> list[str]:
    """Return the bindings for lists, missing values, and forms of numbers such as $1,200."""
    table, lines = plan.table, []
    if plan.list_delimiter != "|":
        # A draft never has lists of lists, so `item_delimiter` may equal `list_delimiter`.
        lines += [f"csv.Csv.list_delimiter = {plan.list_delimiter!r}"]
    if len(table.marks) > 1:
        lines += ["# Texts that mean a missing value in a column of numbers, or in a label."]
        lines += _bind("csv.Csv.missing", list(table.marks))
    return lines + _bind_fields(plan)


def _bind_fields(plan: plans.Plan) -> list[str]:
    """Return the bindings that say how single columns write missing values and numbers."""
    table, lines = plan.table, []
    used_names = {chosen.name for chosen in plan.used} | {task.label for task in plan.tasks}
    used_names |= {plan.holdout.time, plan.holdout.key}
    marks = {name: list(texts) for name, texts in table.marks_in.items() if name in used_names}
    if marks:
        lines += ["# Texts that mean a missing value in these columns alone."]
        lines += _bind_map("csv.Csv.missing_in", marks)
    forms = {
        name: facts.form for name, facts in table.facts.items() if facts.form and name in used_names
    }
    if forms:
        lines += ["# How the file writes the number 1.5 or 1234.5."]
        lines += _bind_map("csv.Csv.number_forms", forms)
    return lines


def _csv_settings(plan: plans.Plan) -> list[str]:
    dialect, lines = plan.table.dialect, []
    if not dialect.has_header:
        lines += _bind("csv.Csv.columns", list(dialect.columns))
    if dialect.delimiter != ",":
        lines += [f"csv.Csv.delimiter = {dialect.delimiter!r}"]
    if dialect.comment:
        lines += [f"csv.Csv.comment = {dialect.comment!r}"]
    return lines + _bind_cells(plan)


def _splits(plan: plans.Plan) -> list[str]:
    holdout, source = plan.holdout, plan.table.dialect.source
    if holdout.time:
        named = [f"{start} on ({split})" for split, start in plan.starts.items()]
        comment = " and ".join(named) if holdout.has_splits else f"{plan.starts['test']} on"
        is_number = plan.table.facts[holdout.time].is_number
        form = None if is_number else plans.find_time_form(plan.table, holdout.time)
        return [
            f"# The rows from {comment} are held out: in use, too, rows are later.",
            *_tell_timeless(plan),
            "pipeline.Pipeline.source = @field_splits.ByTime()",
            f"field_splits.ByTime.source = @{source}()",
            f"field_splits.ByTime.field = {holdout.time!r}",
            f"field_splits.ByTime.starts = {plan.starts!r}",
            *([f"field_splits.ByTime.form = {form!r}"] if form else []),
        ]
    if holdout.folds:
        return _folds(holdout, source)
    if holdout.has_splits:
        return _several_splits(holdout, source)
    if holdout.files:
        return [f"pipeline.Pipeline.source = @{source}()"]
    if holdout.key:
        return [
            f"# About {holdout.share:.0%} of the values of {holdout.key} are held out, "
            "with all of their rows.",
            "pipeline.Pipeline.source = @field_splits.ByKey()",
            f"field_splits.ByKey.source = @{source}()",
            f"field_splits.ByKey.field = {holdout.key!r}",
            f"field_splits.ByKey.held_out = {{'test': {holdout.share}}}",
        ]
    return [
        f"# About {holdout.share:.0%} of the rows, drawn at random, are held out.",
        "pipeline.Pipeline.source = @subset.Subset()",
        f"subset.Subset.source = @{source}()",
        # Round, because 1 - 0.9 is 0.09999999999999998.
        f"subset.Subset.share = {round(1 - holdout.share, 9)}",
        f"subset.Subset.held_out = {{'test': {holdout.share}}}",
    ]


def _folds(holdout: plans.Holdout, source: str) -> list[str]:
    """Return the bindings that assign rows to folds."""
    others = {split: share for split, share in holdout.shares.items() if split != "test"}
    outside = 1 - 1 / holdout.folds
    # `Splits.shares` are shares of the rows outside of the test fold.
    shares = {split: round(share / outside, 9) for split, share in others.items()}
    shares = {"train": round(1 - sum(shares.values()), 9), **shares}
    return [
        f"# Each of {holdout.folds} folds is the test split of one run. Choose 0 to "
        f"{holdout.folds - 1}: --gin_param 'fold = 1'",
        "fold = 0",
        "pipeline.Pipeline.source = @splits.Splits()",
        f"splits.Splits.source = @{source}()",
        f"splits.Splits.folds = {holdout.folds}",
        "splits.Splits.fold = %fold",
        f"splits.Splits.shares = {shares!r}",
        *([f"splits.Splits.keys = {[holdout.key]!r}"] if holdout.key else []),
    ]


def _several_splits(holdout: plans.Holdout, source: str) -> list[str]:
    """Return the bindings that cut the training files into several random splits."""
    shares = {"train": round(1 - sum(holdout.shares.values()), 9), **holdout.shares}
    comment = " and ".join(f"{share:.0%} ({split})" for split, share in holdout.shares.items())
    which = f"the values of {holdout.key}" if holdout.key else "the rows"
    end = ", with all of their rows." if holdout.key else "."
    return [
        f"# About {comment} of {which}, drawn at random, are held out{end}",
        "pipeline.Pipeline.source = @splits.Splits()",
        f"splits.Splits.source = @{source}()",
        f"splits.Splits.shares = {shares!r}",
        *([f"splits.Splits.keys = {[holdout.key]!r}"] if holdout.key else []),
    ]


def _tell_timeless(plan: plans.Plan) -> list[str]:
    """Return a comment about rows without a time, if the table has any."""
    facts = plan.table.facts[plan.holdout.time]
    share = f"{facts.missing:,} rows ({facts.missing / facts.rows:.1%})"
    return [f"# {share} have no time and are not used."] if facts.missing else []


def _spec(plan: plans.Plan) -> list[str]:
    lines = ["spec.Spec.features = {"]
    for chosen in plan.used:
        dtype = chosen.dtype.removesuffix(_WITH_WEIGHTS)
        kind = _KINDS_OF_LISTS.get(dtype, repr(dtype))
        lines += [f"    {chosen.name!r}: {kind},  # {show_line(chosen.why)}"]
        if dtype != chosen.dtype:
            lines += [f'    {spec.weights_name(chosen.name)!r}: ("float32", (None,)),']
    lines += ["}"]
    left_out = [chosen for chosen in plan.inputs if not chosen.dtype]
    lines += ["# Left out:"] * bool(left_out)
    lines += [
        f"#     {show_line(chosen.name)}: {show_line(chosen.why.removeprefix('left out: '))}"
        for chosen in left_out
    ]
    lines += _defaults(plan)
    return [*lines, *_bind("spec.Spec.labels", {task.label: task.dtype for task in plan.tasks})]


def _defaults(plan: plans.Plan) -> list[str]:
    facts = plan.table.facts
    defaults = {field.name: field.default for field in plan.used if field.default is not None}
    if not defaults:
        return []
    return [
        "# Defaults for missing values; 'nan' is a missing number.",
        "spec.Spec.defaults = {",
        *(
            f"    {name!r}: {value!r},  # {facts[name].missing / facts[name].rows:.2%} missing"
            for name, value in defaults.items()
        ),
        "}",
    ]


def _list_takers(plan: plans.Plan) -> dict[str, list[str]]:
    """Return {key of `_PARTS`: the names of the columns that it reads}, without empty lists."""
    takers = {
        part: [chosen.name for chosen in plan.used if part in chosen.parts] for part in _PARTS
    }
    return {part: names for part, names in takers.items() if names}


def _group_times(plan: plans.Plan) -> dict[str, list[inputs.Input]]:
    """Return {a `TimeParts` of the gin file: its inputs, which have the same form and units}."""
    groups: dict[tuple[str, Sequence[str]], list[inputs.Input]] = {}
    for chosen in plan.used:
        if chosen.times:
            key = chosen.times.form or "", chosen.times.units
            groups.setdefault(key, []).append(chosen)
    scopes = ["", *(f"times_{number}/" for number in range(2, len(groups) + 1))]
    return {
        f"{scope}features.TimeParts": group
        for scope, group in zip(scopes, groups.values(), strict=False)
    }


def _bind_times(groups: Mapping[str, Sequence[inputs.Input]]) -> list[str]:
    lines = ["# Times, as units that repeat in later rows; a date itself does not repeat."]
    if sum(map(len, groups.values())) > 1:
        lines += ["# features.DaysSince counts the days between two times known before the label."]
    for column, group in groups.items():
        first = group[0].times
        assert first is not None
        lines += _bind(f"{column}.names", [chosen.name for chosen in group])
        lines += [f"{column}.units = {list(first.units)!r}"]
        # In gin, a scope without a binding inherits the binding outside of all scopes, so bind the
        # time format `form` in every scope.
        lines += [f"{column}.form = {first.form!r}"] * bool(first.form or len(groups) > 1)
    return lines


def _columns(plan: plans.Plan) -> list[str]:
    takers, times = _list_takers(plan), _group_times(plan)
    lines = _list_columns(takers, times)
    for part, names in takers.items():
        column, why, settings = _PARTS[part]
        lines += [f"# {why}", *_bind(f"{column}.names", names)]
        lines += [f"{column}.{setting} = {value!r}" for setting, value in settings.items()]
        if part.endswith("bins"):
            lines += [f"{column}.boundaries = {plan.bins}"]
        if part.endswith("hashes"):
            largest = max(plan.table.facts[name].distinct for name in names)
            lines += [f"{column}.num_buckets = {inputs.count_buckets(largest)}"]
        if part == "texts":
            lines += [
                f"{column}.tokenizer = @tokenizers.Words()",
                "tokenizers.Words.max_size = 20000",
                f"{column}.encoder = @histories.Pooling()",
                f"{column}.max_tokens = 200",
            ]
    return lines + (_bind_times(times) if times else [])


def _list_columns(takers: Iterable[str], times: Iterable[str]) -> list[str]:
    """Return the gin lines that list all columns, and the gin lines for lists with weights."""
    names = [_PARTS[part][0] for part in takers if part not in _OF_WEIGHTS]
    lookups = [f"@{_PARTS[part][0]}()" for part in takers if part in _OF_WEIGHTS]
    listed = [f"    @{name}()," for name in (*names, *times)]
    listed += ["    @features.Weighted(),"] * bool(lookups)
    lines = ["model.MultiTaskModel.columns = [", *listed, "]"]
    return lines + [f"features.Weighted.lookups = [{', '.join(lookups)}]"] * bool(lookups)


def _heads(plan: plans.Plan) -> list[str]:
    listed = [f"    @{task.name}/heads.{task.head}()," for task in plan.tasks]
    lines = ["model.MultiTaskModel.heads = [", *listed, "]"]
    for task in plan.tasks:
        head = f"{task.name}/heads.{task.head}"
        lines += [f"# {show_line(task.label)}: {show_line(task.why)}."]
        lines += [f"# {show_line(hint)}" for hint in task.hints]
        lines += [f'{head}.name = "{task.name}"']
        lines += [f"{head}.label = {task.label!r}"] * (task.label != task.name)
        for setting, value in task.settings.items():
            lines += _bind(f"{head}.{setting}", value)
    return lines


def _run(plan: plans.Plan, name: str) -> list[str]:
    # Compute the number of epochs from `train_steps`, because the limits of `train_steps` may have
    # changed this number.
    epochs = plan.train_steps * plan.batch_size / plan.rows
    return [
        *[f"trunk/networks.MLP.dropout = {plan.dropout}"] * bool(plan.dropout),
        "update.Update.optimizer = @optimizers.AdamW()",
        "optimizers.AdamW.learning_rate = 0.002",
        "# The more columns for each row, the more the weights shrink.",
        f"optimizers.AdamW.weight_decay = {plan.weight_decay}",
        "# A factor of the learning rate, which falls over the steps, for any optimizer.",
        "update.Update.schedule = @schedules.Cosine()",
        "schedules.Cosine.value = 1.0",
        f"# {epochs:.1f} epochs of {plan.rows:,} training rows, with five evaluations.",
        f"experiment.Run.train_steps = {plan.train_steps}",
        f"experiment.Run.checkpoint_steps = {plan.checkpoint_steps}",
        "experiment.Experiment.serving = @serving.Serving()",
        f"serving.Serving.model_name = {name!r}",
    ]


def _bind(name: str, value: Any) -> list[str]:
    """Return the lines of a binding; a long list takes several lines."""
    line = f"{name} = {value!r}"
    if len(line) <= 100 or not isinstance(value, list):
        return [line]
    return [f"{name} = [", *_wrap(map(repr, value)), "]"]


def _bind_map(name: str, values: Mapping[str, Any]) -> list[str]:
    """Return the lines of a binding for a dictionary, with a line for each entry."""
    return [f"{name} = {{", *(f"    {key!r}: {value!r}," for key, value in values.items()), "}"]


def _wrap(items: Iterable[str]) -> Sequence[str]:
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) > 98 and line.strip():
            lines.append(line)
            line = "   "
        line += f" {item},"
    return [*lines, line]


def show_line(text: str) -> str:
    """Return a text in one line, for a comment or a table.

    Args:
      text: a text that may have line breaks.

    Returns:
      The text in one line; a text of more than 160 characters ends with " ..." instead of the rest.
      A blank text becomes "(no name)".
    """
    return textwrap.shorten(text.replace("\0", " "), 160, placeholder=" ...") or "(no name)"


def tell_plan(plan: plans.Plan, most: int | None = None) -> list[tuple[str, str, str, str]]:
    """Return a table with the use of each column, to show to the user.

    Args:
      plan: the plan of the run.
      most: the largest number of columns with a separate row in the table, besides tasks and
        columns with a warning. The columns with a separate row are the best single inputs for the
        first task; all other columns with the same use share a row. If `most` is None, each column
        has a separate row.

    Returns:
      A header, and a row for each column: its name, its share of missing values, its metric as the
      only input of the first task, and its use.
    """
    facts = plan.table.facts
    header = ("column", "missing", f"{plan.tasks[0].metric} alone", "use")
    tasks = {
        task.label: f"{_name_task(task)}, heads.{task.head}: {task.why}" for task in plan.tasks
    }
    uses = {**tasks, **{chosen.name: chosen.why for chosen in plan.inputs}}
    shown = _choose_shown(plan, most)
    rows = [
        (show_line(name), _show_gaps(facts[name]), _show_alone(plan, [name]), uses[name])
        for name in shown
    ]
    others = [name for name in facts if name not in {*shown}]
    return [header, *rows, *_fold_columns(plan, others, uses)]


def _name_task(task: tasks_lib.Task) -> str:
    """Return "task", with the name of the task if it differs from the name of its column."""
    return "task" if task.name == task.label else f"task {task.name!r}"


def _show_gaps(facts: columns.Facts) -> str:
    return f"{facts.missing / facts.rows:.1%}" if facts.missing else ""


def _choose_shown(plan: plans.Plan, most: int | None) -> list[str]:
    """Return the columns that get a separate row in the table of `tell_plan`, in order."""
    names = [chosen.name for chosen in plan.inputs]
    if most is None or len(names) <= most:
        return list(plan.table.facts)
    doubted = [chosen.name for chosen in plan.inputs if chosen.doubt]
    best = {*plan.rank_columns(names)[:most], *doubted}
    labels = [task.label for task in plan.tasks]
    return [*labels, *plan.rank_columns(name for name in names if name in best)]


def _fold_columns(
    plan: plans.Plan, names: Sequence[str], uses: Mapping[str, str]
) -> list[tuple[str, str, str, str]]:
    """Return a row for each use of columns, such as "number" or "left out"."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_name_group(uses[name]), []).append(name)
    rows = []
    for use, members in groups.items():
        reasons = {uses[name] for name in members}
        reason = uses[members[0]] if len(reasons) == 1 else f"{use}, such as {members[0]!r}"
        title = f"+ {len(members):,} more" if len(members) > 1 else show_line(members[0])
        rows.append((title, "", _show_alone(plan, members), reason))
    return rows


def _name_group(use: str) -> str:
    """Return the kind of a use, such as "number" of "number, 0 to 9"."""
    if use.startswith("left out: "):
        return re.split(r",| '|: .*:", use)[0]
    return re.split("[,:]", use)[0]


def _show_alone(plan: plans.Plan, names: Sequence[str]) -> str:
    """Return the first task's metric with a column alone, or the largest for several columns."""
    values = [value for value in map(plan.find_alone, names) if np.isfinite(value)]
    limit = "<= " if len(names) > 1 else ""
    return f"{limit}{max(values):.3f}" if values else ""
