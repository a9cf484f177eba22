r"""Writes a gin file for a table: reads all rows, and decides how the model uses each column.

    python -m launch.new --data train.csv --task clicked --task minutes
    python -m launch.train --gin_file train.gin
    python -m launch.predict --model_dir runs/train --checkpoint best --input new.csv

A tenth of the rows is held out to test the model. --holdout changes this share, --key keeps the
rows of a user in one split, --time holds out the latest rows, and --test names a separate file.
--validation holds out more rows, which then choose the best checkpoint instead of the test rows.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence

from launch.processes import endings
from mtl import aligned, checks, times
from mtl.data import arrow, csv, written_numbers
from mtl.files import atomic, storage
from mtl.tools.drafting import gin_text, holdouts, lines, page, plans, tables

_HOLDOUTS = ("holdout", "validation", "calibration", "folds", "time", "key", "test")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = endings.Parser("launch.new", __doc__)
    add = parser.add_argument
    add(
        "--data",
        required=True,
        help="a table: CSV, JSON lines, Parquet, ORC, Feather or a spreadsheet; a glob or folder",
    )
    add("--task", required=True, action="append", help="a column to predict; repeatable")
    add("--out", help="the gin file (default: the name of the table, with .gin)")
    add("--page", help="write a page, which ends in .html, with a picture of each column")
    add("--most", type=int, default=50, help="the most columns in the table, or 0 for all")
    add("--force", action="store_true", help="overwrite the gin file and the page")
    _add_holdouts(parser)
    add("--delimiter", help="the separator of values; detected if it is , ; tab or |")
    add("--list_delimiter", default="", help="the separator in lists; detected if | ; ^ or ~")
    add("--columns", default="", help="names of the columns, for a table without a header: a,b,c")
    add("--sheet", default="", help="the sheet of a spreadsheet (default: the first)")
    add("--comment", default="", help="lines that start with this text are ignored")
    add("--missing", action="append", default=[], help="a text for a missing value; repeatable")
    add(
        "--value", action="append", default=[], help="a class that looks missing, as NA; repeatable"
    )
    add(
        "--number_form",
        action="append",
        default=[],
        help="the number 1.5 or 1234.5 as a column writes it, such as price=$1.234,5; repeatable",
    )
    add(
        "--time_form",
        action="append",
        default=[],
        help="the form of times in a column, such as day=%%d/%%m/%%Y or at=seconds; repeatable",
    )
    add("--leave_out", action="append", default=[], help="a column to leave out; repeatable")
    add(
        "--keep",
        action="append",
        default=[],
        help="a column to use even if it reveals a task, or looks like an id or a date; repeatable",
    )
    # Explain that a table needs the flag --data: argparse only says that --data is missing.
    has_data = any(arg.partition("=")[0] == "--data" for arg in argv)
    if argv and not argv[0].startswith("-") and not has_data:
        raise checks.UserError(f"unexpected argument {argv[0]!r}. Write --data {argv[0]}")
    return parser.read(argv)


def _add_holdouts(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose test, validation and calibration rows."""
    add = parser.add_argument
    add("--holdout", type=float, help="the share of rows to hold out (default: 0.1)")
    add(
        "--validation",
        type=float,
        help="the share of rows that choose the best checkpoint, instead of the test rows",
    )
    add(
        "--calibration",
        type=float,
        help="the share of rows that calibrate the finished run and choose thresholds",
    )
    add("--folds", type=int, help="the number of folds; each fold is the test rows of a run")
    add("--time", help="hold out the rows with the greatest values of this column")
    add("--key", help="keep rows with the same value of this column in one split")
    add("--test", help="a separate table to test on, instead of a share of the rows")


def main() -> None:
    """Write the gin file that the arguments describe."""
    print(draft(_parse(sys.argv[1:])))


