"""Limits of bodies, rows, time and clients; hang-ups; a server that stops."""

import asyncio
import contextlib
import gzip
import http.client
import json
import re
import resource
import socket
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
from tensorflow_serving.apis import prediction_service_pb2_grpc

from mtl import checks
from mtl.tools.serve import connections, engine, http_server, models, rest
from tests.tools.serve.conftest import NAME, serving, wait_until
from tests.tools.serve.grpc_test import make, refused
from tests.tools.serve.rest_test import as_json

pytestmark = pytest.mark.medium
PATH = f"/v1/models/{NAME}:predict"


@pytest.fixture
def body(rows):
    """Return a request with a single row."""
    columns = {name: as_json(value[:1]) for name, value in rows["raw"].items()}
    return {"signature_name": "raw", "inputs": columns}


@pytest.fixture
def gate(monkeypatch):
    """An event; while it is not set, no call of a model ends."""
    is_open, run = threading.Event(), models.Model.run
    is_open.set()

    def wait(self, *given):
        is_open.wait(30)
        return run(self, *given)

    monkeypatch.setattr(models.Model, "run", wait)
    yield is_open
    is_open.set()


def test_bodies_and_rows_are_bounded(base, body, rows, caplog):
    with serving(base, max_body_bytes=5000, max_rows=3) as served:
        assert served.ask(PATH, body).status == 200
        reply = served.ask(PATH, b"x" * 5001)
        assert reply.status == 413 and "at most 5000 bytes (--max_body_bytes)" in reply.error
        # Without a length in the header.
        reply = _send_chunks(served, [b"x" * 3000] * 2)
        assert reply.status == 413 and "at most 5000 bytes" in reply.error
        squeezed = gzip.compress(b" " * 10**7)
        assert (
            len(squeezed) > 5000
            or served.ask(PATH, squeezed, Content_Encoding="gzip").status == 413
        )
        small = gzip.compress(json.dumps(body).encode())
        assert served.ask(PATH, small, Content_Encoding="gzip").status == 200
        reply = served.ask(PATH, json.dumps(body).encode(), Content_Encoding="gzip")
        assert reply.status == 400 and "the Content-Encoding 'gzip'" in reply.error
        assert served.ask(PATH, body).status == 200
        assert not [record for record in caplog.records if record.exc_info]
        columns = {name: as_json(value[:4]) for name, value in rows["raw/price"].items()}
        reply = served.predict(signature_name="raw/price", inputs=columns)
        assert reply.status == 400 and "a request must have at most 3 rows, got 4" in reply.error
        with grpc.insecure_channel(served.grpc) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            with refused("INVALID_ARGUMENT", "must have at most 3 rows, got 32"):
                stub.Predict(make(rows["raw"]), timeout=20)
            with refused("RESOURCE_EXHAUSTED", "5000"):
                stub.Predict(make({"examples": [b"x" * 6000]}, ""), timeout=20)


