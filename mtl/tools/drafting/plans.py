"""Plans a run on a table: tasks, inputs, splits, steps, and doubts for the user to check.

plan = plans.make_plan(table, ["clicked", "minutes"], plans.Holdout(share=0.1))
plan.train_steps, plan.doubts
"""

import dataclasses
import math
import types
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from mtl import checks, times
from mtl.data import files, in_memory
from mtl.tools.drafting import columns, dates, inspection, lines, repeats, telling, weights
from mtl.tools.drafting import inputs as inputs_lib
from mtl.tools.drafting import tasks as tasks_lib

# (rows, batch size), sorted by rows: the batch size is in the first entry that has more rows than
# the training split.
_BATCHES = ((4_000, 64), (40_000, 128), (150_000, 256), (1_000_000, 512), (math.inf, 1024))
_EPOCHS, _FEWEST_STEPS, _MOST_STEPS, _EVALUATIONS = 10, 200, 20_000, 5
# Training takes `_MORE_EPOCHS` epochs if labels are numbers with little noise: for each label, a
# single column explains at least the share `_EXPLAINED` of the variance.
_MORE_EPOCHS, _EXPLAINED = 40, 0.5
# (rows, number of bins of a number), sorted by rows like `_BATCHES`. With few rows, more bins would
# fit noise.
_BINS = ((2_000, 4), (20_000, 16), (math.inf, 32))
# The weight decay is `_DECAY` * input columns / training rows, but at most `_MOST_DECAY`: the more
# inputs for each row, the more noise the weights fit.
_DECAY, _MOST_DECAY = 400, 3.0
_BUFFER, _LARGEST_BUFFER = 10_000, 1_000_000
# Rows count as sorted by a label if the row numbers alone predict the label with at least this
# metric.
_IN_ORDER = {"auc": 0.65, "r2": 0.1, "skill": 0.2}
_FEWEST_KEYS = 20
# Marks of missing values that may also name a class, such as NA for North America.
_LIKE_CLASSES = ("NA", "N/A", "n/a")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holdout:
    """The choice of the rows for test, validation and calibration.

    Attributes:
      share: the share of test rows, between 0 and 1. Test rows are drawn at random, row by row or
        by the values of `key`, or are the last rows by `time`; not used if `files` is set.
      validation: the share of validation rows, chosen like test rows; 0 for none.
      calibration: the share of rows that calibrate the finished run, chosen like test rows; 0 for
        none.
      folds: the number of folds, each of which is the test split of one run; 0 for none.
      key: the name of a column: rows with the same value in this column stay in the same split; ""
        for none.
      time: the name of a column of times: the rows with the latest times become the test rows; ""
        for none.
      files: the path or pattern of test files, used in place of the other settings; "" for none.
    """

    share: float = 0.1
    validation: float = 0.0
    calibration: float = 0.0
    folds: int = 0
    key: str = ""
    time: str = ""
    files: str = ""

    @property
    def shares(self) -> dict[str, float]:
        """{split: its share of the rows in the training files}, without the training split."""
        shares = {"validation": self.validation, "calibration": self.calibration}
        shares |= {"test": 0.0 if self.files else self.share}
        return {split: share for split, share in shares.items() if share}

    @property
    def has_splits(self) -> bool:
        """True if the training files are cut into more splits than train and test."""
        return bool(self.validation or self.calibration or self.folds)

    @property
    def is_drawn(self) -> bool:
        """True if test rows or keys are drawn at random; False with `time` or `files`."""
        return not (self.time or self.files)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """All decisions for a run on a table.

    Attributes:
      table: the facts of the table.
      tasks: the tasks, each with its label and its head.
      inputs: all other columns, including columns that are left out.
      alone: {column: {task: the task's metric with this column as the only input}}.
      holdout: the choice of the rows for each split.
      starts: {held-out split: its first time, as the gin file writes it}; {} without
        `holdout.time`.
      list_delimiter: the character between two values of a list.
      rows: the number of training rows, estimated from the shares of the other splits.
      batch_size: the number of rows in a training step.
      train_steps: the number of training steps: about 10 epochs, or 40 if one column alone explains
        half of the variance of each label; between 200 and 20,000 steps.
      shuffle_buffer: the number of rows in the shuffle buffer.
      in_memory: True if training keeps all rows in memory, as `Pipeline.cache` decides by default.
      doubts: sentences that ask the user to check something.
    """

    table: inspection.Inspection
    tasks: Sequence[tasks_lib.Task]
    inputs: Sequence[inputs_lib.Input]
    alone: Mapping[str, Mapping[str, float]]
    holdout: Holdout
    starts: Mapping[str, str | float]
    list_delimiter: str
    rows: int
    batch_size: int
    train_steps: int
    shuffle_buffer: int
    in_memory: bool
    doubts: Sequence[str]

    @property
    def checkpoint_steps(self) -> int:
        """The number of steps between two evaluations."""
        return self.train_steps // _EVALUATIONS

    @property
    def bins(self) -> int:
        """The number of bins of a column of numbers."""
        return _choose_by_rows(_BINS, self.rows)

    @property
    def weight_decay(self) -> float:
        """The weight decay, with two significant digits."""
        return min(float(f"{_DECAY * len(self.used) / self.rows:.2g}"), _MOST_DECAY)

    @property
    def dropout(self) -> float:
        """The dropout rate of the trunk; 0 if all labels are numbers, which dropout would blur."""
        return 0.1 if any(task.metric != "r2" for task in self.tasks) else 0.0

    @property
    def used(self) -> list[inputs_lib.Input]:
        """The columns that become inputs."""
        return [chosen for chosen in self.inputs if chosen.dtype]

    def find_alone(self, name: str) -> float:
        """Return the metric of the first task with a column as the only input.

        Args:
          name: the name of the column.

        Returns:
          The AUC, the skill or R2, depending on `Task.metric`; NaN if the metric is unknown.
        """
        return self.alone.get(name, {}).get(self.tasks[0].name, np.nan)

    def rank_columns(self, names: Iterable[str]) -> list[str]:
        """Sort columns by the metric that the first task has with the column as its only input.

        Args:
          names: the names of the columns.

        Returns:
          The names of the columns, sorted: the best single input comes first. Columns without a
          metric come last.
        """
        return sorted(names, key=lambda name: -np.nan_to_num(self.find_alone(name), nan=-np.inf))

    @property
    def left_out(self) -> list[inputs_lib.Input]:
        """The columns that are neither inputs nor labels."""
        return [chosen for chosen in self.inputs if not chosen.dtype]


