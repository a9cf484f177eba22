"""The command line trains, evaluates, predicts and exports; mistakes end in a one-line error."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from pyarrow import parquet

from tests import tiny
from tests.launch import conftest, toy
from tests.tools.scoring import servers

pytestmark = pytest.mark.medium

VERBS = ("train", "evaluate", "predict", "export")
PREDICT_FLAGS = {"output", "output_format", "input", "input_format", "keep", "saved_model"}
PREDICT_FLAGS |= {"server", "model_name", "model_version", "signature", "batch_size"}
PREDICT_FLAGS |= {"concurrency", "deadline_secs", "retries"}
PREDICT_FLAGS |= {"escape_formulas", "tls", "ca_file", "token_file", "token_env"}
EXPORT_FLAGS = {"export_dir", "onnx", "tflite", "tflite_weights", "compare"}
DEBUG_FLAGS = {"step", "cli"}
INSPECT_FLAGS = {"summary", "tensor", "eager", "breakpoint", "mode"}
INSPECT_FLAGS |= {"rows", "split", "limit", "output"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb, args, output",
    [
        ("new", ["--data=data/train.csv", "--task=rich", "--force", "--out=o.gin"], "o.gin"),
        ("predict", ["--model_dir=run", "--output=o.csv"], "o.csv"),
        ("compare", ["run", "other", "--html=o.html"], "o.html"),
        ("compare", ["run", "other", "--csv=o.csv"], "o.csv"),
        ("report", ["--model_dir=run", "--output=o.html"], "o.html"),
        ("explain", ["--model_dir=run", "--output=o.html", "--repeats=1"], "o.html"),
    ],
)
@pytest.mark.drawn(2)
def test_an_earlier_output_outlives_a_write_that_fails(verb, args, output, run, launch):
    shutil.copytree(run, run.parent / "other")
    path = run.parent / output
    before = "".join(f"of an earlier command, line {i}\n" for i in range(100))
    path.write_text(before)
    told = "--out must be a file" if verb == "new" else f"{output} cannot be written"
    done = launch(verb, *args, file_bytes=700)
    last = done.err.splitlines()[-1]
    assert done.code == 2 and last.startswith("Error: ") and told in last, done
    assert "File too large" in last and path.read_text() == before
    assert not list(run.parent.rglob("*.partial*"))


PRUNE_FLAGS = {"output_dir", "rows", "rounds", "rewind_to", "controls"}
REPORT_FLAGS = {"output", "rows"}
EXPLAIN_FLAGS = {"output", "split", "limit", "tasks", "fields", "group", "repeats", "rows", "class"}
EXPLAIN_FLAGS |= {"steps", "baseline", "dependence", "batches"}
TRUST_FLAGS = {"trusted_packages", "trusted_settings"}
COMPARE_FLAGS = {"model_dirs", "runs", "metric", "csv", "html"}

# gRPC needs a package that the extra "dev" installs.
SERVERS = [servers.rest_server]
if importlib.util.find_spec("tensorflow_serving"):
    SERVERS.append(servers.grpc_server)


@pytest.fixture(scope="module")
def trained(launch_in, tmp_path_factory):
    """A directory with toy.gin and its trained model in run."""
    directory = tmp_path_factory.mktemp("trained")
    toy.write(directory)
    result = launch_in(directory, "train", "--gin_file", "toy.gin", "--model_dir", "run")
    assert result.code == 0, result
    return directory, result


@pytest.fixture
def run(trained, tmp_path, launch):
    """A copy of the trained directory, in which `launch` works."""
    copy(trained[0], tmp_path)
    return tmp_path / "run"


def copy(source, target):
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        place.mkdir(exist_ok=True) if path.is_dir() else place.write_bytes(path.read_bytes())
    (target / "run" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')


def files(directory):
    """{path: content}."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def metrics(text):
    """{task/metric: value} of the printed table."""
    found, task = {}, None
    for line in text.splitlines():
        if re.fullmatch(r"  (\w+|all tasks)", line):
            task = line.strip()
        for name, value in re.findall(r"(\S+) +(-?\d+\.\d{4}|n/a)", line):
            found[f"{task}/{name}"] = value if value == "n/a" else float(value)
    return found


