"""The comparison measures a checkpoint in every format whose packages are installed."""

import dataclasses
import importlib.util
from unittest import mock

import pytest

from mtl import features, verbs
from mtl.checkpoints import run_directory
from mtl.sparsity import densities, granularity, pruning, pruning_schedules
from mtl.tools.exports import export_comparison
from mtl.tools.runtimes import tflite
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
    # Only numbers, because TensorFlow Lite looks up no text.
    columns = [features.Numeric(names=["x"])]
    made = tiny.make(
        network=network, columns=columns, check_rows=16, train_steps=2, checkpoint_steps=2
    )
    numbers = dataclasses.replace(tiny.SPEC, features={"x": ("float32", (3,))}, defaults={})
    made = dataclasses.replace(
        made,
        model=dataclasses.replace(made.model, pruning=[part]),
        data=dataclasses.replace(made.data, spec=numbers),
    )
    verbs.train(made, folder)
    path = run_directory.checkpoint_path(folder, "latest")
    before = set(tiny.pathlib.Path(folder).rglob("*"))
    with mock.patch.object(export_comparison, "_SECONDS", 0.01):  # Of each round.
        formats = list(export_comparison.compare_formats(made, folder, path))
    assert set(tiny.pathlib.Path(folder).rglob("*")) == before  # Nothing is published.
    return {one.name: one for one in formats}


TOLERANCES = {"float16": 1e-2, "int8": 0.1}  # For all other types it is 1e-5.


def _require_measured(one):
    assert not one.problem
    assert 0 < one.gzipped < one.size
    assert one.difference <= TOLERANCES.get(one.name.rpartition(" ")[2], 1e-5)
    assert set(one.milliseconds) == {1, 16} and min(one.milliseconds.values()) > 0


def test_the_time_of_a_request_is_in_milliseconds():
    """By a clock that only a request moves, by 40 ms and 20 ms."""
    clock = [0.0]

    def run(request):
        clock[0] += 0.04 if len(request["x"]) > 1 else 0.02

    with mock.patch.object(export_comparison.time, "perf_counter", lambda: clock[0]):
        found = export_comparison._time_requests(run, [{"x": [1.0]}, {"x": [1.0] * 8}])
    assert found == pytest.approx({1: 20, 8: 40})


def test_every_format_is_measured(found):
    lite = [f"TensorFlow Lite, {kind}" for kind in tflite.KINDS]
    kinds = ["SavedModel, as trained", "SavedModel", "SavedModel, float16", "SavedModel, int8"]
    assert list(found) == [*kinds, "ONNX", *lite]
    for name in (*kinds, *lite):
        _require_measured(found[name])


def test_onnx_is_measured_where_it_is_installed(found):
    if not all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime"))):
        says = "which is not installed. Run: pip install 'multitask-estimator[onnx]'"
        assert says in found["ONNX"].problem
        pytest.skip("no tf2onnx or onnxruntime, so ONNX is not measured")
    _require_measured(found["ONNX"])


def test_units_that_are_gone_weigh_nothing(found):
    """64 x 64 weights are left out of the second layer alone."""
    whole, small = found["SavedModel, as trained"], found["SavedModel"]
    assert whole.size - small.size > 4 * 64 * 60
    assert found["TensorFlow Lite, float32"].size < 4 * 64 * 64


def test_a_table_with_texts_is_measured_by_its_ids(tmp_path):
    made = tiny.make(check_rows=16, train_steps=2, checkpoint_steps=2)
    verbs.train(made, str(tmp_path))
    path = run_directory.checkpoint_path(str(tmp_path), "latest")
    with mock.patch.object(export_comparison, "_SECONDS", 0.01):
        formats = {
            one.name: one for one in export_comparison.compare_formats(made, str(tmp_path), path)
        }
    _require_measured(formats["SavedModel"])
    _require_measured(formats["TensorFlow Lite, float32"])
