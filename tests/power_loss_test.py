"""Whatever a power cut makes of a small file, it is recovered from, or refused in one line."""

import json
import os

import gin
import numpy as np
import pytest

from mtl import checkpoints, checks, types
from mtl.checkpoints import given_files, run_directory
from mtl.configs import config
from mtl.distribution import heartbeat
from mtl.features import accumulators, statistics
from mtl.monitoring import doubts
from mtl.runs import fitting
from mtl.variables import row_names
from tests.checkpoints import leftovers_test

_RANDOM = np.random.default_rng(0)
DAMAGE = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "random": lambda data: _RANDOM.bytes(len(data)),
    "brackets": lambda data: b"[" * 100_000,
    "list": lambda data: b"[1]",
}
BEST = checkpoints.Best(metric="m", higher_is_better=True)
STEPS = (8, 9, 10)


@pytest.fixture(name="run")
def _run(tmp_path):
    """A run without its training: all the small files."""
    run = tmp_path / "run"
    for step in STEPS:
        leftovers_test.write(str(run / f"model.ckpt-{step}"))
        run_directory.add_checkpoint(str(run / f"model.ckpt-{step}"), keep=3)
    keeper = checkpoints.BestKeeper(BEST, str(run))
    keeper.update(str(run / "model.ckpt-10"), {"m": 0.5, "global_step": 10})
    read = accumulators.Vocabulary(reads={"w": lambda f: f}, min_count=1, max_size=None)
    read.update(np.array([b"red", b"green", b"blue"] * 4, object))
    statistics.save_statistics({"w": read}, str(run / "statistics"))
    row_names.save({"head/": types.RowNames(names=("a", "b"), axis=-1)}, str(run))
    (tmp_path / "words.txt").write_text("red\ngreen\n")
    given_files.keep_checksums({"w": str(tmp_path / "words.txt")}, str(run), is_new=True)
    doubts.record_doubts(str(run), "data", ["a line"])
    gin.clear_config()
    gin.parse_config("x = 3")
    config.save(str(run))
    heart = heartbeat.Heartbeat(str(run), "chief-0", [], 60)
    os.makedirs(run / "cluster")
    heart.publish_phase("training")
    return run


def _read(run):
    """Return {file: a function that reads it}, for the files that every verb reads first."""
    at = str(run)
    return {
        "checkpoint": lambda: [run_directory.checkpoint_path(at, w) for w in ("latest", "best")],
        "best/checkpoint": lambda: run_directory.checkpoint_path(at, "best"),
        "best/best.json": lambda: checkpoints.BestKeeper(BEST, at).read(),
        "statistics/statistics.json": lambda: fitting.load_statistics(at).entries,
        "statistics/vocabulary_w.txt": lambda: fitting.load_statistics(at).entries,
        "row_names.json": lambda: row_names.load(at),
        "given_files.json": lambda: given_files.check_unchanged({}, at),
        "warnings.json": lambda: doubts.read_all_doubts(at),
        "config.gin": lambda: config.read(config.saved_in(at)),
        "cluster/chief-0": lambda: heartbeat.Heartbeat(at, "a", ["chief-0"], 60).read_phase(
            "chief-0"
        ),
    }


RECOVERED = ("checkpoint", "best/checkpoint")
OF_NO_WEIGHT = ("warnings.json", "cluster/chief-0")
FILES = sorted(_read("run"))


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_damage_is_recovered_from_or_one_line(run, file, how):
    if file == "config.gin" and how in ("brackets", "list"):
        pytest.skip("It may be a user's: without its checksum it is gin that refuses it.")
    read, path = _read(run)[file], run / file
    expected, data = read(), path.read_bytes()
    path.write_bytes(DAMAGE[how](data))
    if file in RECOVERED:
        assert read() == expected
    elif file in OF_NO_WEIGHT:
        assert not read()
    else:
        with pytest.raises(checks.UserError) as error:
            read()
        line = str(error.value)
        assert str(path) in line and "damaged" in line and "\n" not in line
    path.write_bytes(data)
    assert read() == expected


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("folder", ["", "best"])
def test_a_list_that_is_damaged_is_written_anew(run, folder, how, caplog):
    path = run / folder / "checkpoint"
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    steps = STEPS if not folder else (10,)
    paths = [str(run / folder / f"model.ckpt-{step}") for step in steps]
    assert run_directory.list_checkpoints(str(run / folder)) == paths
    run_directory.repair_run(str(run / folder))
    listed = run_directory._read_list(str(run / folder))
    assert list(listed.all_model_checkpoint_paths) == paths
    assert listed.model_checkpoint_path == paths[-1]


def test_without_its_list_the_latest_that_is_whole_counts(run):
    (run / "checkpoint").write_bytes(b"")
    (run / "model.ckpt-10.data-00000-of-00001").unlink()
    assert run_directory.find_latest(str(run)).endswith("model.ckpt-9")
    for path in run.glob("model.ckpt-*.data*"):
        path.write_bytes(b"")
    with pytest.raises(checks.UserError, match="model.ckpt-10 cannot be read"):
        run_directory.find_latest(str(run))


def test_a_list_of_checkpoints_that_are_all_gone_is_one_line(run):
    for path in run.glob("model.ckpt-*"):
        path.unlink()
    with pytest.raises(checks.UserError, match="model.ckpt-10 cannot be read"):
        run_directory.find_latest(str(run))


def test_records_without_a_checksum_of_another_form(run):
    """Earlier versions wrote such files without checksums."""
    for name, text in {
        "row_names.json": '{"head/": {"names": ["a"], "other": 1}}',
        "statistics/statistics.json": '{"w": {"file": "vocabulary_w.txt"}}',
    }.items():
        (run / name).write_text(text)
        with pytest.raises(checks.UserError, match="is damaged: it holds "):
            _read(run)[name]()
    (run / "warnings.json").write_text(json.dumps({"data": "a line"}))
    assert not doubts.read_all_doubts(str(run))