def check_columns(
    where: str,
    tasks: Sequence[str],
    uses: Mapping[str, Sequence[str]],
    dialect: lines.Dialect,
    rule: str,
) -> None:
    """Fail if a setting names a column that a draft cannot read, or a column to predict.

    Args:
      where: the name of the setting with the tasks, for errors.
      tasks: the columns to predict.
      uses: {setting: its columns}, for other settings, whose columns must not be tasks.
      dialect: the format of the table, with its columns.
      rule: the text in errors that says what the settings in `uses` must do.
    """
    for setting, named in {where: tasks, **uses}.items():
        for column in named:
            kind = dialect.unreadable.get(column)
            readable = f"name a column that a draft can read, not one of type {kind}"
            checks.require(kind is None, setting, readable, column)
            checks.one_of(setting, column, dialect.columns)
            is_free = setting == where or column not in tasks
            checks.require(is_free, setting, rule, column)
    checks.unique(where, tasks)


def plan_table(
    dialect: lines.Dialect,
    tasks: Sequence[str],
    holdout: Holdout,
    missing: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    keep: Sequence[str] = (),
    number_forms: Mapping[str, str] = types.MappingProxyType({}),
    values: Sequence[str] = (),
) -> Plan:
    """Read a whole table, and plan a run on the table.

    Args:
      dialect: the format of the training files.
      tasks: the columns to predict.
      holdout: the choice of the rows for each split.
      missing: further texts that mean a missing value.
      leave_out: columns that must not become inputs.
      keep: columns to use even if they reveal a task, or look like an id or a date.
      number_forms: {column: how the column writes the number 1.5 or 1234.5, such as "$1,234.5"}.
      values: texts that count as values in this table, although such texts often mean a missing
        value.

    Raises:
      UserError: a test file is also a training file, a file is malformed, a label or a form of
        times does not fit the table, its rows cannot be held out as `holdout` says, or a column is
        both kept and left out.
    """
    both = sorted({*keep} & {*leave_out})
    checks.require(not both, "--keep", "name other columns than --leave_out", both)
    # Read test rows too: they may contain marks of missing values, and values, that training rows
    # lack.
    tests = lines.find_files("--test", holdout.files) if holdout.files else ()
    shared = sorted({*tests} & {*dialect.paths})
    checks.require(not shared, "--test", "name other files than the training files", shared)
    whole = lines.with_files(dialect, tests)
    table = inspection.inspect_table(whole, missing, tasks, number_forms, values)
    table = dataclasses.replace(table, dialect=dialect)
    _require_forms(table)
    plan = make_plan(table, tasks, holdout, leave_out, keep)
    sentences = _tell_words(table, [*missing]) + _tell_twins(table, number_forms)
    sentences += _tell_lost_classes(plan, missing) + _tell_rows(plan)
    return dataclasses.replace(plan, doubts=[*sentences, *plan.doubts])


