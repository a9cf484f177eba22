"""A checkpoint in every format: what is measured is what is there."""

import dataclasses

import pytest

from mtl.checkpoints import run_directory
from mtl.runs import export_comparison, verbs
from mtl.sparsity import densities, granularity, pruning, pruning_schedules
from tests import tiny

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """{name: format} of a run whose trunk keeps 2 of 64 units, and where it lies."""
    folder = str(tmp_path_factory.mktemp("formats"))
    part = pruning.Pruning(
        sparsity=31 / 32,
        schedule=pruning_schedules.OneShot(),
        density=densities.Uniform(),
        granularity=granularity.Units(),
        patterns=["^network/trunk/"],
    )
    network = tiny.networks.SharedBottom(trunk=tiny.networks.MLP(layers=[64, 64]))
    made = tiny.make(network=network, check_rows=16, train_steps=2, checkpoint_steps=2)
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, pruning=[part]))
    verbs.train(made, folder)
    path = run_directory.checkpoint_path(folder, "latest")
    before = set(tiny.pathlib.Path(folder).rglob("*"))
    formats = list(export_comparison.compare_formats(made, folder, path))
    assert set(tiny.pathlib.Path(folder).rglob("*")) == before  # Nothing is published.
    return {one.name: one for one in formats}


def test_every_format_is_measured_or_says_why_not(found):
    assert len(found) == 8
    for name, one in found.items():
        if one.problem:
            assert "TensorFlow Lite cannot hold" in one.problem or "ONNX" in name
            continue
        assert 0 < one.gzipped < one.size and one.difference < 0.1
        assert set(one.milliseconds) == {1, 16} and min(one.milliseconds.values()) > 0


def test_units_that_are_gone_weigh_nothing(found):
    """64 x 64 weights are left out of the second layer alone."""
    whole, small = found["SavedModel, as trained"], found["SavedModel"]
    assert whole.size - small.size > 4 * 64 * 60
    assert whole.difference <= 1e-5 and small.difference <= 1e-5
