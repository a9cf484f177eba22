"""A token and TLS, for our clients of each protocol; probes stay open; no message shows a token."""

import os
import socket
import threading

import grpc
import pytest
from tensorflow_serving.apis import prediction_service_pb2_grpc

from mtl import checks
from mtl.tools import scoring
from mtl.tools.serve import access, failures, startup
from tests.tools.scoring.access_test import certificate  # noqa: F401
from tests.tools.serve.conftest import NAME, serving
from tests.tools.serve.grpc_test import make, refused

TOKEN = "s3cret.token_of-mine"


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


@pytest.mark.medium
def test_requests_need_the_token_and_probes_do_not(base, token, rows):
    with serving(base, token_file=str(token)) as served:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/example", f"/v1/models/{NAME}", "/monitoring/prometheus/metrics", "/x"):
                reply = served.ask(path, **header)
                assert reply.status == 401 and reply.headers["WWW-Authenticate"] == "Bearer"
                assert TOKEN not in reply.error and "wrong" not in reply.error
        assert served.ask("/v2/health/live").status == 200
        assert served.ask("/v2/health/ready").status == 200
        good = {"Authorization": f"Bearer {TOKEN}"}
        assert served.ask(f"/v1/models/{NAME}", **good).status == 200
        with grpc.insecure_channel(served.grpc) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            request = make(rows["raw"])
            with refused("UNAUTHENTICATED", "must hold the token of this server"):
                stub.Predict(request, timeout=20)
            with refused("UNAUTHENTICATED", "must hold the token of this server"):
                stub.Predict(request, timeout=20, metadata=[("authorization", "Bearer x")])
            stub.Predict(request, timeout=20, metadata=[("authorization", f"Bearer {TOKEN}")])
        # The file may be replaced; one that is not whole changes nothing.
        token.write_text("")
        assert served.ask(f"/v1/models/{NAME}", **good).status == 200
        token.write_text("another-token")
        os.utime(token, (1, 1))
        assert served.ask(f"/v1/models/{NAME}", **good).status == 401
        other = {"Authorization": "bearer another-token"}
        assert served.ask(f"/v1/models/{NAME}", **other).status == 200


@pytest.mark.medium
def test_our_clients_by_tls(base, token, certificate, rows, expected):  # noqa: F811
    key, pem = certificate
    examples = rows["serving_default"]["examples"]
    wanted = expected("serving_default", {"examples": examples})["price/value"]
    call = scoring.Call(model=NAME, retries=0)
    with serving(base, token_file=str(token), tls_cert=pem, tls_key=key) as served:
        rest, calls = served.running.rest_port, served.running.grpc_port
        for address in (
            f"localhost:{calls}",
            f"https://localhost:{rest}",
            f"https://localhost:{rest}/v2",
        ):
            secure = scoring.Access(
                tls=not address.startswith("https"), ca_file=pem, token_file=str(token)
            )
            found = scoring.connect_server(address, call, secure)(examples)
            assert (found["price/value"] == wanted).all()
        curl = startup.write_curl(served.running, f"https://localhost:{rest}")
        assert f"--cacert {pem}" in curl and TOKEN not in curl and f"$(cat {token})" in curl
        with socket.create_connection(("127.0.0.1", rest), timeout=20) as silent:
            cutting = threading.Event()
            # The clock jumps again and again, since the connection may come after a jump.
            jumping = threading.Thread(target=lambda: _jump_until(cutting, served))
            jumping.start()
            assert silent.recv(1) == b""
            cutting.set()
            jumping.join()


def _jump_until(end, served):
    while not end.wait(0.1):
        served.advance(31)


def test_keys_that_do_not_fit(certificate, tmp_path):  # noqa: F811
    key, pem = certificate
    with pytest.raises(checks.UserError, match="--tls_cert must be a PEM certificate that fits"):
        access.read_tls(key, key)
    with pytest.raises(checks.UserError, match="--tls_key must be a file that can be read"):
        access.read_tls(pem, str(tmp_path / "absent"))
    assert access.read_tls(pem, key).certificate.startswith(b"-----BEGIN CERTIFICATE")


@pytest.mark.parametrize("text", ["", "two words", "é", "\x00"])
def test_a_file_without_a_token(text, tmp_path):
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(checks.UserError, match="--token_file must hold a token, one line") as error:
        access.Guard(str(path))
    assert text not in str(error.value) or not text
    with pytest.raises(checks.UserError, match="--token_file must be a file that can be read"):
        access.Guard(str(tmp_path / "absent"))


@pytest.mark.parametrize("header", ["Bearer \udcff", "Bearer", "", None, "Bearer  "])
def test_odd_headers(header, token):
    with pytest.raises(failures.RequestError):
        access.Guard(str(token)).require(header)