def _send_chunks(served, chunks):
    connection = http.client.HTTPConnection(served.rest, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", PATH, iter(chunks), encode_chunked=True)
        response = connection.getresponse()
        reply = type("Reply", (), {"status": response.status, "body": response.read()})
        reply.error = json.loads(reply.body)["error"]
        return reply


def test_time_is_bounded_and_a_call_that_hangs_gathers_nothing(base, body, rows, gate):
    with (
        serving(base, threads=1) as served,
        grpc.insecure_channel(served.grpc) as channel,
        futures.ThreadPoolExecutor(8) as pool,
    ):
        batcher = served.running.engine._batcher
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        empty = make({"examples": np.zeros([0], object)}, "")
        gate.clear()
        for _ in range(3):
            replies = [pool.submit(served.ask, PATH, body) for _ in range(4)]
            calls = [pool.submit(stub.Predict, made) for made in (make(rows["raw"]), empty)]
            wait_until(lambda: batcher._in_work == 6)
            served.advance(31)
            for reply in replies:
                assert reply.result().status == 504
                assert reply.result().error == "the request takes longer than 30 seconds"
            for call in calls:
                with refused("DEADLINE_EXCEEDED", "the request takes longer than 30 seconds"):
                    call.result()
            assert not batcher._queues and not batcher._ready and not batcher._waiting_rows
        gate.set()
        assert served.ask(PATH, body).status == 200
        assert served.count('mtl_requests_total{code="DEADLINE_EXCEEDED"') == 18
        # The call that hung, and the last one.
        assert served.count("mtl_batch_rows_count") == 2


@pytest.mark.parametrize("name", ["read_predict", "write_predict"])
def test_the_time_of_parsing_and_writing_is_bounded(name, base, body, monkeypatch):
    is_open, work = threading.Event(), getattr(rest, name)
    monkeypatch.setattr(engine, "_MOST_AT_ONCE", 0)
    begun = []

    def wait(*given):
        begun.append(name)
        is_open.wait(30)
        return work(*given)

    monkeypatch.setattr(rest, name, wait)
    with serving(base) as served, futures.ThreadPoolExecutor(1) as pool:
        reply = pool.submit(served.ask, PATH, body)
        wait_until(lambda: begun)
        served.advance(31)
        assert reply.result().status == 504
        is_open.set()
        assert served.ask(PATH, body).status == 200


@pytest.fixture
def arrived(monkeypatch):
    """Return a list of the data that connections have handled; None is a new connection."""
    noted = []

    def note(name, read):
        handle = getattr(connections.Connection, name)

        def noting(self, given):
            handle(self, given)
            noted.append(read(given))

        monkeypatch.setattr(connections.Connection, name, noting)

    note("connection_made", lambda transport: None)
    note("data_received", bytes)
    return noted


def _send(opened, arrived, data):
    """Send bytes, and wait until the server has handled them."""
    before = b"".join(filter(None, arrived))
    opened.sendall(data)
    wait_until(lambda: b"".join(filter(None, arrived)) == before + data)


def _receive(opened):
    """Read one whole answer, and return its status."""
    with http.client.HTTPResponse(opened) as response:
        response.begin()
        response.read()
        return response.status


def _receive_all(opened):
    received = b""
    while data := opened.recv(10_000):
        received += data
    return received


LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"


def test_headers_that_come_byte_by_byte(served, arrived):
    with _open(served) as opened:
        for byte in b"GET /v2/hea":
            _send(opened, arrived, bytes([byte]))
        served.advance(20)
        _send(opened, arrived, b"l")
        served.advance(11)
        head, _, text = _receive_all(opened).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ") and b"Connection: close" in head
        assert json.loads(text) == {"error": "the headers did not come within 30 seconds"}


def test_later_headers_that_do_not_come(served, arrived):
    """The time starts with the first byte of a request, not at the end of the one before."""
    with _open(served) as opened:
        _send(opened, arrived, LIVE + b"\r\n")
        assert _receive(opened) == 200
        served.advance(31)
        _send(opened, arrived, LIVE)
        served.advance(29)
        _send(opened, arrived, b"\r\n")
        assert _receive(opened) == 200
        _send(opened, arrived, LIVE)
        served.advance(31)
        assert b" 408 " in _receive_all(opened)


def test_headers_that_begin_before_the_answer_ends(served, arrived, body, gate):
    with _open(served) as opened:
        text = json.dumps(body).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
        gate.clear()
        _send(opened, arrived, head.encode() + text)
        wait_until(lambda: served.running.engine._batcher._in_work)
        _send(opened, arrived, LIVE)
        gate.set()
        assert _receive(opened) == 200
        served.advance(31)
        assert b" 408 " in _receive_all(opened)


def test_a_whole_request_before_the_answer_ends_is_answered(served, arrived, body, gate):
    """However long the answer before took."""
    with _open(served) as opened:
        text = json.dumps(body).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
        gate.clear()
        _send(opened, arrived, head.encode() + text)
        wait_until(lambda: served.running.engine._batcher._in_work)
        _send(opened, arrived, LIVE + b"Connection: close\r\n\r\n")
        served.advance(31)
        received = _receive_all(opened)
        assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"504", b"200"]


def test_a_connection_that_says_nothing(served, arrived):
    with _open(served) as opened:
        wait_until(lambda: arrived == [None])
        served.advance(31)
        assert opened.recv(1000) == b""


