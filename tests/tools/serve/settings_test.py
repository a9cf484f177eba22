"""Settings that contradict each other are refused before anything is loaded."""

import socket

import pytest

from mtl import checks
from mtl.tools.serve import settings


@pytest.mark.parametrize(
    "given, says",
    [
        ({"host": ""}, "--host must name an address"),
        (
            {"host": "0.0.0.0"},
            "--host must be an address that only this machine can reach, .*--allow_anyone",
        ),
        ({"host": "example.com"}, "--host must be an address that only this machine can reach"),
        ({"rest_port": 70_000}, "--rest_port must be at most 65535, got 70000"),
        ({"rest_port": -1}, "--rest_port must be at least 0"),
        ({"rest_port": 9, "grpc_port": 9}, "--grpc_port must differ from --rest_port, got 9"),
        ({"tls_cert": "c.pem"}, "--tls_cert must come with --tls_key"),
        ({"tls_key": "k.pem"}, "--tls_key must come with --tls_cert"),
        ({"poll_secs": 0.0}, "--poll_secs must be above 0"),
        ({"timeout_secs": float("inf")}, "--timeout_secs must be finite"),
        ({"timeout_secs": 1e9}, "--timeout_secs must be at most 1000000"),
        ({"max_rows": 0}, "--max_rows must be at least 1"),
        ({"max_body_bytes": 2**31}, "--max_body_bytes must be at most 2147483647"),
        ({"request_log_share": 0.5}, "--request_log_share must come with --request_log"),
        ({"request_log_without": ["age"]}, "--request_log_without must come with --request_log"),
        ({"request_log": "x", "request_log_share": 1.5}, "--request_log_share must be at most 1"),
        ({"request_log": "x", "request_log_without": ["a", "a"]}, "must hold each name once"),
    ],
)
def test_mistakes(given, says):
    with pytest.raises(checks.UserError, match=says):
        settings.Settings(**given)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_this_machine_alone_needs_no_token(host):
    assert settings.Settings(host=host).is_loopback


@pytest.mark.parametrize("given", [{"token_file": "t"}, {"allow_anyone": True}])
def test_other_machines_need_a_token_or_a_word(given):
    assert not settings.Settings(host="0.0.0.0", **given).is_loopback


def test_a_missing_package_names_the_extra(monkeypatch):
    found = settings.importlib.util.find_spec

    def find(name):
        return None if name == "aiohttp" else found(name)

    monkeypatch.setattr(settings.importlib.util, "find_spec", find)
    says = r"pip install 'multitask-estimator\[serve\]', as aiohttp is missing"
    with pytest.raises(checks.UserError, match=says):
        settings.require_packages()


def test_addresses_are_tried():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        says = f"--rest_port on 127.0.0.1 must be a free port, got {port}. Address already"
        with pytest.raises(checks.UserError, match=says):
            settings.require_free("127.0.0.1", {"rest_port": port})
    settings.require_free("127.0.0.1", {"rest_port": 0})
    for host in ("no.such.host.invalid", "192.0.2.1"):  # The second is nobody's, by RFC 5737.
        with pytest.raises(checks.UserError, match="--host must be an address of this machine"):
            settings.require_free(host, {"rest_port": 0})