def draft(arguments: argparse.Namespace) -> str:
    """Write the gin file, and return a text that explains the file.

    Raises:
      UserError: the table or an argument is wrong; the file is not written.
    """
    holdout = holdouts.make_holdout({name: getattr(arguments, name) for name in _HOLDOUTS})
    paths = lines.find_files("--data", arguments.data)
    # For the table "train.csv.gz", the default name is train.gin.
    out = pathlib.Path(arguments.out or f"{os.path.basename(paths[0]).split('.')[0]}.gin")
    checks.require(out.suffix == ".gin", "--out", "end in .gin", str(out))
    _require_free(arguments, out)
    names = [name.strip() for name in arguments.columns.split(",") if name.strip()]
    delimiter = arguments.delimiter
    if delimiter is not None:
        # Accept \t and tab, because a tab character is hard to type in a shell.
        delimiter = "\t" if delimiter in ("\\t", "tab") else delimiter
        is_one = len(delimiter) == 1 and delimiter not in '"\r\n'
        checks.require(is_one, "--delimiter", "be one character, not a quote", delimiter)
    dialect = tables.read_dialect(paths, delimiter, names, arguments.comment, arguments.sheet)
    dialect = dataclasses.replace(
        dialect,
        list_delimiter=_read_lists(arguments, dialect),
        time_forms=_read_time_forms(arguments.time_form, dialect),
    )
    _require_texts(arguments, dialect)
    _require_columns(arguments, dialect)
    settings = (arguments.missing, arguments.leave_out, arguments.keep)
    number_forms = _read_forms(arguments.number_form, dialect)
    plan = plans.plan_table(
        dialect, arguments.task, holdout, *settings, number_forms, arguments.value
    )
    # Write the command into a comment of the gin file.
    command = f"python -m launch.new {shlex.join(sys.argv[1:])}"
    text = gin_text.write_gin(plan, out.stem, " ".join(command.split()))
    # Write the files last, so that no file is left after a mistake.
    if arguments.page:
        page.write(arguments.page, plan, str(out), _list_commands(plan, out))
    with storage.writing("--out", "a file", str(out)):
        atomic.write(str(out), text)
    return _describe(plan, out, arguments)


def _require_free(arguments: argparse.Namespace, out: pathlib.Path) -> None:
    """Fail if an output file exists already, or if the page of `--page` cannot be written."""
    checks.at_least("--most", arguments.most, 0)
    outputs = {"--out": str(out)}
    if arguments.page:
        checks.require(arguments.page.endswith(".html"), "--page", "end in .html", arguments.page)
        folder = os.path.dirname(arguments.page)
        storage.require_possible("--page", folder, "a file", arguments.page)
        outputs["--page"] = arguments.page
    for flag, path in outputs.items():
        is_free = arguments.force or not os.path.exists(path)
        checks.require(is_free, flag, "be a new file", path, "Or set --force.")


def _read_lists(arguments: argparse.Namespace, dialect: lines.Dialect) -> str:
    """Return the value of --list_delimiter; fail unless the value is one character or empty."""
    delimiter = arguments.list_delimiter
    is_one = not delimiter or (len(delimiter) == 1 and delimiter not in '"\r\n')
    checks.require(is_one, "--list_delimiter", "be one character, not a quote", delimiter)
    is_free = not delimiter or delimiter != dialect.delimiter
    checks.require(is_free, "--list_delimiter", "differ from the delimiter of columns", delimiter)
    return delimiter


def _read_forms(settings: Sequence[str], dialect: lines.Dialect) -> dict[str, str]:
    """Read --number_form as {column: the number 1.5 or 1234.5 as the column writes it}."""
    forms = {}
    for setting in settings:
        # Split at the last "=", because the name of a column may contain "=", but a number does
        # not.
        column, equals, example = setting.rpartition("=")
        rule = "name a column and the number 1.5, such as 'price=$1.234,5'"
        checks.require(bool(equals), "--number_form", rule, setting)
        checks.one_of("--number_form", column, dialect.columns)
        written_numbers.read_form(f"--number_form {column!r}", example)
        forms[column] = example
    return forms


def _read_time_forms(settings: Sequence[str], dialect: lines.Dialect) -> dict[str, str]:
    """Read --time_form as {column: the form of its times}."""
    forms = {}
    for setting in settings:
        column, _, form = setting.rpartition("=")
        rule = "name a column and the form of its times, such as 'day=%d/%m/%Y'"
        checks.require(bool(column and form), "--time_form", rule, setting)
        checks.one_of("--time_form", column, dialect.columns)
        times.check_form(f"--time_form {column!r}", form)
        forms[column] = form
    return forms


def _require_columns(arguments: argparse.Namespace, dialect: lines.Dialect) -> None:
    """Fail if a flag names a missing column, or if two flags give a column different uses."""
    uses = {
        "--time": [arguments.time] if arguments.time else [],
        "--key": [arguments.key] if arguments.key else [],
        "--leave_out": arguments.leave_out,
        "--keep": arguments.keep,
    }
    plans.check_columns("--task", arguments.task, uses, dialect, "not be a --task")