def test_a_body_after_its_answer_counts_as_no_headers(served, arrived):
    with _open(served) as opened:
        _send(opened, arrived, b"POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1")
        assert b" 404 " in opened.recv(1000)
        _send(opened, arrived, b"2")
        _send(opened, arrived, b"3456789")
        served.advance(31)
        _send(opened, arrived, LIVE + b"\r\n")
        assert _receive(opened) == 200


def test_a_body_that_does_not_come(base):
    with serving(base, timeout_secs=0.3) as served:
        with _open(served) as opened:
            opened.sendall(
                f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode()
            )
            assert b" 408 " in opened.recv(1000)
        with _open(served) as opened:  # The client hangs up within its body.
            opened.sendall(
                f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode()
            )
        with _open(served) as opened:
            opened.sendall(b"\x00\xff nonsense\r\n\r\n")
            assert b" 400 " in opened.recv(1000)
        assert served.ask("/v2/health/live").status == 200


def _open(served):
    host, _, port = served.rest.partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def test_a_client_that_does_not_read_is_cut(base, rows, monkeypatch):
    columns = {name: as_json(value) * 8 for name, value in rows["raw"].items()}
    text = json.dumps({"signature_name": "raw", "instances": _rows(columns)}).encode()
    transports, send = [], http_server.HttpServer._send_response

    async def note(self, request, response):
        if request.path == PATH:
            transports.append(request.transport)
            opened = request.transport.get_extra_info("socket")
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await send(self, request, response)

    monkeypatch.setattr(http_server.HttpServer, "_send_response", note)
    with serving(base) as served, socket.socket() as opened:
        # The answer does not fit into the buffers of the sockets.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = served.rest.partition(":")
        opened.connect((host, int(port)))
        opened.settimeout(20)
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
        opened.sendall(head.encode() + text)
        wait_until(lambda: transports and transports[0].get_write_buffer_size())
        served.advance(31)
        wait_until(lambda: served.count('mtl_requests_total{code="CANCELLED"') == 1)
        wait_until(lambda: served.count("mtl_open_requests") == 1)  # The one that counts.