@pytest.mark.parametrize(
    "verb", [*VERBS, "warm_start", "prune", "report", "explain", "debug", "inspect"]
)
def test_help_explains_every_flag_and_shows_an_example(verb, launch):
    for flag in ("--help", "-h", "--helpfull"):
        result = launch(verb, flag)
        assert result.code == 0 and not result.err
    names = re.findall(r"^  --(\w+)\n      \S", result.out, re.M)
    expected = {"gin_file", "gin_param", "model_dir", *TRUST_FLAGS, "json_log"}
    reads_none = verb in ("train", "warm_start", "debug", "report")
    expected |= set() if reads_none else {"checkpoint"}
    expected |= {"split"} if verb in ("evaluate", "predict") else set()
    own = {"attacked", "curves", "input", "input_format"}
    expected |= own if verb == "evaluate" else set()
    expected |= {"dry_run"} if verb == "train" else set()
    of_verb = {"predict": PREDICT_FLAGS, "export": EXPORT_FLAGS, "prune": PRUNE_FLAGS}
    of_verb |= {"debug": DEBUG_FLAGS, "inspect": INSPECT_FLAGS, "report": REPORT_FLAGS}
    of_verb |= {"explain": EXPLAIN_FLAGS}
    expected |= of_verb.get(verb, set())
    assert set(names) == expected and len(names) == len(expected)
    assert f"python -m launch.{verb} --" in result.out
    assert "repeat this option" not in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_comparing_takes_folders_and_flags_of_its_own(launch):
    result = launch("compare", "--help")
    names = re.findall(r"^  --(\w+)\n      \S", result.out, re.M)
    assert set(names) == COMPARE_FLAGS | {*TRUST_FLAGS, "json_log"}
    assert "python -m launch.compare runs/a runs/b" in result.out


def test_a_process_of_its_own_does_the_same(launch, tmp_path):
    toy.write(tmp_path)
    for args in (("--help",), ("--gin_file", "toi.gin")):
        assert launch("train", *args) == conftest.run_process(tmp_path, "launch.train", *args)


def test_training_says_what_it_did(trained):
    directory, result = trained
    assert "Training to step 20: rich, level" in result.err
    assert "Trained 20 steps, up to step 20" in result.out
    assert metrics(result.out)["rich/auc"] > 0.9
    assert (directory / "run" / "config.gin").exists()
    assert "  all metrics      run/metrics.jsonl" in result.out
    rows = [json.loads(line) for line in (directory / "run" / "metrics.jsonl").open()]
    assert [(row["step"], row["checkpoint"]) for row in rows] == [
        (10, "model.ckpt-10"),
        (20, "model.ckpt-20"),
    ]
    assert metrics(result.out)["rich/auc"] == pytest.approx(rows[1]["rich/auc"], abs=1e-4)


def test_training_again_goes_on_and_says_so(run, launch):
    again = launch("train", "--model_dir", "run")
    assert again.code == 0 and "Nothing to train: step 20 of 20" in again.err
    longer = launch("train", "--model_dir", "run", "--gin_param", "Run.train_steps = 30")
    assert longer.code == 0, longer
    assert "Going on from step 20 to step 30" in longer.err
    assert "Trained 10 steps, up to step 30" in longer.out
    assert "run goes on from step 20, with other settings: run.train_steps was 20. " in longer.err


def test_training_files_that_have_changed_are_told(run, launch):
    path = run.parent / "data" / "train.csv"
    path.write_text(path.read_text() + "20,cook,0,1\n")
    again = launch("train", "--model_dir", "run", "--gin_param", "Run.train_steps = 21")
    assert again.code == 0, again
    assert "with other training rows: data/train.csv has changed. " in again.err


def test_evaluate_predict_and_export_need_only_the_model_dir(run, trained, launch):
    evaluated = launch("evaluate", "--model_dir", "run")
    assert evaluated.code == 0, evaluated
    assert metrics(evaluated.out) == metrics(trained[1].out)
    predicted = launch("predict", "--model_dir", "run", "--checkpoint", "best")
    rows = [json.loads(line) for line in predicted.out.splitlines()]
    assert len(rows) == 40
    for row in rows:
        assert row["rich/class_id"] == (row["rich/probability"] >= 0.5)
        assert len(row["level/probabilities"]) == 3
    exported = launch("export", "--model_dir", "run", "--export_dir", "served")
    assert exported.code == 0, exported
    path = run.parent / re.match(r"Exported (\S+)", exported.out)[1]
    assert "checked     40 held-out rows, at most " in exported.out
    assert "serve it    sh served/deploy/docker_run.sh" in exported.out
    assert (run.parent / "served" / "deploy" / "docker_run.sh").exists()
    assert "serving_default" in tf.saved_model.load(str(path)).signatures


