"""`launch.report`, `compare` and `explain` on runs of the toy, also with wrong arguments."""

import csv
import json
import re
import shutil

import pytest

from mtl.checkpoints import lock
from tests.launch import launchers_test, toy
from tests.tools.reports import page_test

pytestmark = pytest.mark.slow

EXPLAIN = ("explain", "--model_dir", "runs/a")
PREDICT = ("predict", "--model_dir", "runs/a")
# The run of another network.
OTHER = (
    "train",
    "--gin_file",
    "toy.gin",
    "--gin_param",
    "trunk/MLP.layers = [3]",
    "--model_dir",
    "runs/a",
)
CLASSES = "level/heads.MultiClass.classes = ['low', '<script>alert(1)</script>', 'high']"


@pytest.fixture(scope="module")
def trained(launch_in, tmp_path_factory):
    """A directory with two runs, a and b, that differ in the names of classes and the seed."""
    directory = tmp_path_factory.mktemp("reported")
    toy.write(directory)
    params = (CLASSES, "Run.summary_steps = 5", "Run.checkpoint_steps = 20")
    args = ["--gin_file", "toy.gin", "--gin_param", "Serving.check_rows = 0"]
    for param in params:
        args += ["--gin_param", param]
    result = launch_in(directory, "train", *args, "--model_dir", "runs/a")
    assert result.code == 0, result
    assert "launch.report --model_dir runs/a" in result.out
    shutil.copytree(directory / "runs" / "a", directory / "runs" / "b")
    config = directory / "runs" / "b" / "config.gin"
    _, *lines = config.read_text().splitlines()
    config.write_text("\n".join([*lines, "experiment.Run.seed = 2", ""]))
    return directory


@pytest.fixture
def run(trained, launch_in):
    """Run a launcher where the runs are."""
    return lambda *args: launch_in(trained, *args)


@pytest.fixture(scope="module")
def written(trained, launch_in):
    """The report of the run a."""
    folder = trained / "runs" / "a"
    before = launchers_test.files(folder)
    result = launch_in(trained, "report", "--model_dir", "runs/a")
    assert result.code == 0 and result.out == "Report: runs/a/report.html\n", result
    after = launchers_test.files(folder)
    assert after.pop(folder / "report.html") and after == before
    return (folder / "report.html").read_text()


def test_a_report_stands_alone_and_escapes_the_names_of_classes(written):
    page_test.assert_stands_alone(written)
    assert "<script>" not in written and "&lt;script&gt;alert(1)&lt;/script&gt;" in written


def test_its_numbers_are_those_of_the_evaluation_to_the_last_digit(trained, written):
    best = json.loads((trained / "runs" / "a" / "best" / "best.json").read_text())
    exact = json.dumps(best["value"])
    row = re.search(r"<td>auc</td>\s*<td[^>]*>(.*?)</td>", written).group(1)
    assert f'<data value="{exact}" title="{exact}">' in row
    assert f'<p class="value"><data value="{exact}"' in written


def test_the_confusion_is_that_of_the_accuracy(written):
    counts = re.findall(r'<td class="(hit|miss)" style="[^"]*">([\d,]*)</td>', written)
    for part in (counts[:4], counts[4:]):
        hits = sum(int(n) for kind, n in part if n and kind == "hit")
        total = sum(int(n) for _, n in part if n)
        exact = re.findall(r'<td>accuracy</td>\s*<td[^>]*><data value="([\d.]+)"', written)
        assert total == 40 and any(abs(float(value) - hits / 40) < 1e-6 for value in exact)


def test_it_holds_what_a_reader_looks_for(written):
    for title in ("Verdict", "Data", "Curves", "Evaluation", "Problems", "Configuration"):
        assert f"<h2>{title}</h2>" in written
    assert "Both tasks beat a trivial model" in written and "finished" in written
    assert "Experts and gates: the network has no gates." in written
    assert "python -m launch.predict --model_dir runs/a" in written
    assert "<td>run (Run)</td><td>summary_steps</td>" in written.replace("\n", "")


def test_a_report_needs_no_rows_and_says_if_they_cannot_be_read(trained, run):
    data = trained / "data"
    data.rename(trained / "gone")
    try:
        without = run("report", "--model_dir", "runs/a", "--output", "b.html", "--rows", "0")
        absent = run("report", "--model_dir", "runs/a", "--output", "c.html")
    finally:
        (trained / "gone").rename(data)
    assert without.code == 0 and absent.code == 0, absent
    assert "as --rows is 0" in (trained / "b.html").read_text()
    assert "data/train.csv" in (trained / "c.html").read_text()


def test_a_run_that_still_trains_says_so(trained, run):
    with lock.hold_lock(str(trained / "runs" / "a")):
        result = run("report", "--model_dir", "runs/a", "--output", "d.html", "--rows", "0")
    assert result.code == 0, result
    assert "still training, step 20 of 20" in (trained / "d.html").read_text()