def _require_forms(table: inspection.Inspection) -> None:
    """Fail if a form of times fits no value of its column."""
    for name, form in table.dialect.time_forms.items():
        facts = table.facts[name]
        fits = not (form and facts.present) or dates.fits_some(facts, form)
        rule = f"fit values such as {next(iter(facts.values), '')!r}"
        checks.require(fits, f"--time_form {name!r}", rule, form)


def _tell_rows(plan: Plan) -> list[str]:
    """Return sentences about repeated rows, and about splits with few rows."""
    holdout = plan.holdout
    train = {"train": 1 - sum(holdout.shares.values())} if holdout.shares else {}
    sentences = repeats.tell_splits(plan.table, plan.tasks, {**holdout.shares, **train})
    if holdout.key or holdout.time:
        return sentences
    names = [chosen.name for chosen in plan.used] + [task.label for task in plan.tasks]
    return sentences + repeats.tell_repeats(plan.table, names, holdout.is_drawn)


def _tell_words(table: inspection.Inspection, missing: Sequence[str]) -> list[str]:
    """Return sentences about texts that count as missing values, but may mean something else."""
    sentences = []
    for name, facts in table.facts.items():
        for mark, rows in facts.marks.items():
            is_odd = columns.is_infinite(mark) or mark not in columns.MARKS_OF_NUMBERS
            is_declared = mark in missing or name in table.dialect.numbers
            if is_odd and not is_declared:
                sentences.append(
                    f"{mark!r} of {name!r}, in {rows:,} rows, counts as a missing value."
                )
        if facts.limits:
            sentences.append(
                f"Limits such as <0.5 or 10+ of {name!r}, in {facts.limits:,} rows, "
                "count as 0.5 or 10."
            )
    return sentences


def _tell_lost_classes(plan: Plan, missing: Sequence[str]) -> list[str]:
    """Return sentences about marks of missing labels that are as frequent as some class."""
    facts = [plan.table.facts[task.label] for task in plan.tasks if task.metric != "r2"]
    return [
        f"{mark!r} of {column.name!r}, in {rows:,} rows, counts as a missing label. If it is a "
        f"class: --value {mark!r}"
        for column in facts
        for mark, rows in column.marks.items()
        if mark in _LIKE_CLASSES and mark not in missing and not column.is_number
        if rows >= min(column.values.values())
    ]


def _tell_twins(table: inspection.Inspection, number_forms: Collection[str]) -> list[str]:
    """Return sentences about columns whose texts may also mean other numbers."""
    return [
        f"{name!r} is read in the form {facts.form or '1.5'!r}. If {facts.twin!r} is right: "
        f"--number_form {f'{name}={facts.twin}'!r}"
        for name, facts in table.facts.items()
        if facts.twin and name not in number_forms
    ]


