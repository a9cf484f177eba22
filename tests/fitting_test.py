"""`mtl.fit`: a table in memory becomes a trained model in one call."""

import json
import os
import pathlib
import re
import xml.etree.ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import tensorflow as tf

import mtl
from mtl import checks, fitting
from mtl.configs import config
from mtl.data import examples, frames
from mtl.tools import drafting, scoring

_FEW = ["Run.train_steps = 20", "Run.checkpoint_steps = 10"]


def _draw_rows(count, seed=0):
    drawn = np.random.default_rng(seed)
    age, country = drawn.integers(18, 80, count), drawn.choice(["DE", "FR"], count)
    clicked = drawn.random(count) < 0.1 + 0.8 * (age < 40)
    minutes = np.where(clicked, 2 + age / 10, np.nan)
    columns = {"age": age, "country": country, "clicked": clicked, "minutes": minutes}
    return pd.DataFrame(columns)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "model"
    rows, test = _draw_rows(400), _draw_rows(100, seed=1)
    tasks, keep = ["clicked", "minutes"], ["age"]  # It tells `minutes`.
    return fitting.fit(rows, tasks, folder, test=test, keep=keep, settings=_FEW)


@pytest.mark.medium
def test_it_is_the_best_checkpoint_and_its_metrics(fitted):
    with open(os.path.join(fitted.model_dir, "best", "best.json")) as file:
        best = json.load(file)
    assert fitted.step == best["step"] and fitted.steps_trained == 20
    again = mtl.load(fitted.model_dir, "best").evaluate()
    assert again == fitted.metrics and {"clicked/auc", "minutes/rmse"} < set(again)


@pytest.mark.medium
def test_it_predicts_rows_as_they_came(fitted):
    rows = _draw_rows(5, seed=2).drop(columns=["clicked", "minutes"])
    found = fitted.predict(rows)
    assert list(found.index) == list(rows.index)
    assert found["clicked/probability"].between(0, 1).all()
    without_index = fitted.predict(rows.to_dict("list"))
    np.testing.assert_array_equal(found["minutes/value"], without_index["minutes/value"])


def _draw_texts(count, seed):
    """Times, a number as a column name, lists between "^", prices, and words among numbers."""
    draw, rows = np.random.default_rng(seed), _draw_rows(count, seed)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rows["age"], "D")
    numbers = draw.integers(0, 90, count).astype(str)
    return pd.DataFrame(
        {
            0: draw.integers(0, 50, count),
            "when": days,
            "day": days.dt.date,
            "tags": [
                "^".join(draw.choice(list("abc"), k, False)) for k in draw.integers(0, 4, count)
            ],
            "price": [f"${price:,.2f}" for price in draw.gamma(2.0, 700.0, count)],
            "score": np.where(draw.random(count) < 0.1, "none", numbers),
            "clicked": np.where(draw.random(count) < 0.1, None, rows["clicked"].map(str)),
        }
    )


@pytest.mark.medium
def test_it_reads_the_table_that_it_was_fitted_on(tmp_path):
    test, folder = _draw_texts(100, seed=1), tmp_path / "model"
    fitted = fitting.fit(_draw_texts(400, 0), ["clicked"], folder, test=test, settings=_FEW)
    for text in ("list, 3 values between '^'", "written as in '$", "weekday"):
        assert text in fitted.draft
    test.rename(columns=str).to_parquet(tmp_path / "rows.parquet")
    data = fitted.experiment.data
    reader = scoring.Reader(spec=data.spec, settings=data.source)
    (chunk,) = reader.chunks([str(tmp_path / "rows.parquet")])
    expected = list(map(tf.train.Example.FromString, reader.parse(chunk).examples))
    for rows in (test, pa.Table.from_pandas(test, preserve_index=False)):
        assert fitted.evaluate(rows) == fitted.metrics
        assert len(fitted.predict(rows)["clicked/probability"]) == 100
        table = frames.Table(rows, data.spec.feature_fields, cells=fitted._cell_settings)
        found = examples.serialize_examples(table.read(0, 100))
        assert list(map(tf.train.Example.FromString, found)) == expected


@pytest.mark.medium
def test_the_draft_says_how_columns_are_used_and_is_a_gin_file(fitted):
    assert "country" in fitted.draft and "category, 2 values" in fitted.draft
    drafted = os.path.join(fitted.model_dir, "draft.gin")
    with config.isolated():
        experiment = config.load([drafted], _FEW)
    assert experiment.model == fitted.experiment.model


