"""Modules in the current folder: which of them the command `mtl` finds there, and when."""

import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import types

import pytest

from launch import app, cluster
from launch.processes import here

ROOT = pathlib.Path(__file__).resolve().parents[3]
TRACE = "import pathlib\npathlib.Path(__file__).with_suffix('.imported').touch()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield the current folder with two new modules, and one named like an installed module."""
    for name in ("here_ours", "here_theirs", "tqdm"):
        (tmp_path / f"{name}.py").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(here, "_folder", None)
    here.note()
    importlib.invalidate_caches()
    yield tmp_path
    importlib.invalidate_caches()


def _find(folder):
    names = ("here_ours", "here_theirs", "tqdm")
    found = {name: importlib.util.find_spec(name) for name in names}
    return [name for name, spec in found.items() if spec and spec.origin.startswith(str(folder))]


@pytest.mark.parametrize(
    ("packages", "found"),
    [
        (None, ["here_ours", "here_theirs"]),
        ([], []),
        (["here_ours"], ["here_ours"]),
        (["here_ours.heads", "other"], ["here_ours"]),
        (["tqdm"], []),
    ],
)
def test_the_folder_comes_last_and_with_the_flag_for_named_packages(folder, packages, found):
    sys.modules.pop("tqdm", None)
    assert _find(folder) == []
    here.open_to(packages)
    assert _find(folder) == found


def test_the_safe_path_of_python_leaves_the_folder_out(folder, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(sys, "flags", types.SimpleNamespace(safe_path=True, verbose=0))
        here.note()
    here.open_to(None)
    assert _find(folder) == [] and here.make_command("train")[1] == "-m"


@pytest.mark.medium
@pytest.mark.parametrize("flags", [[], ["--trusted_packages="]])
def test_a_module_of_a_stranger_stands_before_none_that_is_installed(folder, flags):
    for name in ("absl", "gin", "json", "tensorflow", "launch", "mtl"):
        (folder / f"{name}.py").write_text(TRACE)
    command = here.make_command("train")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--gin_file", "none.gin", *flags],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.startswith("Error: there is no gin file 'none.gin'")
    assert not list(folder.glob("*.imported"))


@pytest.mark.parametrize("packages", [None, [], ["ours", "theirs"]])
def test_the_processes_of_a_cluster_trust_the_same(packages, monkeypatch):
    settings = ["Tfds.data_dir"] if packages else []
    values = {"GIN_FILE": ["x.gin"], "GIN_PARAM": [], "MODEL_DIR": None, "JSON_LOG": None}
    values |= {"TRUSTED": packages, "TRUSTED_SETTINGS": settings}
    for name, value in values.items():
        flag = types.SimpleNamespace(name=name.lower(), value=value)
        monkeypatch.setattr(app, name, flag)
    monkeypatch.setattr(cluster, "EVALUATOR", types.SimpleNamespace(value=False))
    trusted = [] if packages is None else [f"--trusted_packages={','.join(packages)}"]
    trusted += ["--trusted_settings=Tfds.data_dir"] * bool(packages)
    assert cluster.arguments() == ["--gin_file=x.gin", *trusted]
