"""The command `mtl` runs the launchers, and says what it knows."""

import sys

import pytest

import mtl
from launch import console, here


def _run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["mtl", *arguments])
    return console.main()


def test_help_and_version(monkeypatch, capsys):
    assert _run(monkeypatch) == _run(monkeypatch, "--help") == 0
    assert _run(monkeypatch, "--version") == 0
    help_, again, version = capsys.readouterr().out.splitlines()
    assert help_ == again and "train" in help_ and version == f"mtl {mtl.__version__}"


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
