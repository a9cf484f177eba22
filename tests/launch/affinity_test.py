"""`launch.affinity` on a run whose measurements are made up, and mistyped arguments."""

import dataclasses
import shlex
import types

import pytest

from launch import affinity
from mtl.balancing import surgery
from mtl.configs import config, gin_files
from tests import tiny
from tests.launch import toy
from tests.tools.drawing import balancing_picture_test

pytestmark = pytest.mark.medium

FILES = ("toy.gin", "gin_configs/balancing/affinity.gin")
PARAMS = ("TaskAffinity.every_steps = 5", "Run.summary_steps = 5")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Two runs: in `run` the two tasks harm each other, and `empty` has measured nothing."""
    directory = tmp_path_factory.mktemp("grouped")
    toy.write(directory)
    for name in ("run", "empty"):
        (directory / name).mkdir()
        config.load([str(directory / FILES[0]), FILES[1]], PARAMS)
        config.save(str(directory / name))
    pairs = {"rich/rich": -0.1, "rich/level": -0.2, "level/rich": -0.3, "level/level": 0.4}
    scalars = {f"affinity/{pair}": value for pair, value in pairs.items()}
    balancing_picture_test._write(directory / "run", [(5, scalars), (10, scalars)])
    return directory


@pytest.mark.parametrize("higher", [None, False])
def test_a_group_without_the_task_of_the_best_metric_has_another(higher):
    made = tiny.make()
    best = dataclasses.replace(made.best, metric="size/rmse", higher_is_better=higher)
    made = dataclasses.replace(made, best=best)
    params = ['Best.metric = "average_loss"']
    params += [] if higher is None else ["Best.higher_is_better = None"]
    assert affinity._list_params(made, [], ["sign", "kind"]) == params
    assert affinity._list_params(made, [], ["sign", "size"]) == []


def test_groups_are_told_and_each_has_a_command_that_trains_it(directory, launch_in, monkeypatch):
    result = launch_in(directory, "affinity", "--model_dir", "run", "--models", "2")
    assert result.code == 0, result
    assert "2 measurements, steps 5 to 10: run/affinity.csv, run/affinity.svg" in result.out
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert {"1 rich 0 nothing", "2 level 0 nothing"} < set(lines)
    assert "Next best: rich, level, 0.5 ± 0 below." in result.out
    assert "Warning: steps of 'rich' raise its own loss" in result.err
    monkeypatch.chdir(directory)
    commands = [line for line in lines if "launch.train" in line]
    for number, (task, command) in enumerate(zip(("rich", "level"), commands, strict=True), 1):
        words = shlex.split(command)[3:]
        flags = list(zip(words[::2], words[1::2], strict=True))
        made = config.load(
            [value for flag, value in flags if flag == "--gin_file"],
            [value for flag, value in flags if flag == "--gin_param"],
        )
        assert made.model.tasks == (task,) and made.model.surgery == surgery.Sum()
        assert made.best.metric == {"rich": "rich/auc", "level": "average_loss"}[task]
        assert ("--model_dir", f"run_{number}") in flags


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (
            ["model.MultiTaskModel.heads = [@heads.Block()]", "heads.Block.tasks = ['a', 'b']"],
            "heads.Block.tasks = ['b']",
        ),
        (
            ["mine = [@a/heads.Binary(), @b/heads.Binary()]", "model.MultiTaskModel.heads = %mine"],
            "mine = [@b/heads.Binary()]",
        ),
        (
            [
                "model.MultiTaskModel.heads = [@heads.Block(), @heads.Binary()]",
                "heads.Block.tasks = ['a']",
            ],
            None,
        ),
        (["model.MultiTaskModel.heads = @a/heads.Binary()"], None),
        (["heads.Binary.positive_weight = 2.0"], None),
    ],
    ids=["a block", "a macro", "a block and a head", "a function", "a model of a function"],
)
def test_heads_of_a_group_are_bound_as_the_file_binds_them(lines, wanted, tmp_path):
    start = ["from __gin__ import dynamic_registration"]
    start += ["from mtl import heads", "from mtl import model"]
    (tmp_path / "a.gin").write_text("\n".join([*start, *lines, ""]))
    bindings = gin_files.read([str(tmp_path / "a.gin")], [])
    made = types.SimpleNamespace(model=types.SimpleNamespace(tasks=("a", "b")))
    assert affinity._list_heads(made, bindings, ["b"]) == wanted


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "--model_dir must name the folder of a run, got None."),
        (("--model_dir", "empty"), "--model_dir must be a run that has measured affinities"),
        (("--model_dir", "run", "--models", "3"), "--models must be at most 2"),
        (("--model_dir", "run", "--tasks", "rihc"), "one of rich, level, got 'rihc'. Did you"),
        (("--model_dir", "run", "--tasks", "rich"), "must have two tasks or more"),
    ],
)
def test_what_can_be_typed_wrong(directory, launch_in, args, says):
    assert says in launch_in(directory, "affinity", *args).error