def make_plan(
    table: inspection.Inspection,
    labels: Sequence[str],
    holdout: Holdout,
    left_out: Sequence[str] = (),
    kept: Sequence[str] = (),
) -> Plan:
    """Plan a run on a table whose facts are known.

    Args:
      table: the facts of the table.
      labels: the columns to predict.
      holdout: the choice of the rows for each split.
      left_out: columns that must not become inputs.
      kept: columns to use even if they reveal a task, or look like an id or a date.

    Raises:
      UserError: a label or `holdout` is impossible for this table, or no column is left as input.
    """
    checks.unique("--task", labels)
    chosen_tasks = tasks_lib.tell_apart(
        [tasks_lib.choose_task(table.facts[name], table) for name in labels]
    )
    starts, share = _find_starts(table, holdout)
    # All columns of lists need the same delimiter, because a source has only one `list_delimiter`.
    delimiter = _find_list_delimiter(table)
    others = [name for name in table.facts if name not in labels]
    alone = {name: _measure_alone(table, name, chosen_tasks) for name in others}
    chosen = []
    for name in others:
        # Do not look for a leak in a column that the user keeps.
        leaks = None if name in kept else chosen_tasks
        chosen.append(_choose(table, name, delimiter, alone[name], leaks, holdout, left_out))
    _require_input(chosen)
    dialect = table.dialect
    rows = max(round(sum(map(table.rows_of.__getitem__, dialect.paths)) * (1 - share)), 1)
    order = _find_order(chosen_tasks, table)
    epochs = _MORE_EPOCHS if _has_little_noise(chosen_tasks, chosen, alone) else _EPOCHS
    batch, steps, buffer = _choose_sizes(rows, epochs, is_in_order=order is not None)
    doubts = _list_doubts(table, chosen_tasks, chosen, holdout)
    is_kept = dialect.is_arrow or in_memory.is_small(files.estimate_bytes(dialect.paths))
    if order is not None and buffer < rows and not is_kept:
        doubts.append(f"Rows are sorted by {order!r}: shuffle the file once.")
    return Plan(
        table=table,
        tasks=chosen_tasks,
        inputs=chosen,
        alone=alone,
        holdout=holdout,
        starts=starts,
        list_delimiter=delimiter,
        rows=rows,
        batch_size=batch,
        train_steps=steps,
        shuffle_buffer=buffer,
        in_memory=is_kept,
        doubts=doubts,
    )


def _require_input(chosen: Sequence[inputs_lib.Input]) -> None:
    """Check that a column becomes an input; the error says why the first columns are left out."""
    reasons = [use.doubt or f"{use.name!r} is {use.why}" for use in chosen[:3]]
    fix = " ".join(f"{reason.rstrip('.')}." for reason in reasons)
    rule, names = "have an input besides the labels", [use.name for use in chosen]
    checks.require(any(use.dtype for use in chosen), "The table", rule, names, fix)


def _choose(
    table: inspection.Inspection,
    name: str,
    delimiter: str,
    alone: Mapping[str, float],
    chosen_tasks: Sequence[tasks_lib.Task] | None,
    holdout: Holdout,
    left_out: Sequence[str],
) -> inputs_lib.Input:
    """Return the input for a column; leaks are sought only if `chosen_tasks` is not None."""
    if name in left_out:
        return inputs_lib.Input(name=name, why="left out: as --leave_out says")
    keep = chosen_tasks is None
    chosen = inputs_lib.choose_input(table.facts[name], table, delimiter, keep)
    if name and name == holdout.key:
        return inputs_lib.Input(name=name, why="left out: the --key of the splits")
    if name and name == holdout.time and not (chosen.times and chosen.dtype):
        return inputs_lib.Input(name=name, why="left out: the --time of the splits")
    return chosen if keep or not chosen.dtype else _ask_leaks(table, chosen, alone, chosen_tasks)


def _ask_leaks(
    table: inspection.Inspection,
    chosen: inputs_lib.Input,
    alone: Mapping[str, float],
    chosen_tasks: Sequence[tasks_lib.Task] | None,
) -> inputs_lib.Input:
    """Return a column's input; if the column may reveal a label, leave it out or add a warning."""
    name = chosen.name
    codes, numbers = _encode(table, name)
    for task in chosen_tasks or ():
        evidence, is_sure = task.find_leak(alone[task.name], codes, numbers)
        if is_sure:
            doubt = f"{name!r} {evidence}. If it is known before {task.label!r}: --keep {name!r}"
            return inputs_lib.Input(name=name, why=f"left out: {evidence}", doubt=doubt)
        if evidence:
            doubt = f"{name!r} {evidence}. If it is known only after {task.label!r}: "
            doubt = f"{chosen.doubt} {doubt}--leave_out {name!r}".strip()
            chosen = dataclasses.replace(chosen, doubt=doubt)
    return chosen


