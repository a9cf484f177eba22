"""Every way to a prediction gives what the Estimator predicts; a busy server is asked again."""

import contextlib
import dataclasses
import json
import shutil
import socket
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, verbs
from mtl.tools import scoring
from mtl.tools.scoring import batches
from tests.tools.scoring import servers

PROTOCOLS = ("grpc", "rest")
METADATA = b'{"model_spec": {"version": %s}, "metadata": {"signature_def": {"signature_def": {}}}}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"
CALL = {"model": servers.NAME, "deadline_secs": 20.0}


@contextlib.contextmanager
def serving(protocol, served):
    if protocol == "grpc":
        pytest.importorskip("tensorflow_serving", reason="needs the extra 'serving'")
    server = {"grpc": servers.grpc_server, "rest": servers.rest_server}[protocol]
    with server(served) as address:
        yield address


@pytest.mark.medium
def test_saved_model_and_checkpoint(trained):
    saved_model = scoring.SavedModel(trained.base)
    servers.assert_as_expected(saved_model(trained.examples), trained)
    with pytest.raises(batches.RefusedError, match="Could not parse"):
        saved_model([b"\xff"])
    with verbs.open_scorer(trained.experiment, trained.model_dir) as model:
        servers.assert_as_expected(model(trained.examples), trained)
        with pytest.raises(batches.RefusedError, match="Could not parse"):
            model([b"\xff"])


@pytest.mark.medium
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_server(protocol, trained, served):
    local = scoring.SavedModel(trained.base, "sign")(trained.examples)
    with serving(protocol, served) as address:
        remote = scoring.connect_server(address, scoring.Call(**CALL))
        servers.assert_as_expected(remote(trained.examples), trained)
        assert remote.identity == "tiny version 2 serving_default"
        # To the last bit of float32 what the model gives in this process.
        task = scoring.connect_server(address, scoring.Call(**CALL, signature="sign", version="1"))
        outputs = task(trained.examples)
        assert list(outputs) == list(local)
        for name, value in local.items():
            assert outputs[name].dtype == value.dtype
            np.testing.assert_array_equal(outputs[name], value)
        with pytest.raises(batches.RefusedError, match="Could not parse"):
            remote([b"\xff"])


@pytest.mark.skipif(not shutil.which("tensorflow_model_server"), reason="not on the PATH")
def test_tensorflow_model_server(trained):
    with servers.tensorflow_model_server(trained.base) as addresses:
        for address in addresses:
            remote = scoring.connect_server(address, scoring.Call(**CALL, retries=8))
            servers.assert_as_expected(remote(trained.examples), trained)


@pytest.mark.medium
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_busy_server_is_asked_again(protocol, trained, served, monkeypatch):
    waits = []
    monkeypatch.setattr("mtl.tools.scoring.remote.time.sleep", waits.append)
    with serving(protocol, served) as address:
        remote = scoring.connect_server(address, scoring.Call(**CALL, retries=2))
        served.failures.extend(_busy(protocol, 2))
        servers.assert_as_expected(remote(trained.examples), trained)
        assert len(waits) == 2 and 0.2 <= waits[0] <= 0.3 and 0.4 <= waits[1] <= 0.6
        served.failures.extend(_busy(protocol, 3))
        with pytest.raises(checks.UserError, match=_tell_busy(protocol)):
            remote(trained.examples)
        assert not served.failures and served.calls == 1


def _tell_busy(protocol):
    rule = "without an error" if protocol == "rest" else "within 20 seconds"
    return f"--server must answer {rule}, got .* 3 attempts failed: (HTTP 503|UNAVAILABLE)"


def _busy(protocol, count):
    if protocol == "rest":
        return [503] * count
    import grpc

    return [grpc.StatusCode.UNAVAILABLE] * count


