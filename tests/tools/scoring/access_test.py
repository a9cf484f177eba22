"""Servers behind TLS and a token, with a certificate that the test signs itself."""

import contextlib
import os
import shutil
import subprocess

import pytest

from mtl import checks
from mtl.tools import scoring
from tests.tools.scoring import servers

CALL = scoring.Call(model=servers.NAME, deadline_secs=20.0, retries=0)
TOKEN = "s3cret.token_of-mine"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The paths of a key and of its self-signed certificate, for localhost."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    paths = str(folder / "key.pem"), str(folder / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", paths[0], "-out", paths[1]]
    subprocess.run(command, check=True, capture_output=True)
    return paths


@contextlib.contextmanager
def serving(protocol, served, certificate=None):
    if protocol == "grpc":
        pytest.importorskip("tensorflow_serving", reason="needs the extra 'serving'")
    server = {"grpc": servers.grpc_server, "rest": servers.rest_server}[protocol]
    with server(served, certificate) as address:
        yield address


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_tls_and_a_token(protocol, certificate, trained, served, tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    monkeypatch.setenv("A_TOKEN", TOKEN)
    with serving(protocol, served, certificate) as address:
        for given in ({}, {"token_file": str(token)}, {"token_env": "A_TOKEN"}):
            secure = scoring.Access(tls=protocol == "grpc", ca_file=certificate[1], **given)
            assert len(scoring.connect_server(address, CALL, secure)(trained.examples)) > 1
        assert served.tokens == [None, f"Bearer {TOKEN}", f"Bearer {TOKEN}"]


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_a_certificate_of_nobody(protocol, certificate, served):
    with serving(protocol, served, certificate) as address:
        with pytest.raises(
            checks.UserError, match="(?i)--server.*certificate.?verify|trusted"
        ) as e:
            scoring.connect_server(address, CALL, scoring.Access(tls=protocol == "grpc"))
        assert "\n" not in str(e.value)
        assert not served.tokens


def test_a_token_is_read_anew(tmp_path):
    path = tmp_path / "token"
    path.write_text("one")
    secure = scoring.Access(tls=True, token_file=str(path))
    assert secure.headers() == {"authorization": "Bearer one"}
    path.write_text("two")
    assert secure.headers() == {"authorization": "Bearer two"}


@pytest.mark.parametrize(
    "server, given, says",
    [
        ("http://h:1", {"tls": True}, "--tls must come with HOST:PORT, .*got 'http://h:1'"),
        ("http://h:1", {"token_file": "token"}, "--token_file must come with TLS"),
        ("h:1", {"token_env": "A_TOKEN"}, "--token_env must come with TLS"),
        ("h:1", {"ca_file": "token"}, "--ca_file must come with TLS"),
        ("https://h:1", {"ca_file": "none"}, "--ca_file must be a PEM file .*No such file"),
        ("h:1", {"tls": True, "ca_file": "token"}, "--ca_file must be a PEM file"),
        ("h:1", {"tls": True, "ca_file": "."}, "--ca_file must be a PEM file"),
        ("https://h:1", {"token_file": "none"}, "--token_file must be a file .*No such file"),
        ("https://h:1", {"token_file": "."}, "--token_file must be a file .*directory"),
        ("https://h:1", {"token_file": "empty"}, "--token_file must hold a token"),
        ("https://h:1", {"token_file": "two"}, "--token_file must hold a token"),
        ("https://h:1", {"token_file": "odd"}, "--token_file must hold a token"),
        ("https://h:1", {"token_env": "NO_TOKEN"}, "--token_env must hold a token"),
        (
            "https://h:1",
            {"token_file": "token", "token_env": "A_TOKEN"},
            "--token_env must come without --token_file",
        ),
    ],
)
def test_settings_that_do_not_fit(server, given, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_TOKEN", TOKEN)
    for name, text in (("token", TOKEN), ("empty", " \n"), ("two", f"{TOKEN}\nX: y"), ("odd", "ü")):
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    with pytest.raises(checks.UserError, match=says) as refused:
        scoring.connect_server(server, CALL, scoring.Access(**given))
    assert TOKEN not in str(refused.value) and "\n" not in str(refused.value)
    assert os.path.exists("token")