def test_what_onnx_refuses_is_not_published(run, launch):
    stub = run.parent / "tf2onnx"
    stub.mkdir()
    (stub / "__init__.py").write_text(
        "class convert:\n"
        "    def from_graph_def(*args, **settings):\n"
        "        raise ValueError('no table\\nand more')\n"
    )
    (stub / "handler.py").write_text("class tf_op:\n    create_mapping = lambda *args: {}\n")
    (run.parent / "onnxruntime.py").write_text("")
    args = ("--model_dir", "run", "--export_dir", "served", "--onnx", "toy.onnx")
    error = launch("export", *args).error
    assert re.match("tf2onnx cannot convert this model: ONNX has no operation .*MatMul", error)
    assert not (run.parent / "served").exists()
    assert not (run.parent / "toy.onnx").exists()


def test_predictions_appear_when_they_are_complete(run, launch):
    output = run.parent / "predictions.jsonl"
    output.write_text("older\n")
    bad = run.parent / "data" / "test.csv"
    lines = bad.read_text().splitlines()
    bad.write_text("\n".join([*lines, "old,cook,1,2"]) + "\n")
    args = ("--model_dir", "run", "--output", "predictions.jsonl")
    assert "test.csv line 42: field 'age'" in launch("predict", *args).error
    assert output.read_text() == "older\n"
    bad.write_text("\n".join(lines) + "\n")
    assert launch("predict", *args).code == 0
    assert len(output.read_text().splitlines()) == 40
    assert not list(run.parent.glob("*.partial"))


@pytest.mark.thorough
def test_predictions_for_files_are_those_of_the_split(run, launch):
    whole = launch("predict", "--model_dir", "run")
    exported = launch("export", "--model_dir", "run", "--export_dir", "served")
    assert exported.code == 0, exported
    args = ("--input", "data/te*.csv", "--keep", "rich", "--batch_size", "16")
    served = servers.Served(str(run.parent / "served"))
    models = [(*args, "--model_dir", "run"), (*args, "--saved_model", "served")]
    results = [launch("predict", *model) for model in models]
    for server in SERVERS:
        with server(served) as address:
            asked = (*args, "--model_dir", "run", "--server", address, "--model_name")
            results.append(launch("predict", *asked, servers.NAME))
            error = launch("predict", *asked, "tinny").error
            assert error.startswith("--server does not serve 'tinny': ")
    for result in results:
        assert result.code == 0, result
        pairs = zip(whole.out.splitlines(), result.out.splitlines(), strict=True)
        for expected, row in ((json.loads(a), json.loads(b)) for a, b in pairs):
            assert row.pop("rich") in ("0", "1") and row.keys() == expected.keys()
            for name, value in row.items():
                assert value == expected[name] or value == pytest.approx(expected[name], abs=1e-6)
    for _ in range(2):
        result = launch("predict", *models[0], "--output", "out/", "--output_format", "jsonl")
        assert (
            result.code == 0 and len((run.parent / "out" / "test.jsonl").open().readlines()) == 40
        )
    assert "Predicted 0 rows, 1 files existed already" in result.err


def test_what_a_run_cannot_learn_is_told_and_summed_up(tmp_path, launch):
    toy.write(tmp_path)
    gin = tmp_path / "toy.gin"
    path = tmp_path / "data" / "train.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *(row.replace("clerk", "cook") for row in rows)]) + "\n")
    path.write_text(path.read_text().replace("smith", "cook"))
    gin.write_text(
        gin.read_text().replace("learning_rate = 0.01", "learning_rate = @schedules.Cosine()")
        + "schedules.Cosine.value = 0.01\nschedules.Cosine.decay_steps = 10\n"
    )
    gin.write_text(
        gin.read_text().replace(
            "import optimizers\n", "import optimizers\nfrom mtl.optimization import schedules\n"
        )
    )
    args = ("--gin_file", "toy.gin", "--model_dir", "run")
    first = launch("train", *args)
    assert first.code == 0, first
    says = (
        "Field 'job' never varies",
        "of Update.optimizer is 0 from step 10 to step 20, the last",
    )
    for line in says:
        assert first.err.count(line) == first.out.count(line) == 1
    longer = launch("train", *args, "--gin_param", "Run.train_steps = 40")
    assert "Run.train_steps must go with the learning rate, which is 0 from step 10" in longer.err
    assert longer.code == 2


