"""Entries that do not move: to the bit, under every optimizer, and without state."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, verbs
from mtl.optimization import (
    adaptive_clipping,
    clipping,
    lookahead,
    optimizers,
    regularization,
    transforms,
    update,
)
from mtl.step import gradients as gradients_lib
from mtl.variables import averaging, freezing, masks
from tests import tiny
from tests.conformance import optimizers as rows
from tests.optimization import references, training

STEPS = 6
RANDOM = np.random.default_rng(0)
START = RANDOM.normal(size=[4, 3]) * (RANDOM.random([4, 3]) > 0.4)
GRADIENTS = RANDOM.normal(size=[STEPS, 4, 3])
CHOSEN = masks.Rows(rows=[1, 3])
NONZERO = {"kernel": masks.Nonzero()}


def _step_fn(optimizer, entries, penalty=0.1, **settings):
    """A kernel and a table with the same gradients, those of the table sparse, of rows 0 to 2."""
    part = update.Update(
        optimizer=optimizer,
        regularization=regularization.Regularization(l2={"": penalty} if penalty else {}),
        **settings,
    )

    def gradients_of(features, labels):
        del labels
        variables = [training.variable(name, START) for name in ("kernel", "table")]
        dense = tf.gather(GRADIENTS.astype(np.float32), features)
        sparse = tf.IndexedSlices(dense[:3], tf.range(3), tf.constant([4, 3]))
        return part([dense, sparse], variables)

    step_fn = freezing.Freezing(entries=entries).wrap_step(gradients_of)
    return lambda step: step_fn(step, None)


OPTIMIZERS = {row.name: row.optimizer for row in rows.ROWS}
OPTIMIZERS["Lookahead"] = lookahead.Lookahead(optimizer=OPTIMIZERS["AdamW"], steps=2)


@pytest.mark.medium
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_left_out_stays_to_the_bit(name):
    entries = {**NONZERO, "table": CHOSEN}
    result = training.train(_step_fn(OPTIMIZERS[name], entries), STEPS, looped=True).variables
    start = START.astype(np.float32)
    moved = result["kernel"] != start
    np.testing.assert_array_equal(moved, START != 0)
    table = result["table"] != start
    assert not table[[0, 2]].any() and table[1].all()


@pytest.mark.medium
@pytest.mark.parametrize("name", ["Momentum", "Adam", "AdamW"])
def test_a_mask_on_the_gradient_alone_would_not_hold_them(name):
    """The trap: state from before the mask, or decay, moves what has no gradient."""
    optimizer = OPTIMIZERS[name]

    def step_fn(step):
        kernel = training.variable("kernel", START)
        late = tf.gather(tf.constant([1.0, 0.0, 0.0, 0.0], tf.float32), step)
        return update.Update(optimizer=optimizer)([late * tf.ones([4, 3])], [kernel])

    one, two = (training.train(step_fn, steps, looped=True).variables for steps in (1, 2))
    assert (one["kernel"] != two["kernel"]).all()


@pytest.mark.medium
def test_momentum_from_before_the_mask_moves_nothing(tmp_path):
    path = str(tmp_path / "model.ckpt")
    optimizer = optimizers.Momentum(learning_rate=0.1)
    before = training.train(_step_fn(optimizer, {}), 2, looped=True, save=path).variables
    entries = {"kernel": CHOSEN}
    after = training.train(_step_fn(optimizer, entries), 2, looped=True, restore=path).variables
    np.testing.assert_array_equal(after["kernel"][[0, 2]], before["kernel"][[0, 2]])
    assert (after["kernel"][[1, 3]] != before["kernel"][[1, 3]]).all()
    assert (before["kernel/Momentum"][[0, 2]] != 0).all()


def test_what_moves_moves_as_without_a_mask():
    step_fn = _step_fn(optimizers.LazyAdam(learning_rate=0.1), {"": CHOSEN}, penalty=0.0)
    result = training.train(step_fn, STEPS, looped=False).variables
    moves = [(np.arange(4), gradient) for gradient in GRADIENTS]
    expected = references.train(references.adam(), START, moves, [0.1] * STEPS, True)
    np.testing.assert_allclose(result["kernel"][[1, 3]], expected[[1, 3]], rtol=1e-5, atol=1e-6)
    assert not result["kernel/Adam"][[0, 2]].any()


def test_what_is_left_out_does_not_count_for_the_norm():
    step_fn = _step_fn(optimizers.SGD(), {"": CHOSEN}, penalty=0.0)
    norm = training.train(step_fn, 1, looped=False).monitors["gradient_norm"]
    expected = np.sqrt((GRADIENTS[0][[1, 3]] ** 2).sum() + (GRADIENTS[0][1] ** 2).sum())
    np.testing.assert_allclose(norm, expected, rtol=1e-6)


class Shift:
    """A transform of the user's: adds 1 everywhere."""

    def __call__(self, gradients, variables, norm):
        del variables, norm
        return [
            gradients_lib.transform_gradient(gradient, lambda own: own + 1)
            for gradient in gradients
        ]


