"""Files to files: the same rows in every format, each file once, and none half-written."""

import csv
import json
import os
import pathlib
import re
import stat
import threading

import numpy as np
import pytest
import tensorflow as tf
from pyarrow import parquet

from mtl import checks
from mtl.data import csv as data_csv
from mtl.tools import scoring
from mtl.tools.scoring import batches
from tests import tiny
from tests.files import atomic_test


class Sums:
    """A model that is told from another by its name, and counts what it does."""

    def __init__(self, identity="sums", refuses=(), digest=""):
        self.identity, self.refuses, self.rows, self.digest = identity, refuses, 0, digest

    def __call__(self, examples):
        self.rows += len(examples)
        x = tiny.SPEC.parse(tf.constant(examples), with_labels=False)["x"].numpy()
        if set(examples) & set(self.refuses):
            raise batches.RefusedError("no")
        classes = np.array([b"\xc3\xbc", b'a"%s'], object)[(x[:, 0] > 0).astype(int)]
        values = np.where(x[:, 0] > 1.5, np.nan, x.sum(1))
        return {"x": x, "of/class": classes, "of/sum": values, "n": np.arange(len(x))}


def run(inputs, output, model=None, keep=("id",), format_name="auto", batch_size=7):
    reader = scoring.Reader(spec=tiny.SPEC, keep=keep, batch_size=batch_size)
    plan = scoring.plan_shards(reader.find(inputs), output and str(output), format_name)
    return scoring.score_shards(plan, reader, model or Sums(), concurrency=3)


def lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


@pytest.mark.medium
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "tfrecord"])
def test_every_format_of_input_gives_the_same(suffix, trained, tmp_path):
    path = trained.write(tmp_path / f"in.{suffix}")
    assert run([path], tmp_path / "out.jsonl") == (48, 0)
    rows, x = lines(tmp_path / "out.jsonl"), tiny.SPLITS["test"]["x"]
    assert [row["id"] for row in rows] == [f"r{i}" for i in range(48)]
    assert list(rows[0]) == ["id", "x", "of/class", "of/sum", "n"]
    np.testing.assert_array_equal(np.float32([row["x"] for row in rows]), x)
    for row, values in zip(rows, x, strict=True):
        assert row["of/class"] == ('a"%s' if values[0] > 0 else "ü")
        expected = np.nan if values[0] > 1.5 else values.sum()
        np.testing.assert_equal(np.float32(row["of/sum"]), np.float32(expected))


def test_every_format_of_output_holds_the_same(trained, tmp_path):
    path = trained.write(tmp_path / "in.jsonl")
    for suffix in ("jsonl", "csv", "tfrecord"):
        run([path], tmp_path / f"out.{suffix}")
    rows = lines(tmp_path / "out.jsonl")
    with open(tmp_path / "out.csv", newline="") as file:
        cells = list(csv.DictReader(file))
    records = tf.data.TFRecordDataset(str(tmp_path / "out.tfrecord")).as_numpy_iterator()
    features = [tf.train.Example.FromString(record).features.feature for record in records]
    assert len(rows) == len(cells) == len(features) == 48
    for row, cell, feature in zip(rows, cells, features, strict=True):
        assert cell["id"] == row["id"] == feature["id"].bytes_list.value[0].decode()
        assert [float(v) for v in cell["x"].split("|")] == row["x"]
        assert list(feature["x"].float_list.value) == np.float32(row["x"]).tolist()
        assert cell["of/class"] == row["of/class"]
        np.testing.assert_equal(float(cell["of/sum"]), row["of/sum"])
        assert int(cell["n"]) == row["n"] == feature["n"].int64_list.value[0]


@pytest.mark.medium
def test_several_files_into_one_and_to_standard_output(trained, tmp_path, capsys):
    paths = [trained.write(tmp_path / "a.csv", 3), trained.write(tmp_path / "b.tfrecord", 2)]
    assert run(paths, tmp_path / "all.jsonl") == (5, 0)
    assert run(paths, None) == (5, 0)
    out = capsys.readouterr().out
    assert out == (tmp_path / "all.jsonl").read_text()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["r0", "r1", "r2", "r0", "r1"]


