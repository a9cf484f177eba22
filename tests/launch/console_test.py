"""The command `mtl` runs the launchers, and lists its verbs."""

import pathlib
import re
import subprocess
import sys

import pytest

import mtl
from launch import console
from launch.processes import here
from tests.launch import conftest


def _run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["mtl", *arguments])
    return console.main()


def test_help_and_version(monkeypatch, capsys):
    assert _run(monkeypatch) == 0
    help_ = capsys.readouterr().out
    assert _run(monkeypatch, "--help") == 0 and capsys.readouterr().out == help_
    assert _run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"mtl {mtl.__version__}\n"
    told = re.findall(r"^  (\w+) +\w", help_, re.M)
    assert tuple(told) == console.VERBS and max(map(len, help_.splitlines())) < 80


def test_every_launcher_is_a_verb():
    found = {
        path.stem
        for path in pathlib.Path(console.__file__).parent.glob("*.py")
        if 'if __name__ == "__main__"' in path.read_text()
    }
    assert found == set(console.VERBS)


@pytest.mark.parametrize("flags", [[], ["-P"] if sys.version_info >= (3, 11) else []])
def test_it_is_a_module_too_and_leaves_a_file_of_its_name_alone(tmp_path, flags):
    (tmp_path / "launch.py").write_text("raise SystemExit('it was run')")
    command = [sys.executable, *flags, "-m", "mtl", "--version"]
    done = subprocess.run(
        command, cwd=tmp_path, env=conftest.environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"mtl {mtl.__version__}\n"), done.stderr


def test_a_misspelt_verb(monkeypatch, capsys):
    assert _run(monkeypatch, "trian") == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err == "Error: there is no verb 'trian'. Did you mean 'train'?\n"


@pytest.mark.parametrize("name", ["warm-start", "warm_start"])
def test_a_launcher_sees_its_own_name_flags_and_folder(monkeypatch, tmp_path, name):
    seen = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/bin", "/site-packages"])
    monkeypatch.setattr(here, "_folder", None)

    def run_module(module, run_name, alter_sys):
        seen.append((module, run_name, alter_sys, sys.argv[1:], sys.argv[0].endswith(".py")))

    monkeypatch.setattr(console.runpy, "run_module", run_module)
    monkeypatch.setattr(console.imports, "guard", lambda: seen.append("guarded"))
    assert _run(monkeypatch, name, "--gin_file", "x.gin") == 0
    assert seen == [
        "guarded",
        ("launch.warm_start", "__main__", True, ["--gin_file", "x.gin"], True),
    ]
    assert sys.path == ["/bin", "/site-packages"]
    here.open_to(None)
    assert sys.path == ["/bin", "/site-packages", str(tmp_path)]
