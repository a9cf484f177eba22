"""What README, the tutorial and the page on transfer say to type works, and prints the same."""

import random
import re
import shlex
import subprocess
import sys

import pytest

from mtl.configs import config
from tests import pages, readme_test
from tests.launch import conftest

# What a test does not type, and why: a command that is neither run nor named here fails.
NOT_RUN = {
    r"make (?!demo)|pip ": "it installs, or runs these tests",
    r"mtl doctor|mtl completion": "it tells of this machine; their own tests run them",
    r"sh |curl |.*localhost": "it needs a server",
    r"python -m tensorboard": "it serves until it is stopped",
    r".*(adult|gin_file x\.gin|\.\.\.)|d=": "its data or its file is not there",
    r"mtl train --gin_file gin_configs|make demo": "it trains for a minute",
}


class Reader:
    """Someone who types the blocks of a page, one after the other, in a folder."""

    def __init__(self, launch_in, folder):
        self._launch_in, self._folder = launch_in, folder
        self._file, self.typed = "", []
        self._printed, self.problems = None, []

    def read(self, block):
        """Save a file, or type commands and compare what they print."""
        named = re.search(r"Save this as `([\w.]+)`", block.above)
        swapped = re.search(r"With `(.+)` in place of `(.+)`:", block.above)
        titled = re.match(r"# (\w+\.py)\n", block.text)
        if named or titled:
            self._file = (named or titled)[1]
            (self._folder / self._file).write_text(block.text)
        elif swapped:
            self._make_mistake(*swapped.groups(), block.text)
        elif block.kind == "":
            for command, expected in pages.split_commands(block):
                self._compare(command, expected)

    def _make_mistake(self, wrong, right, expected):
        text = (self._folder / self._file).read_text()
        (self._folder / "wrong.gin").write_text(text.replace(right, wrong, 1))
        self._printed = self._type("mtl train --gin_file wrong.gin", code=2)
        self._compare("", expected)

    def _compare(self, command, expected):
        if command:
            is_left = any(re.match(pattern, command) for pattern in NOT_RUN)
            self._printed = None if is_left else self._type(command)
        if self._printed is not None:
            missing = pages.find_missing(expected, self._printed)
            if missing is not None:
                self.problems.append(f"{command}\nnot printed: {missing}\n{self._printed}")

    def _type(self, command, code=0):
        self.typed.append(command)
        words = shlex.split(command, comments=True)
        if words[0] == "mtl" or words[1:2] == ["-m"]:
            verb, *args = words[1:] if words[0] == "mtl" else words[2:]
            done = self._launch_in(self._folder, verb.removeprefix("launch."), *args)
            assert done.code == code, f"{command}\n{done.err}"
            return done.err + done.out
        words = [sys.executable if word == "python" else word for word in words]
        return subprocess.run(
            words, cwd=self._folder, capture_output=True, text=True, check=True
        ).stdout


@pytest.mark.slow
@pytest.mark.thorough
def test_the_tutorial_works_as_it_is_typed(launch_in, tmp_path):
    reader = Reader(launch_in, tmp_path)
    for block in pages.list_blocks("tutorial.md"):
        reader.read(block)
    assert not reader.problems, "\n\n".join(reader.problems)
    verbs = {re.match(r"mtl (\w+)", command)[1] for command in reader.typed if "mtl" in command}
    assert verbs >= {"new", "parts", "train", "evaluate", "predict", "export"}


@pytest.mark.slow
def test_the_readme_works_as_it_is_typed(launch_in, tmp_path):
    rng = random.Random(0)
    readme_test.write_rows(tmp_path / "visits.csv", rng, 600)
    readme_test.write_rows(tmp_path / "new.csv", rng, 8)
    reader, blocks = Reader(launch_in, tmp_path), pages.list_blocks("../README.md")
    for block in blocks:
        reader.read(block)
    assert not reader.problems, "\n\n".join(reader.problems)
    assert [command.split()[:2] for command in reader.typed] == [
        ["mtl", verb] for verb in ("new", "train", "predict")
    ]
    assert len((tmp_path / "predictions.jsonl").read_text().splitlines()) == 8
    texts = {block.kind: block.text for block in blocks}
    (tmp_path / "more.gin").write_text(texts["gin"])
    given = ("--gin_file", "more.gin", "--gin_param", "Run.train_steps = 5")
    done = launch_in(tmp_path, "train", *given, "--model_dir", "runs/more")
    assert done.code == 0, done.err
    subprocess.run(
        [sys.executable, "-c", texts["python"]],
        cwd=tmp_path,
        env=conftest.environment(),
        check=True,
    )
    assert list((tmp_path / "models" / "visits").iterdir())


def _fragments():
    found = [block.text for block in pages.list_blocks("transfer.md") if block.kind == "gin"]
    return [text for text in found if "Experiment" in text or "Freezing" in text]


@pytest.mark.medium
@pytest.mark.parametrize("text", _fragments())
def test_settings_of_the_page_on_transfer_can_be_set(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modules = ("experiment", "model", "networks", "transfer", "variables.freezing")
    modules += ("variables.masks", "optimization.update")
    lines = ["from __gin__ import dynamic_registration"]
    for module in modules:
        package, _, name = f"mtl.{module}".rpartition(".")
        lines.append(f"from {package} import {name}")
    lines.append('include "gin_configs/experiments/digits_shared_bottom.gin"')
    freezing = "model.MultiTaskModel.freezing = @freezing.Freezing()"
    lines += [freezing] if "Freezing" in text and freezing not in text else []
    own = text.replace('include "gin_configs/experiments/digits_shared_bottom.gin"', "")
    (tmp_path / "own.gin").write_text("\n".join([*lines, own]))
    assert config.load(["own.gin"], []).model.tasks


@pytest.mark.slow
@pytest.mark.thorough
def test_weights_are_edited_as_the_page_on_transfer_says(launch_in, tmp_path):
    digits = "gin_configs/experiments/digits_shared_bottom.gin"
    short = ("--gin_param", "Run.train_steps = 2", "--gin_param", "Run.checkpoint_steps = 2")
    done = launch_in(tmp_path, "train", "--gin_file", digits, "--model_dir", "runs/digits", *short)
    assert done.code == 0, done.err
    code = next(one.text for one in pages.list_blocks("transfer.md") if one.kind == "python")
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=conftest.environment(), check=True
    )
    given = ("--gin_file", digits, "--gin_file", "gin_configs/transfer/warm_start.gin")
    done = launch_in(tmp_path, "warm_start", *given, "--gin_param", 'source = "edited"')
    assert done.code == 0 and re.search(r"head/digit/logits/bias.*warmed|warmed.*bias", done.out)


def test_what_a_page_leaves_open_is_left_open():
    printed = "a 0.6720  b 5,000 rows\nstep 9, 12 examples/s\nin models/1795397827\nc\n"
    for expected in (
        "a 0.6800 b 5,000 rows\n...\nc",
        "step 9, 99 examples/s\nin models/1000000000",
    ):
        assert pages.find_missing(expected, printed) is None
    for expected in ("a 0.9720 b 5,000 rows", "a 0.6720 b 5,001 rows", "c\nstep 9, 12 examples/s"):
        assert pages.find_missing(expected, printed) is not None