@pytest.mark.medium
def test_a_restart_repeats_no_finished_file(trained, tmp_path):
    inputs = [trained.write(tmp_path / f"in-{i}.csv", 10 + i) for i in range(4)]
    bad = pathlib.Path(inputs[2])
    good, out = bad.read_text(), tmp_path / "out"
    bad.write_text(good.replace("\nr9,", "\nr9,x", 1))
    with pytest.raises(checks.UserError, match="in-2.csv line 11: field 'x'"):
        run([str(tmp_path / "in-*.csv")], f"{out}/", format_name="jsonl")
    assert sorted(os.listdir(out)) == ["in-0.jsonl", "in-1.jsonl", "scoring.json"]
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.jsonl")}

    bad.write_text(good)
    model = Sums()
    assert run([str(tmp_path / "in-*.csv")], out, model, format_name="jsonl") == (25, 2)
    assert model.rows == 25
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for i in range(4):
        assert [row["id"] for row in lines(out / f"in-{i}.jsonl")] == [
            f"r{j}" for j in range(10 + i)
        ]

    newer = (out / "in-1.jsonl").stat().st_mtime_ns + 10**9
    os.utime(inputs[1], ns=(newer, newer))  # The content stays the same.
    assert run(inputs, out, format_name="jsonl") == (0, 4)


def replace_with_dates(path, text):
    """Change a file as `cp -p`, `rsync -t` and `tar -x` do: its date stays."""
    dates = os.stat(path)
    pathlib.Path(f"{path}.other").write_text(text)
    os.utime(f"{path}.other", ns=(dates.st_atime_ns, dates.st_mtime_ns))
    os.replace(f"{path}.other", path)


@pytest.mark.medium
@pytest.mark.parametrize("age_secs", [0, 86_400])
@pytest.mark.parametrize("is_longer", [True, False])
def test_an_input_that_changed_is_predicted_again_whatever_its_date(
    is_longer, age_secs, trained, tmp_path
):
    inputs = [trained.write(tmp_path / f"in-{i}.csv", 3) for i in range(2)]
    out = f"{tmp_path}/out/"
    assert run(inputs, out) == (6, 0)
    text = pathlib.Path(inputs[1]).read_text()
    changed = f"{text}{text.splitlines()[1]}\n" if is_longer else text.replace("r2,", "q2,")
    before = os.stat(inputs[1]).st_mtime_ns - age_secs * 10**9
    os.utime(inputs[1], ns=(before, before))
    replace_with_dates(inputs[1], changed)
    assert run(inputs, out) == (4 if is_longer else 3, 1)
    with open(f"{out}in-1.csv") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    assert ids == (["r0", "r1", "r2", "r0"] if is_longer else ["r0", "r1", "q2"])
    assert run(inputs, out) == (0, 2)


@pytest.mark.medium
def test_predictions_of_an_input_that_changes_under_the_reader_are_made_again(trained, tmp_path):
    path, out = trained.write(tmp_path / "in.csv", 30), f"{tmp_path}/out/"
    text, lock = pathlib.Path(path).read_text(), threading.Lock()

    class Changing(Sums):
        def __call__(self, examples):
            with lock:
                replace_with_dates(path, text.replace("r29,", "q29,"))
            return super().__call__(examples)

    assert run([path], out, Changing()) == (30, 0)
    assert run([path], out) == (30, 0)
    assert run([path], out) == (0, 1)


@pytest.mark.medium
def test_a_stop_between_an_output_and_its_note_repeats_the_output(trained, tmp_path):
    inputs, out = [trained.write(tmp_path / f"in-{i}.csv", 3) for i in range(2)], tmp_path / "out"
    run(inputs, f"{out}/")
    text = pathlib.Path(inputs[0]).read_text()
    replace_with_dates(inputs[0], text.replace("r2,", "q2,x"))
    with pytest.raises(checks.UserError, match="in-0.csv line 4"):
        run(inputs, f"{out}/", batch_size=2)
    # The predictions are of another content than the present one, which is again the first.
    (out / "in-0.csv").write_text("of the second content")
    replace_with_dates(inputs[0], text)
    assert run(inputs, f"{out}/") == (3, 1)


@pytest.mark.medium
def test_a_folder_of_a_version_that_noted_no_states_is_predicted_again(trained, tmp_path):
    path, out = trained.write(tmp_path / "in.csv", 3), f"{tmp_path}/out/"
    run([path], out)
    note = tmp_path / "out" / "scoring.json"
    known = json.loads(note.read_text())
    del known["states"]
    note.write_text(json.dumps(known))
    assert run([path], out) == (3, 0)
    assert run([path], out) == (0, 1)