@pytest.mark.medium
def test_a_notebook_shows_metrics_and_curves(fitted):
    shown = fitted._repr_html_()
    pre, picture = shown[: shown.index("<svg")], shown[shown.index("<svg") :]
    assert "auc" in pre
    titles = set(xml.etree.ElementTree.fromstring(picture).itertext())
    assert any("clicked: auc" in text for text in titles), titles


@pytest.mark.medium
def test_pages_are_written_where_they_are_asked_for(fitted, tmp_path):
    assert fitted.report(rows=50) == os.path.join(fitted.model_dir, "report.html")
    path = fitted.explain(tmp_path / "explained" / "page.html", limit=60)
    assert "age" in pathlib.Path(path).read_text()
    assert any(name.endswith(".csv") for name in os.listdir(tmp_path / "explained"))
    with pytest.raises(checks.UserError, match="output must end in .html, got 'page.txt'"):
        fitted.report("page.txt")


_ROWS = _draw_rows(30)


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (_ROWS, {"tasks": ["clickd"]}, "tasks must be one of .* Did you mean 'clicked'"),
        (
            _ROWS.assign(spent=pd.to_timedelta(_ROWS["age"], unit="s")),
            {"tasks": ["spent"]},
            r"tasks must name a column .*, not one of type duration\[\w+\], got 'spent'",
        ),
        (_ROWS, {"tasks": "clicked"}, "tasks must be a list of texts, got 'clicked'"),
        (_ROWS, {"tasks": []}, "tasks must name a column"),
        (_ROWS, {"tasks": ["clicked"], "holdout": 1}, "holdout must be a share of the rows"),
        (
            _ROWS,
            {"tasks": ["clicked"], "holdout": 0.2, "test": _ROWS},
            "test must come without holdout",
        ),
        (_ROWS, {"tasks": ["clicked"], "folds": 1}, "mtl.fit: folds must be at least 2, got 1"),
        (
            _ROWS,
            {"tasks": ["clicked"], "folds": 3, "time": "age"},
            "folds must come without time",
        ),
        (
            _ROWS,
            {"tasks": ["clicked"], "calibration": 0.95},
            "calibration must leave rows to train",
        ),
        (_ROWS, {"tasks": ["clicked"], "validation": 0.01}, "mtl.fit: validation must"),
        (_ROWS, {"tasks": ["clicked"], "time_forms": {"day": "%d"}}, "time_forms must be one of"),
        (_ROWS, {"tasks": ["clicked"], "time_forms": {"age": "%q"}}, r"forms\['age'\] must use %Y"),
        (
            _ROWS,
            {"tasks": ["clicked"], "time_forms": {"country": "%d/%m/%Y"}, "time": "country"},
            r"time_forms 'country' must fit values such as '\w+', got '%d/%m/%Y'",
        ),
        (
            _ROWS,
            {"tasks": ["clicked"], "time_forms": {"country": "seconds"}},
            "time_forms 'country' must fit values",
        ),
        (
            _ROWS,
            {"tasks": ["clicked"], "keep": ["age"], "leave_out": ["age"]},
            "mtl.fit: keep must name other columns than leave_out, got .'age'",
        ),
        (_ROWS, {"tasks": ["clicked"], "time": "country"}, "^mtl.fit: time 'country' must hold"),
        (_ROWS, {"tasks": ["clicked"], "key": "country"}, "^mtl.fit: key 'country' must have at"),
        (_ROWS, {"tasks": ["clicked"], "time": "age", "key": "country"}, "key must come without"),
        (_ROWS, {"tasks": ["clicked"], "keep": ["clicked"]}, "keep must not be a task"),
        (
            {"age": np.arange(400) % 70 / 7, "clicked": np.arange(400) % 70 > 30},
            {"tasks": ["clicked"]},
            r"besides the labels, got \['age'\]\. 'age' alone predicts .*: keep=\['age'\]\.",
        ),
        ({"a": [3, 3], "b": [0, 1]}, {"tasks": ["b"]}, "got .'a'.*'a' is left out: always '3'."),
        (3, {"tasks": ["clicked"]}, "data must be a DataFrame, .* or a path, got <class 'int'>"),
        ([], {"tasks": ["clicked"]}, "data must hold rows, got 0"),
        ({"a": [1, 2], "b": [1]}, {"tasks": ["a"]}, "data must be a table whose columns have one"),
        (pd.DataFrame({"a": [1, "x"]}), {"tasks": ["a"]}, "column a with type object"),
        ({"a": [2**70, 1]}, {"tasks": ["a"]}, "data must be a table .* too large"),
        ("none.csv", {"tasks": ["a"]}, "data must name existing files, got '.*none.csv'"),
        (_ROWS, {"tasks": ["clicked"], "settings": ["Run.train_step = 1"]}, "Did you mean 'train"),
        (
            _ROWS.assign(bin=pd.cut(_ROWS["age"], 3)),
            {"tasks": ["clicked"]},
            r"column 'bin' must hold numbers.*pandas.interval.*data\['bin'\].astype\(str\)",
        ),
        (
            _ROWS.assign(month=pd.period_range("2024-01", periods=30, freq="M")),
            {"tasks": ["clicked"]},
            "column 'month' must hold numbers, .*pandas.period",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(data, arguments, message, tmp_path):
    with pytest.raises(checks.UserError, match=message):
        fitting.fit(data, model_dir=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_a_wrong_setting_is_named_as_an_argument(tmp_path):
    message = "^mtl.fit: settings 'Run.train_step=3': .*Did you mean 'train_steps'"
    with pytest.raises(checks.UserError, match=message):
        fitting.fit(_ROWS, ["clicked"], tmp_path / "run", settings=["Run.train_step=3"])
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
def test_a_mistake_that_training_finds_leaves_nothing(tmp_path):
    settings = ["Pipeline.batch_size = 1000000000"]
    with pytest.raises(checks.UserError, match="batch_size"):
        fitting.fit(_ROWS, ["clicked"], tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(checks.UserError, match="model_dir must be a new folder.*mtl.load reads"):
        fitting.fit(_ROWS, ["clicked"], tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]


def test_a_folder_that_is_not_a_path_is_one_line():
    with pytest.raises(checks.UserError, match="model_dir must be the path of a folder, got 5"):
        fitting.fit(_ROWS, ["clicked"], 5)


def test_runs_without_a_name_do_not_meet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fitting._choose_folder(None) == "runs/fit"
    os.makedirs("runs/fit")
    os.makedirs("runs/fit-2")
    assert fitting._choose_folder(None) == "runs/fit-3"


class _Polars:
    """A table that converts itself to Arrow, like a table of polars."""

    columns = list(_ROWS)

    def to_arrow(self):
        return pa.table(_ROWS.to_dict("list"))


@pytest.mark.parametrize(
    "form",
    [
        _ROWS,
        _Polars(),
        pa.table(_ROWS.to_dict("list")),
        pa.record_batch(_ROWS.to_dict("list")),
        _ROWS.to_dict("list"),
        {name: values.to_numpy() for name, values in _ROWS.items()},
        _ROWS.to_dict("records"),
    ],
    ids=["pandas", "polars", "arrow", "record batch", "lists", "arrays", "rows"],
)
def test_every_form_of_a_table_is_the_same_table(form):
    table = fitting._read_table("data", form)
    pd.testing.assert_frame_equal(table.to_pandas(), _ROWS)


@pytest.mark.parametrize("form", ["pandas", "lists", "rows"])
def test_times_of_several_zones_stay_as_written(form):
    times = [pd.Timestamp("2024-05-31 13:45", tz=zone) for zone in ("UTC", "Asia/Tokyo")]
    columns = {"time": times, "x": [1, 2]}
    rows = [{"time": time, "x": x} for time, x in zip(times, (1, 2), strict=True)]
    forms = {"lists": columns, "rows": rows}
    form = forms.get(form, pd.DataFrame(columns))
    texts = fitting._read_table("data", form)["time"].to_pylist()
    assert [text[:19] + text[-5:].lstrip("0.") for text in texts] == [
        "2024-05-31 13:45:00Z",
        "2024-05-31 13:45:00+0900",
    ]


def test_a_key_that_the_first_row_lacks_is_a_column():
    table = fitting._read_table("data", [{"a": 1}, {"b": "x", "a": 2}, {"b": None}])
    assert table.to_pydict() == {"a": [1, 2, None], "b": [None, "x", None]}
    rows = [row for _, row in pd.DataFrame({"a": ["x", "y"]}).iterrows()]
    assert fitting._read_table("data", rows).to_pydict() == {"a": ["x", "y"]}


class _Column:
    """A column that converts itself to Arrow, like a column of polars."""

    def to_arrow(self):
        return pa.array([1, 2])


@pytest.mark.parametrize("form", [_Column(), pa.array([1, 2]), _ROWS["age"], 5, [1]])
def test_what_is_not_a_table_is_one_line(form):
    with pytest.raises(checks.UserError, match="must be a DataFrame, an Arrow table, a dict of"):
        fitting._read_table("data", form)


def _plan(tmp_path, rows, tasks=("clicked",), **arguments):
    forms = arguments.pop("time_forms", {})
    holdout = fitting._read_holdout(arguments, None)
    uses = {
        "missing": (),
        "values": (),
        "leave_out": (),
        "keep": ["age"],
        **arguments.pop("uses", {}),
    }
    return fitting._plan_run(rows, None, str(tmp_path), tasks, holdout, forms, uses)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"validation": 0.2}, ["pipeline.Pipeline.eval_split = 'validation'"]),
        (
            {"calibration": 0.2},
            ["splits.Splits.shares = {'train': 0.7, 'calibration': 0.2, 'test': 0.1}"],
        ),
        ({"folds": 4}, ["fold = 0", "splits.Splits.folds = 4", "splits.Splits.fold = %fold"]),
        (
            {"time_forms": {"day": "%d/%m/%Y"}, "time": "day"},
            ["field_splits.ByTime.form = '%d/%m/%Y'"],
        ),
    ],
)
def test_splits_and_time_forms_are_those_of_a_draft(arguments, lines, tmp_path):
    rows = _draw_rows(400)
    rows["day"] = [f"{1 + row % 12:02d}/{1 + row // 34:02d}/2024" for row in range(400)]
    plan = _plan(tmp_path, rows, **arguments)
    with open(fitting._write_draft(plan, str(tmp_path), ["clicked"])) as file:
        assert set(lines) <= set(file.read().split("\n"))


