"""For an unknown flag, the error proposes an existing flag or setting."""

import dataclasses
import pathlib
import re

import pytest

from launch.processes import unknown_flags
from mtl import checkpoints, experiment, heads, networks
from mtl.data import csv, pipeline
from mtl.optimization import optimizers

ROOT = pathlib.Path(__file__).resolve().parents[3]

TRAIN = ["gin_file", "gin_param", "model_dir"]
PREDICT = [*TRAIN, "input", "output", "split", "batch_size"]
NEW = ["data", "task", "out", "holdout"]


@pytest.mark.parametrize(
    ("flag", "known", "says"),
    [
        ("epochs", TRAIN, '--gin_param "Run.train_steps = 1000"'),
        ("--lr", TRAIN, '--gin_param "Adam.learning_rate = 0.001"'),
        ("threshold", PREDICT, '--gin_param "Binary.threshold = 0.5"'),
        ("--label", NEW, "Did you mean '--task'?"),
        ("label", TRAIN, "Binary.label"),
        ("batch-size", PREDICT, "Did you mean '--batch_size'?"),
        ("batch-size", TRAIN, "Pipeline.batch_size"),
        ("GIN_FILE", TRAIN, "Did you mean '--gin_file'?"),
        ("gin_fiel", TRAIN, "Did you mean '--gin_file'?"),
        ("config", TRAIN, "Did you mean '--gin_file'?"),
        ("output_dir", TRAIN, "Did you mean '--model_dir'?"),
        ("data", PREDICT, "Did you mean '--input'?"),
        ("lr", NEW, "See --help."),
        ("xyz", TRAIN, "See --help."),
    ],
)
def test_what_was_meant_is_told(flag, known, says):
    assert says in unknown_flags.explain(flag, known)


def test_every_flag_that_is_proposed_is_one_of_a_launcher():
    folder = ROOT / "launch"
    defined = "".join(path.read_text() for path in folder.glob("*.py"))
    for flag in unknown_flags.FLAGS:
        assert re.search(rf'DEFINE_\w+\(\s*"{flag}"|add\(\s*"--{flag}"', defined), flag


def test_every_setting_that_is_proposed_is_one_of_a_part():
    parts = (
        checkpoints.Best,
        csv.Csv,
        experiment.Run,
        heads.Binary,
        networks.MLP,
        optimizers.Adam,
        pipeline.Pipeline,
    )
    fields = {f"{part.__name__}.{one.name}" for part in parts for one in dataclasses.fields(part)}
    assert {binding.partition(" = ")[0] for binding in unknown_flags.SETTINGS} <= fields