def test_runs_side_by_side(trained, run):
    args = ("runs/a", "runs/b", "--csv", "runs.csv", "--html", "runs.html")
    result = run("compare", *args)
    assert result.code == 0, result
    assert re.search(r"run\.seed +1 +2", result.out) and "rich/auc" in result.out
    page_test.assert_stands_alone((trained / "runs.html").read_text())
    first, second = csv.DictReader((trained / "runs.csv").open())
    assert (first["run"], second["setting: run.seed"]) == ("a", "2")
    assert first["rich/auc"] == second["rich/auc"]
    assert int(first["parameters"]) > 100 and int(first["export_bytes"]) > 1000


def test_a_run_is_explained_on_one_page_with_tables(trained, run):
    few = ("--repeats", "2", "--batches", "3", "--steps", "16")
    before = launchers_test.files(trained / "runs" / "a" / "best")
    result = run("explain", "--model_dir", "runs/a", "--checkpoint", "best", *few)
    assert result.code == 0 and result.out == "Explained: runs/a/explained/explain.html\n", result
    assert launchers_test.files(trained / "runs" / "a" / "best") == before
    folder = trained / "runs" / "a" / "explained"
    text = (folder / "explain.html").read_text()
    page_test.assert_stands_alone(text)
    assert "<script>" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    for title in ("Which fields matter", "Single predictions", "Partial dependence", "Gradients"):
        assert f"<h2>{title}" in text
    best = json.loads((trained / "runs" / "a" / "best" / "best.json").read_text())
    lines = list(csv.DictReader((folder / "importance.csv").open()))
    assert {line["input"] for line in lines} == {"age", "job"}
    of_auc = next(line for line in lines if (line["task"], line["metric"]) == ("rich", "auc"))
    assert float(of_auc["value"]) == best["value"]
    exact = of_auc["worse_by"]
    assert f'<data value="{exact}" title="{exact}">' in text
    for name in ("attributions", "dependence", "gradients"):
        assert len((folder / f"{name}.csv").read_text().splitlines()) > 1


def test_a_page_alone_is_written_for_what_is_asked_for(trained, run):
    args = ("--tasks", "rich", "--fields", "age", "--dependence", "job", "--rows", "7")
    result = run("explain", "--model_dir", "runs/a", *args, "--output", "one/why.html")
    assert result.code == 0, result
    assert "Left out: Gradients: a comparison needs several tasks" in result.err
    assert [path.name for path in (trained / "one").iterdir()] == ["why.html"]
    text = (trained / "one" / "why.html").read_text()
    assert "<h3>Row 7</h3>" in text and "<h3>rich</h3>" in text and "<h3>level</h3>" not in text


def test_a_folder_of_runs_in_the_order_of_a_metric(run):
    result = run("compare", "--runs", "runs", "--metric", "level/average_loss")
    assert result.code == 0, result
    assert re.search(r"1 +a +0\.\d{4}", result.out) and "run.seed=2" in result.out
    error = run("compare", "--runs", "runs", "--metric", "zzz").error
    assert re.search(r"got 'zzz'\. There are: (\S+, ){19}\S+ and [1-9]\d* more\.", error), error


