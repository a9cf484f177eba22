"""A whole experiment small enough for tests: 96 + 48 rows made with NumPy, three tasks."""

import dataclasses
import fnmatch
import pathlib
import re
import shutil
from collections.abc import Mapping
from unittest import mock

import numpy as np
import tensorflow as tf

from mtl import (
    checkpoints,
    distribution,
    experiment,
    features,
    heads,
    model,
    networks,
    serving,
    spec,
    types,
    verbs,
)
from mtl.data import packed, pipeline
from mtl.optimization import optimizers, update
from mtl.runs import evaluation, preparation
from mtl.serving import exporter
from tests import signatures

tf1 = tf.compat.v1

SPEC = spec.Spec(
    features={"x": ("float32", (3,)), "word": "string"},
    labels={"sign": "int64", "kind": "int64", "size": "float32"},
    defaults={"word": "none"},
)
LABELS = ("sign", "kind", "size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """A source of arrays in memory, {split: {field: [N, ...]}}; a list of lists is ragged."""

    splits: Mapping[str, Mapping[str, np.ndarray | list]]

    def records(self, split):
        columns = self.splits[split]
        ragged = {n: tf.ragged.constant(c) for n, c in columns.items() if isinstance(c, list)}
        return tf.data.Dataset.from_tensor_slices({**columns, **ragged})

    def decode(self, batch, spec, with_labels):
        return {name: batch[name] for name in (spec.fields if with_labels else spec.features)}

    def scan(self, split, spec):
        names, columns = zip(*self.splits[split].items(), strict=True)
        for index, row in enumerate(zip(*columns, strict=True)):
            values = [value.tolist() if hasattr(value, "tolist") else value for value in row]
            yield f"{split} row {index}", dict(zip(names, values, strict=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blocks(Rows):
    """Rows in blocks of ten, of which training mixes `window` at a time."""

    window: int

    def list_blocks(self, split, spec):
        columns = self.splits[split]
        count = len(next(iter(columns.values())))

        def read(block, fields):
            rows = slice(10 * block, 10 * block + 10)
            return {
                name: packed.pack_field(columns[name][rows], own) for name, own in fields.items()
            }

        sizes = [min(10, count - start) for start in range(0, count, 10)]
        return types.Blocks(sizes, self.window, read)


def rows(num, seed):
    """Rows that can be learned; a third of the labels of `kind` are missing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, 3)).astype(np.float32)
    kind = (x[:, 1] > 0).astype(np.int64) + (x[:, 2] > 0)
    return {
        "x": x,
        "word": rng.choice(np.array([b"red", b"green", b"blue"], object), num),
        "sign": (x[:, 0] > 0).astype(np.int64),
        "kind": np.where(np.arange(num) % 3, kind, -1),
        "size": np.abs(x).sum(axis=1),
    }


def _tags(num):
    """A list of tokens for every row: of eight rows in a row all are empty, or short, or long."""
    rng, most = np.random.default_rng(3), np.repeat([0, 1, 9, 3], 8)
    return [list(rng.choice(TAGS, rng.integers(0, most[n % 32] + 1))) for n in range(num)]


SPLITS = {"train": rows(96, seed=1), "test": rows(48, seed=2)}
# With a field `tags` of lists: none in some batches, many in others.
TAGS = np.array([b"a", b"b", b"c", b"d"], object)
TAGGED_SPEC = dataclasses.replace(SPEC, features={**SPEC.features, "tags": ("string", (None,))})
TAGGED_SPLITS = {split: {**rows, "tags": _tags(len(rows["x"]))} for split, rows in SPLITS.items()}


def make(splits=None, best=None, optimizer=None, network=None, columns=None, check_rows=0, **run):
    """Return an experiment of 40 steps; `run` holds settings of Run.

    Comparing an export with the Estimator takes a third of such a training, and so does every
    evaluation. Tests of exports therefore set `check_rows`, and tests of intermediate checkpoints
    set `checkpoint_steps`.
    """
    trunk = networks.MLP(layers=[8], dropout=0.2, batch_norm=True)
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=Rows(splits=SPLITS if splits is None else splits), spec=SPEC, batch_size=16
        ),
        model=model.MultiTaskModel(
            columns=columns
            or [features.Numeric(names=["x"]), features.Categorical(names=["word"], dimension=2)],
            network=network or networks.SharedBottom(trunk=trunk, tower=networks.MLP(layers=[4])),
            heads=[
                heads.Binary(name="sign"),
                heads.MultiClass(name="kind", classes=3),
                heads.Regression(name="size"),
            ],
            update=update.Update(optimizer=optimizer or optimizers.LazyAdam(learning_rate=0.01)),
        ),
        run=experiment.Run(
            **{"train_steps": 40, "checkpoint_steps": 1000, "summary_steps": 10, **run}
        ),
        best=best or checkpoints.Best(),
        serving=serving.Serving(check_rows=check_rows),
    )


