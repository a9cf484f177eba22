"""The log of requests: rows and predictions as they were, without those left out, in bounds."""

import datetime
import logging
import os
import pathlib
import time
import types

import grpc
import numpy as np
import pytest
from pyarrow import parquet
from tensorflow_serving.apis import prediction_service_pb2_grpc

from mtl import checks
from mtl.tools.serve import engine, models, request_log, requests
from tests.tools.serve.conftest import NAME, serving
from tests.tools.serve.grpc_test import make
from tests.tools.serve.rest_test import EXAMPLE, as_json

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def model(base):
    loaded = models.Model.load(NAME, 7, str(base / "7"))
    yield loaded
    loaded.close()


def answer(model, signature, inputs):
    request = requests.make_request(model.find_signature(signature), inputs, [], 10**6)
    outputs = model.run(signature, request.inputs, request.outputs)
    return engine.Answer(model, request, outputs)


def read(folder):
    """{file: its table}."""
    return {p.name: parquet.read_table(p) for p in sorted(pathlib.Path(folder).glob("*.parquet"))}


def make_log(folder, **settings):
    os.makedirs(folder, exist_ok=True)
    given = {"share": 1.0, "without": (), "most_bytes": 10**9}
    return request_log.RequestLog(str(folder), **{**given, **settings})


def write_all(folder, answers, **settings):
    log = make_log(folder, **settings)
    for one in answers:
        log.add(one)
    log.close()
    return read(folder)