@pytest.mark.parametrize(
    "args,error",
    [
        (("report",), "--model_dir must name the folder of a run"),
        (("report", "--model_dir", "runs/no"), "--model_dir must hold the config.gin of a run"),
        (("report", "--model_dir", "runs/a", "--output", "x.pdf"), "--output must end in .html"),
        (("report", "--model_dir", "runs/a", "--rows", "-1"), "--rows must be at least 0"),
        (("report", "--model_dir", "runs/a", "--rows", "many"), "flag --rows=many"),
        (
            ("report", "--model_dir", "runs/a", "--output", "runs/a/best/x.html"),
            "--output must not be a file of the run itself",
        ),
        (
            ("report", "--model_dir", "runs/a", "--output", "data/test.csv/x.html"),
            "--output must be a file that can be written",
        ),
        (("report", "--model_dr", "runs/a"), "Did you mean '--model_dir'"),
        ((*PREDICT, "--keep", "agee"), "--keep must be one of age, job, rich, level, got 'agee'"),
        ((*PREDICT, "--keep", "age", "--keep", "age"), "--keep must hold each name once"),
        ((*PREDICT, "--split", "tset"), "Did you mean 'test'?"),
        ((*PREDICT, "--split", "test", "--input", "data/test.csv"), "--split must be left out"),
        ((*PREDICT, "--input", "data/tset.csv"), "Did you mean 'test.csv'?"),
        ((*PREDICT, "--output", "data/test.csv"), "--output must not be an input"),
        ((*PREDICT, "--output", "data/"), "--output must be a file for a split, got 'data/'"),
        ((*PREDICT, "--output", "data/test.csv/x.csv"), "--output must be a file that can"),
        ((*PREDICT, "--output", "x.html"), "got 'x.html'. Or set --output_format."),
        ((*PREDICT, "--checkpoint", "worst"), "--checkpoint must be 'latest', 'best' or a path"),
        ((*PREDICT, "--keep"), "keep"),
        ((*OTHER, "--dry_run"), "network/"),
        (("explain",), "--model_dir must name the folder of a run"),
        ((*EXPLAIN, "--tasks", "ritch"), "Did you mean 'rich'?"),
        ((*EXPLAIN, "--fields", "agee"), "Did you mean 'age'?"),
        ((*EXPLAIN, "--group", "age"), "--group must hold several fields"),
        ((*EXPLAIN, "--dependence", "jobb"), "Did you mean 'job'?"),
        ((*EXPLAIN, "--split", "tset"), "Did you mean 'test'?"),
        ((*EXPLAIN, "--limit", "39"), "split 'test' must have at least 40 rows, got 39"),
        ((*EXPLAIN, "--limit", "0"), "--limit must be at least 1"),
        ((*EXPLAIN, "--repeats", "0"), "--repeats must be at least 1"),
        ((*EXPLAIN, "--rows", "2,x"), "--rows must hold numbers of rows, from 0 on, got 'x'"),
        ((*EXPLAIN, "--rows", "40"), "--rows must be below 40"),
        ((*EXPLAIN, "--class", "level"), "--class must be TASK=CLASS"),
        ((*EXPLAIN, "--class", "levle=low"), "Did you mean 'level'?"),
        ((*EXPLAIN, "--class", "level=lo"), "Did you mean 'low'?"),
        ((*EXPLAIN, "--baseline", "men"), "Did you mean 'mean'?"),
        ((*EXPLAIN, "--checkpoint", "worst"), "--checkpoint must be 'latest', 'best' or a path"),
        ((*EXPLAIN, "--output", "runs/a/best"), "--output must not be a file of the run itself"),
        ((*EXPLAIN, "--output", "data/train.csv"), "--output must end in .html or be a folder"),
        ((*EXPLAIN, "--output", "why.pdf"), "--output must end in .html or be a folder"),
        ((*EXPLAIN, "--output", "data/train.csv/x"), "--output must be a folder that can"),
        (("compare", "runs/a"), "the folders must be two runs or more"),
        (("compare", "runs/a", "runs/a/"), "the folders must be named once each"),
        (("compare", "runs/a", "runs/bb"), "Did you mean 'b'?"),
        (("compare", "runs/a", "data"), "the folder must hold the config.gin of a run"),
        (("compare", "--runs", "runs"), "--metric must come with --runs"),
        (("compare", "--runs", "data", "--metric", "x"), "--runs must hold folders with a"),
        (("compare", "--runs", "runs", "--metric", "rich/auk"), "Did you mean 'rich/auc'?"),
        (("compare", "--runs", "runs", "--metric", "rich/label_mean"), "--metric must be a metric"),
        (("compare", "runs/a", "runs/b", "--metric", "rich/auc"), "--metric must come with --runs"),
        (("compare", "runs/a", "runs/b", "--csv", "x.txt"), "--csv must end in .csv"),
        (("compare", "runs/a", "runs/b", "--csv", "data/train.csv"), "--csv must not be an input"),
        (("compare", "runs/a", "runs/b", "--gin_file", "toy.gin"), "has no flag --gin_file"),
    ],
)
@pytest.mark.drawn(20)
def test_what_is_typed_wrong_is_one_line(run, args, error):
    assert error in run(*args).error


def test_runs_of_other_tasks_are_not_compared(trained, run, launch_in):
    other = trained / "other"
    shutil.copytree(trained / "runs" / "a", other)
    config = other / "config.gin"
    _, *lines = config.read_text().splitlines()
    text = "\n".join(lines)
    config.write_text(re.sub(r"'rich'", "'poor'", text).replace("poor/heads", "rich/heads"))
    error = run("compare", "runs/a", "other").error
    assert error.startswith("the runs must have the same tasks: a has level, rich, other has")
    shutil.copytree(other, trained / "mixed" / "a")
    shutil.copytree(trained / "runs" / "a", trained / "mixed" / "b")
    error = run("compare", "--runs", "mixed", "--metric", "average_loss").error
    assert error.startswith("the runs must have the same tasks")


def test_a_run_without_a_checkpoint_yet(trained, run):
    folder = trained / "started"
    folder.mkdir()
    shutil.copy(trained / "runs" / "a" / "config.gin", folder)
    result = run("report", "--model_dir", "started", "--rows", "0")
    assert result.code == 0, result
    text = (folder / "report.html").read_text()
    assert "stopped at step 0 of 20" in text and "no checkpoint is saved yet" in text
    assert "n/a" in run("compare", "runs/a", "started").out
