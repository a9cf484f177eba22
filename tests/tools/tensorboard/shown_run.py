"""A run with an image, a table and three tasks, that shows all there is in TensorBoard."""

import dataclasses

import numpy as np

from mtl import features, heads, networks, spec, verbs
from mtl.tools import tensorboard
from mtl.tools.tensorboard import settings
from tests import tiny

SPEC = spec.Spec(
    features={**tiny.SPEC.features, "image": ("uint8", (8, 8, 1))},
    labels={**tiny.SPEC.labels, "importance": "float32"},
    defaults=tiny.SPEC.defaults,
)
CONFIG = "experiment.Run.train_steps = 60\nA.text = '<script>alert(1)</script>'\n"


def rows(num, seed):
    """A bright square where the sign is positive; a third of the rows count half."""
    made, rng = tiny.rows(num, seed), np.random.default_rng(seed)
    image = rng.integers(0, 60, (num, 8, 8, 1))
    image[:, 2:6, 2:6] += (made["sign"] * 150)[:, np.newaxis, np.newaxis, np.newaxis]
    importance = np.where(np.arange(num) % 3, 1.0, 0.5).astype(np.float32)
    return {**made, "image": image.astype(np.uint8), "importance": importance}


SPLITS = {"train": rows(96, seed=1), "test": rows(48, seed=2)}


def make(**shown):
    """60 steps with two evaluations, and every item on; `shown` changes items."""
    items = dict.fromkeys((*settings.OF_STEPS, *settings.OF_EVALUATIONS), True)
    made = tiny.make(
        splits=SPLITS,
        columns=[
            features.Numeric(names=["x"]),
            features.Categorical(names=["word"], dimension=4),
            features.Image(names=["image"]),
        ],
        network=networks.SharedBottom(
            trunk=networks.MLP(layers=[8]), tower=networks.MLP(layers=[4])
        ),
        train_steps=60,
        summary_steps=10,
        checkpoint_steps=30,
    )
    tasks = [
        heads.Binary(name="sign", weight="importance"),
        heads.MultiClass(name="kind", classes=3),
        heads.Regression(name="size"),
    ]
    return dataclasses.replace(
        made,
        data=dataclasses.replace(made.data, spec=SPEC),
        model=dataclasses.replace(made.model, heads=tasks),
        tensorboard=tensorboard.TensorBoard(embeddings=True, **{**items, **shown}),
    )


def train(folder):
    """Train it; return the folder."""
    folder.mkdir()
    (folder / "config.gin").write_text(CONFIG)
    verbs.train(make(), str(folder))
    return folder