def _rows(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_a_client_that_hangs_up_frees_its_place(base, body, gate):
    with serving(base, max_queue_rows=3, threads=1) as served:
        gate.clear()
        text = json.dumps(body).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        opened = [_open(served) for _ in range(3)]
        for one in opened:
            one.sendall(head + text)
        wait_until(lambda: served.running.engine._batcher._waiting_rows == 3)
        reply = served.ask(PATH, body)
        assert reply.status == 503 and reply.headers["Retry-After"] == "1"
        assert "3 rows are in progress, of at most 3" in reply.error
        for one in opened:
            one.close()
        wait_until(lambda: served.running.engine._batcher._waiting_rows == 0)
        gate.set()
        assert served.ask(PATH, body).status == 200
        assert served.count('mtl_requests_total{code="CANCELLED"') == 3


def test_many_clients_at_a_time(base, body, rows, expected):
    """200 clients of REST and gRPC; none is refused, and batches form."""
    inputs = {name: value[:1] for name, value in rows["raw"].items()}
    price = expected("raw", inputs)["price/value"][0]
    with serving(base) as served, grpc.insecure_channel(served.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        request = make(inputs)

        def ask(index):
            if index % 2:
                return stub.Predict(request, timeout=60).outputs["price/value"].float_val[0]
            return served.ask(PATH, body).json["outputs"]["price/value"][0]

        with futures.ThreadPoolExecutor(200) as pool:
            found = list(pool.map(ask, range(1000)))
        assert max(abs(value - price) for value in found) <= 1e-6 * abs(price)
        calls = served.count("mtl_batch_rows_count")
        assert served.count("mtl_batch_rows_sum") == 1000 and calls < 900


@pytest.mark.thorough
@pytest.mark.slow
def test_memory_does_not_grow_over_many_requests(base, body, rows):
    """The peak may not rise by more than 40 MB from request 4,000 to request 20,000."""
    with serving(base) as served, grpc.insecure_channel(served.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        request = make({name: value[:1] for name, value in rows["raw"].items()})
        wrong = {"signature_name": "raw", "inputs": {"x": [1]}}

        def ask(index):
            kind = index % 4
            if kind < 2:
                stub.Predict(request, timeout=60)
            else:
                served.ask(PATH, body if kind == 2 else wrong)

        peaks = []
        with futures.ThreadPoolExecutor(16) as pool:
            for count in (4000, 16_000):
                list(pool.map(ask, range(count)))
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        print(f"peaks of memory, KiB: {peaks}")
        assert peaks[1] - peaks[0] < 40 * 1024


def test_a_server_that_stops_finishes_its_requests(base, body, rows, gate):
    with serving(base) as served, grpc.insecure_channel(served.grpc) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        gate.clear()
        with futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(served.ask, PATH, body)
            second = pool.submit(stub.Predict, make(rows["raw"]), timeout=30)
            wait_until(lambda: served.running.engine._batcher._in_work == 2)
            stopping = threading.Timer(0.5, gate.set)
            stopping.start()
            served.stop()
            assert first.result().status == 200
            assert "price/value" in second.result().outputs
        with pytest.raises(OSError):
            served.ask("/v2/health/live")


def test_readiness_ends_before_the_server(base, gate):
    with serving(base) as served:
        served.running.engine.is_stopping = True
        reply = served.ask("/v2/health/ready")
        assert reply.status == 503 and reply.json == {"live": True, "ready": False}
        assert served.ask(f"/v2/models/{NAME}/ready").status == 503


def test_metrics(base, body, rows):
    with serving(base) as served:
        served.ask(PATH, body)
        served.ask(PATH, {"inputs": [1], "signature_name": "raw"})
        served.infer(inputs=[])
        served.ask("/nowhere")
        with grpc.insecure_channel(served.grpc) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            stub.Predict(make(rows["raw"]), timeout=20)
        text = served.ask("/monitoring/prometheus/metrics").body.decode()
        for labels, value in (
            ('code="OK",method="predict",model="shop",protocol="rest"', 1),
            ('code="INVALID_ARGUMENT",method="predict",model="shop",protocol="rest"', 1),
            ('code="INVALID_ARGUMENT",method="infer",model="shop",protocol="open_inference"', 1),
            ('code="NOT_FOUND",method="other",model="shop",protocol="rest"', 1),
            ('code="OK",method="predict",model="shop",protocol="grpc"', 1),
        ):
            assert f"mtl_requests_total{{{labels}}} {value:.1f}\n" in text
        assert served.count("mtl_batch_rows_sum") == 33
        assert served.count("mtl_model_version") == 7
        labels = 'method="predict",model="shop",protocol="rest"'
        assert f"mtl_request_seconds_count{{{labels}}} 2.0\n" in text


@pytest.mark.parametrize("flag", ["rest_port", "grpc_port"])
def test_a_port_that_is_taken(flag, served, base):
    taken = {flag: getattr(served.running, flag)}
    says = f"--{flag} on 127.0.0.1 must be a free port, .* Address already in use"
    with pytest.raises(checks.UserError, match=says), serving(base, **taken):
        pass


def test_a_failure_of_ours_is_no_traceback_for_the_client(base, body, monkeypatch, caplog):
    def fail(self, *given):
        raise KeyError("secret")

    with serving(base) as served:
        monkeypatch.setattr(models.Model, "run", fail)
        reply = served.ask(PATH, body)
        assert reply.status == 500 and reply.error == "the server failed: KeyError"


def test_the_example_is_a_request_that_works(served, rows, expected):
    example = served.ask("/example").json
    reply = served.ask(PATH, example)
    assert reply.status == 200
    inputs = {name: value[:1] for name, value in rows["raw"].items()}
    (found,) = reply.json["predictions"]
    assert abs(found["price/value"] - expected("raw", inputs)["price/value"][0]) < 1e-3


def test_the_loop_stays_free_while_a_large_body_is_parsed(base, rows):
    columns = {name: as_json(value) * 250 for name, value in rows["raw"].items()}
    text = json.dumps({"signature_name": "raw", "inputs": columns}).encode()
    assert len(text) > 500_000
    with serving(base, max_rows=10_000) as served:
        delays = []

        async def tick():
            while True:
                start = time.monotonic()
                await asyncio.sleep(0.01)
                delays.append(time.monotonic() - start)

        task = asyncio.run_coroutine_threadsafe(tick(), served.loop)
        assert served.ask(PATH, text).status == 200
        task.cancel()
    assert len(delays) >= 3  # It ran meanwhile.