def test_a_split_keeps_fields_as_a_file_does(run, launch):
    for split in ("train", "test"):
        path = run.parent / "data" / f"{split}.csv"
        header, *rows = path.read_text().splitlines()
        rows = [f"r{i},{row}" for i, row in enumerate(rows)]
        path.write_text("\n".join([f"id,{header}", *rows]) + "\n")
    keep = ("--model_dir", "run", "--keep", "id,level", "--keep", "age")
    whole = launch("predict", *keep, "--split", "test", "--batch_size", "7")
    assert whole.code == 0, whole
    found = [json.loads(line) for line in whole.out.splitlines()]
    assert [row["id"] for row in found] == [f"r{i}" for i in range(40)]
    assert [[row["id"], str(int(row["age"])), str(row["level"])] for row in found] == [
        [*cells[:2], cells[4]] for cells in (row.split(",") for row in rows)
    ]
    given = launch("predict", *keep, "--input", "data/test.csv")
    for row, other in zip(found, map(json.loads, given.out.splitlines()), strict=True):
        assert row.keys() == other.keys() and row["id"] == other["id"]
        assert row["rich/probability"] == pytest.approx(other["rich/probability"], abs=1e-6)
    assert launch("predict", *keep, "--output", "o.parquet").code == 0
    table = parquet.read_table(run.parent / "o.parquet").to_pylist()
    assert [(r["id"], r["age"], r["level"]) for r in table] == [
        (r["id"], r["age"], r["level"]) for r in found
    ]
    assert [r["level/probabilities"] for r in table] == [
        pytest.approx(r["level/probabilities"]) for r in found
    ]


@pytest.mark.parametrize(
    "args, says",
    [
        (("--keep", "rihc"), "--keep must be one of age, job, rich, level, got 'rihc'. Did you"),
        (("--keep", "rich,rich"), "--keep must hold each name once"),
        (("--keep", '"age, rihc'), "--keep must be one of age, job, rich, level, got 'age, rihc'"),
        (("--batch_size", "0"), "--batch_size must be a"),
        (("--input", "data/test.csv", "--output", "data/"), "--output must not be an input"),
        (("--output", "data/../data/train.csv"), "--output must not be an input"),
        (
            ("--gin_file", "toy.gin", "--output", "toy.gin", "--output_format", "csv"),
            "--output must not be an input",
        ),
        (
            ("--output", "run/config.gin", "--output_format", "csv"),
            "not be a file of the run itself",
        ),
        (
            ("--input", "data/test.csv", "--output", "data/train.csv"),
            "--output must not be an input",
        ),
        (("--output", "o.json"), "--output must end in one of .csv, .jsonl, .parquet, .tfrecord"),
        (("--input", "data/empty.csv"), "--input must hold a row, got ['data/empty.csv']"),
        (("--input", "data/tset.csv"), "--input must name existing files"),
        (("--input", "data/test.csv", "--keep", "rihc"), "Did you mean 'rich'?"),
        (("--input", "data/test.csv", "--split", "test"), "--split must be left out with --input"),
        (("--server", "localhost:1"), "--server must come with --input"),
        (("--model_version", "3"), "--model_version must come with --server, got '3'"),
        (("--token_file", "nope"), "--token_file must come with --server, got 'nope'"),
        (("--signature", "lean"), "--signature must come with --server or --saved_model"),
        (
            ("--input", "data/test.csv", "--saved_model", "served", "--checkpoint", "best"),
            "--checkpoint must be left out with --server or --saved_model, got 'best'",
        ),
        (("--input", "data/test.csv", "--server", "localhost"), "--server must be HOST:PORT"),
        (
            ("--input", "data/test.csv", "--saved_model", "data"),
            "--saved_model must be a SavedModel",
        ),
        (("--input", "data/test.csv", "--batch_size", "0"), "--batch_size must be a"),
    ],
)
def test_what_cannot_be_predicted(args, says, run, launch):
    (run.parent / "data" / "empty.csv").write_text("age,job\n")
    before, output = files(run.parent), () if "--output" in args else ("--output", "x.jsonl")
    assert says in launch("predict", "--model_dir", "run", *args, *output).error
    assert files(run.parent) == before