def _list_doubts(
    table: inspection.Inspection,
    chosen_tasks: Sequence[tasks_lib.Task],
    chosen: Sequence[inputs_lib.Input],
    holdout: Holdout,
) -> list[str]:
    """Return warnings about inputs, about tasks, and about rows that may belong together."""
    doubts = [use.doubt for use in chosen if use.doubt]
    doubts = [doubt for doubt in doubts if holdout.is_drawn or "--time" not in doubt]
    doubts += _doubt_forms(chosen)
    doubts += [
        f"{name!r} is left out: a draft has no input for {kind}."
        for name, kind in table.dialect.unreadable.items()
    ]
    doubts += [f"{task.label!r}: {hint}" for task in chosen_tasks for hint in task.hints]
    if holdout.is_drawn and not holdout.key:
        doubts += _doubt_keys(table, chosen)
    return doubts


def _doubt_forms(chosen: Sequence[inputs_lib.Input]) -> list[str]:
    """Return sentences about ambiguous dates, such as 5/6 for 5 June or 6 May."""
    return [
        f"{use.name!r} is read in the form {use.times.form!r}. If {use.times.twin!r} is right: "
        f"--time_form {f'{use.name}={use.times.twin}'!r}"
        for use in chosen
        if use.times and use.times.twin
    ]


def _doubt_keys(table: inspection.Inspection, chosen: Sequence[inputs_lib.Input]) -> list[str]:
    return [
        f"Rows with the same {use.name!r} ({table.facts[use.name].distinct:,} values) may belong "
        f"together: --key {use.name!r} keeps them in one split."
        for use in chosen
        if inputs_lib.looks_like_key(table.facts[use.name])
    ]


def _measure_alone(
    table: inspection.Inspection, name: str, chosen_tasks: Sequence[tasks_lib.Task]
) -> dict[str, float]:
    """Return {task: its metric with this column as the only input}."""
    codes, _ = _encode(table, name)
    return {task.name: task.measure_alone(codes) for task in chosen_tasks}


