"""A run of heads of maps in parts: slices and replicas."""

import numpy as np
import pytest

from mtl import experiment, features, heads, model, networks, spec
from mtl.balancing import methods, surgery, weighting
from mtl.data import pipeline
from mtl.optimization import optimizers, update
from tests import tiny


def _rows(num, seed):
    random = np.random.default_rng(seed)
    image = random.random((num, 4, 6, 1)).astype("f")
    gone = random.random((num, 4, 6)) < 0.3
    gone[::5] = True  # Slices hold different numbers of labels, and rows may hold none.
    return {
        "image": image,
        "kind": np.where(gone, -1, (image[..., 0] > 0.5).astype(np.int64)),
        "depth": np.where(gone, 0, 1 + image[..., 0]),
        "normal": np.where(
            gone[..., np.newaxis], 0, np.concatenate([image - 0.5, 1 - image, image], -1)
        ),
    }


def _make(**run):
    shape = (4, 6)
    labels = {
        "kind": ("int64", shape),
        "depth": ("float32", shape),
        "normal": ("float32", (*shape, 3)),
    }
    splits = {"train": _rows(48, 1), "test": _rows(16, 2)}
    trunk = networks.UNet(filters=[2, 3], activation="tanh", batch_norm=False)
    tower = networks.UNet(filters=[2], activation="tanh", batch_norm=False)
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=tiny.Rows(splits=splits),
            spec=spec.Spec(features={"image": ("float32", (*shape, 1))}, labels=labels),
            batch_size=16,
        ),
        model=model.MultiTaskModel(
            columns=[features.Image(names=["image"], greatest=1.0)],
            network=networks.SharedBottom(trunk=trunk, tower=tower),
            heads=[
                heads.Segmentation(name="kind", classes=2),
                heads.Depth(name="depth"),
                heads.Normals(name="normal"),
            ],
            update=update.Update(optimizer=optimizers.SGD(learning_rate=0.05)),
            weighting=weighting.UncertaintyWeighting(),
            surgery=surgery.Combine(method=methods.CAGrad()),
        ),
        run=experiment.Run(**{"train_steps": 4, "checkpoint_steps": 1000, **run}),
    )


@pytest.mark.slow
def test_slices_and_replicas_train_as_the_whole_batch(tmp_path):
    """Under a weighting that reads losses, and a surgery that compares the tasks' gradients."""
    tiny.assert_trains_in_parts(_make, tmp_path, 3)
