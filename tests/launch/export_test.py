"""`launch.export` in other formats: a file of TensorFlow Lite, and a table of all formats."""

import importlib.util
import re

import numpy as np
import pytest

from mtl.tools.runtimes import tflite
from tests.launch import toy

pytestmark = pytest.mark.medium

RUN = ("--model_dir", "run")
FORMATS = [
    "SavedModel, as trained",
    "SavedModel",
    "SavedModel, float16",
    "SavedModel, int8",
    "ONNX",
    *(f"TensorFlow Lite, {kind}" for kind in tflite.KINDS),
]
IMPORTS = "from mtl.sparsity import pruning_schedules\n"
PRUNED = """
include "gin_configs/sparsity/gradual.gin"
pruning_schedules.Cubic.begin_step = 0
pruning_schedules.Cubic.end_step = 15
pruning_schedules.Cubic.every_steps = 5
"""
# A row of the table: name, bytes, gzipped bytes, times, deviation.
MEASURED = re.compile(r"(.+?)  +([\d,]+)  +([\d,]+)  +(.+ \(1\), .+ \(32\))  +(\S+)")


@pytest.fixture(scope="module")
def directory(launch_in, tmp_path_factory):
    """A folder with a pruned run that reads numbers alone: TensorFlow Lite has no lookup."""
    path = tmp_path_factory.mktemp("export")
    toy.write(path)
    text = toy.GIN.replace(", @features.Categorical()", "").replace(', "job": "string"', "")
    text = text.replace('features.Categorical.names = ["job"]\n', "")
    text = text.replace("from mtl import spec\n", "from mtl import spec\n" + IMPORTS)
    (path / "toy.gin").write_text(text + PRUNED)
    result = launch_in(path, "train", "--gin_file", "toy.gin", *RUN)
    assert result.code == 0, result
    return path


def _list_files(directory):
    return sorted(str(path) for path in directory.rglob("*"))


@pytest.mark.parametrize("folder", ["run", "run/best"])
def test_a_folder_of_checkpoints_is_refused(launch_in, directory, folder):
    before = _list_files(directory)
    result = launch_in(directory, "export", *RUN, "--export_dir", folder)
    assert f"--export_dir must hold no checkpoints, got '{folder}'. Exports of" in result.error
    assert _list_files(directory) == before


def test_writes_a_file_of_tensorflow_lite(directory, launch_in):
    args = ("--tflite", "toy.tflite", "--tflite_weights", "int8", "--export_dir", "served")
    result = launch_in(directory, "export", *RUN, *args)
    assert result.code == 0, result
    assert "  TFLite      toy.tflite, predictions differ by at most " in result.out
    run = tflite.make_runner((directory / "toy.tflite").read_bytes())
    found = run({"age": np.array([20.0, 70.0], np.float32)})
    assert found["rich/probability"].shape == (2,) and found["level/probabilities"].shape == (2, 3)


@pytest.mark.slow  # It times each format for a second.
def test_compares_all_formats_and_writes_nothing(directory, launch_in):
    before = _list_files(directory)
    result = launch_in(directory, "export", *RUN, "--compare")
    assert result.code == 0, result
    assert _list_files(directory) == before
    titles, *table = result.out.splitlines()[: len(FORMATS) + 1]
    assert re.split("  +", titles)[::4] == ["format", "deviation"]
    assert [re.split("  +", line)[0] for line in table] == FORMATS
    has_onnx = all(map(importlib.util.find_spec, ("tf2onnx", "onnxruntime")))
    for line in table:
        if line.startswith("ONNX ") and not has_onnx:
            assert "which is not installed. Run: pip install 'multitask-estimator[onnx]'." in line
            continue
        measured = MEASURED.fullmatch(line)
        assert measured, line
        allowed = 0.1 if "int8" in line else 0.01 if "float16" in line else 1e-5
        assert float(measured[5]) <= allowed
