"""The doctor, in this environment and in broken ones."""

import os
import pathlib
import subprocess
import sys

import pytest

from launch import doctor

ROOT = pathlib.Path(__file__).parents[2]


def _run(*prefix, **environment):
    done = subprocess.run(
        [sys.executable, *prefix, "-m", "launch.doctor"],
        env=os.environ | {"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


@pytest.mark.medium
def test_it_finds_this_environment_ready():
    status, report = _run()
    assert status == 0, report
    for line in ("Python       ok", "TensorFlow   ok", "Estimator    ok", "Datasets     ok"):
        assert line in report
    assert report.rstrip().endswith("Ready.")


def test_without_tensorflow_it_says_what_to_install():
    status, report = _run("-S")  # no site-packages
    assert status == 2
    assert "TensorFlow   wrong  not installed" in report
    assert "-> pip install 'tensorflow>=2.15,<2.22'" in report
    assert report.rstrip().endswith("To fix: TensorFlow.")


@pytest.mark.slow
def test_a_tensorflow_that_cannot_be_imported(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('numpy.core failed')")
    status, report = _run(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    assert status == 2
    assert "ImportError: numpy.core failed" in report


def test_unmet_requirements_are_found(monkeypatch):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda p: "0.1" if p == "numpy" else real(p))
    found = doctor.packages()
    assert found.state == doctor.WRONG
    assert "needs numpy" in found.found
    assert "pip install 'numpy" in found.fix


def test_an_unsupported_python_is_named(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 8, 1))
    found = doctor.python()
    assert found.state == doctor.WRONG
    assert found.fix.startswith("Use Python 3.10")


def test_an_unknown_tensorflow_is_a_note(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: "2.99.0")
    assert doctor.tensorflow().state == doctor.NOTE