@pytest.mark.parametrize("verb, flag", [("predict", "--output"), ("export", "--export_dir")])
def test_an_output_that_cannot_be_written(verb, flag, run, launch):
    error = launch(verb, "--model_dir", "run", flag, "toy.gin/x").error
    assert error.startswith(f"{flag} must be a ")
    assert re.search("that can be written, got 'toy.gin/x'. .*[Nn]ot a directory", error)


@pytest.mark.slow
@pytest.mark.parametrize(
    "output, code, says",
    [
        ("| true", 141, ""),
        (">&-", 2, "Error: --output must be a file if standard output is closed"),
    ],
)
def test_standard_output_that_takes_nothing(output, code, says, run):
    command = f"{sys.executable} -m launch.predict --model_dir run"
    script = f"({command}; echo $? > code) {output}"
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=run.parent,
        env=conftest.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert int((run.parent / "code").read_text()) == code
    assert done.stderr.startswith(says) and len(done.stderr.splitlines()) == bool(says)


@pytest.mark.parametrize(
    "verb, args",
    [
        ("train", ["--gin_param", "Run.train_steps = 40"]),
        ("evaluate", ["--split", "train"]),
        ("predict", ["--output", "scores.csv"]),
        ("export", ["--export_dir", "out"]),
    ],
)
def test_files_that_may_not_grow_are_one_line_and_leave_nothing(verb, args, run, launch):
    """As under `ulimit -f`."""
    before = {path for path in run.parent.rglob("*") if path.is_file()}
    done = launch(verb, "--model_dir", "run", *args, file_bytes=1000)
    assert "File too large" in done.error, done
    left = {path for path in run.parent.rglob("*") if path.is_file()} - before
    assert not [path for path in left if "tfevents" not in path.name], left


