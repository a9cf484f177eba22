"""Trains a model on a table in one call, with drafted settings; see docs/python.md.

model = mtl.fit(frame, tasks=["clicked", "minutes"])
model.predict(new), model.metrics, model.report(), model.explain(), model.export("models/clicks")
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import itertools
import os
import pathlib
import re
import shutil
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import feather

from mtl import aligned, checks, deferred, from_python, times
from mtl import experiment as experiment_lib
from mtl.configs import config
from mtl.data import frames
from mtl.files import atomic, storage
from mtl.tools.drafting import gin_text, holdouts, lines, plans, tables

with deferred.imports():
    from mtl.checkpoints import run_directory
    from mtl.tools.drawing import figures
    from mtl.tools.explaining import describe, explanation
    from mtl.tools.explaining import settings as explaining_lib
    from mtl.tools.explaining import tables as explained
    from mtl.tools.reports import curve_sections, record, report

_WHERE = "mtl.fit"
_RUNS = "runs"
_DRAFT = "draft.gin"
# {flag of `launch.new`: the argument of `fit` with the same meaning}.
_ARGUMENTS = {
    "task": "tasks",
    "time_form": "time_forms",
    **{name: name for name in ("data", "test", "holdout", "validation", "calibration", "folds")},
    **{name: name for name in ("time", "key", "missing", "leave_out", "keep")},
    "value": "values",
}
_LISTS = ("missing", "values", "leave_out", "keep")
# `_PLACE` matches a flag at the beginning of an error. `_FLAG` matches any flag, with the value
# after it.
_PLACE = re.compile(rf"--({'|'.join(_ARGUMENTS)})(?![a-z_])")
_FLAG = re.compile(r"(?<![\w'\"-])--([a-z_]+)(?:[ =]('[^']*'|\"[^\"]*\"))?")
# A notebook shows curves of this many tasks at most; the report shows all tasks.
_MOST_DRAWN = 6


def fit(  # noqa: PLR0913  Callers name the arguments.
    data: Any,
    tasks: Sequence[str],
    model_dir: str | os.PathLike[str] | None = None,
    *,
    test: Any = None,
    holdout: float | None = None,
    validation: float | None = None,
    calibration: float | None = None,
    folds: int | None = None,
    time: str = "",
    key: str = "",
    missing: Sequence[str] = (),
    values: Sequence[str] = (),
    time_forms: Mapping[str, str] = types.MappingProxyType({}),
    leave_out: Sequence[str] = (),
    keep: Sequence[str] = (),
    settings: Sequence[str] = (),
    verbose: bool | None = None,
) -> FittedModel:
    """Draft settings for each column, train a model, and return its best checkpoint.

    Args:
      data: a DataFrame of pandas or polars, an Arrow table, a dict of columns, a list of dicts, or
        the path of a table: CSV, Parquet, ORC or Feather.
      tasks: the columns to predict.
      model_dir: a new folder; by default, the first unused name of runs/fit, runs/fit-2, ...
      test: rows to test on, in the same form as `data`; by default a share of `data`.
      holdout: the share of rows to test on, 0.1 by default; with `time`, the latest rows.
      validation: the share of rows that choose the best checkpoint, instead of the test rows.
      calibration: the share of rows with which a later run can calibrate the model.
      folds: the number of folds, at least 2; `settings=["fold = 1"]` tests on the second fold.
      time: a column of times; the held-out rows are the rows with the latest times.
      key: a column such as a user id; all rows with the same value are in the same split.
      missing: texts that mark a missing value.
      values: texts that are values, although they often mark a missing value, such as "NA".
      time_forms: {column: the form of its times}, such as "%d/%m/%Y", or "seconds" since 1970.
      leave_out: columns that the model does not use.
      keep: columns that the model uses even if they reveal the label of a task.
      settings: bindings of gin, such as "Run.train_steps = 500".
      verbose: True shows progress on standard error; None only in a terminal or notebook.

    Returns:
      A model of the best checkpoint, or of the latest checkpoint if none was evaluated.

    Raises:
      UserError: the data or an argument is wrong. After an error before the first checkpoint,
        `fit` removes its files from `model_dir`.
      KeyboardInterrupt: the user pressed Ctrl-C. `mtl.load` returns a model of the trained steps.
    """
    uses = {"missing": missing, "values": values, "leave_out": leave_out, "keep": keep}
    _check_lists(tasks=tasks, settings=settings, **uses)
    shares = {"holdout": holdout, "validation": validation, "calibration": calibration}
    held_out = _read_holdout({**shares, "folds": folds, "time": time, "key": key}, test)
    folder = _choose_folder(model_dir)
    with _removed_at_a_mistake(folder):
        plan = _plan_run(data, test, folder, tasks, held_out, time_forms, uses)
        experiment = _load_experiment(_write_draft(plan, folder, tasks), settings)
        last = from_python.train(experiment, folder, verbose)
    return _open_best(experiment, folder, plan, last.steps_trained)


def _open_best(
    experiment: experiment_lib.Experiment, folder: str, plan: plans.Plan, steps_trained: int
) -> FittedModel:
    is_evaluated = os.path.exists(os.path.join(folder, "best", "best.json"))
    model = FittedModel(experiment, folder, "best" if is_evaluated else "latest", plan)
    # If there are validation rows, the validation rows have chosen the checkpoint. The test rows
    # measure the quality of the checkpoint.
    model.steps_trained, model.metrics = steps_trained, model.evaluate(split="test")
    return model


class FittedModel(from_python.Model):
    """The best checkpoint of a run that `fit` has drafted and trained.

    Attributes:
      draft: a text that says how each column is used and why, and what the user should check.
      metrics: the metrics of the checkpoint on the test rows.
    """

    def __init__(
        self,
        experiment: experiment_lib.Experiment,
        model_dir: str,
        checkpoint: str,
        plan: plans.Plan,
    ):
        super().__init__(experiment, model_dir, checkpoint)
        self.draft = _describe_plan(plan)

    def report(self, output: str | os.PathLike[str] | None = None, rows: int = 100_000) -> str:
        """Write the results of the run to one HTML file.

        Args:
          output: the file; `report.html` in the folder of the run by default.
          rows: the largest number of rows to read from each split.

        Returns:
          The path of the file.
        """
        path = self._name_page(output, "report.html")
        with self._used():
            report.write(path, report.describe_run(self.experiment, self.model_dir, rows))
        return path

    def explain(self, output: str | os.PathLike[str] | None = None, limit: int = 2000) -> str:
        """Write a page that shows which fields matter, and how.

        CSV files with the numbers of the page are written into the folder of the page.

        Args:
          output: the page; `explained/index.html` in the folder of the run by default.
          limit: the largest number of held-out rows to read.

        Returns:
          The path of the HTML page.
        """
        path = self._name_page(output, os.path.join("explained", "index.html"))
        with self._used():
            settings = explaining_lib.Settings(checkpoint=self.checkpoint, limit=limit)
            results = explanation.explain_run(self.experiment, self.model_dir, settings)
            report.write(path, describe.describe(results))
            explained.write_tables(os.path.dirname(path), results)
        return path

    def _name_page(self, output: str | os.PathLike[str] | None, default: str) -> str:
        path = os.path.join(self.model_dir, default) if output is None else os.fspath(output)
        checks.require(path.endswith(".html"), "output", "end in .html", path)
        storage.require_possible("output", os.path.dirname(path) or ".", "a folder", path)
        return path

    def _repr_html_(self) -> str:
        """Return the metrics, with a picture of the ROC curves of the first tasks."""
        run = record.read_run(self.experiment, self.model_dir)
        tasks = self.experiment.model.tasks[:_MOST_DRAWN]
        curves = [curve for task in tasks for curve in _draw_task(run, task)]
        picture = figures.lay_out("Curves of the training", curves) if curves else ""
        return f"<pre>{html.escape(repr(self))}</pre>{picture}"


def _check_lists(**arguments: Any) -> None:
    for name, value in arguments.items():
        checks.texts(f"{_WHERE}: {name}", value, "be a list of texts")
    rule = "name a column"
    checks.require(len(arguments["tasks"]) > 0, f"{_WHERE}: tasks", rule, arguments["tasks"])


def _read_holdout(arguments: Mapping[str, Any], test: Any) -> plans.Holdout:
    # Pass the name of the type of a table in memory, because an error would quote all its rows.
    name = test if test is None or isinstance(test, str) else type(test).__name__
    return holdouts.make_holdout({**arguments, "test": name}, f"{_WHERE}: ", flag="")


def _choose_folder(model_dir: str | os.PathLike[str] | None) -> str:
    if model_dir is None:
        names = itertools.chain(["fit"], (f"fit-{number}" for number in itertools.count(2)))
        return next(p for name in names if not os.path.exists(p := os.path.join(_RUNS, name)))
    where = f"{_WHERE}: model_dir"
    checks.is_a(where, model_dir, (str, os.PathLike), "be the path of a folder")
    folder = os.fspath(model_dir)
    storage.require_possible(where, folder, "a folder", folder)
    is_new = not os.path.isdir(folder) or not os.listdir(folder)
    fix = "mtl.load reads a run, and mtl.train goes on with one."
    checks.require(is_new, where, "be a new folder", folder, fix)
    return folder


@contextlib.contextmanager
def _name_arguments() -> Iterator[None]:
    """In the errors of drafting, name arguments of `fit` in place of flags of `launch.new`."""
    try:
        yield
    except checks.UserError as error:
        text = str(error)
        place = _PLACE.match(text)
        if place:
            text = f"{_WHERE}: {_ARGUMENTS[place.group(1)]}{text[place.end() :]}"
        raise type(error)(rename_flags(text)) from error


def rename_flags(text: str) -> str:
    """Return a text with arguments of `fit` in place of flags of `launch.new`.

    A flag for which `fit` has no argument, such as --delimiter, becomes "launch.new --delimiter".
    """

    def rename(match: re.Match) -> str:
        flag, value = match.groups()
        argument = _ARGUMENTS.get(flag)
        if argument is None:
            return f"launch.new {match.group()}"
        if value is None:
            return argument
        if argument == "time_forms":
            column, _, form = value[1:-1].rpartition("=")
            return f"{argument}={{{column!r}: {form!r}}}"
        return f"{argument}=[{value}]" if argument in _LISTS else f"{argument}={value}"

    return _FLAG.sub(rename, text)


@contextlib.contextmanager
def _removed_at_a_mistake(folder: str) -> Iterator[None]:
    """Remove the files of `fit`, and the folder if `fit` created it, after any error.

    A run that has saved a checkpoint is not removed, because the run can continue.
    """
    is_old = os.path.isdir(folder)
    try:
        yield
    except BaseException:
        if os.path.exists(os.path.join(folder, "checkpoint")):
            raise
        shutil.rmtree(os.path.join(folder, "data"), ignore_errors=True)
        with contextlib.suppress(OSError):
            os.remove(os.path.join(folder, _DRAFT))
        if not is_old:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        raise


def _store_table(data: Any, name: str, path: str) -> str:
    """Return the path of a table; rows in memory are first written to a Feather file."""
    where = f"{_WHERE}: {name}"
    if isinstance(data, str | os.PathLike):
        return storage.make_absolute(os.fspath(data))
    table = _read_table(where, data)
    rule = "hold rows"
    checks.require(table.num_rows > 0, where, rule, table.num_rows)
    checks.unique(f"{where}: its columns", table.column_names)
    with storage.writing(f"{_WHERE}: model_dir", "a folder", os.path.dirname(path)):
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        feather.write_feather(table, path)
    return os.path.abspath(path)


def _read_table(where: str, data: Any) -> pa.Table:
    try:
        is_batch = isinstance(data, pa.RecordBatch)
        table = pa.Table.from_batches([data]) if is_batch else _convert_rows(data)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        problem = " ".join(str(error).split())
        checks.fail(where, "be a table whose columns have one type each", type(data), problem)
    rule = "be a DataFrame, an Arrow table, a dict of columns, a list of dicts or a path"
    if table is None:
        checks.fail(where, rule, type(data))
    for field in table.schema:
        is_dictionary = pa.types.is_dictionary(field.type)
        kind = field.type.value_type if is_dictionary else field.type
        is_plain = not isinstance(kind, pa.BaseExtensionType)
        fix = f"Turn them into texts: data[{field.name!r}].astype(str)."
        rule = "hold numbers, texts, times or lists"
        checks.require(is_plain, f"{where}: column {field.name!r}", rule, str(kind), fix)
    return table


def _convert_rows(data: Any) -> pa.Table | None:
    if isinstance(data, pa.Table):
        return data
    has_columns = hasattr(data, "columns")
    if has_columns and hasattr(data, "to_arrow"):  # polars
        return data.to_arrow()
    if has_columns and hasattr(data, "index"):  # pandas
        return pa.Table.from_pandas(_write_times(data), preserve_index=False)
    if isinstance(data, dict):
        return _make_table(data)
    # A row is a dict, or a Series of pandas.
    is_list = isinstance(data, list | tuple) and all(hasattr(row, "keys") for row in data)
    return _join_rows(list(map(dict, data))) if is_list else None


def _join_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return a table with the keys of all rows; Arrow would take only the keys of the first row."""
    names = dict.fromkeys(name for row in rows for name in row)
    return _make_table({name: [row.get(name) for row in rows] for name in names})


