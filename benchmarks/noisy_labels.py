"""Builds the experiments of `benchmarks.clip_audit`: MNIST and UCI Adult with flipped labels.

made, is_wrong = noisy_labels.noisy(noisy_labels.DATA["mnist"], seed=1, share=0.2)
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import relabelled, rows
from mtl import checkpoints, experiment, features, heads, model, networks, spec
from mtl.configs import config
from mtl.data import idx, pipeline, source, subset
from mtl.optimization import optimizers, schedules, update

_MOST = 1_000_000
_QUIET = {"checkpoint_steps": _MOST, "summary_steps": _MOST}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """A task whose labels are flipped.

    Attributes:
      make: returns the experiment of a seed.
      field: the field of the label.
      task: the name of the head.
      found_at: the shares of flipped labels at which scores are compared.
      trained_at: the shares of flipped labels at which methods are compared; () for none.
      long: a function that makes an experiment longer, for the comparison of methods.
    """

    make: Callable[[int], experiment.Experiment]
    field: str
    task: str
    found_at: Sequence[float] = (0.1, 0.2)
    trained_at: Sequence[float] = ()
    long: Callable[[experiment.Experiment], experiment.Experiment] | None = None


def mnist(seed: int) -> experiment.Experiment:
    """Return an experiment with a hidden layer on the pixels, for 10 epochs."""
    folder = rows.data_dir("mnist")
    files = {"image": "t10k-images-idx3-ubyte.gz", "digit": "t10k-labels-idx1-ubyte.gz"}
    whole = idx.Idx(files={"all": files}, data_dir=folder)
    batch_size, steps = 100, 800
    rate = schedules.Cosine(value=0.002, decay_steps=steps)
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=subset.Subset(source=whole, split="all", share=0.8, held_out={"test": 0.2}),
            spec=spec.Spec(features={"image": ("uint8", (28, 28, 1))}, labels={"digit": "int64"}),
            train_split="all",
            batch_size=batch_size,
            cache=True,
        ),
        model=model.MultiTaskModel(
            columns=[features.Image(names=["image"])],
            network=networks.SharedBottom(trunk=networks.MLP(layers=[128])),
            heads=[heads.MultiClass(name="digit", classes=10)],
            update=update.Update(optimizer=optimizers.Adam(learning_rate=rate)),
        ),
        run=experiment.Run(train_steps=steps, seed=seed, **_QUIET),
        best=checkpoints.Best(metric="digit/accuracy", higher_is_better=True),
    )


def long(settings: experiment.Experiment) -> experiment.Experiment:
    """Return the experiment with 30 epochs and a constant learning rate."""
    run = dataclasses.replace(settings.run, train_steps=3 * settings.run.train_steps)
    constant = update.Update(optimizer=optimizers.Adam(learning_rate=0.002))
    longer_model = dataclasses.replace(settings.model, update=constant)
    return dataclasses.replace(settings, run=run, model=longer_model)


def adult(seed: int) -> experiment.Experiment:
    """Return the experiment of `adult_shared_bottom.gin` with `income` as its only task."""
    params = [
        f"adult_dir = {rows.data_dir('adult')!r}",
        "MultiTaskModel.heads = [@income/heads.Binary()]",
        f"Run.seed = {seed}",
        *(f"Run.{name} = {value}" for name, value in _QUIET.items()),
    ]
    return config.load(["gin_configs/experiments/adult_shared_bottom.gin"], params)


DATA = {
    "mnist": Data(make=mnist, field="digit", task="digit", trained_at=(0.0, 0.2, 0.4), long=long),
    "adult": Data(make=adult, field="income", task="income"),
}


def labels_of(data: pipeline.Pipeline, field: str) -> np.ndarray:
    """Return the labels [N] of the training split, in the order of its rows."""
    batches = list(source.iterate(lambda: data.one_pass(data.train_split)))
    return np.concatenate([labels[field] for _, labels in batches])


def noisy(
    settings: experiment.Experiment, field: str, share: float
) -> tuple[experiment.Experiment, np.ndarray]:
    """Return the experiment with a share of flipped labels, and bools [N], True for flipped labels.

    Every call flips the same labels.
    """
    wrong, is_wrong = relabelled.flipped(labels_of(settings.data, field), share, seed=1)
    labels = {settings.data.train_split: wrong}
    noise = relabelled.Relabelled(source=settings.data.source, field=field, labels=labels)
    return _reading(settings, noise), is_wrong


def without(
    settings: experiment.Experiment, ids: np.ndarray, share: float
) -> experiment.Experiment:
    """Return the experiment without some rows of the training split.

    Args:
      settings: an experiment that `noisy` returned.
      ids: the numbers [N] of all rows; the first rows are left out.
      share: the share of rows to leave out.
    """
    is_kept = np.ones(len(ids), bool)
    is_kept[ids[: round(share * len(ids))]] = False
    noise = dataclasses.replace(settings.data.source, kept={settings.data.train_split: is_kept})
    return _reading(settings, noise)


def _reading(
    settings: experiment.Experiment, noise: relabelled.Relabelled
) -> experiment.Experiment:
    return dataclasses.replace(settings, data=dataclasses.replace(settings.data, source=noise))
