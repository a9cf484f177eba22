"""Servers of object stores on this machine, for tests that read and write there.

    python -m tests.files.object_servers            # installs them, into .clients/object_servers

with object_servers.serve("s3", monkeypatch) as server:
    remote.write("s3://bucket/a.csv", b"x\n1\n")
    server.kill()

They are not among the packages of this project: tests skip without them.
"""

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv

import pytest

ROOT = pathlib.Path(__file__).parents[2]
_ENV = ROOT / ".clients" / "object_servers"
_PACKAGES = ("moto[server]", "gcp-storage-emulator")
BUCKET = "bucket"
# Variables that would lead to other servers, or to the credentials of a user.
_OTHERS = ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "CLOUD_STORAGE_EMULATOR_ENDPOINT")


def find_port():
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _command(scheme, port):
    if scheme == "s3":
        return [_ENV / "bin" / "moto_server", "-H", "127.0.0.1", "-p", str(port)]
    start = ["start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
    return [_ENV / "bin" / "gcp-storage-emulator", *start]


def environment(scheme, port):
    """The variables by which clients find a server."""
    address = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    if scheme == "s3":
        return {"AWS_ENDPOINT_URL": address, "AWS_EC2_METADATA_DISABLED": "true", **keys}
    return {"STORAGE_EMULATOR_HOST": address}


def _make_bucket(scheme, port):
    address = f"http://127.0.0.1:{port}"
    if scheme == "s3":
        request = urllib.request.Request(f"{address}/{BUCKET}", method="PUT")
    else:
        kind = {"Content-Type": "application/json"}
        made = json.dumps({"name": BUCKET}).encode()
        request = urllib.request.Request(f"{address}/storage/v1/b?project=test", made, kind)
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError:
            raise
        except OSError:  # It does not listen yet.
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def serve(scheme, monkeypatch):
    """A process that serves s3:// or gs://BUCKET, and variables that lead to it."""
    port = find_port()
    command = _command(scheme, port)
    if not command[0].exists():
        pytest.skip(f"no server of {scheme}://: python -m tests.files.object_servers installs it")
    for name in _OTHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment(scheme, port).items():
        monkeypatch.setenv(name, value)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(list(map(str, command)), **quiet)
    try:
        _make_bucket(scheme, port)
        yield process
    finally:
        process.kill()
        process.wait(30)


def main():
    venv.create(_ENV, with_pip=True)
    install = [_ENV / "bin" / "python", "-m", "pip", "install", "--quiet", *_PACKAGES]
    sys.exit(subprocess.run(install, check=False).returncode)


if __name__ == "__main__":
    main()