@pytest.mark.medium
def test_a_fold_is_the_test_split_and_metrics_are_those_of_test_rows(tmp_path):
    rows = _draw_rows(300)
    settings = [*_FEW, "fold = 2"]
    model = fitting.fit(
        rows,
        ["clicked"],
        tmp_path / "run",
        folds=3,
        validation=0.2,
        keep=["age"],
        settings=settings,
    )
    assert model.metrics == model.evaluate(split="test") != model.evaluate(split="validation")
    source = model.experiment.data.source
    assert source.fold == 2 and source.folds == 3


def test_a_mark_that_is_as_frequent_as_a_class_may_be_a_class(tmp_path):
    rows = _draw_rows(300)
    rows["market"] = ["NA", "EU", "US"] * 100
    told = (
        "'NA' of 'market', in 100 rows, counts as a missing label. If it is a class: --value 'NA'"
    )
    plan = _plan(tmp_path, rows, ["market"])
    assert plan.doubts[0] == told and plan.tasks[0].head == "Binary"
    plan = _plan(tmp_path, rows, ["market"], uses={"values": ["NA"]})
    assert told not in plan.doubts and plan.tasks[0].settings["classes"] == ["EU", "NA", "US"]
    assert told not in _plan(tmp_path, rows, ["market"], uses={"missing": ["NA"]}).doubts


