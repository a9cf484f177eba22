"""An audit as a user runs it: while digits are trained, afterwards, and with mistakes."""

import csv

import pytest

pytestmark = pytest.mark.medium

DIGITS = "gin_configs/experiments/digits_shared_bottom.gin"
AUDIT = "gin_configs/monitoring/clip_audit.gin"
IMAGES = 1437
STEPS = 4


@pytest.fixture(scope="module")
def trained(launch_in, tmp_path_factory):
    """A folder with a short run that was audited."""
    folder = tmp_path_factory.mktemp("audited")
    args = ["--gin_file", DIGITS, "--gin_file", AUDIT, "--model_dir", "run"]
    for name in ("train_steps", "checkpoint_steps"):
        args += ["--gin_param", f"experiment.Run.{name} = {STEPS}"]
    result = launch_in(folder, "train", *args)
    assert result.code == 0, result.err
    return folder


def samples(directory):
    with open(directory / "samples.csv") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.mark.thorough
def test_an_audit_of_digits_while_they_are_trained_and_over_the_checkpoints(trained, launch_in):
    recorded = samples(trained / "run/clip_audit/training")
    assert sum(int(row["visits"]) for row in recorded.values()) == STEPS * 64
    args = ("--model_dir", "run", "--compare", "run/clip_audit/training")
    result = launch_in(trained, "clip_audit", *args)
    assert result.code == 0, result.err
    directory = trained / "run/clip_audit/checkpoints"
    assert result.out.strip() == (directory / "summary.md").read_text().strip()
    assert f"| samples | {IMAGES} |" in result.out and "## Task parity" in result.out
    found = samples(directory)
    assert len(found) == IMAGES and {row["visits"] for row in found.values()} == {"2"}
    for number, row in recorded.items():
        assert row["label/digit"] == found[number]["label/digit"]


MISTAKES = {
    "no run": (("--model_dir", "nothing"), "--model_dir must hold the config.gin of a run"),
    "no checkpoint": (("--checkpoint", "model.ckpt-7"), "--checkpoint must be 'latest', 'best'"),
    "no field": (("--key", "imag"), "ClipAudit.key must be one of image, ", "'image'"),
    "no key": (("--key", "image"), "ClipAudit.key 'image' must be one int64 or string"),
    "no audit": (("--compare", "gone"), "--compare must hold the samples.parquet", "'gone'"),
    "no folder": (("--output", "run/config.gin/x"), "--output must be a folder"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_line_and_leave_nothing(name, trained, launch_in):
    args, *says = MISTAKES[name]
    before = sorted(trained.rglob("*"))
    given = args if "--model_dir" in args else ("--model_dir", "run", *args)
    error = launch_in(trained, "clip_audit", *given).error
    assert all(text in error for text in says), error
    assert sorted(trained.rglob("*")) == before