def _make_table(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table(
        {name: frames.write_mixed_times(_list_matrix(part)) for name, part in columns.items()}
    )


def _write_times(frame: Any) -> Any:
    """Return a DataFrame of pandas in which times of several zones are texts."""
    frame = frame.copy(deep=False)
    for place in range(frame.shape[1]):
        column = frame.iloc[:, place]
        written = frames.write_mixed_times(column)
        if written is not column:
            frame.isetitem(place, written)
    return frame


def _list_matrix(values: Any) -> Any:
    """Return the rows of an array with several axes as a list, which Arrow needs."""
    return list(values) if getattr(values, "ndim", 1) > 1 else values


def _plan_run(
    data: Any,
    test: Any,
    folder: str,
    tasks: Sequence[str],
    holdout: plans.Holdout,
    time_forms: Mapping[str, str],
    uses: Mapping[str, Sequence[str]],
) -> plans.Plan:
    """Write tables in memory to the folder of the run, read all rows, and return the plan.

    Args:
      data: the training rows.
      test: the test rows, or None.
      folder: the folder of the run.
      tasks: the columns to predict.
      holdout: the settings that choose the held-out rows.
      time_forms: {column: the form of its times, such as "%d.%m.%Y"}.
      uses: {name of an argument: its columns or texts} for the arguments `missing`, `values`,
        `leave_out` and `keep` of `fit`.
    """
    path = _store_table(data, "data", os.path.join(folder, "data", "train.feather"))
    if test is not None:
        test_path = os.path.join(folder, "data", "test.feather")
        holdout = dataclasses.replace(holdout, files=_store_table(test, "test", test_path))
    with _name_arguments():
        dialect = tables.read_dialect(lines.find_files(f"{_WHERE}: data", path))
        dialect = dataclasses.replace(dialect, time_forms=_read_time_forms(time_forms, dialect))
        rule = f"be left out: {path} has types, and null is a missing value"
        for argument in ("missing", "values"):
            is_fit = not (dialect.is_json and uses[argument])
            checks.require(is_fit, f"{_WHERE}: {argument}", rule, uses[argument])
        named_columns = {
            "time": [holdout.time] * bool(holdout.time),
            "key": [holdout.key] * bool(holdout.key),
            "leave_out": uses["leave_out"],
            "keep": uses["keep"],
        }
        named_columns = {
            f"{_WHERE}: {argument}": columns for argument, columns in named_columns.items()
        }
        plans.check_columns(f"{_WHERE}: tasks", tasks, named_columns, dialect, "not be a task")
        leave_out, keep = uses["leave_out"], uses["keep"]
        return plans.plan_table(
            dialect, tasks, holdout, uses["missing"], leave_out, keep, values=uses["values"]
        )


def _read_time_forms(forms: Any, dialect: lines.Dialect) -> dict[str, str]:
    where = f"{_WHERE}: time_forms"
    checks.mapping(where, forms, "map columns to forms of their times, such as '%d/%m/%Y'")
    for column, form in forms.items():
        checks.one_of(where, column, dialect.columns)
        times.check_form(f"{where}[{column!r}]", form)
    return dict(forms)


def _write_draft(plan: plans.Plan, folder: str, tasks: Sequence[str]) -> str:
    """Write the gin file of a plan into the folder of its run, and return its path."""
    path = os.path.join(folder, _DRAFT)
    command = f"mtl.fit(..., tasks={list(tasks)})"
    with storage.writing(f"{_WHERE}: model_dir", "a folder", folder):
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        atomic.write(path, gin_text.write_gin(plan, run_directory.name_run(folder), command))
    return path


def _load_experiment(path: str, settings: Sequence[str]) -> experiment_lib.Experiment:
    try:
        with config.isolated():
            return config.load([path], settings)
    except checks.UserError as error:
        text = re.sub("^--gin_param", f"{_WHERE}: settings", str(error))
        raise type(error)(text) from error


def _describe_plan(plan: plans.Plan) -> str:
    lines_of_plan = aligned.align_columns(gin_text.tell_plan(plan), right=[1, 2])
    if plan.doubts:
        lines_of_plan += ["", "Look at:", *(f"- {doubt}" for doubt in plan.doubts)]
    return rename_flags(gin_text.join_lines(lines_of_plan))


def _draw_task(run: record.Run, task: str) -> list[figures.Figure]:
    curves = curve_sections.draw_task(run, task)
    return [curve._replace(title=f"{task}: {curve.title}") for curve in curves]
