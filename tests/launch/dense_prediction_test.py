"""Maps from files to predictions: the recipe of docs/dense_prediction.md, as it is printed."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tests import tiny
from tests.launch.conftest import ROOT

PAGE = (ROOT / "docs" / "dense_prediction.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.S)
STEPS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the images and the gin file of the recipe."""
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "rooms.gin").write_text(re.search(r"```gin\n(.*?)```", PAGE, re.S).group(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(PYTHON[0], {})
    return folder


@pytest.fixture(scope="module")
def trained(folder, launch_in):
    """The folder with a run of the recipe with fewer steps."""
    commands = re.search(r"```sh\n(.*?)```", PAGE, re.S).group(1).splitlines()[1:]
    for command, more in zip(commands, (f"--gin_param=Run.train_steps={STEPS}", ""), strict=True):
        verb, *flags = re.fullmatch(r"python -m launch\.(.*)", command).group(1).split()
        done = launch_in(folder, verb, *flags, *filter(None, [more]))
        assert done.code == 0, done
    return folder


@pytest.mark.slow
def test_predicted_maps_are_those_that_are_served_and_measured(trained, monkeypatch):
    monkeypatch.chdir(trained)
    names: dict = {}
    exec(PYTHON[1], names)
    table = names["table"]
    said = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    assert {name: value.shape for name, value in said.items()} == {
        "kind/class_id": (24, 32, 32),
        "depth/depth": (24, 32, 32),
        "normal/normal": (24, 32, 32, 3),
    }
    rows = {
        field: np.stack([np.load(f"rooms/val/{field}/{row}.npy") for row in range(24)])
        for field in ("image", "label", "depth", "normal")
    }
    served = tiny.served("runs/rooms", "raw")(image=tf.constant(rows["image"]))
    for name, value in said.items():
        np.testing.assert_allclose(served[name].numpy(), value, rtol=1e-4, atol=1e-5)

    told = tiny.scalars("runs/rooms/eval")
    metrics = {name: value for (step, name), value in told.items() if step == STEPS}
    accuracy = (said["kind/class_id"] == rows["label"]).mean()
    known = rows["depth"][..., 0] > 0
    errors = np.abs(said["depth/depth"] - rows["depth"][..., 0])[known]
    seen = np.linalg.norm(rows["normal"], axis=-1) > 0
    cosines = (said["normal/normal"] * rows["normal"]).sum(-1)[seen]
    angles = np.degrees(np.arccos(np.clip(cosines, -1, 1)))
    for name, value in {
        "kind/pixel_accuracy": accuracy,
        "depth/abs_error": errors.mean(),
        "depth/rel_error": (errors / rows["depth"][..., 0][known]).mean(),
        "normal/mean_angle": angles.mean(),
        "normal/within_30": (angles < 30).mean(),
    }.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-3, err_msg=name)
    np.testing.assert_allclose(metrics["normal/median_angle"], np.median(angles), atol=0.05)


MISTAKES = {
    "another size": (
        "features.Image.names = ['image']",
        "spec.Spec.labels = {'kind': ('int64', (32, 16)), 'depth': ('float32', (32, 32)), "
        "'normal': ('float32', (32, 32, 3))}",
        "Npy field 'kind' must have shape (32, 16), got (32, 32). Make it (32, 32) in the Spec.",
    ),
    "no maps": (
        "networks.SharedBottom.trunk = @networks.Convnet()",
        "networks.SharedBottom.tower = None",
        "tower 'kind' must be a map, [B, H, W, C] of known sizes",
    ),
    "a folder that is not there": (
        'npy.Npy.rename = {"kind": "labels"}',
        "",
        "must be one of depth, image, label, normal, got 'labels'. Did you mean 'label'?",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "says"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_one_line(folder, launch_in, first, second, says):
    params = [flag for line in (first, second) if line for flag in ("--gin_param", line)]
    done = launch_in(folder, "train", "--gin_file", "rooms.gin", "--model_dir", "runs/no", *params)
    assert says in done.error
