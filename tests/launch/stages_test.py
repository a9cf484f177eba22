"""Stages through the command line: the toy, and a computed classifier on top of it."""

import dataclasses
import shutil

import numpy as np
import pytest

from launch import stages
from tests import tiny
from tests.launch import toy

pytestmark = pytest.mark.medium

SECOND = """\
from __gin__ import dynamic_registration
from mtl import experiment
from mtl.transfer import refit
include "toy.gin"
toy_dir = "runs/toy"
experiment.Experiment.refit = @refit.NearestMean()
refit.NearestMean.task = "level"
refit.NearestMean.source = %toy_dir
"""
PRUNED = """\
from __gin__ import dynamic_registration
from mtl import experiment
from mtl import transfer
from mtl.sparsity import pruning_schedules
include "toy.gin"
include "gin_configs/sparsity/gradual.gin"
toy_dir = "runs/toy"
experiment.Experiment.warm_start = @transfer.WarmStart()
transfer.WarmStart.source = %toy_dir
pruning_schedules.Cubic.begin_step = 0
pruning_schedules.Cubic.end_step = 16
pruning_schedules.Cubic.every_steps = 4
"""
ARGS = ("--gin_file", "toy.gin", "--gin_file", "second.gin", "--model_dir", "root")


def write(directory):
    toy.write(directory)
    (directory / "second.gin").write_text(SECOND)


@pytest.fixture
def directory(tmp_path):
    write(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def trained(launch_in, tmp_path_factory):
    """Return a directory with both stages trained, and the result of the command."""
    directory = tmp_path_factory.mktemp("stages")
    write(directory)
    result = launch_in(directory, "stages", *ARGS)
    assert result.code == 0, result
    return directory, result


def times(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("model.ckpt-*")}


def test_stages_build_on_each_other_and_are_done_once(trained, launch_in):
    directory, result = trained
    assert "Stage 2 of 2, second, in root/second" in result.err
    assert "toy: trained 20 steps." in result.out and "second: trained 0 steps." in result.out
    first, second = (tiny.variables(directory / "root" / name) for name in ("toy", "second"))
    name = "network/trunk/hidden_0/kernel"
    assert (first[name] == second[name]).all()
    assert (first["head/level/logits/kernel"] != second["head/level/logits/kernel"]).any()
    saved = (directory / "root" / "second" / "config.gin").read_text()
    assert "root/toy" in saved and "runs/toy" not in saved

    before = times(directory)
    again = launch_in(directory, "stages", *ARGS)
    assert again.code == 0 and "toy: trained 0 steps." in again.out
    assert times(directory) == before
    alone = launch_in(directory, "evaluate", "--model_dir", "root/second")
    assert alone.code == 0 and alone.out.strip() in again.out


@pytest.mark.thorough
@dataclasses.dataclass
class _Trained:
    """A stage that trains a number of steps at once, in a folder of its name."""

    name: str
    steps: int
    params: tuple[str, ...]

    @property
    def model_dir(self):
        return self.name

    def train(self):
        return {}, self.steps


@pytest.mark.parametrize(
    "steps, existing, told",
    [
        ((40, 0, 0), ("joint", "tail"), ["tail was built before joint"]),
        ((40, 0, 0), ("joint", "tail", "last"), ["tail was built", "last was built before tail"]),
        ((40, 20, 0), ("joint",), []),  # Built now.
        ((0, 20, 0), ("joint", "tail"), []),  # An interrupted stage goes on.
        ((0, 20, 0), ("joint", "tail", "last"), ["last was built before tail"]),
    ],
)
def test_a_stage_that_was_built_on_an_earlier_state_is_told(
    steps, existing, told, monkeypatch, caplog
):
    find_latest = dict.fromkeys(existing, "checkpoint").get
    monkeypatch.setattr(stages.run_directory, "find_latest", find_latest)
    places = [(), ("joint_dir = 'root/joint'",), ("tail_dir = 'root/tail'",)]
    parts = map(_Trained, ("joint", "tail", "last"), steps, places)
    assert [count for *_, count in stages.run(list(parts))] == list(steps)
    lines = [line for line in caplog.messages if "was built" in line]
    assert len(lines) == len(told)
    assert all(part in line for part, line in zip(told, lines, strict=True))


def test_a_second_stage_prunes_what_the_first_has_trained(trained, launch, tmp_path):
    directory = shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    (directory / "pruned.gin").write_text(PRUNED)
    result = launch("stages", *ARGS[:2], "--gin_file", "pruned.gin", *ARGS[4:])
    assert result.code == 0, result
    assert "toy: trained 0 steps." in result.out and "pruned: trained 20 steps." in result.out
    first, pruned = (tiny.variables(directory / "root" / name) for name in ("toy", "pruned"))
    start = tiny.variables(directory / "root" / "pruned", 10)
    name = "network/trunk/hidden_0/kernel"
    # A few are cut at step 10, where those that are left still resemble the first stage's.
    halfway, mask = start[f"{name}/pruning_mask"], pruned[f"{name}/pruning_mask"]
    assert 0 < (1 - halfway).mean() < (1 - mask).mean()
    kept = halfway > 0
    assert np.abs(start[name] - first[name])[kept].max() < 0.2 < np.abs(first[name]).max()
    np.testing.assert_array_equal(pruned[name] != 0, mask > 0)
    assert not [own for own in first if "pruning" in own]


@pytest.mark.thorough
def test_an_interrupted_stage_goes_on_with_the_same_settings_only(trained, launch, tmp_path):
    directory = shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    run = directory / "root" / "toy"
    for path in run.glob("model.ckpt-20.*"):
        path.unlink()
    (run / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    again = launch("stages", *ARGS)
    assert again.code == 0 and "toy: trained 10 steps." in again.out, again

    before = times(directory)
    error = launch("stages", *ARGS, "--gin_param", "Run.seed = 7").error
    assert "--model_dir must hold the stage 'toy' with the same settings, or no run" in error
    assert "Run.seed = 7" in error and times(directory) == before


def test_a_mistake_in_the_last_stage_shows_before_the_first_is_trained(directory, launch):
    (directory / "second.gin").write_text(SECOND.replace("NearestMean.task", "NearestMean.tsak"))
    assert "second.gin line 7" in launch("stages", *ARGS).error
    assert not (directory / "root").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (ARGS[4:], "--gin_file must name a stage"),
        (ARGS[:4], "--model_dir must name the folder of the stages"),
        ((*ARGS, "--gin_file", "x/toy.gin"), "--gin_file must name each stage once, got ['toy']"),
    ],
)
def test_what_must_be_given(args, message, directory, launch):
    assert message in launch("stages", *args).error