TRANSFORMS = {
    "Noise": [transforms.Noise(scale=1.0)],
    "Centralization": [transforms.Centralization()],
    "of the user": [Shift()],
    "several": [transforms.Noise(), transforms.Centralization(), Shift()],
}
CLIPPINGS = [clipping.Norm(max_norm=0.5), clipping.Value(max_value=0.1)]
CLIPPINGS += [adaptive_clipping.AGC(), adaptive_clipping.AutoClip()]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "clip"),
    [*((kind, None) for kind in TRANSFORMS), *(("several", clip) for clip in CLIPPINGS)],
    ids=str,
)
def test_transforms_leave_no_state_where_nothing_moves(kind, clip):
    step_fn = _step_fn(
        OPTIMIZERS["Lookahead"],
        {**NONZERO, "table": CHOSEN},
        transforms=TRANSFORMS[kind],
        clipping=clip,
        average=averaging.ExponentialAverage(decay=0.5),
    )
    result, start = training.train(step_fn, 2, looped=True).variables, START.astype(np.float32)
    held = {"kernel": START == 0, "table": np.tile([[True], [False]], [2, 3])}
    for name, where in held.items():
        np.testing.assert_array_equal(result[name][where], start[where])
        for slot in ("Adam", "Adam_1"):
            assert not result[f"{name}/{slot}"][where].any(), (name, slot)
    where = held["kernel"]
    np.testing.assert_array_equal(result["kernel/average"][where], start[where])
    assert result["kernel/Adam"][~where].any()


def test_the_next_transform_gets_the_norm_of_what_moves():
    class ByNorm:
        def __call__(self, gradients, variables, norm):
            del variables
            return [clipping.scale_gradient(gradient, norm) for gradient in gradients]

    start = START.astype(np.float32)
    step_fn = _step_fn(
        optimizers.SGD(learning_rate=1.0), NONZERO, 0, transforms=[Shift(), ByNorm()]
    )
    result = training.train(step_fn, 1, looped=False).variables
    shifted = (GRADIENTS[0] + 1) * (START != 0)
    norm = np.sqrt((shifted**2).sum() + ((GRADIENTS[0][:3] + 1) ** 2).sum())
    np.testing.assert_allclose(result["kernel"], start - norm * shifted, rtol=1e-4, atol=1e-5)


@pytest.mark.medium
def test_centralization_keeps_the_sum_of_a_unit_of_which_some_entries_move():
    settings = {"transforms": [transforms.Centralization()]}
    for entries in (NONZERO, {"kernel": masks.Rows(rows=[2])}, {"kernel": CHOSEN}):
        step_fn = _step_fn(optimizers.SGD(learning_rate=1.0), entries, 0, **settings)
        kernel = training.train(step_fn, 1, looped=False).variables["kernel"]
        np.testing.assert_allclose(kernel.sum(axis=0), START.sum(axis=0), atol=1e-5)
        rows = getattr(entries["kernel"], "rows", None)
        where = START != 0 if rows is None else np.isin(np.arange(4), rows)[:, None]
        mean = (GRADIENTS[0] * where).sum(0) / np.maximum(where.sum(0), 1)
        expected = START - np.where(where, GRADIENTS[0] - mean, 0)
        np.testing.assert_allclose(kernel, expected, atol=1e-5)