def test_a_folder_holds_predictions_of_one_model(trained, tmp_path):
    path, out = trained.write(tmp_path / "in.csv", 3), f"{tmp_path}/out/"
    run([path], out)
    assert sorted(os.listdir(out)) == ["in.csv", "scoring.json"]
    for other in ({"model": Sums("others")}, {"keep": ()}):
        with pytest.raises(checks.UserError, match="--output must hold predictions with .*sums"):
            run([path], out, **other)


@pytest.mark.medium
def test_a_model_that_was_trained_anew_under_its_name_is_another(trained, tmp_path):
    path, out = trained.write(tmp_path / "in.csv", 3), f"{tmp_path}/out/"
    note = tmp_path / "out" / "scoring.json"
    run([path], out, Sums(digest="crc32:1"))
    with pytest.raises(checks.UserError, match="hold predictions with .*crc32:2.* It has .*:1"):
        run([path], out, Sums(digest="crc32:2"))
    known = json.loads(note.read_text())
    del known["digest"]  # As an earlier version left it.
    note.write_text(json.dumps(known))
    assert run([path], out, Sums(digest="crc32:2")) == (0, 1)
    model = scoring.SavedModel(trained.base)
    assert re.fullmatch(r"crc32:\w+ crc32:\w+", model.digest)


@pytest.mark.medium
def test_what_cannot_be_planned(trained, tmp_path):
    (tmp_path / "x").mkdir()
    paths = [trained.write(tmp_path / "a.csv", 1), trained.write(tmp_path / "x" / "a.csv", 1)]
    with pytest.raises(checks.UserError, match="--input must have different names"):
        run(paths, f"{tmp_path}/out/")
    with pytest.raises(checks.UserError, match="--output must be a file that can be written"):
        run(paths[:1], paths[0] + "/")
    with pytest.raises(checks.UserError, match="--output must be a file that can be written"):
        run(paths[:1], paths[0] + "/out.csv")
    with pytest.raises(checks.UserError, match="--output must be a file if --output_format"):
        run(paths[:1], None, format_name="tfrecord")


def test_a_record_that_the_model_refuses_is_named(trained, tmp_path):
    path = trained.write(tmp_path / "in.tfrecord", 20)
    with pytest.raises(checks.UserError, match="in.tfrecord records 14 to 19: the model refused"):
        run([path], tmp_path / "out.csv", Sums(refuses=trained.examples[16:17]))
    without_x = tf.train.Example.FromString(trained.examples[3])
    del without_x.features.feature["x"]
    with tf.io.TFRecordWriter(path) as writer:
        for example in (*trained.examples[:3], without_x.SerializeToString()):
            writer.write(example)
    reader = scoring.Reader(spec=tiny.SPEC)
    plan = scoring.plan_shards([path], str(tmp_path / "out.csv"))
    with pytest.raises(checks.UserError, match="in.tfrecord record 3: field 'x' must be present"):
        scoring.score_shards(plan, reader, scoring.SavedModel(trained.base))
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    "name, text", [("in.jsonl", ""), ("in.jsonl", "\n \n"), ("in.csv", "id,x,word\n")]
)
@pytest.mark.parametrize("output", ["out.jsonl", "out/", None])
def test_inputs_without_a_row_are_refused(name, text, output, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(checks.UserError, match="--input must hold a row, got .*in"):
        run([str(tmp_path / name)], output and f"{tmp_path}/{output}")
    assert os.listdir(tmp_path) == [name]


def test_an_empty_file_among_others(trained, tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    trained.write(tmp_path / "b.jsonl", 3)
    for suffix in scoring.FORMATS:
        out = tmp_path / suffix
        assert run([f"{tmp_path}/*.jsonl"], f"{out}/", format_name=suffix) == (3, 0)
        assert sorted(os.listdir(out)) == [f"a.{suffix}", f"b.{suffix}", "scoring.json"]
    assert (tmp_path / "jsonl" / "a.jsonl").read_text() == ""
    assert parquet.read_table(tmp_path / "parquet" / "a.parquet").num_rows == 0


@pytest.mark.medium
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "tfrecord"])
def test_parquet_holds_the_same(suffix, trained, tmp_path):
    path = trained.write(tmp_path / f"in.{suffix}")
    run([path], tmp_path / "out.jsonl")
    assert run([path], tmp_path / "out.parquet", keep=("id",)) == (48, 0)
    assert run([path], tmp_path / "named", keep=("id",), format_name="parquet") == (48, 0)
    assert (tmp_path / "named").read_bytes() == (tmp_path / "out.parquet").read_bytes()
    table = parquet.read_table(tmp_path / "out.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "id": "string",
        "x": "list<element: float>",
        "of/class": "string",
        "of/sum": "float",
        "n": "int64",
    }
    for row, expected in zip(table.to_pylist(), lines(tmp_path / "out.jsonl"), strict=True):
        np.testing.assert_array_equal(np.float32(row.pop("x")), np.float32(expected.pop("x")))
        np.testing.assert_equal(np.float32(row.pop("of/sum")), np.float32(expected.pop("of/sum")))
        assert row == expected


