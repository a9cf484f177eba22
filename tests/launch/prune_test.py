"""`launch.prune` on a run of the toy: at once, and in rounds."""

import re

import pytest

from tests import tiny
from tests.launch import conftest, toy

pytestmark = pytest.mark.medium

KERNEL = "network/trunk/hidden_0/kernel"
ONCE = ("--gin_file", "gin_configs/sparsity/finished.gin")
ROUNDS = ("--gin_file", "gin_configs/sparsity/tickets.gin", "--rounds", "1")
FROM = ("--model_dir", "run", "--output_dir")


@pytest.fixture(scope="module")
def directory(launch_in, tmp_path_factory):
    """A folder with a run of 20 steps, which is exported once, as it was trained."""
    path = tmp_path_factory.mktemp("prune")
    toy.write(path)
    args = ["--gin_file", "toy.gin", "--model_dir", "run"]
    exported = ("Serving.check_rows = 0", "Serving.optimized = @serving.AsTrained()")
    for param in ("Run.checkpoint_steps = 20", *exported):
        args += ["--gin_param", param]
    result = launch_in(path, "train", *args)
    assert result.code == 0, result
    return path


def test_prunes_at_once_and_the_command_it_names_goes_on(directory, launch_in):
    result = launch_in(directory, "prune", *FROM, "half", *ONCE)
    assert result.code == 0, result
    assert "Cut 50.0% of the prunable weights." in result.out
    rows = [line.split() for line in result.out.splitlines()]
    assert ["rich/auc", "level/accuracy"] in rows
    assert [len(row) for row in rows if row and row[0] in ("run/model.ckpt-20", "half")] == [3, 3]
    saved = (directory / "half" / "config.gin").read_text()
    assert "SparseGpt" in saved and "Run.train_steps = 20" in saved
    assert tiny.variables(directory / "half")[f"{KERNEL}/pruning_mask"].mean() == 0.5
    args = re.search(r"launch.train (.*) --gin_param '(.*)'", result.out)
    went_on = launch_in(directory, "train", *args[1].split(), "--gin_param", args[2])
    assert went_on.code == 0 and "Going on from step 20 to step 25" in went_on.err
    assert tiny.variables(directory / "half")[f"{KERNEL}/pruning_mask"].mean() == 0.5
    again = launch_in(directory, "prune", *FROM, "half", *ONCE)
    fix = "launch.train continues or evaluates a pruned run."
    assert again.error == f"--output_dir must hold no run, got 'half'. {fix}"


@pytest.mark.thorough
def test_prunes_in_rounds(directory, launch_in):
    result = launch_in(directory, "prune", *FROM, "tickets", *ROUNDS, "--controls", "shuffled")
    assert result.code == 0, result
    shown = [line.split("  ")[1] for line in result.out.splitlines() if line.startswith("  ")]
    assert shown[1:] == ["all weights", "round_1, 90.0% cut", "round_1_shuffled, 90.0% cut"]
    assert "Round 1 of 1, in tickets/round_1" in result.err
    config = launch_in(directory, "evaluate", "--model_dir", "tickets/round_1")
    assert config.code == 0, config  # The folder holds a run.


def test_one_process_prunes_a_run(directory, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    error = conftest.run_process(directory, "launch.prune", *FROM, "x", *ONCE).error
    assert error.startswith("TF_CONFIG must be unset, as a single process prunes a run")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--model_dir", "run", *ONCE), "--output_dir must name a folder"),
        ((*FROM, "run/", *ONCE), "--output_dir must be another folder than --model_dir"),
        ((*FROM, "x", *ROUNDS, "--controls", "shufled"), "'shuffled'"),
        ((*FROM, "x", *ONCE, "--rewind_to", "5"), "--rewind_to must come with --rounds, got 5."),
        ((*FROM, "x", *ROUNDS, "--rewind_to", "20"), "--rewind_to must be below the steps"),
        ((*FROM, "x"), "MultiTaskModel.pruning must hold a part, got []. Set --gin_file"),
        (
            (*FROM, "x", "--gin_file", "gin_configs/sparsity/gradual.gin"),
            "Pruning.schedule must be @pruning_schedules.OneShot() to prune a finished run",
        ),
        (
            (*FROM, "x", *ONCE, "--gin_param", "Pruning.patterns = ['^network/nothing']"),
            "Pruning.patterns must match a variable, got '^network/nothing'",
        ),
        ((*FROM, "x", *ONCE, "--gin_param", "Pruning.sparsity = 2"), "must be in (0, 1), got 2"),
        (("--model_dir", "none", "--output_dir", "x", *ONCE), "must hold the config.gin of a run"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(directory, launch_in, args, says):
    assert says in launch_in(directory, "prune", *args).error
    assert not (directory / "x").exists()
