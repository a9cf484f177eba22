"""A gin file of a table: what is decided, and that it trains."""

import datetime
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from launch import new
from mtl import checks, verbs
from mtl.configs import config, gin_files
from mtl.data import field_splits, splits
from mtl.spec import literals
from mtl.tools.drafting import columns

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_ENV = {**os.environ, "PYTHONPATH": str(_ROOT)}


def write(path, delimiter=",", rows=400, header=True):
    """A table with an id, gaps, a heavy tail, a list, a leak, a date and two labels."""
    rng = random.Random(0)
    names = ["id", "user", "age", "wage", "job", "tags", "day", "copy", "same", "clicked", "level"]
    lines = [names] if header else []
    for i in range(rows):
        age, clicked = rng.randint(18, 80), rng.random() < 0.4
        cells = [f"k{i:05d}", f"u{i // 4}", "NA" if i % 10 == 0 else age]
        cells += [round(rng.lognormvariate(5, 2), 2), rng.choice(["cook", "smith"])]
        cells += ["|".join(rng.sample("abc", rng.randint(0, 2))), f"2024-01-{1 + i // 40:02d}"]
        cells += ["no" if clicked else "yes", 7, int(clicked), rng.choice(["low", "mid", "high"])]
        lines.append(cells)
    path.write_text("\n".join(delimiter.join(map(str, cells)) for cells in lines) + "\n")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run("--task", "clicked"): the text that is printed."""
    monkeypatch.chdir(tmp_path)

    def call(*args, data="t.csv"):
        monkeypatch.setattr(sys, "argv", ["launch.new", "--data", data, *args])
        return new.draft(new._parse(sys.argv[1:]))

    return call


def test_stored_times_are_whole_numbers_and_written_ones_any(run, tmp_path):
    table = {
        "t": [1.7e9 + row / 2 for row in range(60)],
        "x": [row % 7 / 3 for row in range(60)],
        "y": [row % 2 for row in range(60)],
    }
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    rows = zip(*table.values(), strict=True)
    lines = [",".join(table), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    message = (
        r"--time 't' must hold whole numbers, got \[1700000000.5\]. Round the column to seconds"
    )
    with pytest.raises(checks.UserError, match=message):
        run("--task", "y", "--time", "t", data="t.parquet")
    assert "Wrote t.gin" in run("--task", "y", "--time", "t")


@pytest.mark.medium
def test_the_next_command_reads_files_like_the_table(run, tmp_path):
    write(tmp_path / "t.tsv", delimiter="\t")
    assert "--input NEW.tsv\n" in run("--task", "clicked", data="t.tsv") + "\n"


@pytest.mark.slow
def test_the_file_trains_as_it_is_and_a_leak_is_no_input(run, tmp_path):
    write(tmp_path / "t.csv", delimiter=";")
    told = run("--task", "clicked", "--task", "level", "--key", "user")
    assert "between ';'" in told and "alone predicts 'clicked'" in told
    made = config.load(["t.gin"], ["Run.train_steps = 4", "Run.checkpoint_steps = 4"])
    spec, source = made.data.spec, made.data.source
    assert spec.features == {
        "age": "float32",
        "wage": "float32",
        "job": "string",
        "tags": ("string", (None,)),
    }
    assert isinstance(source, field_splits.ByKey) and source.source.missing == ["", "NA"]
    metrics, steps = verbs.train(made, "run")
    assert steps == 4 and 0 <= metrics["clicked/auc"] <= 1
    assert {"clicked/probability", "level/class"} <= set(next(verbs.predict(made, "run")))


def _read_statements(file):
    """Return the kind of each statement of a gin file, and its module or key."""
    text = file.read_text(encoding="utf-8")
    found = [statement for _, statement, _ in gin_files._statements(str(file), text)]
    return [(type(s).__name__, getattr(s, "module", getattr(s, "arg_name", ""))) for s in found]


@pytest.mark.medium
@pytest.mark.parametrize(
    "end", ["\n", "\r", "\r\n", "\x0b", "\x1c", "\x85", "\u2028", "\udcff"], ids=ascii
)
def test_a_name_that_ends_a_comment_is_no_statement(run, tmp_path, end):
    write(tmp_path / "t.csv", rows=100)
    run("--task", "clicked", "--key", "user")
    plain = _read_statements(tmp_path / "t.gin")
    hostile = f"x{end}import trust_evil{end}#"
    # With others in the name of a column, the table would be another one.
    key = hostile if end in ("\x85", "\u2028") else "user"
    table = (tmp_path / "t.csv").read_text().replace("user", key, 1)
    (tmp_path / f"{hostile}.csv").write_text(table)
    told = run("--task", "clicked", "--key", key, data=f"{hostile}.csv")
    (written,) = {*tmp_path.glob("*.gin")} - {tmp_path / "t.gin"}
    assert _read_statements(written) == plain
    assert "# clicked from x\\" in written.read_text() and told.isascii()


def test_the_last_rows_are_held_out_by_time(run, tmp_path):
    write(tmp_path / "t.csv")
    run("--task", "clicked", "--time", "day")
    text = (tmp_path / "t.gin").read_text()
    assert "field_splits.ByTime.starts = {'test': '2024-01-10'}" in text
    assert "have no time" not in text


def test_times_of_another_form_hold_out_the_last_rows(run, tmp_path):
    write(tmp_path / "t.csv")
    text = re.sub(r"2024-01-(\d\d)", r"\1/01/2024", (tmp_path / "t.csv").read_text())
    (tmp_path / "t.csv").write_text(text)
    told = run("--task", "clicked", "--time", "day", "--keep", "day", "--time_form", "day=%d/%m/%Y")
    assert "--time_form" not in told.partition("Look at")[2]
    with config.isolated():
        data = config.load(["t.gin"]).data
    source = data.source
    assert dict(source.starts) == {"test": "2024-01-10 00:00:00"} and source.form == "%d/%m/%Y"
    assert len(list(source.scan("test", data.spec))) == 40  # Of 10 January.


def test_a_draft_sorts_times_by_what_they_mean_and_tells_rows_without_one(run, tmp_path):
    write(tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_text()
    text = text.replace("2024-01-01", "2024/01/01").replace("2024-01-02", "")
    (tmp_path / "t.csv").write_text(text)
    run("--task", "clicked", "--time", "day")
    drafted = (tmp_path / "t.gin").read_text()
    assert "field_splits.ByTime.starts = {'test': '2024-01-10'}" in drafted
    assert "# 40 rows (10.0%) have no time and are not used." in drafted


@pytest.mark.parametrize(
    ("form", "start"), [("%Y-%m-%dT%H:%M:%S%z", "T"), ("%d.%m.%Y %H:%M%z", " ")]
)
def test_the_latest_rows_are_those_of_the_latest_instants(run, tmp_path, form, start):
    write(tmp_path / "t.csv")
    first = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    zones = [datetime.timezone(datetime.timedelta(hours=hours)) for hours in (9, -8)]
    header, *rows = (tmp_path / "t.csv").read_text().splitlines()
    place = header.split(",").index("day")
    for number, row in enumerate(rows):
        cells, time = row.split(","), first + datetime.timedelta(minutes=10 * number)
        cells[place] = time.astimezone(zones[number % 2]).strftime(form)
        rows[number] = ",".join(cells)
    (tmp_path / "t.csv").write_text("\n".join([header, *rows]) + "\n")
    run("--task", "clicked", "--time", "day")
    with config.isolated():
        data = config.load(["t.gin"]).data
    assert start in data.source.starts["test"]
    places = [int(place.split()[-1]) for place, _ in data.source.scan("test", data.spec)]
    assert places == list(range(362, 402))  # The header is line 1.


@pytest.mark.parametrize(
    ("args", "shares", "keys"),
    [
        ((), {"train": 0.8, "validation": 0.1, "test": 0.1}, ()),
        (("--holdout", "0.3"), {"train": 0.6, "validation": 0.1, "test": 0.3}, ()),
        (("--key", "user"), {"train": 0.8, "validation": 0.1, "test": 0.1}, ["user"]),
        (
            ("--calibration", "0.2"),
            {"train": 0.6, "validation": 0.1, "calibration": 0.2, "test": 0.1},
            (),
        ),
        (("--test", "other.csv"), {"train": 0.9, "validation": 0.1}, ()),
    ],
)
def test_validation_rows_choose_the_best_checkpoint(run, tmp_path, args, shares, keys):
    write(tmp_path / "t.csv")
    write(tmp_path / "other.csv", rows=100)
    told = run("--task", "clicked", "--validation", "0.1", *args)
    folder = "runs/t_calibrated" if "--calibration" in args else "runs/t"
    assert f"launch.evaluate --model_dir {folder} --checkpoint best --split test" in told
    with config.isolated():
        data = config.load(["t.gin"]).data
    assert isinstance(data.source, splits.Splits)
    assert (data.source.shares, data.source.keys) == (shares, keys)
    assert data.eval_split == "validation"
    rows = {s: [v["age"] for _, v in data.source.scan(s, data.spec)] for s in (*shares, "test")}
    assert all(rows.values())
    assert sum(map(len, rows.values())) == 400 + 100 * ("--test" in args)


def test_each_row_is_a_test_row_of_one_fold(run, tmp_path):
    write(tmp_path / "t.csv")
    told = run("--task", "clicked", "--folds", "4", "--validation", "0.1", "--key", "user")
    assert "--model_dir runs/t-3 --gin_param 'fold = 3'" in told
    assert "launch.compare runs/t-0 runs/t-1 runs/t-2 runs/t-3" in told
    tests, others = [], []
    for fold in range(4):
        with config.isolated():
            data = config.load(["t.gin"], [f"fold = {fold}"]).data
        assert data.source.keys == ["user"] and data.eval_split == "validation"
        read = {s: list(data.source.scan(s, data.spec)) for s in ("train", "validation", "test")}
        tests += [place for place, _ in read["test"]]
        others.append(len(read["validation"]))
        assert sum(map(len, read.values())) == 400
    assert len(tests) == len({*tests}) == 400
    assert sum(others) / 4 == pytest.approx(40, abs=15)


def test_a_draft_with_calibration_rows_names_the_commands(run, tmp_path):
    write(tmp_path / "t.csv")
    told = run("--task", "clicked", "--task", "level", "--calibration", "0.2")
    assert "gin_configs/transfer/calibration.gin --model_dir runs/t_calibrated" in told
    assert """'tasks = ["clicked"]'""" in told and "--split calibration --curves" in told


def test_validation_rows_lie_between_the_others_in_time(run, tmp_path):
    write(tmp_path / "t.csv")
    run("--task", "clicked", "--time", "day", "--validation", "0.2")
    text = (tmp_path / "t.gin").read_text()
    starts = "{'validation': '2024-01-08', 'test': '2024-01-10'}"
    assert f"field_splits.ByTime.starts = {starts}" in text
    assert "pipeline.Pipeline.eval_split = 'validation'" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--task", "clicked", "--validation", "1.5"), "--validation must be a share of the rows"),
        (("--task", "clicked", "--validation", "0.95"), "--validation must leave rows to train on"),
        (("--task", "clicked", "--calibration", "0.95"), "--calibration must leave rows to train"),
        (("--task", "clicked", "--folds", "1"), "--folds must be at least 2"),
        (("--task", "clicked", "--folds", "3", "--holdout", "0.2"), "--folds must come without"),
        (
            ("--task", "clicked", "--folds", "3", "--time", "day"),
            "--folds must come without --time",
        ),
        (("--task", "clickd"), "--task must be one of .*Did you mean 'clicked'"),
        (("--task", "same"), "--task 'same' must vary"),
        (("--task", "id"), "be a number, or have at most 1000 classes|had"),
        (("--task", "clicked", "--holdout", "1.5"), "--holdout must be a share"),
        (("--task", "clicked", "--time", "job"), "--time 'job' must hold numbers, or times"),
        (
            (*("--task", "clicked", "--time", "day"), "--holdout", "0.05", "--validation", "0.04"),
            "--time 'day' must let validation and test start at different times, got '2024-01-10'",
        ),
        (("--task", "clicked", "--key", "job"), "--key 'job' must have at least 20 values"),
        (("--task", "clicked", "--key", "user", "--time", "day"), "--key must come without --time"),
        (("--task", "clicked", "--time_form", "day=%d"), "--time_form 'day' must give a year"),
        (("--task", "clicked", "--time_form", "day"), "--time_form must name a column and the"),
        (("--task", "clicked", "--out", "t.txt"), "--out must end in .gin"),
        (("--task", "clicked", "--out", "t.csv/t.gin"), "--out must be a file that can be written"),
        (("--task", "clicked", "--delimiter", "::"), "--delimiter must be one character"),
    ],
)
def test_a_mistake_in_a_flag_is_one_line_and_writes_nothing(run, tmp_path, args, message):
    write(tmp_path / "t.csv", rows=1100 if "id" in args else 400)
    with pytest.raises(checks.UserError, match=message):
        run(*args)
    assert not list(tmp_path.glob("*.gin"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "must hold a row, got 'an empty file'"),
        (b"a,clicked\n", "must hold a row below its header"),
        (b"39,State-gov,77516\n50,Private,83311\n", "line 1 must name the columns.*--columns"),
        (b"a,a,clicked\n1,2,0\n", r"name each column once, got \['a'\]"),
        (b"a,clicked\n1,0\n1,0,3\n", "line 3 must have 2 columns, got '3: 1,0,3'"),
        (b'a,clicked\n"x,0\n', "line 2 must close its quotes"),
        (b'a,clicked\nx "y" z,0\n', "line 2 must have its quotes around whole values"),
        (b"a,clicked\n\xe9t\xe9,0\n", "line 2 must be UTF-8.*latin-1"),
        (b"a b c\n1 2 3\n", "must hold columns between"),
        (b"a,clicked\n1,0\n1\0,1\n", r"line 3 must be text without NUL bytes.*tr -d"),
        (b"# by me, 2024\na,b,clicked\n1,2,0\n", "line 1 must be the header.*line 2 the header"),
        (b"# a, b\n# c, d\n#\na,clicked\n1,0\n", "line 1 must be the header.*tail -n \\+4"),
        (b"##v1\n##v2\n#a,clicked\n1,0\n", "line 1 must be the header.*tail -n \\+3"),
        (b"a,clicked\r1,0\r2,1\r", "line 1 must end in a line feed.*Old Macs.*tr "),
        (b"a,clicked\r1,0\n2,1\n", "line 1 must end in a line feed"),
        (b"a,clicked\n" + b"1,0\r" * 100, "line 2 must have 2 columns, got '101"),
    ],
)
def test_a_table_that_is_wrong_is_one_line(run, tmp_path, text, message):
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(checks.UserError, match=message):
        run("--task", "clicked")


def test_a_header_may_start_with_a_hash(run, tmp_path):
    rows = [f"{i % 7},{i * i % 3 % 2}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["#a,clicked", *rows]) + "\n")
    assert "#a " in run("--task", "clicked")


def test_the_command_does_without_tensorflow(tmp_path):
    write(tmp_path / "t.csv")
    call = [sys.executable, "-X", "importtime", "-m", "launch.new", "--data", "t.csv"]
    call += ["--task", "clicked"]
    done = subprocess.run(call, cwd=tmp_path, env=_ENV, capture_output=True, text=True)
    assert done.returncode == 0 and "Wrote t.gin" in done.stdout
    assert "mtl.tools.drafting" in done.stderr and " tensorflow" not in done.stderr


def test_a_file_is_not_overwritten(run, tmp_path):
    write(tmp_path / "t.csv")
    (tmp_path / "t.gin").write_text("mine")
    with pytest.raises(checks.UserError, match="Or set --force"):
        run("--task", "clicked")
    assert (tmp_path / "t.gin").read_text() == "mine"


@pytest.mark.parametrize("text", ["1", "+5.0", "1.", ".5", "1e3", "-1.5E-2", "0x1", "1_000", "1,0"])
def test_numbers_are_those_that_a_source_reads(text):
    column = columns.Column("x")
    column.add(columns.pa.chunked_array([[text]]))
    facts = column.summarize([""], columns.pa.chunked_array([[text]]))
    for dtype, is_it in (("float32", facts.is_number), ("int64", facts.kind == "int")):
        try:
            literals.parse_literal(dtype, text)
            assert is_it
        except ValueError:
            assert not is_it


def test_a_rare_class_starts_from_its_share(run, tmp_path):
    rows = [f"{i % 7},{int(i % 50 == 0)}" for i in range(1000)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    assert "Only 2.00% are '1'" in run("--task", "y")
    with config.isolated():
        (head,) = config.load(["t.gin"]).model.heads
    assert head.prior == 0.02


@pytest.mark.medium
@pytest.mark.parametrize(
    ("mean", "spread"), [(1.6e9, 3146), (1013.25, 0.01), (-7.2, 1.3), (5e-7, 1e-8), (0.3, 2e5)]
)
def test_predictions_start_within_a_thousandth_of_the_deviation(run, tmp_path, mean, spread):
    rng = random.Random(1)
    labels = [rng.gauss(mean, spread) for _ in range(300)]
    lines = ["x,y", *(f"{rng.random()},{label!r}" for label in labels)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    told = run("--task", "y")
    (head,) = config.load(["t.gin"]).model.heads
    deviation = statistics.pstdev(labels)
    assert head.prior == pytest.approx(statistics.fmean(labels), abs=deviation / 1000)
    assert head.unit == pytest.approx(deviation, rel=1e-3)
    assert f"mean {head.prior:.10g}, standard deviation" in told
    assert len(repr(head.prior)) < 18


def _draft(run, folder, lines, task):
    """The gin file of a table with an input x and a label."""
    (folder / "t.csv").write_text("\n".join([f"x,{task}", *lines]) + "\n")
    run("--task", task)
    return (folder / "t.gin").read_text()


@pytest.mark.parametrize(
    ("rows", "bins", "decay"),
    [(100, 4, 3.0), (5_000, 16, 0.089), (30_000, 32, 0.015)],
)
def test_fewer_rows_give_fewer_bins_and_more_decay(run, tmp_path, rows, bins, decay):
    rng = random.Random(0)
    lines = [f"{rng.random():.3f},{rng.random() < 0.5:d}" for _ in range(rows)]
    text = _draft(run, tmp_path, lines, "clicked")
    assert f"features.PiecewiseLinear.boundaries = {bins}\n" in text
    assert f"optimizers.AdamW.weight_decay = {decay}\n" in text
    assert "MLP.dropout = 0.1" in text


@pytest.mark.parametrize(("noise", "epochs"), [(0.1, 40), (3.0, 10)])
def test_a_number_with_little_noise_gets_more_epochs_and_no_dropout(run, tmp_path, noise, epochs):
    rng = random.Random(0)
    xs = [rng.random() for _ in range(5_000)]
    text = _draft(run, tmp_path, [f"{x:.4f},{x + rng.gauss(0, noise):.4f}" for x in xs], "price")
    assert "MLP.dropout" not in text and "features.PiecewiseLinear.names = ['x']" in text
    steps = int(re.search(r"train_steps = (\d+)", text)[1])
    assert epochs <= steps * 128 / 4_500 < epochs + 1


@pytest.mark.parametrize(("rows", "part"), [(2_000, "PiecewiseLinear"), (6_000, "Categorical")])
def test_whole_numbers_become_categories_if_each_has_enough_rows(run, tmp_path, rows, part):
    rng = random.Random(0)
    lines = [f"{rng.randint(1, 10)},{rng.random() < 0.5:d}" for _ in range(rows)]
    text = _draft(run, tmp_path, lines, "clicked")
    found = [one for one in ("PiecewiseLinear", "Categorical") if f"{one}.names = ['x']" in text]
    assert found == [part]
