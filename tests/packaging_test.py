"""The wheel, installed outside of the checkout, has all that the README promises."""

import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

import mtl
from mtl import versions
from tests import readme_test

ROOT = pathlib.Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: a build leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("mtl", "launch", "gin_configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, folder / "source"], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Return the Python of a new environment with the wheel and this environment's packages."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # A path in a .pth file is searched, but its own .pth files, as of editable installs, are not.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def _run(python, cwd, *arguments):
    keep = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, *arguments], cwd=cwd, env=keep, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_has_the_name_that_errors_tell(wheel):
    name = versions.DISTRIBUTION
    assert wheel.name.startswith(f"{name.replace('-', '_')}-{mtl.__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [path for path in archive.namelist() if path.endswith(".dist-info/METADATA")]
        described = email.message_from_bytes(archive.read(path))
    assert (described["Name"], described["Version"]) == (name, mtl.__version__)
    # The extra for developers names other extras of the same project.
    assert not [line for line in described.get_all("Requires-Dist") if line.startswith("mtl")]


def test_every_gin_file_is_in_it(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("gin_configs/**/*.gin")}
    assert len(files) > 90 and files <= names
    assert "mtl/tools/reports/templates/page.html.jinja" in names
    assert "mtl/tools/drawing/style.css" in names
    assert "mtl/py.typed" in names and not [name for name in names if name.startswith("tests")]


def test_the_main_job_runs(python, tmp_path):
    found = _run(python, tmp_path, "-c", "import mtl; print(mtl.__file__)")
    assert not pathlib.Path(found.strip()).is_relative_to(ROOT)
    gin = ["--gin_file", "gin_configs/experiments/digits_shared_bottom.gin"]
    gin += ["--gin_param", "Run.train_steps = 5"]
    out = _run(python, tmp_path, "-m", "launch.train", *gin)
    assert "Trained 5 steps" in out
    assert (tmp_path / "runs" / "digits_shared_bottom" / "export" / "best").is_dir()


@pytest.mark.thorough
def test_the_run_on_own_data_and_the_console_script(python, tmp_path):
    readme_test.write_data(tmp_path)
    script = "import sys; from launch.console import main; sys.exit(main())"
    flags = ["--gin_file", "run.gin", "--gin_param", "Run.train_steps = 5", "--model_dir", "model"]
    assert "Trained 5 steps" in _run(python, tmp_path, "-c", script, "train", *flags)
    table = _run(python, tmp_path, "-c", script, "evaluate", "--model_dir", "model")
    assert re.search(r"clicked\n +accuracy", table)