def train(made, model_dir):
    """Train, and return {name: value} of the last checkpoint, for tests of variables alone.

    No checkpoint is evaluated or exported, which takes more than half of a short run. Nor is the
    graph of evaluation built before training, which takes half of the rest.
    """
    with (
        mock.patch.multiple(
            evaluation.Evaluator,
            __call__=lambda *given: {},
            evaluate_again=lambda *given: {},
            graph=mock.Mock(metrics=(), variables=()),
        ),
        mock.patch.multiple(preparation, _check_best=mock.DEFAULT, _check_moving=mock.DEFAULT),
    ):
        verbs.train(made, str(model_dir))
    return variables(model_dir)


def without_exports():
    """Runs within it evaluate checkpoints, and keep the best, but export none."""
    return mock.patch.object(exporter.Exporter, "__call__", lambda *given: None)


def assert_trains_in_parts(make, directory, train_steps):
    """Slices and two replicas train as the whole batch does; what that has saved last.

    make(**run) makes the experiment, of settings of Run. All start from the same weights.
    """
    one = distribution.Distribution(strategy="none")
    two = distribution.Distribution(strategy="mirrored", devices=["/cpu:0", "/cpu:1"])

    def go_on(folder, where, micro_batches):
        steps = {"train_steps": train_steps, "checkpoint_steps": train_steps}
        made = make(**steps, micro_batches=micro_batches)
        return train(dataclasses.replace(made, distribution=where), directory / folder)

    expected = go_on("whole", one, 1)
    for folder in ("slices", "replicas"):
        copy_until(directory / "whole", directory / folder, 0)
    found = {"slices": go_on("slices", one, 4), "replicas": go_on("replicas", two, 1)}
    for folder, values in found.items():
        assert values.keys() == expected.keys()
        for name, value in values.items():
            if value.dtype.kind == "i":
                np.testing.assert_array_equal(value, expected[name], err_msg=f"{folder}: {name}")
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-4, atol=1e-5, err_msg=f"{folder}: {name}"
            )
    return expected


def assert_goes_on(make, directory, half):
    """A run that ends after a checkpoint goes on from it to the bit; what it has saved last.

    make(**run) makes the experiment, of settings of Run.
    """
    made = make(train_steps=2 * half, checkpoint_steps=half)
    whole = train(made, directory / "whole")
    assert_same_from(made, directory / "whole", directory / "parts", half)
    return whole


def assert_same_from(made, directory, copy, step):
    """A copy of a run that goes on from one of its checkpoints ends as the run did."""
    copy_until(directory, copy, step)
    expected, found = variables(directory), train(made, copy)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def copy_until(directory, copy, step):
    """Copies a run as if it had ended after one of its checkpoints."""

    def list_later(folder, names):
        if pathlib.Path(folder).name == "statistics":  # Statistics hold for every step.
            return []
        found = {name: re.search(r"-(\d+)[._]", name) for name in names}
        later = [name for name, number in found.items() if number and int(number[1]) > step]
        return [*later, *fnmatch.filter(names, "events.*")]

    shutil.copytree(directory, copy, ignore=list_later)
    (copy / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')
    assert checkpoint_steps(copy)[-1] == step


def variables(model_dir, step=None):
    """{name: value} of the latest checkpoint, or of a step's."""
    latest = tf.train.latest_checkpoint(str(model_dir))
    path = latest if step is None else f"{model_dir}/model.ckpt-{step}"
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


# Scalars that no two runs have in common, and the last is there where a call takes several steps.
SPEEDS = ("steps_per_sec", "examples_per_sec", "input_wait_share")


def scalars(directory):
    """{(step, tag): value} of the event files in a directory; of a step written twice the last."""
    return {
        (event.step, value.tag): value.simple_value
        for event in events(directory)
        for value in event.summary.value
        if value.HasField("simple_value")
    }


def events(directory):
    """Yield the events of the event files in a directory."""
    for path in sorted(pathlib.Path(directory).glob("events.out.tfevents.*")):
        yield from tf1.train.summary_iterator(str(path))


def served(model_dir, signature="serving_default"):
    """A signature of the latest export of a run, by default that of all tasks, of tf.Examples."""
    (version,) = sorted(pathlib.Path(model_dir, "export", "latest").iterdir())[-1:]
    return signatures.load(version, signature)


def examples(split):
    """The rows of a split as serialized tf.Examples."""
    return [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                    "word": tf.train.Feature(bytes_list=tf.train.BytesList(value=[word])),
                }
            )
        ).SerializeToString()
        for x, word in zip(SPLITS[split]["x"], SPLITS[split]["word"], strict=True)
    ]


def checkpoint_steps(model_dir):
    """The steps of the checkpoints that lie in a directory."""
    paths = pathlib.Path(model_dir).glob("model.ckpt-*.index")
    return sorted(int(path.stem.split("-")[1]) for path in paths)