def test_the_saved_configuration_stands_alone(run, launch_in, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    model_dir, data = str(run), f'data_dir = "{run.parent / "data"}"'
    result = launch_in(elsewhere, "evaluate", "--model_dir", model_dir, "--gin_param", data)
    assert result.code == 0, result
    assert launch_in(run.parent, "evaluate", "--model_dir", "run").out == result.out


@pytest.mark.thorough
def test_a_param_wins_over_files_and_includes(tmp_path, launch):
    toy.write(tmp_path)
    params = (
        "Run.train_steps = 4",
        "Run.checkpoint_steps = 2",
        "level/MultiClass.classes = ['a', 'b', 'c']",
        "trunk/MLP.layers = [5]",
        "Update.optimizer = @SGD()",
        "SGD.learning_rate = 0.5",
        "run_name = 'x'",
    )
    args = [arg for param in params[:-1] for arg in ("--gin_param", param)]
    result = launch("train", "--gin_file", "toy.gin", "--model_dir", "run", *args)
    assert result.code == 0, result
    assert "Trained 4 steps" in result.out
    shapes = dict(tf.train.list_variables(str(tmp_path / "run")))
    assert 5 in {shape[-1] for name, shape in shapes.items() if name.startswith("network/")}
    assert not [name for name in shapes if "Adam" in name]
    # Adam's settings are out of use now, so that what is saved is a whole configuration again.
    assert "Adam" not in (tmp_path / "run" / "config.gin").read_text()
    again = launch("train", "--model_dir", "run")
    assert again.code == 0 and "Nothing to train: step 4 of 4" in again.err


OTHERS = {
    "wider": ("trunk/MLP.layers = [7, 64]", ("is of another architecture", "has shape [")),
    "deeper": ("trunk/MLP.layers = [128, 64, 8]", ("is of another architecture",)),
    "optimizer": ("Update.optimizer = @Momentum()", ("model.ckpt-20", "optimizer")),
    "column": (
        "Numeric.log = True",
        ("--model_dir must hold a run with the same columns", "numeric_age"),
    ),
    "misspelt column": ('Numeric.names = ["agee"]', ("got 'agee'. Did you mean 'age'?",)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_of_another_kind_is_refused_and_kept(name, run, launch):
    before = files(run)
    param, says = OTHERS[name]
    steps = ("--gin_param", "Run.train_steps = 30", "--gin_param", "Momentum.learning_rate = 0.1")
    steps = steps if name == "optimizer" else steps[:2]
    args = ("--gin_file", "toy.gin", "--model_dir", "run", "--gin_param", param, *steps)
    error = launch("train", *args).error
    assert all(part in error for part in says), error
    assert files(run) == before


@pytest.mark.parametrize("verb", VERBS[1:])
def test_another_architecture_is_refused_by_every_verb(verb, run, launch):
    before = files(run)
    args = ("--model_dir", "run", "--gin_param", "trunk/MLP.layers = [7, 64]")
    assert "is of another architecture" in launch(verb, *args).error
    assert files(run) == before


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("part", ["index", "data-00000-of-00001", "gone"])
def test_a_broken_checkpoint_is_named(verb, part, run, launch):
    for path in run.glob("model.ckpt-20.*"):
        if part == "gone":
            path.unlink()
        elif path.name.endswith(part):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    before = files(run)
    more = ("--gin_param", "Run.train_steps = 30") if verb == "train" else ()
    error = launch(verb, "--model_dir", "run", *more).error
    assert "run/model.ckpt-20" in error and re.search("cannot be read", error)
    assert files(run) == before


@pytest.mark.parametrize("verb", VERBS[1:])
def test_an_unknown_checkpoint_or_split(verb, run, launch):
    args = ("--model_dir", "run", "--checkpoint")
    for which in ("newest", "run/model.ckpt-7", "run/model.ckpt"):
        error = launch(verb, *args, which).error
        assert f"--checkpoint must be 'latest', 'best' or a path, in run, got {which!r}" in error
    assert launch(verb, *args, "run/model.ckpt-10").code == 0
    if verb != "export":
        error = launch(verb, "--model_dir", "run", "--split", "tets").error
        assert "'tets'" in error and "Did you mean 'test'?" in error


def test_a_bad_record_far_into_training_is_named_and_training_goes_on_without_it(tmp_path, launch):
    toy.write(tmp_path, rows=6_400)
    path = tmp_path / "data" / "train.csv"
    lines = path.read_text().splitlines()
    good, lines[5_999] = lines[5_999], "40,cook,1,9"
    path.write_text("\n".join(lines) + "\n")
    params = (
        "Pipeline.shuffle_buffer = 1",
        "Pipeline.batch_size = 100",
        "Run.train_steps = 64",
        "Run.checkpoint_steps = 30",
    )
    args = ("--gin_file", "toy.gin", "--model_dir", "run")
    args += tuple(arg for param in params for arg in ("--gin_param", param))
    error = launch("train", *args).error
    assert "data/train.csv line 6000: head 'level': label 'level' must be in [0, 3), got 9" in error
    assert tf.train.load_variable(str(tmp_path / "run"), "global_step") == 30
    lines[5_999] = good
    path.write_text("\n".join(lines) + "\n")
    again = launch("train", "--model_dir", "run")
    assert again.code == 0 and "Going on from step 30 to step 64" in again.err


@pytest.mark.keeps_op_stacks
def test_a_loss_that_is_not_finite_is_one_line(tmp_path, launch):
    toy.write(tmp_path)
    args = ("--gin_file", "toy.gin", "--model_dir", "run", "--gin_param")
    params = ("Adam.learning_rate = 1e38", "--gin_param", "Run.steps_per_call = 1")
    error = launch("train", *args, *params).error
    assert error.startswith("Losses and gradients must be finite, got NaN or infinity at step ")
    command = re.search(r"python -m launch\.debug --model_dir run --step \d+$", error).group()
    found = launch(*command.split()[2].split(".")[1:], *command.split()[3:])
    assert found.code == 0 and "overflow of float32" in found.out, found
    assert "in one step: the learning rate may be too high" in found.out
    page = re.search(r"^Page: (run/debug/step_\d+/summary\.md)$", found.out, re.M).group(1)
    assert command in (tmp_path / page).read_text()


@pytest.mark.parametrize(
    "verb, args, says",
    [
        ("debug", (), "--step must be set, because the run has not failed"),
        ("debug", ("--step", "-3"), "--step must be at least 0, got -3"),
        ("debug", ("--step", "x"), "flag --step=x"),
        ("debug", ("--step", "400"), "--step must be less than Run.train_steps, 20, got 400"),
        ("inspect", (), "launch.inspect must have one of --summary, --tensor and --ea"),
        ("inspect", ("--summary", "--eager"), "--eager, got '--summary, --eager'"),
        ("inspect", ("--tensor", "x", "--breakpoint"), "be left out with all but --eager"),
        ("inspect", ("--tensor", "head/rihc"), "got 'head/rihc'. Did you mean 'head/rich'?"),
        ("inspect", ("--tensor", "*rihc*"), "--tensor must match a name, got '*rihc*'"),
        ("inspect", ("--tensor", "x", "--mode", "evil"), "--mode must be one of eval, predict"),
        ("inspect", ("--tensor", "x", "--split", "tset"), "'tset'. Did you mean 'test'?"),
        ("inspect", ("--tensor", "x", "--rows", "no.csv"), "--rows must be a file, got 'no.csv'"),
        ("inspect", ("--tensor", "x", "--output", "x.csv"), "--output must end in .npz"),
        ("inspect", ("--tensor", "x", "--limit", "0"), "--limit must be at least 1, got 0"),
        ("inspect", ("--tensor", "*", "--output", "x.npz"), "--output must be left out with a pa"),
        (
            "inspect",
            ("--summary", "--rows", "x.csv"),
            "--rows must be left out with --summary, got",
        ),
        ("inspect", ("--summary", "--split", "test"), "--split must be left out with --summary"),
        ("inspect", ("--summary", "--mode", "eval"), "--mode must be left out with --summary"),
        ("inspect", ("--summary", "--limit", "4"), "--limit must be left out with --summary"),
        ("inspect", ("--summary", "--checkpoint", "best"), "--checkpoint must be left out with"),
    ],
)
def test_what_cannot_be_looked_into(verb, args, says, run, launch):
    before = files(run.parent)
    assert says in launch(verb, "--model_dir", "run", *args).error
    assert files(run.parent) == before


def test_a_pattern_lists_tensors_by_name(run, launch):
    result = launch("inspect", "--model_dir", "run", "--tensor", "head/*/MatMul")
    assert result.code == 0, result
    assert "head/rich/logits/MatMul:0" in result.out


def test_code_is_run_eagerly_on_rows_of_the_split(run, launch, tmp_path):
    result = launch("inspect", "--model_dir", "run", "--eager", "--limit", "2")
    assert result.code == 0 and "rich/probability" in result.out, result
    result = launch("inspect", "--model_dir", "run", "--eager", "--limit", "2", "--output", "o.npz")
    assert result.code == 0 and not result.out, result
    with np.load(tmp_path / "o.npz") as arrays:
        assert arrays["rich/probability"].shape[0] == 2


@pytest.mark.slow
@pytest.mark.main_job
def test_digits_in_a_process_of_its_own(tmp_path):
    args = ("--gin_file", "gin_configs/experiments/digits_shared_bottom.gin", "--model_dir", "run")
    settings = ("Run.train_steps = 40", "Run.checkpoint_steps = 40", "Cosine.decay_steps = 1000")
    params = [part for setting in settings for part in ("--gin_param", setting)]
    result = conftest.run_process(tmp_path, "launch.train", *args, *params)
    assert result.code == 0, result
    assert metrics(result.out)["digit/accuracy"] > 0.5
    # TensorFlow prints only a notice, in 2.18 to 2.20, which no log level turns off.
    known = r"Training to|step |WARNING: All log messages before absl|I0000 .* MLIR V1 optimization"
    assert [line for line in result.err.splitlines() if not re.match(known, line)] == []


@pytest.fixture(scope="module")
def half_trained(launch_in, tmp_path_factory):
    """A directory with toy.gin and its model after half of the steps."""
    directory = tmp_path_factory.mktemp("half")
    toy.write(directory)
    short = ("--gin_param", "Run.train_steps = 10")
    result = launch_in(directory, "train", "--gin_file", "toy.gin", "--model_dir", "run", *short)
    assert result.code == 0, result
    return directory


@pytest.mark.parametrize("given", [(), ("--gin_file", "toy.gin")], ids=["alone", "gin file again"])
def test_a_run_goes_on_to_the_bit_whatever_names_its_settings(
    given, half_trained, trained, launch_in, tmp_path
):
    """The toy's dictionaries are not in order of their keys, as gin writes them."""
    directory = tmp_path / "copy"
    shutil.copytree(half_trained, directory)
    longer = ("--gin_param", "Run.train_steps = 20")
    result = launch_in(directory, "train", "--model_dir", "run", *given, *longer)
    assert result.code == 0 and "order starts anew" not in result.err, result
    weights, expected = (tiny.variables(place / "run", 20) for place in (directory, trained[0]))
    assert weights.keys() == expected.keys() and len(weights) > 10
    for name, value in expected.items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)