@pytest.mark.medium
def test_a_mask_from_a_file(tmp_path):
    mask = RANDOM.random([4, 3]) > 0.5
    np.save(tmp_path / "mask.npy", mask)
    entries = {"kernel": masks.FromFile(path=str(tmp_path / "mask.npy"))}
    result = training.train(_step_fn(optimizers.AdamW(), entries), 3, looped=True).variables
    np.testing.assert_array_equal(result["kernel"] != START.astype(np.float32), mask)


@pytest.mark.medium
def test_chosen_classes_of_a_head_are_retrained(tmp_path):
    """Through the whole experiment: one class of three, kernel and bias, with look-ahead."""
    optimizer = lookahead.Lookahead(optimizer=optimizers.LazyAdam(learning_rate=0.01), steps=3)
    base = tiny.make(train_steps=10, checkpoint_steps=5, optimizer=optimizer)
    only = freezing.Freezing(
        frozen=["^features/", "^network/"],
        entries={"^head/kind/logits": masks.Rows(rows=[1], axis=-1)},
    )
    part = dataclasses.replace(base, model=dataclasses.replace(base.model, freezing=only))
    verbs.train(part, str(tmp_path))
    first, last = tiny.variables(tmp_path, 5), tiny.variables(tmp_path, 10)
    for name in ("head/kind/logits/kernel", "head/kind/logits/bias"):
        moved = (first[name] != last[name]).reshape([-1, 3])
        np.testing.assert_array_equal(moved.all(axis=0), [False, True, False])
        assert not moved[:, [0, 2]].any()
    outputs = tiny.served(tmp_path)(examples=tf.constant(tiny.examples("test")))
    predicted = [row["kind/probabilities"] for row in verbs.predict(part, str(tmp_path))]
    np.testing.assert_allclose(outputs["kind/probabilities"], predicted, rtol=1e-5)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"kernle": CHOSEN}, "Freezing.entries must match a variable, got 'kernle'. Nearest"),
        ({"kernel": masks.Rows(rows=[4])}, "Rows.rows must be below 4, the rows of 'kernel', got"),
        ({"kernel": masks.Rows(rows=[0], axis=2)}, "Rows.axis must be an axis of 'kernel'"),
    ],
)
def test_masks_that_do_not_fit(entries, message):
    with pytest.raises(checks.UserError, match=message):
        training.train(_step_fn(optimizers.SGD(), entries), 1, looped=False)


def test_a_file_that_does_not_fit(tmp_path):
    path = tmp_path / "mask.npy"
    np.save(path, np.ones([2, 3]))
    entries = {"kernel": masks.FromFile(path=str(path))}
    with pytest.raises(
        checks.UserError, match=r"must broadcast to the shape of 'kernel', \(4, 3\)"
    ):
        training.train(_step_fn(optimizers.SGD(), entries), 1, looped=False)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_text("none"), "be a file of numpy.save"),
        (lambda path: path.write_bytes(b""), "be a file of numpy.save"),
        (lambda path: path.write_bytes(b"PK\x03\x04 cut off"), "be a file of numpy.save"),
        (lambda path: np.savez(path.open("wb"), mask=np.ones([4, 3])), "hold one array of numbers"),
        (lambda path: np.save(path, np.full([4, 3], "0")), "hold one array of numbers"),
    ],
)
def test_a_file_without_a_mask(write, message, tmp_path):
    path = tmp_path / "mask.npy"
    write(path)
    part = masks.FromFile(path=str(path))
    with pytest.raises(checks.UserError, match=f"FromFile.path must {message}"):
        part(tf.zeros([4, 3]), "kernel")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: freezing.Freezing(entries=["x"]), "Freezing.entries must map patterns to masks"),
        (lambda: freezing.Freezing(entries={"x": 3}), r"Freezing.entries\['x'\] must be a part"),
        (lambda: masks.Rows(rows=[]), "Rows.rows must hold a row"),
        (lambda: masks.Rows(rows=[-1]), "Rows.rows must be at least 0, got -1"),
        (lambda: masks.FromFile(path="nowhere"), "FromFile.path must be a file of numpy.save"),
    ],
)
def test_settings(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()
