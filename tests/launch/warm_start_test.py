"""Transfer through the command line: the announced and the actual start of the variables."""

import re

import pytest
import tensorflow as tf

from tests import tiny
from tests.launch import toy

pytestmark = pytest.mark.medium

FILES = ("toy.gin", "gin_configs/transfer/warm_start.gin", "gin_configs/transfer/frozen_trunk.gin")
ONCE = ("--gin_param", "Run.checkpoint_steps = 20")
ARGS = [*(arg for file in FILES for arg in ("--gin_file", file)), *ONCE]


@pytest.fixture(scope="module")
def trained(launch_in, tmp_path_factory):
    """A directory with toy.gin and its trained model in run."""
    directory = tmp_path_factory.mktemp("trained")
    toy.write(directory)
    result = launch_in(directory, "train", "--gin_file", "toy.gin", "--model_dir", "run", *ONCE)
    assert result.code == 0, result
    return directory


def test_what_would_be_warmed_is_told_and_then_done(trained, launch_in):
    source = ("--gin_param", 'source = "run"')
    told = launch_in(trained, "warm_start", *ARGS, *source, "--model_dir", "second")
    assert told.code == 0, told
    assert not (trained / "second").exists()
    assert re.match(r"Warm start from run/model.ckpt-20: \d+ warmed, \d+ skipped\n\n", told.out)
    assert re.search(r"^warmed +network/trunk/hidden_0/kernel +\[\d+, 128\]$", told.out, re.M)
    assert re.search(r"^skipped +head/rich/logits/bias .* excluded by '\^head/'$", told.out, re.M)

    result = launch_in(trained, "train", *ARGS, *source, "--model_dir", "second")
    assert result.code == 0, result
    assert (trained / "second" / "warm_start.txt").read_text() == told.out
    assert told.out.splitlines()[0] in result.err
    assert re.search(r"^Frozen: 5 of 13 variables, [\d,]+ of [\d,]+ weights$", result.err, re.M)
    before, after = (tiny.variables(trained / run) for run in ("run", "second"))
    for name, value in before.items():
        if name.startswith(("features/", "network/trunk/")) and "Adam" not in name:
            assert (after[name] == value).all(), name
            assert f"{name}/Adam" not in after
    assert (before["head/rich/logits/kernel"] != after["head/rich/logits/kernel"]).any()


@pytest.mark.parametrize(
    ("param", "message"),
    [
        (
            'source = "rum"',
            r"source must be a checkpoint, a model_dir or a SavedModel, got 'rum'. D",
        ),
        (
            'WarmStart.exclude = ["^haed/"]',
            r"exclude must match a variable, got '\^haed/'. Nearest",
        ),
        ('Freezing.frozen = ["^netwrk/"]', r"frozen must match a variable, got '\^netwrk/'. Near"),
    ],
)
def test_a_mistake_is_one_line_before_the_first_step(trained, launch_in, param, message):
    args = [*ARGS, "--gin_param", 'source = "run"', "--gin_param", param]
    for verb in ("warm_start", "train"):
        result = launch_in(trained, verb, *args, "--model_dir", "third")
        assert re.search(message, result.error), result
        assert not (trained / "third").exists()


def test_without_a_warm_start(trained, launch_in):
    result = launch_in(trained, "warm_start", "--gin_file", "toy.gin")
    assert result.error.startswith("Experiment.warm_start must be set, got None. Bind Experiment.w")
    assert tf.io.gfile.exists(str(trained / "run" / "row_names.json"))
