"""No prediction takes the place of a model's files, of data or of a setting's."""

import os

import pytest

from mtl import checks
from mtl.data import csv, files
from mtl.tools.clip_audit import numbered
from mtl.tools.scoring import protection


@pytest.fixture
def folder(tmp_path):
    names = ["run/model.ckpt-20.index", "run/checkpoint", "run/config.gin", "run/events.out.1"]
    names += ["run/clip_audit/checkpoints/samples.csv", "else/model.ckpt-20.data-00000-of-00001"]
    names += ["models/7/saved_model.pb", "models/7/variables/variables.index", "data/train.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    return tmp_path


@pytest.mark.parametrize(
    "output, says",
    [
        ("run/model.ckpt-20.index", "not be part of a checkpoint"),
        ("link/checkpoint", "not be part of a checkpoint"),
        ("else/model.ckpt-20.data-00000-of-00001", "not be part of a checkpoint"),
        ("run/config.gin", "not be a file of the run itself"),
        ("link/config.gin", "not be a file of the run itself"),
        ("run/../run/events.out.1", "not be a file of the run itself"),
        ("run/metrics.jsonl", "not be a file of the run itself"),
        ("run/tracking/new.jsonl", "not be a file of the run itself"),
        ("run/new", "not be a file of the run itself"),
        ("run/clip_audit/checkpoints/samples.csv", "not be a file of the run itself"),
        ("run/eval_test/new.csv", "not be a file of the run itself"),
        ("run/cluster/new.csv", "not be a file of the run itself"),
        ("run/out.onnx", "not be a file of the run itself"),
        ("models/7/saved_model.pb", "lie outside of an export"),
        ("models/7/variables/variables.jsonl", "lie outside of an export"),
        ("data/train.csv", "not be an input"),
        ("data/train.csv/x/out.csv", "be a file that can be written"),
        ("data/../data/./train.csv", "not be an input"),
        ("run/out.csv", None),
        ("run/out/a.jsonl", None),
        ("run/out/a.jsonl-00000-of-00002", None),
        ("running.csv", None),
        ("checkpoint", None),
        ("models/out.csv", None),
        ("data/test.csv", None),
    ],
)
def test_what_may_be_written(output, says, folder):
    guard = protection.Protection(
        files=[str(folder / "data" / "train.csv")], model_dir=str(folder / "run")
    )
    if says is None:
        guard.check(str(folder / output))
        return
    with pytest.raises(checks.UserError, match=f"--output must {says}, got"):
        guard.check(str(folder / output))


def test_outputs_lie_on_this_machine_unless_they_may_lie_anywhere(monkeypatch):
    monkeypatch.setattr(protection.remote, "exists", lambda path: False)
    monkeypatch.setattr(protection.remote, "require_writable", lambda where, path: None)
    with pytest.raises(checks.UserError, match="--output must .*s3://bucket/out.csv"):
        protection.Protection().check("s3://bucket/out.csv")
    protection.Protection(anywhere=True).check("s3://bucket/out.csv")


def test_a_pipe_may_lie_anywhere(folder):
    guard = protection.Protection(files=[], model_dir=str(folder / "run"))
    os.mkfifo(folder / "run" / "new")
    guard.check(str(folder / "run" / "new"))


def test_outputs_of_another_kind_have_endings_of_their_own(folder):
    guard = protection.Protection(model_dir=str(folder / "run"), where="--onnx", endings=("onnx",))
    guard.check(str(folder / "run" / "digits.onnx"))
    for name in ("config.gin", "statistics.json", "out.csv", "best/digits.onnx"):
        with pytest.raises(checks.UserError, match="--onnx must not be a file of the run itself"):
            guard.check(str(folder / "run" / name))


def test_files_that_a_source_names(folder):
    for name in ("a-1.csv", "a-2.csv", "b.csv"):
        (folder / "data" / name).write_text("")
    splits = {"train": ["a-*.csv", "b.csv"], "test": "train.csv", "gone": "none.csv"}
    source = csv.Csv(files=splits, data_dir=str(folder / "data"))
    named = [os.path.basename(path) for path in files.named_by(source)]
    assert named == ["a-1.csv", "a-2.csv", "b.csv", "train.csv"]
    assert files.named_by(numbered.Numbered(source=source)) == files.named_by(source)
    assert files.named_by(object()) == []
