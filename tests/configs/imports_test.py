"""Imports that fail or are interrupted; new processes show the exit codes."""

import re
import signal
import subprocess
import sys

import pytest

from mtl.configs import imports
from tests.launch import conftest

TRAIN = ("train", "--gin_file", "gin_configs/experiments/digits_shared_bottom.gin")


def start(tmp_path, *args, **packages):
    """`python -m launch.<args>` where these packages {name: source} come before the real ones."""
    for name, source in packages.items():
        (tmp_path / f"{name}.py").write_text(source)
    environment = conftest.environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    # In the background of a script Ctrl-C is ignored, and children inherit that.
    return subprocess.run(
        [sys.executable, "-m", f"launch.{args[0]}", *args[1:]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("args", [TRAIN, ("doctor",)])
def test_ctrl_c_while_tensorflow_is_imported(args, tmp_path):
    source = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    done = start(tmp_path, *args, tensorflow=source)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("source", "module", "says"),
    [
        ("raise RuntimeError('no libx\\nmore')", "tensorflow", "RuntimeError: no libx more"),
        ("import nowhere", "tensorflow", "ModuleNotFoundError: No module named 'nowhere'"),
        ("x = = 1", r"mtl\.[a-z_.]+", "SyntaxError: invalid syntax"),
    ],
)
def test_a_broken_tensorflow_is_one_line(source, module, says, tmp_path):
    done = start(tmp_path, *TRAIN, tensorflow=source)
    place, fix = tmp_path / "tensorflow.py", "`python -m launch.doctor` checks the installation."
    line = re.escape(f" failed ({place} line 1): {says}. {fix}\n")
    assert re.fullmatch(f"Error: importing '{module}'{line}", done.stderr)
    assert (done.returncode, done.stdout) == (2, "")


def caught(source, tmp_path, monkeypatch):
    """Return the exception that importing a package `odd` with this source raises."""
    (tmp_path / "odd.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BaseException) as raised:
        import odd  # noqa: F401
    return raised.value


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise ValueError('old')", "importing 'odd' failed (PLACE line 1): ValueError: old. `py"),
        (
            "raise SystemExit(0)",
            "importing 'odd' failed (PLACE line 1): SystemExit: sys.exit(0) en",
        ),
        ("import json\njson.loads('x')", "importing 'odd' failed ("),
        (
            "import absent",
            "importing 'odd' failed (PLACE line 1): ModuleNotFoundError: No module n",
        ),
    ],
)
def test_a_package_that_fails_later(source, says, tmp_path, monkeypatch):
    found = imports.problem(caught(source, tmp_path, monkeypatch))
    assert found.startswith(says.replace("PLACE", str(tmp_path / "odd.py")))


def test_an_error_of_no_import_is_left_alone():
    with pytest.raises(ValueError) as raised:
        int("x")
    assert imports.problem(raised.value) is None