def test_flags_of_the_draft_are_named_as_arguments():
    renamed = {
        "Then --keep 'age'.": "Then keep=['age'].",
        "--key 'user' keeps them": "key='user' keeps them",
        "is right: --time_form 'day=%d/%m/%Y'": "is right: time_forms={'day': '%d/%m/%Y'}",
        "Then set --delimiter.": "Then set launch.new --delimiter.",
        "--missing=-999": "missing=-999",
        "If it is a class: --value 'NA'": "If it is a class: values=['NA']",
        "left out: the --key of the splits": "left out: the key of the splits",
        "got 'a--keep'": "got 'a--keep'",
    }
    assert {text: fitting.rename_flags(text) for text in renamed} == renamed


def test_every_flag_of_the_draft_has_an_argument_or_is_named_with_its_command():
    folder = pathlib.Path(drafting.__file__).parent
    flags = {
        flag
        for path in folder.glob("*.py")
        for flag in re.findall(r"--([a-z_]+)", path.read_text())
    }
    of_files = {"delimiter", "list_delimiter", "columns", "comment", "sheet"}
    # `mtl.fit` writes no page of the draft, and so no error about one.
    others = {"number_form", "gin_file", "gin_param", "page"}
    assert flags - fitting._ARGUMENTS.keys() == of_files | others