def _find_ending(dialect: lines.Dialect) -> str:
    """Return the ending of file names in the format of the table, for an example command."""
    if dialect.is_json:
        return ".jsonl"
    ending = arrow.find_ending(dialect.paths[0].removesuffix(".gz"))
    return ending if dialect.is_arrow or ending in csv.ENDINGS else ".csv"


def _require_texts(arguments: argparse.Namespace, dialect: lines.Dialect) -> None:
    """Fail if a flag about texts comes with JSON lines, whose values have types."""
    flags = {"--missing": arguments.missing, "--number_form": arguments.number_form}
    flags |= {"--value": arguments.value, "--list_delimiter": arguments.list_delimiter}
    for flag, setting in flags.items() if dialect.is_json else ():
        rule = f"be left out: {dialect.paths[0]} has types. null is a missing value"
        checks.require(not setting, flag, rule, setting)


def _describe(plan: plans.Plan, out: pathlib.Path, arguments: argparse.Namespace) -> str:
    table, dialect = plan.table, plan.table.dialect
    uses = gin_text.tell_plan(plan, arguments.most or None)
    report_lines = [
        f"{', '.join(list(table.rows_of)[:3])}: {table.rows:,} rows, "
        f"{len(dialect.columns)} columns"
        + (f" between {dialect.delimiter_name}" if dialect.delimiter else ""),
        "",
        *(f"  {line}" for line in aligned.align_columns(uses, right=[1, 2])),
    ]
    if not table.is_whole:
        rows = f"{len(table.places):,} random rows"
        report_lines += ["", f"  The value of each column alone was measured on {rows}."]
    if len(uses) <= len(table.facts):
        report_lines += [
            "",
            "  All columns stand in the gin file; --most 0 prints them, --page draws them.",
        ]
    report_lines += [
        *_list_doubts(plan.doubts, arguments.most or len(plan.doubts)),
        "",
        f"Wrote {out}: {plan.train_steps:,} steps of {plan.batch_size} rows.",
        *([f"Page: {arguments.page}"] if arguments.page else []),
        "",
        "Next:",
        *(f"  {line}" for line in _list_commands(plan, out)),
    ]
    return gin_text.join_lines(report_lines)


def _list_doubts(doubts: Sequence[str], most: int) -> list[str]:
    """Return lines with the first doubts and the number of further doubts; [] without doubts."""
    more = len(doubts) - most
    shown = [f"  - {doubt}" for doubt in doubts[:most]]
    if more > 0:
        shown.append(f"  - {more:,} more doubts: --most 0 prints them, and --page shows them.")
    return ["", "Look at:", *shown] if doubts else []


def _list_commands(plan: plans.Plan, out: pathlib.Path) -> list[str]:
    """Return the commands that train, calibrate, evaluate and use the model."""
    file, run = shlex.quote(str(out)), shlex.quote(f"runs/{out.stem}")
    train = f"python -m launch.train --gin_file {file}"
    # With folds, the commands train a run for each fold, and compare the runs.
    if plan.holdout.folds:
        runs = [f"{run}-{fold}" for fold in range(plan.holdout.folds)]
        commands = [
            f"{train} --model_dir {folder} --gin_param 'fold = {fold}'"
            for fold, folder in enumerate(runs)
        ]
        return [*commands, f"python -m launch.compare {' '.join(runs)}"]
    commands = [train]
    binary = [task.name for task in plan.tasks if task.head == "Binary"]
    if plan.holdout.calibration and binary:
        source = shlex.quote(f'source = "runs/{out.stem}/best"')
        commands += [
            f"python -m launch.train --gin_file {run}/config.gin --gin_file "
            f"gin_configs/transfer/calibration.gin --model_dir {run}_calibrated --gin_param "
            f"{source} --gin_param {shlex.quote(f'tasks = {json.dumps(binary)}')} --gin_param "
            "'calibration.Platt.split = \"calibration\"'"
        ]
        # The following commands use the calibrated run.
        run = f"{run}_calibrated"
        # Evaluate with --curves, which writes a table of thresholds with recall and precision.
        commands += [
            f"python -m launch.evaluate --model_dir {run} --checkpoint best --split calibration "
            "--curves"
        ]
    model = f"--model_dir {run} --checkpoint best"
    if plan.holdout.has_splits:
        commands.append(f"python -m launch.evaluate {model} --split test")
    return [
        *commands,
        f"python -m launch.predict {model} --split test",
        f"python -m launch.predict {model} --input NEW{_find_ending(plan.table.dialect)}",
    ]


if __name__ == "__main__":
    endings.run(main)
