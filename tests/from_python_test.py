"""The verbs of `import mtl`, and docs/python.md as it is printed."""

import dataclasses
import json
import logging
import pathlib
import shutil
import subprocess
import sys
import warnings

import gin
import numpy as np
import pytest
import tensorflow as tf

import mtl
from mtl import checks, from_python, types, verbs
from mtl.configs import changes, config, gin_writing
from mtl.data import csv, frames, tfrecord
from mtl.tools import scoring, tracking
from tests import pages, tiny
from tests.launch import conftest

WORDS = ["red", "green", None, " blue", "unseen"]
# As a table in memory may hold them: lists and arrays, texts with spaces, and an absent word.
ROWS = {"x": [[1, 2, 3], (0.5, "-1", 1e-3), np.ones(3), "4|5|6", [0, 0, 0]], "word": WORDS}


def _make(lacks=None, **settings):
    made = tiny.make(train_steps=20, **settings)
    splits = {
        split: {name: values for name, values in rows.items() if name != lacks}
        for split, rows in tiny.SPLITS.items()
    }
    source = frames.Frames(splits=splits)
    return dataclasses.replace(made, data=dataclasses.replace(made.data, source=source))


@pytest.mark.medium
def test_a_file_that_is_called_as_the_launcher_is_left_alone(tmp_path):
    (tmp_path / "launch.py").write_text("raise SystemExit('it was run')")
    command = [sys.executable, "-c", "import mtl; print(mtl.train.__module__)"]
    done = subprocess.run(
        command, cwd=tmp_path, env=conftest.environment(), capture_output=True, text=True
    )
    assert done.stdout == "mtl.from_python\n", done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of 20 steps; tests that change its run copy it."""
    return mtl.train(_make(), tmp_path_factory.mktemp("run") / "model")


@pytest.fixture
def shown(monkeypatch, capsys):
    """A function that returns our lines on standard error, without logging handlers of pytest."""
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)
    return lambda: capsys.readouterr().err


def test_importing_mtl_imports_no_tensorflow():
    script = "import sys, mtl; assert {'train', 'load'} <= set(dir(mtl)); "
    script += "assert not hasattr(mtl, 'tarin'); print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.slow
def test_launchers_read_an_equal_experiment(trained):
    with config.isolated():
        read = config.load([config.saved_in(trained.model_dir)])
    assert read == trained.experiment
    assert isinstance(read.data.source, tfrecord.TfRecord)
    assert trained.steps_trained == trained.step == 20
    assert "20 steps trained by this call" in repr(trained) and "sign\n" in repr(trained)
    assert "<pre>Model of" in trained._repr_html_()


def _predict_as_launcher(experiment, model_dir, path):
    """Return the rows that `launch.predict --input` writes for a file."""
    reader = scoring.Reader(spec=experiment.data.spec, settings=experiment.data.source)
    output = path.with_suffix(".jsonl")
    plan = scoring.plan_shards(reader.find([str(path)]), str(output))
    with verbs.open_scorer(experiment, model_dir) as model:
        scoring.score_shards(plan, reader, model)
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.slow
def test_predictions_are_those_of_the_launcher(trained, tmp_path):
    cells = ["1|2|3", "0.5|-1|1e-3", "1|1|1", "4|5|6", "0|0|0"]
    lines = [f"{x},{word or ''}\n" for x, word in zip(cells, WORDS, strict=True)]
    (tmp_path / "in.csv").write_text("x,word\n" + "".join(lines))
    expected = _predict_as_launcher(trained.experiment, trained.model_dir, tmp_path / "in.csv")
    with mtl.load(trained.model_dir) as model:
        found = model.predict(ROWS)
        assert list(found) == list(expected[0]) and found["sign/class"].dtype == object
        for name, values in found.items():
            told = np.array([row[name] for row in expected]).astype(values.dtype)
            np.testing.assert_array_equal(values, told, err_msg=name)
        as_rows = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
        for name, values in model.predict(as_rows).items():
            np.testing.assert_array_equal(values, found[name])
        # The batches of a long table end where they should.
        long = model.predict({"x": np.ones((1030, 3)), "word": ["red"] * 1030})
        assert {len(values) for values in long.values()} == {1030}
        empty = model.predict({name: [] for name in ROWS})
        assert {name: values.shape[1:] for name, values in empty.items()} == {
            name: values.shape[1:] for name, values in found.items()
        }
        assert {len(values) for values in empty.values()} == {0}
        with pytest.raises(checks.UserError, match="have the column 'word', got .'x', 'wrd'."):
            model.predict({"x": [[1, 2, 3]], "wrd": ["red"]})


@pytest.mark.slow
def test_texts_are_read_as_the_csv_source_of_the_run_reads_them(trained):
    source = csv.Csv(files={"train": "a.csv"}, missing=("?",), list_delimiter=";")
    data = dataclasses.replace(trained.experiment.data, source=source)
    experiment = dataclasses.replace(trained.experiment, data=data)
    with mtl.load(trained.model_dir, experiment=experiment) as model:
        found = model.predict({"x": ["1;2;3", "1;2;3"], "word": ["?", "none"]})
    assert found["size/value"][0] == found["size/value"][1]


@pytest.mark.slow
def test_a_data_frame_keeps_its_index(trained):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(ROWS, index=list("edcba"))
    with mtl.load(trained.model_dir) as model:
        found, arrays = model.predict(frame), model.predict(ROWS)
        one = model.predict(frame.loc[["c"]])
    assert list(found.index) == list("edcba") and list(found) == list(arrays)
    assert found["sign/probability"].tolist() == arrays["sign/probability"].tolist()
    assert found["kind/probabilities"].iloc[1].tolist() == arrays["kind/probabilities"][1].tolist()
    np.testing.assert_allclose(one.loc["c", "size/value"], found.loc["c", "size/value"], rtol=1e-5)


@pytest.mark.slow
def test_rows_are_evaluated_as_the_split_that_holds_them(trained):
    found = trained.evaluate(tiny.SPLITS["test"])
    assert found == trained.metrics
    assert isinstance(found, dict) and repr(found).startswith("  ") and "auc" in repr(found)
    with pytest.raises(checks.UserError, match="have the column 'sign'"):
        trained.evaluate(ROWS)


@pytest.mark.slow
def test_nothing_is_left_behind(trained):
    gin.clear_config()  # An earlier test may have locked it.

    @gin.configurable
    def own_setting(value=1):
        return value

    def look():
        log, ours = tf.get_logger(), logging.getLogger("mtl")
        here = tf.executing_eagerly(), id(tf.compat.v1.get_default_graph())
        return [*warnings.filters], log.level, ours.level, [*ours.handlers], here

    gin.parse_config("own_setting.value = 5")
    gin.finalize()
    try:
        before, text = look(), gin.config_str()
        one, two = (mtl.load(trained.model_dir, checkpoint=name) for name in ("latest", 20))
        first = one.predict(ROWS)
        assert two.predict(ROWS)["size/value"].tolist() == first["size/value"].tolist()
        with tf.Graph().as_default():
            one.close()
            again = one.predict(ROWS)
        assert again["size/value"].tolist() == first["size/value"].tolist()
        assert look() == before and gin.config_str() == text
        assert own_setting() == 5 and gin.config_is_locked()
    finally:
        gin.clear_config()


@pytest.fixture
def copied(trained, tmp_path):
    shutil.copytree(trained.model_dir, tmp_path / "run")
    return str(tmp_path / "run")


@pytest.mark.slow
def test_a_model_that_is_older_than_its_run_says_so_once(copied, shown):
    model = mtl.load(copied)
    before = model.predict(ROWS)
    assert shown() == ""
    index = pathlib.Path(f"{model.checkpoint}.index")
    tf.io.gfile.copy(str(index), f"{index}.new")  # As a run that starts anew writes it.
    pathlib.Path(f"{index}.new").rename(index)
    after = model.predict(ROWS)
    assert shown() == f"Warning: {copied} was trained further, but this model is from step 20. " + (
        "Load it again.\n"
    )
    assert after["size/value"].tolist() == before["size/value"].tolist()
    model.predict(ROWS)
    assert shown() == ""


@pytest.mark.slow
def test_a_cell_that_runs_again_trains_nothing_and_says_what_has_changed(
    copied, shown, monkeypatch
):
    metrics = {"sign/auc": 0.5, "global_step": 20}
    monkeypatch.setattr(verbs, "train", lambda *given, **settings: (metrics, 0))
    again = mtl.train(_make(), copied)
    assert again.steps_trained == 0 and "0 steps trained by this call" in repr(again)
    lines = shown()
    assert "data.source.data_dir was" in lines  # It has moved.
    assert "data.source.files" not in lines
    splits = {**tiny.SPLITS, "train": tiny.rows(96, seed=3)}
    other = dataclasses.replace(_make(summary_steps=5).data, source=frames.Frames(splits=splits))
    mtl.train(dataclasses.replace(_make(summary_steps=5), data=other), copied)
    lines = shown()
    assert lines.startswith(f"Warning: {copied} goes on from step 20, with other settings: ")
    assert "data.source.files was" in lines and "run.summary_steps was 10" in lines
    # To compare settings, those that --trusted_packages refuses may stand there.
    reported = dataclasses.replace(again.experiment, trackers=[tracking.MLflow()])
    config.save(copied, gin_writing.write(reported))
    mtl.train(_make(), copied)
    assert "trackers" in shown()


@pytest.mark.slow
def test_the_config_of_a_folder_runs_no_code_that_the_program_does_not_use(
    copied, shown, caplog, monkeypatch, tmp_path
):
    (tmp_path / "of_a_stranger.py").write_text("class Part: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = pathlib.Path(copied, "config.gin")
    _, text = path.read_text().split("\n", 1)
    path.write_text(
        text.replace("from mtl import spec\n", "from mtl import spec\nimport of_a_stranger\n")
    )
    assert "import of_a_stranger" in path.read_text()
    monkeypatch.setattr(verbs, "train", lambda *given, **settings: ({}, 0))
    mtl.train(_make(), copied)
    assert "of_a_stranger" not in sys.modules
    warning = shown()
    assert warning.startswith(
        f"Warning: {copied} goes on from step 20, maybe with other settings: "
    )
    assert "module 'of_a_stranger' is not in --trusted_packages (mtl)." in warning
    mtl.load(copied)
    assert "of_a_stranger" in sys.modules and shown() == ""
    changes.tell(_make(), copied, ["of_a_stranger"])
    assert "goes on from step 20, with other settings: data.source" in caplog.text


class Halves(types.Weighting):
    """A weighting that a gin file cannot name, as in a notebook."""

    reads_losses = False

    def __call__(self, losses, step):
        return {task: 0.5 * loss for task, loss in losses.items()}


Halves = dataclasses.dataclass(frozen=True, kw_only=True)(Halves)


@pytest.mark.slow
def test_a_part_of_a_notebook_trains_without_a_config(copied, shown, monkeypatch):
    monkeypatch.setattr(Halves, "__module__", "__main__")
    made = _make()
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, weighting=Halves()))

    def train(experiment, model_dir, on_start):
        on_start()
        return {}, 0

    monkeypatch.setattr(verbs, "train", train)
    model = mtl.train(made, copied)
    line = "No config.gin is written, so commands cannot continue the run: MultiTaskModel.weig"
    assert line in shown()
    assert not pathlib.Path(copied, "config.gin").exists()
    with pytest.raises(checks.UserError, match="must hold the config.gin of a run"):
        mtl.load(copied)
    assert mtl.load(copied, experiment=model.experiment).step == 20


@pytest.mark.slow
def test_checkpoints_and_what_a_config_may_build(trained):
    best = mtl.load(trained.model_dir, checkpoint="best", trusted_packages=[])
    assert best.checkpoint.endswith("best/model.ckpt-20") and best.metrics == {}
    with pytest.raises(checks.UserError, match="There are: .*model.ckpt-20"):
        mtl.load(trained.model_dir, checkpoint=30)
    with pytest.raises(checks.UserError, match="must hold the config.gin of a run"):
        mtl.load(trained.model_dir + "x")


@pytest.mark.slow
def test_an_interrupted_training_is_an_interrupt_of_python(copied, monkeypatch):
    def stop(code):
        def train(*given, **settings):
            raise SystemExit(code)

        return train

    monkeypatch.setattr(verbs, "train", stop(130))
    with pytest.raises(KeyboardInterrupt, match="train again to continue"):
        mtl.train(_make(), copied)
    monkeypatch.setattr(verbs, "train", stop(143))
    with pytest.raises(SystemExit):
        mtl.train(_make(), copied)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"experiment": "runs/visits"}, "mtl.train: experiment must be an Experiment, got 'runs/v"),
        ({"experiment": type(_make())}, "mtl.train: experiment must be an Experiment, got <class"),
        ({"model_dir": 5}, "mtl.train: model_dir must be the path of a folder, got 5"),
        ({"model_dir": ""}, "mtl.train: model_dir must name a folder, got ''"),
        (
            {"model_dir": "file"},
            "model_dir must be a folder that can be written, got 'file'. Not a",
        ),
        (
            {"model_dir": "file/run"},
            "model_dir must be a folder that can be written, got 'file/run'",
        ),
        ({"model_dir": "runs[1]"}, r"model_dir must have no backslash and no \[...\] in its path"),
        ({"experiment": _make(lacks="word")}, "split 'train' must have the column 'word', got"),
    ],
)
def test_what_is_trained_wrong_is_one_line_and_leaves_nothing(
    settings, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(checks.UserError, match=f"^{message}"):
        mtl.train(**{"experiment": _make(), "model_dir": "run", **settings})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_dir": 5}, "mtl.load: model_dir must be the path of a folder, got 5"),
        ({"model_dir": ""}, "mtl.load: model_dir must name a folder, got ''"),
        ({"model_dir": "file"}, "mtl.load: model_dir must hold the config.gin of a run"),
        (
            {"model_dir": "odd"},
            "the run's config.gin must be a file that can be read, got 'odd/con",
        ),
        ({"model_dir": "cut"}, "cut/config.gin is damaged: it is empty"),
        ({"model_dir": "bytes"}, "bytes/config.gin is damaged: it is not UTF-8"),
        ({"experiment": "run"}, "mtl.load: experiment must be an Experiment, got 'run'"),
        (
            {"experiment": _make(), "checkpoint": None},
            "checkpoint must be 'latest', 'best', a step",
        ),
        ({"experiment": _make(), "checkpoint": -1}, "checkpoint must be at least 0, got -1"),
        ({"experiment": _make(), "checkpoint": "last"}, "--checkpoint must be 'latest', 'best' or"),
        (
            {"trusted_packages": "ours"},
            "mtl.load: trusted_packages must be a list of packages, got",
        ),
    ],
)
def test_what_is_loaded_wrong_is_one_line(settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "config.gin").mkdir(parents=True)
    for name, text in (("cut", b""), ("bytes", b"\xff\xfe")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.gin").write_bytes(text)
    with pytest.raises(checks.UserError, match=f"^{message}"):
        mtl.load(**{"model_dir": "run", **settings})


def test_lines_come_where_somebody_looks(shown, monkeypatch):
    log = logging.getLogger("mtl.some")
    with from_python._quiet(verbose=True):
        log.info("one")
    with from_python._quiet(verbose=False):
        log.info("two")
        log.warning("three")
        log.warning("Warning: four")
    log.info("five")
    assert shown() == "one\nWarning: three\nWarning: four\n"
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: True)
    with from_python._quiet(verbose=True):
        log.info("six")
    assert shown() == ""


@pytest.mark.slow
def test_the_page_runs_as_it_is_printed(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    page = {"__name__": "page"}
    for block in pages.read_blocks("python.md", "python"):
        exec(block, page)
    assert page["visits_model"].metrics["clicked/auc"] > 0.7
    assert len(page["joined"]) == 1000 and 0 < len(page["high"]) < 1000
    assert (tmp_path / "models" / "visits" / "deploy").is_dir()
    assert page["again"].step == 200
