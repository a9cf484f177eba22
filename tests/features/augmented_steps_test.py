"""Images in training steps: which images are changed, when, and by which draws."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, features, histories
from mtl.balancing import example_clipping
from mtl.features import augmentations
from mtl.step import draws
from tests import images

tf1 = tf.compat.v1
ModeKeys = compat.estimator.ModeKeys

PARTS = [
    augmentations.Flip(),
    augmentations.Crop(padding=2),
    augmentations.Cutout(size=3),
    augmentations.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.1),
]


def _encode(column, steps=(0,), fields=("photo",), entries=None):
    """Encode for training at these steps -> [{column: array}]."""
    statistics = features.Statistics(directory="", entries=entries or {})
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        step = tf1.train.create_global_step()
        given = dict.fromkeys(fields, tf.constant(images.FEATURES["photo"]))
        outputs = features.encode_columns([column], given, statistics, training=True)
        session.run(tf1.global_variables_initializer())
        found = []
        for number in steps:
            step.load(number, session)
            found.append(session.run(outputs))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowDraws:
    """Puts what an image draws into its pixels."""

    num_draws: int = 1

    def __call__(self, pixels, drawn):
        return tf.zeros_like(pixels) + drawn[:, :1, tf.newaxis, tf.newaxis]


def test_every_image_draws_for_itself_in_every_step_part_and_column():
    column = features.Image(names=["photo", "other"], augmentations=[ShowDraws()])
    twice = features.Image(names=["photo"], augmentations=[ShowDraws(), ShowDraws()])
    first, again, second = _encode(column, (0, 0, 1), ("photo", "other"))
    (last,) = _encode(twice)
    drawn = [values[:, 0, 0, 0] for values in (*first.values(), *second.values(), *last.values())]
    assert len(np.unique(drawn)) == 5 * images.ROWS
    assert 0 <= np.min(drawn) < 0.1 and 0.9 < np.max(drawn) < 1
    np.testing.assert_array_equal(again["image_photo"], first["image_photo"])


@pytest.mark.medium
def test_images_are_changed_before_they_are_normalised_and_statistics_are_not_touched():
    column = features.Image(names=["photo"], normalization="z_score")
    augmented = dataclasses.replace(column, augmentations=PARTS)
    entries = {"image_photo": {"mean": [0.5, 0.4, 0.3], "stddev": [0.2, 0.1, 0.5]}}
    (actual,) = _encode(augmented, entries=entries)
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        tf1.train.create_global_step()
        changed = tf.constant(images.FEATURES["photo"] / np.float32(255))
        with tf1.variable_scope("features/image_photo"):
            for number, part in enumerate(PARTS):
                drawn = draws.draw_rows(f"augmentation_{number}", images.ROWS, part.num_draws)
                changed = part(changed, drawn)
        session.run(tf1.global_variables_initializer())
        expected = (session.run(changed) - [0.5, 0.4, 0.3]) / [0.2, 0.1, 0.5]
    np.testing.assert_allclose(actual["image_photo"], expected, rtol=1e-4, atol=1e-5)
    (of_plain,), (of_augmented,) = (c.accumulators().values() for c in (column, augmented))
    given = {"photo": tf.constant(images.FEATURES["photo"])}
    of_plain.update(given)
    of_augmented.update(given)
    # The same text: toggling augmentations gathers no statistics anew.
    assert repr(of_plain) == repr(of_augmented)
    assert of_plain.save("", "image") == of_augmented.save("", "image")


@pytest.mark.medium
@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.PREDICT])
def test_graphs_that_do_not_train_hold_no_op_more(mode):
    plain, augmented = images.make_model(), images.make_model(PARTS)
    assert images.build_graph(augmented, mode) == images.build_graph(plain, mode)


@pytest.mark.medium
@pytest.mark.parametrize("slices", [2, 4])
def test_slices_change_each_image_as_the_whole_batch_does(slices):
    made = images.make_model(PARTS)
    (expected, monitors), (actual, of_slices) = (images.take_steps(made, n) for n in (1, slices))
    assert of_slices["loss"] == pytest.approx(monitors["loss"], rel=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    plain, _ = images.take_steps(images.make_model(), slices)
    name = "network/trunk/hidden_0/kernel"
    assert np.abs(plain[name] - actual[name]).max() > 1e-3


@pytest.mark.medium
@pytest.mark.parametrize("slices", [1, 2])
def test_replicas_change_each_image_as_the_whole_batch_does(slices):
    made = images.make_model(PARTS)
    expected, _ = images.take_steps(made)
    actual = images.take_steps_on_replicas(made, slices)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.medium
def test_clipped_examples_are_changed_as_in_their_batch(caplog):
    """One pass for all rows, slices, and a pass for each row take the same step."""
    clipping = example_clipping.ExampleClipping(max_norm=0.5)
    made = images.make_model(PARTS, surgery=clipping)
    expected, monitors = images.take_steps(made)
    assert "a pass for each example" not in caplog.text
    assert 0 < monitors["clipped_share"] <= 1
    for slices in (4, images.ROWS):
        actual, _ = images.take_steps(made, slices)
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_events_of_a_history_are_not_changed_silently():
    events = [features.Image(names=["photos"], augmentations=PARTS)]
    with pytest.raises(checks.UserError, match="must be empty in the events of a history"):
        features.History(name="seen", events=events, encoder=histories.Pooling())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OwnPart:
    """An augmentation that returns what it is told to."""

    change: Any
    num_draws: Any = 1

    def __call__(self, pixels, drawn):
        return self.change(pixels)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (
            _OwnPart(change=lambda pixels: pixels[:, 1:]),
            "_OwnPart must return as many pixels as it",
        ),
        (_OwnPart(change=lambda pixels: None), "_OwnPart must return as many pixels as it gets"),
        (_OwnPart(change=tf.identity, num_draws="1"), "_OwnPart.num_draws must be"),
    ],
    ids=["fewer pixels", "nothing", "a text"],
)
def test_an_own_part_that_returns_something_else_is_refused(part, says):
    with pytest.raises(checks.UserError, match=says):
        _encode(features.Image(names=["photo"], augmentations=[part]))
