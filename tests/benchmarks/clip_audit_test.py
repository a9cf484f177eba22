"""The experiment of the clip audit: flipped labels, dropped rows, and scores."""

import dataclasses

import numpy as np
import pytest

from benchmarks import clip_audit, noisy_labels, relabelled
from tests import tiny


def test_a_share_of_the_labels_becomes_another_one():
    labels = np.random.default_rng(0).choice(np.array([b"a", b"b", b"c"], object), 1000)
    wrong, is_wrong = relabelled.flipped(labels, 0.2, seed=1)
    assert is_wrong.sum() == 200
    np.testing.assert_array_equal(wrong != labels, is_wrong)
    again, _ = relabelled.flipped(labels, 0.2, seed=1)
    np.testing.assert_array_equal(again, wrong)


@pytest.mark.medium
def test_rows_keep_their_features_and_get_their_labels_in_the_training_split_alone():
    made = tiny.make()
    labels = noisy_labels.labels_of(made.data, "sign")
    np.testing.assert_array_equal(labels, tiny.SPLITS["train"]["sign"])
    noisy, is_wrong = noisy_labels.noisy(made, "sign", 0.25)
    assert is_wrong.sum() == 24
    np.testing.assert_array_equal(
        noisy_labels.labels_of(noisy.data, "sign"), np.where(is_wrong, 1 - labels, labels)
    )
    test = dataclasses.replace(noisy.data, train_split="test")
    np.testing.assert_array_equal(noisy_labels.labels_of(test, "sign"), tiny.SPLITS["test"]["sign"])
    order = np.argsort(~is_wrong, kind="stable")  # The wrong ones come first.
    left = noisy_labels.without(noisy, order, 0.25)
    np.testing.assert_array_equal(noisy_labels.labels_of(left.data, "sign"), labels[~is_wrong])
    sizes = noisy_labels.labels_of(left.data, "size")
    np.testing.assert_array_equal(sizes, tiny.SPLITS["train"]["size"][~is_wrong])


def test_scores_are_judged_by_area_and_by_precision_among_as_many():
    truth = np.array([True, False, True, False])
    assert clip_audit.judged(np.array([4.0, 3, 2, np.nan]), truth) == (0.75, 0.5)
    assert clip_audit.judged(np.array([1.0, 2]), np.zeros(2, bool)) == (0.0, 0.0)


def test_a_picture_shows_areas_and_accuracies():
    areas, curves = {"mean norm": [0.9, 0.4]}, {"mnist, none": [(0.0, 95.7), (0.4, 71.1)]}
    drawn = clip_audit.draw(["mnist, 20%", "adult, 20%"], areas, curves)
    told = ("mean norm", "0.90", "0.40", "mnist, none", "share of labels flipped")
    assert all(f">{text}</text>" in drawn for text in told)