def nested(value, depth):
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.medium
@pytest.mark.parametrize(
    "name, change, says",
    [
        ("sign/probability", lambda values: [None] * len(values), "hold float32, got None"),
        ("sign/probability", lambda values: [*values[:-1], None], "hold float32, got None"),
        ("sign/probability", lambda values: ["0.5"] * len(values), "hold float32, got b'0.5'"),
        ("sign/probability", lambda values: [True] * len(values), "hold float32, got True"),
        ("sign/probability", lambda values: [[v] * i for i, v in enumerate(values)], "float32"),
        ("sign/probability", lambda values: values[:-1], "have 48 rows"),
        ("sign/probability", lambda values: [*values, 0.5], "have 48 rows"),
        ("sign/probability", lambda values: 0.5, "have 48 rows"),
        ("sign/probability", lambda values: {"a": 1}, "answer .*:predict as TensorFlow Serving"),
        ("sign/probability", lambda values: [1e300] * len(values), r"hold float32, got 1e\+300"),
        ("sign/probability", lambda values: [10**400] * len(values), "hold float32, got 1000"),
        ("sign/probability", lambda values: nested(values, 100), "hold float32, got"),
        ("sign/class", lambda values: [{"b64": "a"}] * len(values), ":predict as TensorFlow"),
        ("sign/class", lambda values: [{"b64": "????"}] * len(values), ":predict as TensorFlow"),
        ("sign/class", lambda values: [{"b64": 1}] * len(values), ":predict as TensorFlow"),
        ("sign/class", lambda values: ["\ud800"] * len(values), ":predict as TensorFlow"),
        ("sign/class_id", lambda values: [0.5] * len(values), "hold int64, got 0.5"),
        ("sign/class_id", lambda values: [2**70] * len(values), "hold int64, got 1180"),
        ("sign/class", lambda values: [1] * len(values), "hold string, got 1"),
        ("sign/class", None, "hold string, got None. The reply lacks the output"),
    ],
)
def test_an_odd_reply_is_refused(name, change, says, trained, served, monkeypatch):
    predict = served.predict

    def odd(*args):
        outputs = {key: servers.Plain(value) for key, value in predict(*args).items()}
        if change is None:
            del outputs[name]
        else:
            outputs[name] = servers.Plain(change(outputs[name].tolist()))
        return outputs

    with serving("rest", served) as address:
        remote = scoring.connect_server(address, scoring.Call(**CALL))
        servers.assert_as_expected(remote(trained.examples), trained)
        monkeypatch.setattr(served, "predict", odd)
        with pytest.raises(checks.UserError, match=says) as refused:
            remote(trained.examples)
        assert "\n" not in str(refused.value)


@pytest.mark.medium
@pytest.mark.parametrize(
    "reply",
    [
        *(b"<html>\n<body>", b"", b"null", b"[]", b'{"error": "x"}', b"{}", b'{"outputs": null}'),
        *(b"\xff", b"[" * 100_000, b"1" * 10_000, b'{"predictions": [1]}', METADATA % b"null"),
        *(
            METADATA % b"[]",
            METADATA % b'"../x"',
        ),
    ],
    ids=lambda reply: reply[:50].decode(errors="replace"),
)
def test_a_reply_of_another_kind_is_refused(reply, trained, served, monkeypatch):
    with serving("rest", served) as address:
        remote = scoring.connect_server(address, scoring.Call(**CALL))
        odd = types.SimpleNamespace(loads=json.loads, dumps=lambda answer: reply.decode("latin1"))
        monkeypatch.setattr(servers, "json", odd)
        for ask in (
            lambda: scoring.connect_server(address, remote._call),
            lambda: remote(trained.examples),
        ):
            with pytest.raises(checks.UserError, match="--server") as refused:
                ask()
            assert "\n" not in str(refused.value)


@pytest.mark.medium
def test_nan_and_infinity_of_a_server_are_numbers(trained, served, monkeypatch):
    predict = served.predict

    def odd(*args):
        outputs = predict(*args)
        outputs["size/value"][:2] = np.nan, np.inf
        return outputs

    monkeypatch.setattr(served, "predict", odd)
    with serving("rest", served) as address:
        found = scoring.connect_server(address, scoring.Call(**CALL))(trained.examples)[
            "size/value"
        ]
    np.testing.assert_array_equal(found[:2], np.float32([np.nan, np.inf]))
    assert np.isfinite(found[2:]).all()


@pytest.mark.medium
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_deadline(protocol, trained, served):
    with serving(protocol, served) as address:
        remote = scoring.connect_server(address, scoring.Call(**CALL, retries=0))
        remote._call = dataclasses.replace(remote._call, deadline_secs=0.5)
        served.is_open.clear()
        with pytest.raises(checks.UserError, match="within 0.5 seconds.*1 attempts failed"):
            remote(trained.examples)
        served.is_open.set()


@pytest.mark.medium
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nX: ", OK + b"\r\n"])
def test_a_server_that_answers_byte_by_byte(protocol, head):
    if protocol == "grpc":
        pytest.importorskip("tensorflow_serving", reason="needs the extra 'serving'")
    is_over = threading.Event()

    def answer(connection):
        with contextlib.suppress(OSError), connection:
            connection.sendall(head)
            while not is_over.wait(0.05):
                connection.sendall(b" ")

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=[opened.accept()[0]], daemon=True).start()

    with socket.create_server(("localhost", 0)) as opened:
        threading.Thread(target=accept, daemon=True).start()
        scheme = "http://" if protocol == "rest" else ""
        address = f"{scheme}localhost:{opened.getsockname()[1]}"
        call = scoring.Call(model="x", deadline_secs=0.5, retries=0)
        with pytest.raises(checks.UserError, match="--server must answer within 0.5 seconds"):
            scoring.connect_server(address, call)
        is_over.set()


