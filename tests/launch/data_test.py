"""launch.data as a user types it, and as a user mistypes it."""

import json
import re

import numpy as np
import pytest
from tensorflow_metadata.proto.v0 import statistics_pb2


def _write(path, rows, shift=0, header="age,city,clicked"):
    draw = np.random.default_rng(rows)
    cities = ["Rome", "Paris"] if not shift else ["Rome", "Oslo"]
    lines = [
        f"{draw.integers(20, 60) + shift},{draw.choice(cities)},{int(draw.random() < 0.2)}"
        for _ in range(rows)
    ]
    path.write_text("\n".join([header, *lines]) + "\n")


@pytest.fixture
def folder(tmp_path):
    _write(tmp_path / "train.csv", 1000)
    _write(tmp_path / "new.csv", 300, shift=20)
    _write(tmp_path / "same.csv", 200)
    return tmp_path


@pytest.mark.slow
def test_a_table_is_described(folder, launch):
    result = launch(
        "data", "train.csv", "--statistics", "s.pb", "--schema", "s.pbtxt", "--output", "p.html"
    )
    assert result.code == 0 and result.out.startswith("train.csv: 1,000 rows, 3 columns")
    assert result.err.splitlines() == ["Page: p.html", "Statistics: s.pb", "Schema: s.pbtxt"]
    made = statistics_pb2.DatasetFeatureStatisticsList.FromString((folder / "s.pb").read_bytes())
    assert made.datasets[0].num_examples == 1000 and len(made.datasets[0].features) == 3
    assert 'name: "age"' in (folder / "s.pbtxt").read_text()
    assert (folder / "p.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_drift_fails_a_job_with_one_line(folder, launch):
    result = launch("data", "train.csv", "--against", "new.csv", "--fail_above", "0.1")
    assert result.code == 1 and "2 of 3 fields drift" in result.out
    assert re.fullmatch(
        r"Drift above 0.1 in 2 fields: .*'city': L-inf.*'age': KS.*\n|"
        r"Drift above 0.1 in 2 fields: .*'age': KS.*'city': L-inf.*\n",
        result.err,
    )
    result = launch("data", "train.csv", "--against", "same.csv", "--fail_above", "0.01")
    assert result.code == 0 and "0 of 3 fields drift" in result.out and not result.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, says",
    [
        ((), "the arguments must name files, or come with --gin_file or --model_dir, got []."),
        (("trian.csv",), "the files must name existing files, got 'trian.csv'. Did you mean"),
        (("train.csv", "--fail_above", "0.1"), "--fail_above must come with --against or --input"),
        (("train.csv", "--against=new.csv", "--fail_above=2"), "--fail_above must be in [0, 1)"),
        (("train.csv", "--output", "p.pdf"), "--output must end in .html, got 'p.pdf'."),
        (("train.csv", "--schema", "s.json"), "--schema must end in .pb or .pbtxt"),
        (("train.csv", "--output", "none/../x.html"), None),
        (("train.csv", "--input", "new.csv"), "--input must come with --gin_file or --model_dir"),
        (("train.csv", "--model_dir", "x"), "the arguments must name files, or come with"),
        (("--model_dir", "x", "--against", "new.csv"), "--against must be left out for a run"),
        (("train.csv", "--leave_out", "agee"), "--leave_out must be one of age, city, clicked"),
        (("train.csv", "--agianst", "new.csv"), "unknown flag '--agianst'. Did you mean"),
        (("train.csv", "--most", "-1"), "--most must be at least 0, got -1"),
        (("train.csv", "--delimiter", ";;"), "--delimiter must be one character"),
        (("train.csv", "--columns", "a,b"), "--columns must have a name for each of 3"),
    ],
)  # fmt: skip
def test_mistakes_are_a_line(folder, arguments, says, launch):
    result = launch("data", *arguments)
    if says is None:
        assert result.code in (0, 2) and "Traceback" not in result.err
    else:
        assert says in result.error
    assert not (folder / "s.json").exists()


@pytest.mark.slow
def test_an_output_never_replaces_an_input(folder, launch):
    (folder / "a.html.csv").write_text("x,y\n1,2\n")
    (folder / "p.html").symlink_to(folder / "train.csv")
    before = (folder / "train.csv").read_bytes()
    result = launch("data", "train.csv", "--output", "p.html")
    assert "--output must not be an input" in result.error
    assert (folder / "train.csv").read_bytes() == before


@pytest.mark.slow
def test_a_gin_file_is_described_and_compared(folder, launch):
    done = launch("new", "--data", "train.csv", "--task", "clicked")
    assert done.code == 0, done
    result = launch("data", "--gin_file", "train.gin", "--json_log", "log.jsonl")
    assert result.code == 0 and "split 'train': " in result.out and "split 'test': " in result.out
    assert "Tasks" in result.out and "clicked" in result.out
    result = launch("data", "--gin_file", "train.gin", "--input", "new.csv", "--fail_above", "0.1")
    assert result.code == 1 and "'age': KS" in result.err and "Traceback" not in result.err
    wrong = launch("data", "--gin_file", "train.gin", "--splits", "trian")
    assert "trian" in wrong.error and "train" in wrong.error
    for line in (folder / "log.jsonl").read_text().splitlines():
        json.loads(line)