@pytest.mark.parametrize(
    "values, types",
    [
        ([None, 1, 2], "string"),
        ([[], [1], []], "list<element: string>"),
        ([1, None, 3], "int64"),
        ([1.5, 2, 3], "double"),
        ([{"a": 1}, {"b": [2]}, None], "string"),
    ],
)
def test_kept_values_of_any_type_in_parquet(values, types, trained, tmp_path):
    path = pathlib.Path(trained.write(tmp_path / "in.jsonl", 3))
    rows = [{**row, "id": value} for row, value in zip(lines(path), values, strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert run([str(path)], tmp_path / "out.parquet", batch_size=1) == (3, 0)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert str(table.schema.field("id").type) == types
    for found, value in zip(table["id"].to_pylist(), values, strict=True):
        as_text = value if isinstance(value, str) else json.dumps(value)
        as_texts = [str(item) for item in value] if isinstance(value, list) else None
        assert found in (value, as_text, as_texts)


def test_kept_values_that_change_their_type_are_refused_for_parquet(trained, tmp_path):
    path = pathlib.Path(trained.write(tmp_path / "in.jsonl", 2))
    rows = [{**row, "id": value} for row, value in zip(lines(path), (1, "b"), strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(checks.UserError, match="column 'id' must hold int64 in every row.*jsonl"):
        run([str(path)], tmp_path / "out.parquet", batch_size=1)
    assert os.listdir(tmp_path) == ["in.jsonl"]


@pytest.mark.medium
@pytest.mark.parametrize("limit", [1, 10, 1000])
def test_row_groups_of_parquet_do_not_follow_the_batches(limit, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("mtl.tools.scoring.writers._ROWS_IN_GROUP", limit)
    path = trained.write(tmp_path / "in.csv")
    assert run([path], tmp_path / "out.parquet", batch_size=7) == (48, 0)
    found = parquet.ParquetFile(tmp_path / "out.parquet")
    assert found.num_row_groups == {1: 7, 10: 4, 1000: 1}[limit]
    assert found.read()["id"].to_pylist() == [f"r{i}" for i in range(48)]


@pytest.mark.parametrize(
    "name, says",
    [
        ("o.parq", "end in one of .csv, .jsonl, .parquet, .tfrecord, .*mean '.parquet'"),
        ("o.json", "end in one of .*mean '.jsonl'"),
        ("o.txt", "end in one of"),
        ("o.jsonl.gz", "be uncompressed, without .gz"),
        ("o.gz", "be uncompressed, without .gz"),
    ],
)
def test_an_output_of_no_known_format(name, says, trained, tmp_path):
    path = trained.write(tmp_path / "in.csv", 2)
    with pytest.raises(checks.UserError, match=f"--output must {says}"):
        run([path], tmp_path / name)
    assert os.listdir(tmp_path) == ["in.csv"]
    if not name.endswith(".gz"):
        assert run([path], tmp_path / name, format_name="jsonl") == (2, 0)


@pytest.mark.medium
def test_an_output_is_no_input(trained, tmp_path):
    (tmp_path / "data").mkdir()
    path = trained.write(tmp_path / "data" / "a.csv", 2)
    before = pathlib.Path(path).read_text()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for output in (f"{tmp_path}/data/", f"{tmp_path}/data", f"{tmp_path}/link/", path):
        with pytest.raises(checks.UserError, match="--output must not be an input, got '.*a.csv'"):
            run([path], output)
    assert os.listdir(tmp_path / "data") == ["a.csv"] and pathlib.Path(path).read_text() == before
    assert run([path], f"{tmp_path}/data/", format_name="jsonl") == (2, 0)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "tfrecord"])
def test_a_command_that_fails_leaves_nothing_to_undo(suffix, trained, tmp_path):
    path, out = trained.write(tmp_path / f"in.{suffix}", 3), f"{tmp_path}/out/"
    for wrong in (("ids",), ("id", "of/sum")):
        with pytest.raises(checks.UserError, match="'ids'|name no prediction, got 'of/sum'|of/sum"):
            run([path], out, keep=wrong)
        assert os.listdir(tmp_path) == [f"in.{suffix}"]
    assert run([path], out, keep=("id",)) == (3, 0)


def test_a_kept_field_of_a_predictions_name(trained, tmp_path):
    path = pathlib.Path(trained.write(tmp_path / "in.jsonl", 2))
    path.write_text(path.read_text().replace('"id"', '"of/sum"'))
    with pytest.raises(checks.UserError, match="--keep must name no prediction, got 'of/sum'"):
        run([str(path)], tmp_path / "out.jsonl", keep=("of/sum",))
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_every_header_is_read_before_a_row(trained, tmp_path):
    trained.write(tmp_path / "a.csv", 3)
    path = pathlib.Path(trained.write(tmp_path / "b.csv", 3))
    good, model = path.read_text(), Sums()
    path.write_text(good.replace("id,", "ids,"))
    with pytest.raises(checks.UserError, match="Did you mean 'ids'"):
        run([f"{tmp_path}/*.csv"], f"{tmp_path}/out/", model)
    assert not model.rows and not (tmp_path / "out").exists()


@pytest.mark.medium
def test_a_folder_that_holds_no_predictions_yet_is_begun_anew(trained, tmp_path):
    path, out = trained.write(tmp_path / "in.csv", 3), tmp_path / "out"
    good = pathlib.Path(path).read_text()
    pathlib.Path(path).write_text(good.replace("r2,", "r2,x"))
    with pytest.raises(checks.UserError, match="line 4"):  # The second batch.
        run([path], f"{out}/", batch_size=2)
    assert os.listdir(out) == ["scoring.json"]
    (out / "notes.txt").write_text("mine")
    pathlib.Path(path).write_text(good)
    assert run([path], f"{out}/", Sums("others"), keep=()) == (3, 0)
    with pytest.raises(checks.UserError, match="--output must hold predictions with .*sums"):
        run([path], f"{out}/")
    # In the second, the inputs are not an object.
    for note in ("{}", '{"model": "m", "keep": [], "inputs": ["notes.txt"]}'):
        (out / "scoring.json").write_text(note)
        with pytest.raises(checks.UserError, match="scoring.json must be a note of launch.predict"):
            run([path], f"{out}/")


@pytest.mark.medium
def test_a_folder_of_other_files_of_the_same_name_is_not_done(trained, tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    paths = [trained.write(tmp_path / folder / "a.csv", n) for folder, n in (("x", 3), ("y", 2))]
    old = os.stat(paths[0]).st_mtime_ns - 10**9
    os.utime(paths[1], ns=(old, old))
    out = f"{tmp_path}/out/"
    assert run(paths[:1], out) == (3, 0)
    with pytest.raises(checks.UserError, match="out/a.csv.*comes from .*x/a.csv"):
        run(paths[1:], out)
    assert run(paths[:1], out) == (0, 1)
    os.remove(f"{out}a.csv")
    trained.write(tmp_path / "y" / "b.csv", 1)
    assert run([*paths[1:], f"{tmp_path}/y/b.csv"], out) == (3, 0)


def test_an_output_is_no_input_by_any_of_its_names(trained, tmp_path):
    path = trained.write(tmp_path / "a.csv", 2)
    before = pathlib.Path(path).read_bytes()
    (tmp_path / "soft.csv").symlink_to(path)
    (tmp_path / "hard.csv").hardlink_to(path)
    for name in ("a.csv", "./a.csv", "soft.csv", "hard.csv"):
        with pytest.raises(checks.UserError, match="--output must not be an input, got"):
            run([path], f"{tmp_path}/{name}")
    assert pathlib.Path(path).read_bytes() == before and (tmp_path / "hard.csv").samefile(path)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.tfrecord", "p.parquet", "p"])
def test_a_pipe_gets_what_a_file_would(name, trained, tmp_path):
    path = trained.write(tmp_path / "in.csv", 20)
    (tmp_path / "file").mkdir()
    run([path], tmp_path / "file" / name)
    os.mkfifo(tmp_path / name)
    thread, found = atomic_test.read_in_thread(tmp_path / name)
    assert run([path], tmp_path / name) == (20, 0)
    thread.join(20)
    assert found == [(tmp_path / "file" / name).read_bytes()]
    assert (tmp_path / name).is_fifo()
    assert sorted(os.listdir(tmp_path)) == sorted(["file", "in.csv", name])


@pytest.mark.medium
def test_a_device_keeps_its_place(trained, tmp_path):
    path, device = trained.write(tmp_path / "in.csv", 3), tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.close(os.open(device, os.O_WRONLY))
    except PermissionError:
        pytest.skip("only root makes devices, and not everywhere")
    assert run([path], device) == (3, 0)
    assert device.is_char_device() and sorted(os.listdir(tmp_path)) == ["in.csv", "null"]


@pytest.mark.parametrize(
    "values",
    [
        [1, None],
        [None, None],
        [2**63, -1],
        [10**400, 1],
        [[2**70], 1],
        [{"a": [None]}, "x"],
        [[1, "a"], [[1, 2], [3]]],
        [True, 1],
    ],
    ids=lambda values: str(values)[:20],
)
def test_kept_values_of_json_come_back_whatever_they_are(values, trained, tmp_path):
    path = trained.write(tmp_path / "in.jsonl", len(values))
    rows = [{**row, "id": v} for row, v in zip(lines(path), values, strict=True)]
    pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for suffix in ("jsonl", "csv", "parquet", "tfrecord"):
        assert run([path], tmp_path / f"o.{suffix}") == (len(values), 0)
    assert [row["id"] for row in lines(tmp_path / "o.jsonl")] == values
    plain = [value for value in values if isinstance(value, (int, str)) and value is not True]
    with open(tmp_path / "o.csv", newline="") as file:
        cells = [row["id"] for row in csv.DictReader(file)]
    assert set(map(str, plain)) <= set(cells)
    records = tf.compat.v1.io.tf_record_iterator(str(tmp_path / "o.tfrecord"))
    for value, record in zip(values, records, strict=True):
        feature = tf.train.Example.FromString(record).features.feature["id"]
        kind = feature.WhichOneof("kind")
        if value is None:
            assert kind is None
        elif kind == "bytes_list":
            (found,) = feature.bytes_list.value
            assert found.decode() in (value, json.dumps(value))
        else:
            assert list(feature.int64_list.value) == [value]


def test_a_folder_holds_rows_that_were_read_with_the_same_settings(trained, tmp_path):
    path = trained.write(tmp_path / "in.jsonl", 2)
    plan = scoring.plan_shards([str(path)], f"{tmp_path}/out/")
    marks = data_csv.Csv(files={"train": ""}, missing_in={"word": ("?",)})
    for settings in (marks, marks, data_csv.Csv(files={"train": ""})):
        reader = scoring.Reader(spec=tiny.SPEC, settings=settings)
        if settings == marks:
            scoring.score_shards(plan, reader, Sums())
        else:
            with pytest.raises(checks.UserError, match="--output must hold predictions with"):
                scoring.score_shards(plan, reader, Sums())
    note = tmp_path / "out" / "scoring.json"  # Earlier versions did not note the settings.
    facts = {k: v for k, v in json.loads(note.read_text()).items() if k != "files_of_run"}
    note.write_text(json.dumps(facts))
    scoring.score_shards(plan, scoring.Reader(spec=tiny.SPEC, settings=marks), Sums())


def test_formulas_are_escaped_on_request(trained, tmp_path):
    path = tmp_path / "in.jsonl"
    rows = [{**row, "id": "=1"} for row in lines(trained.write(path, 2))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = scoring.Reader(spec=tiny.SPEC, keep=["id"])
    for wished, expected in ((True, "'=1"), (False, "=1")):
        plan = scoring.plan_shards([str(path)], f"{tmp_path}/o.csv", escape_formulas=wished)
        scoring.score_shards(plan, reader, Sums())
        with open(tmp_path / "o.csv", newline="") as file:
            assert [row["id"] for row in csv.DictReader(file)] == [expected] * 2
    with pytest.raises(checks.UserError, match="--escape_formulas must come with CSV"):
        scoring.plan_shards([str(path)], f"{tmp_path}/o.jsonl", escape_formulas=True)
    # A folder holds either escaped or unescaped rows.
    for wished in (True, False):
        plan = scoring.plan_shards([str(path)], f"{tmp_path}/out/", "csv", escape_formulas=wished)
        if wished:
            scoring.score_shards(plan, reader, Sums())
        else:
            with pytest.raises(checks.UserError, match="--output must hold predictions with"):
                scoring.score_shards(plan, reader, Sums())