@pytest.mark.medium
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "setting, value, says",
    [
        ("model", "tinny", "--server does not serve 'tinny': .*not found"),
        ("version", "7", "--server does not serve 'tiny': .*not found"),
        ("signature", "sing", "--signature must be one of .*, got 'sing'. Did you mean 'sign'"),
    ],
)
def test_what_a_server_does_not_have(protocol, setting, value, says, served):
    with serving(protocol, served) as address, pytest.raises(checks.UserError, match=says):
        scoring.connect_server(address, scoring.Call(**{**CALL, setting: value}))


@pytest.mark.parametrize(
    "server, says",
    [
        ("localhost", "--server must be HOST:PORT for gRPC, http"),
        ("localhost:99999", "--server must have a port from 1 to 65535, got 'localhost:99999'"),
        ("http://localhost:99999", "--server must have a port from 1 to 65535"),
        ("localhost:0", "--server must have a port from 1 to 65535"),
        ("localhost:" + "9" * 5000, "--server must have a port from 1 to 65535"),
        ("localhost:\u0661", "--server must be HOST:PORT for gRPC"),
        ("http://a..b:80", "--server must name a host, got 'http://a..b:80'"),
        ("a..b:80", "--server must name a host, got 'a..b:80'"),
        (f"http://{'a' * 64}:80", "--server must name a host"),
        ("http://\udcff:80", "--server must name a host"),
        ("localhost:1", "--server must answer within 1 seconds, got 'localhost:1'. 1 attempts"),
        ("http://localhost:1", "--server must answer within 1 seconds.*refused"),
    ],
)
def test_no_server(server, says):
    if not server.startswith("http"):
        pytest.importorskip("tensorflow_serving", reason="needs the extra 'serving'")
    with pytest.raises(checks.UserError, match=says):
        scoring.connect_server(server, scoring.Call(model="x", deadline_secs=1, retries=0))


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"version": "9" * 30}, "--model_version must be a label or below 2"),
        ({"version": "9" * 5000}, "--model_version must be a label or below 2"),
        ({"version": "\udcff"}, "--model_version must be text"),
        ({"model": "\udcff"}, "--model_name must be text"),
        ({"model": ""}, "--model_name must name a model"),
        ({"deadline_secs": float("inf")}, "--deadline_secs must be finite"),
        ({"deadline_secs": float("nan")}, "--deadline_secs must be a float32"),
    ],
)
def test_a_call_that_no_server_takes(settings, says):
    with pytest.raises(checks.UserError, match=says):
        scoring.Call(**{**CALL, **settings})


@pytest.mark.parametrize(
    "version, is_label", [("", False), ("12", False), ("stable", True), ("²", True)]
)
def test_versions_and_labels(version, is_label):
    assert scoring.Call(**CALL, version=version).is_label == is_label


@pytest.mark.medium
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_refuses_the_first_question(protocol, served, monkeypatch):
    def refuse(version):
        raise tf.errors.InvalidArgumentError(None, None, "no more")

    if protocol == "grpc":
        monkeypatch.setattr(served, "version", lambda version: (1, None))
        monkeypatch.setattr(served, "signature_defs", lambda number: {"x": object()})
        says = "--server does not serve 'tiny': UNKNOWN"
    else:
        monkeypatch.setattr(served, "version", refuse)
        says = "--server does not serve 'tiny': no more"
    with serving(protocol, served) as address, pytest.raises(checks.UserError, match=says) as e:
        scoring.connect_server(address, scoring.Call(**CALL))
    assert "\n" not in str(e.value)


def test_no_saved_model(trained, tmp_path):
    with pytest.raises(checks.UserError, match="--saved_model must be a SavedModel or a folder"):
        scoring.SavedModel(str(tmp_path))
    (tmp_path / "saved_model.pb").write_bytes(b"nonsense")
    with pytest.raises(checks.UserError, match="--saved_model must be a SavedModel, got"):
        scoring.SavedModel(str(tmp_path))
    with pytest.raises(checks.UserError, match="Did you mean 'kind'"):
        scoring.SavedModel(trained.base, "kin")
