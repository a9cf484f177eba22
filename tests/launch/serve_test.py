"""`launch.serve` as a user runs it: the lines at the start, a request to try, mistakes, the end."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.launch import conftest
from tests.serving.conftest import export, made, make, vocabulary  # noqa: F401

if not all(map(importlib.util.find_spec, ("aiohttp", "prometheus_client", "tensorflow_serving"))):
    pytest.skip("needs the extra 'serve'", allow_module_level=True)

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def folder(export, tmp_path_factory):  # noqa: F811
    """A folder with a run whose export is version 7."""
    folder = tmp_path_factory.mktemp("serve")
    shutil.copytree(export, folder / "run" / "export" / "latest" / "7")
    return folder


@pytest.mark.slow
def test_it_serves_what_it_says_and_stops(folder):
    command = [sys.executable, "-m", "launch.serve", "--model_dir", "run"]
    command += ["--rest_port", "0", "--grpc_port", "0"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=conftest.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("Stop it"):
            break
    first, rest, kserve, grpc, metrics, _, curl, _ = lines
    assert first == "Serving 'shop', version 7: run/export/latest/7"
    assert re.fullmatch(r"  REST +http://127.0.0.1:\d+/v1/models/shop:predict", rest)
    assert re.fullmatch(r"  KServe +http://127.0.0.1:\d+/v2/models/shop/infer", kserve)
    assert re.fullmatch(r"  gRPC +127.0.0.1:\d+", grpc)
    assert metrics.endswith("/monitoring/prometheus/metrics")
    if shutil.which("curl"):
        done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, check=True)
        (found,) = json.loads(done.stdout)["predictions"]
        assert {"price/value", "kind/class"} <= found.keys()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert errors.splitlines()[-1] == "Stopped." and "Traceback" not in errors


@pytest.mark.parametrize(
    "args, says",
    [
        ([], "--model_dir must name the folder of a run, got None. Or set --export FOLDER."),
        (["--model_dir=absent"], "--model_dir must name the folder of a run, got 'absent'"),
        (["--model_dir=run", "--export=best"], "there is no export in run/export/best."),
        (["--model_dir=run", "--export=lates"], "Did you mean 'latest'?"),
        (["--export=run/export/latest/7"], "set --export run/export/latest --version 7"),
        (["--model_dir=run", "--version=8"], "--version must be a version in"),
        (
            ["--model_dir=run", "--host=0.0.0.0"],
            "--host must be an address that only this machine can reach",
        ),
        (["--model_dir=run", "--rest_prot=1"], "unknown flag '--rest_prot'. Did you mean"),
        (["--model_dir=run", "--rest_port=x"], "rest_port"),
        (["--model_dir=run", "--gin_file=x.gin"], "--gin_file must be left out, as an export"),
        (
            ["--model_dir=run", "--token_file=absent"],
            "--token_file must be a file that can be read",
        ),
        (["--model_dir=run", "--tls_cert=c", "--tls_key=k"], "--tls_cert must be a file that can"),
        (["--model_dir=run", "--model_name=a b"], "--model_name must consist of letters"),
        (["--model_dir=run", "--request_log_without=x"], "must come with --request_log"),
        (["--model_dir=run", "run2"], "unexpected argument 'run2'"),
    ],
)
def test_mistakes_are_one_line(args, says, folder, launch_in):
    result = launch_in(folder, "serve", "--rest_port=0", "--grpc_port=0", *args)
    assert says in result.error, result.error
    assert sorted(os.listdir(folder)) == ["run"]


def test_help_explains_every_flag(folder, launch_in):
    result = launch_in(folder, "serve", "--help")
    assert result.code == 0 and "python -m launch.serve --model_dir runs/adult" in result.out
    names = set(re.findall(r"^  --(\w+)\n      \S", result.out, re.M))
    assert {"export", "host", "rest_port", "grpc_port", "version", "request_log"} <= names