def _encode(table: inspection.Inspection, name: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a column as codes for `telling` [N], and as numbers [N]; None for texts."""
    if not table.facts[name].is_number:
        return telling.encode_texts(table.texts(name)), None
    numbers = table.numbers(name)
    return telling.encode_numbers(numbers), numbers


def _find_order(chosen_tasks: Sequence[tasks_lib.Task], table: inspection.Inspection) -> str | None:
    """Return the first label by which the rows are sorted; None if there is no such label."""
    places = telling.encode_numbers(table.places.astype(np.float64))
    in_order = (t.label for t in chosen_tasks if t.measure_alone(places) > _IN_ORDER[t.metric])
    return next(in_order, None)


def _has_little_noise(
    chosen_tasks: Sequence[tasks_lib.Task],
    chosen: Sequence[inputs_lib.Input],
    alone: Mapping[str, Mapping[str, float]],
) -> bool:
    """Return True if all labels are numbers, and a single input explains much of each label."""
    used = [alone[one.name] for one in chosen if one.dtype]
    return all(
        task.metric == "r2" and any(one.get(task.name, 0.0) >= _EXPLAINED for one in used)
        for task in chosen_tasks
    )


def _choose_by_rows(choices: Sequence[tuple[float, int]], rows: int) -> int:
    """Return the choice for `rows`, from pairs (number of rows below which it holds, choice)."""
    return next(choice for most, choice in choices if rows < most)


def _choose_sizes(rows: int, epochs: int, is_in_order: bool) -> tuple[int, int, int]:
    """Return the batch size, the number of training steps, and the size of the shuffle buffer."""
    batch = _choose_by_rows(_BATCHES, rows)
    steps = min(max(-(-rows * epochs // batch), _FEWEST_STEPS), _MOST_STEPS)
    # If rows are sorted by a label, a buffer of the usual size would give
    # batches of a single class.
    buffer = min(rows, _LARGEST_BUFFER if is_in_order else _BUFFER)
    # Round up to whole evaluations, so that the last checkpoint is evaluated too.
    return batch, -(-steps // _EVALUATIONS) * _EVALUATIONS, buffer


def _find_list_delimiter(table: inspection.Inspection) -> str:
    """Return the delimiter with which the most columns can be read as lists."""
    if table.dialect.list_delimiter:
        return table.dialect.list_delimiter
    free = [one for one in inputs_lib.LIST_DELIMITERS if one != table.dialect.delimiter]
    texts = [facts for facts in table.facts.values() if facts.kind == "text"]
    counts = {
        one: sum(inputs_lib.is_list_of(facts, one) for facts in table.facts.values())
        + sum(weights.find_weights(facts.values, one) is not None for facts in texts)
        for one in free
    }
    return max(free, key=counts.__getitem__)


def _find_starts(
    table: inspection.Inspection, holdout: Holdout
) -> tuple[dict[str, str | float], float]:
    """Return {held-out split: first time} ({} without `time`), and the share of held-out rows."""
    if holdout.key:
        keys = table.facts[holdout.key].distinct
        rule = f"have at least {_FEWEST_KEYS} values, which the splits share"
        checks.require(keys >= _FEWEST_KEYS, f"--key {holdout.key!r}", rule, keys)
    share = sum(holdout.shares.values())
    if not holdout.time:
        return {}, share
    where = f"--time {holdout.time!r}"
    values, written = _read_times(table, holdout.time, where)
    ordered = np.sort(values[np.isfinite(values)])
    starts, first = {}, []
    for split, part in holdout.shares.items():
        # Add 1e-9, because rounding may put a product just below a whole number.
        place = min(int(len(ordered) * (1 - share) + 1e-9), len(ordered) - 1)
        first.append(ordered[place])
        starts[split] = written[int(np.argmax(values == first[-1]))]
        share -= part
    # Rows with the same time stay in one split, so the share may differ from the setting.
    later = float((ordered >= first[0]).mean())
    first_start = str(next(iter(starts.values())))
    checks.require(later < 1, where, "vary", first_start)
    rule = f"let {' and '.join(starts)} start at different times"
    fix = "Hold out more rows, or one split only."
    checks.require(len(set(first)) == len(first), where, rule, first_start, fix)
    return starts, later


def _read_times(
    table: inspection.Inspection, name: str, where: str
) -> tuple[np.ndarray, list[float] | list[str]]:
    """Return the times of a column as numbers, and in the form in which the gin file has them."""
    facts = table.facts[name]
    if facts.is_number:
        values = table.numbers(name)
        _require_whole(table, name, where, values)
        return values, values.tolist()
    texts = table.texts(name).drop_null().to_pylist()
    form = find_time_form(table, name)
    if form is None:
        odd = [text for text in facts.values if not columns.match_time(text)]
        shown = next(iter([*odd, *facts.values]), "")
        checks.fail(where, "hold numbers, or times such as 2024-05-31", shown)
    parsed_form = times.read_form(where, form)
    values = np.array([times.read_time(text, parsed_form) for text in texts])
    return values, list(map(times.write_time, values)) if form else texts


def _require_whole(table: inspection.Inspection, name: str, where: str, values: np.ndarray) -> None:
    """Fail if stored times have fractions: a source reads stored numbers as whole numbers."""
    if name not in table.dialect.numbers:
        return  # Times that are stored as texts may have fractions.
    odd = values[np.isfinite(values) & (values % 1 != 0)]
    fix = "Round the column to seconds, or write it as texts."
    checks.require(not len(odd), where, "hold whole numbers", odd[:1].tolist(), fix)


def find_time_form(table: inspection.Inspection, name: str) -> str | None:
    """Return the form of times in a column of texts, as `ByTime.form`; None if it is unknown.

    Args:
      table: the facts of the table.
      name: the name of the column.
    """
    column_times = dates.find_times(table.facts[name], table.dialect.time_forms.get(name, ""))
    return column_times.form if column_times else None
