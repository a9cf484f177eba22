"""README's commands print the output shown there; the examples of the transfer page work."""

import random
import re
import subprocess
import sys

import pytest

from mtl.configs import config
from tests import pages, readme_test
from tests.launch import conftest, page_reader


@pytest.mark.slow
def test_the_readme_works_as_it_is_typed(launch_in, tmp_path):
    rng = random.Random(0)
    readme_test.write_rows(tmp_path / "visits.csv", rng, 600)
    readme_test.write_rows(tmp_path / "new.csv", rng, 8)
    reader, blocks = page_reader.Reader(launch_in, tmp_path), pages.list_blocks("../README.md")
    for block in blocks:
        reader.read(block)
    assert not reader.problems, reader.report()
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
