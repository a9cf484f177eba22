"""The hooks before a commit run the lines of `make lint`."""

import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_the_hooks_run_what_make_lint_runs():
    (recipe,) = re.findall(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    lines = [line.strip().replace("$(VENV)", ".venv") for line in recipe.splitlines()]
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert [hook["entry"] for hook in local["hooks"]] == lines
    assert {hook["language"] for hook in local["hooks"]} == {"system"}
    assert {hook["pass_filenames"] for hook in local["hooks"]} == {False}