def test_nothing_is_written_unless_asked_for(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(base) as served:
        assert served.ask(f"/v1/models/{NAME}:predict", served.ask("/example").json).status == 200
    assert not list(tmp_path.rglob("*"))


def test_rows_and_predictions_of_every_protocol(base, tmp_path, rows, expected):
    """Examples and tensors of the same rows give the same columns."""
    inputs = {name: value[:5] for name, value in rows["raw"].items()}
    wanted = expected("raw", inputs)
    examples = rows["serving_default"]["examples"][:5]
    columns = {name: as_json(value) for name, value in inputs.items()}
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
    with serving(base, request_log=str(tmp_path / "log")) as served:
        assert served.predict(signature_name="raw", inputs=columns).status == 200
        assert served.predict(signature_name="raw", inputs={"x": [3]}).status == 400
        with grpc.insecure_channel(served.grpc) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            stub.Predict(make({"examples": examples}, "serving_default"), timeout=20)
    tables = read(tmp_path / "log")
    assert len(tables) == 2 and (tmp_path / "log").stat().st_mode & 0o077 == 0
    for name, table in tables.items():
        assert name.split("-")[1:3] == ["7", table["signature"][0].as_py()]
        assert table["version"].to_pylist() == [7] * 5
        assert min(table["time"].to_pylist()) > before
        lengths = inputs["tags/length"]
        tags = [row[:n].tolist() for row, n in zip(inputs["tags"], lengths, strict=True)]
        found = [list(map(str.encode, row or ())) for row in table["input/tags"].to_pylist()]
        assert found == tags
        x = [list(row) for row in table["input/x"].to_pylist()]
        np.testing.assert_array_equal(np.float32(x), inputs["x"])
        for output, value in wanted.items():
            found = table[f"prediction/{output}"].to_pylist()
            if value.dtype == object:
                assert [text.encode() for text in found] == value.tolist()
            else:
                np.testing.assert_allclose(found, value, rtol=1e-6)


@pytest.mark.parametrize("signature", ["raw", "serving_default"])
def test_left_out_fields_are_in_no_file(signature, tmp_path, model, rows):
    without = ["word", "tags", "id", "kind", "rich/probability"]
    (table,) = write_all(
        tmp_path, [answer(model, signature, rows[signature])], without=without
    ).values()
    assert set(table.column_names) == {
        *("time", "version", "signature", "input/flag", "input/pixels", "input/x"),
        *("prediction/rich/class", "prediction/rich/class_id", "prediction/price/value"),
    }
    text = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"green" not in text and b"green" in b"".join(rows["raw"]["word"].tolist())


@pytest.mark.parametrize(
    "signature, without, columns",
    [
        ("raw/kind", ["kind/class"], ["class_id", "id", "probabilities"]),
        ("raw/kind", ["kind", "id"], []),
        ("raw/kind", ["price"], ["class", "class_id", "id", "probabilities"]),
        ("kind/classify", ["kind/probabilities"], []),
        ("kind/classify", ["price"], ["classes", "scores"]),
    ],
)
def test_predictions_of_one_task_are_left_out_by_their_whole_name(
    signature, without, columns, tmp_path, model, rows
):
    inputs = rows["raw"]
    if signature == "kind/classify":
        inputs = {"inputs": rows["serving_default"]["examples"]}
    (table,) = write_all(tmp_path, [answer(model, signature, inputs)], without=without).values()
    found = [name for name in table.column_names if name.startswith("prediction/")]
    assert sorted(found) == [f"prediction/{name}" for name in columns]
    assert "input/x" in table.column_names


def test_a_sample(tmp_path, model, rows):
    one = answer(model, "raw", {name: value[:1] for name, value in rows["raw"].items()})
    log = make_log(tmp_path, share=0.25)
    log._random.seed(1)
    for _ in range(800):
        log.add(one)
        if log._waiting.full():
            time.sleep(0.01)
    log.close()
    count = sum(len(table) for table in read(tmp_path).values())
    assert 150 < count < 250


def test_the_oldest_files_go_and_files_of_others_stay(tmp_path, model, rows, monkeypatch):
    monkeypatch.setattr(request_log, "_MOST_ROWS", 32)
    (tmp_path / "mine.parquet").write_bytes(b"x" * 100_000)
    one = answer(model, "raw", rows["raw"])
    (size,) = [len(p.read_bytes()) for p in _first_file(tmp_path / "probe", one)]
    log = make_log(tmp_path, most_bytes=int(3.5 * size))
    for _ in range(8):
        log.add(one)
        time.sleep(0.05)
    log.close()
    names = sorted(path.name for path in tmp_path.glob("2*.parquet"))
    assert [name[-11:-8] for name in names] == ["006", "007", "008"]
    assert (tmp_path / "mine.parquet").exists()


def _first_file(folder, one):
    write_all(folder, [one])
    return folder.glob("*.parquet")


def test_a_disk_that_fails_costs_the_log_and_no_request(base, tmp_path, rows, monkeypatch, caplog):
    logging.getLogger("mtl").propagate = True

    def fail(path, data):
        raise OSError(28, "No space left on device", path)

    with serving(base, request_log=str(tmp_path / "log")) as served:
        monkeypatch.setattr(request_log, "_MOST_SECS", 0.1)
        monkeypatch.setattr(request_log, "_MOST_ROWS", 1)
        monkeypatch.setattr(request_log.atomic, "write", fail)
        example = served.ask("/example").json
        for _ in range(3):
            assert served.ask(f"/v1/models/{NAME}:predict", example).status == 200
        until = time.monotonic() + 20
        while served.count("mtl_unlogged_requests_total") < 3:
            assert time.monotonic() < until
    told = [r.getMessage() for r in caplog.records if "request log" in r.getMessage()]
    assert len(told) == 1 and "No space left on device" in told[0]
    assert not read(tmp_path / "log")


@pytest.mark.parametrize(
    "settings, says",
    [
        (
            {"request_log_without": ["wrod"]},
            "--request_log_without must be one of .*Did you mean 'word'",
        ),
        ({"request_log": "gs://bucket"}, "--request_log must be a folder of this machine"),
        ({"request_log": __file__}, "--request_log must be a folder, got"),
        ({"request_log": f"{__file__}/x"}, "--request_log must be a folder"),
    ],
)
def test_mistakes_are_seen_at_the_start(settings, says, base, tmp_path):
    given = {"request_log": str(tmp_path / "log"), **settings}
    with pytest.raises(checks.UserError, match=says), serving(base, **given):
        pass
    assert not (tmp_path / "log").exists()


def test_an_absent_feature_is_null(tmp_path, model):
    from mtl.tools.serve import rest

    example = {name: value for name, value in EXAMPLE.items() if name != "word"}
    body = {"signature_name": "price/regress", "examples": [EXAMPLE, example]}
    request = rest.read_examples(model, body, models.REGRESS, 9)
    one = engine.Answer(model, request, model.run("price/regress", request.inputs, request.outputs))
    (table,) = write_all(tmp_path, [one]).values()
    assert [len(row or ()) for row in table["input/word"].to_pylist()] == [1, 0]
    assert len(table["prediction/outputs"]) == 2


def test_the_work_for_a_request_does_not_grow_with_the_waiting_requests(tmp_path, monkeypatch):
    class Counted:
        reads = 0

        @property
        def rows(self):
            self.reads += 1
            return 1

    monkeypatch.setattr(request_log.RequestLog, "_write", lambda self, entries: None)
    log, request = make_log(tmp_path), Counted()
    for _ in range(500):
        log.add(types.SimpleNamespace(request=request))
    log.close()
    assert request.reads <= 4 * 500
