"""What is shown of evaluations is what predictions and labels say."""

import io

import numpy as np
import pytest
import tensorflow as tf

from mtl.monitoring.tensorboard import evaluations, pictures
from mtl.runs import verbs
from tests import tiny
from tests.monitoring.tensorboard import shown_run

tf1 = tf.compat.v1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return shown_run.train(tmp_path_factory.mktemp("evaluated") / "run")


@pytest.fixture(scope="module")
def found(run):
    """{step: {tag: value}} of the evaluations."""
    seen = {}
    for event in tiny.events(run / "eval"):
        for value in event.summary.value:
            assert value.tag not in seen.setdefault(event.step, {}), value.tag
            seen[event.step][value.tag] = value
    return seen


@pytest.fixture(scope="module")
def predicted(run):
    """The last checkpoint's predictions of the split, by name."""
    rows = list(verbs.predict(shown_run.make(), str(run)))
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def count(scores, is_hit, weights, threshold):
    chosen = scores >= threshold
    return [
        weights[chosen & is_hit].sum(),
        weights[chosen & ~is_hit].sum(),
        weights[~chosen & ~is_hit].sum(),
        weights[~chosen & is_hit].sum(),
    ]


@pytest.mark.slow
def test_curves_count_what_predictions_say(found, predicted):
    labels = shown_run.SPLITS["test"]
    kind, known = labels["kind"], (labels["kind"] >= 0).astype(float)
    curves = {
        "sign": (predicted["sign/probability"], labels["sign"] == 1, labels["importance"]),
        **{
            f"kind/{n}": (predicted["kind/probabilities"][:, n], kind == n, known) for n in range(3)
        },
    }
    assert {t for t in found[60] if "pr_curves" in t} == {f"{t}/pr_curves" for t in curves}
    thresholds = np.arange(evaluations.NUM_THRESHOLDS) / (evaluations.NUM_THRESHOLDS - 1)
    for tag, (scores, is_hit, weights) in curves.items():
        drawn = tf.make_ndarray(found[60][f"{tag}/pr_curves"].tensor)
        expected = np.array([count(scores, is_hit, weights, t) for t in thresholds]).T
        np.testing.assert_allclose(drawn[:4], expected, atol=1e-4)
        true, false, _, missed = expected
        np.testing.assert_allclose(drawn[4], true / np.maximum(true + false, 1e-12), atol=1e-5)
        np.testing.assert_allclose(drawn[5], true / (true + missed), atol=1e-5)
    # The metrics of the same evaluation agree, at the threshold of the head.
    at_half = tf.make_ndarray(found[60]["sign/pr_curves"].tensor)[:, 100]
    assert found[60]["sign/precision"].simple_value == pytest.approx(at_half[4], abs=1e-5)
    assert found[60]["sign/recall"].simple_value == pytest.approx(at_half[5], abs=1e-5)


@pytest.mark.slow
def test_every_evaluation_has_its_pictures(found, run):
    from PIL import Image

    assert set(found) == {30, 60}
    for tags in found.values():
        shown = {tag for tag in tags if tag.startswith(("confusion/", "predictions/"))}
        assert shown == {"confusion/sign", "confusion/kind", "predictions/image"}
        for tag in shown:
            image = tags[tag].image
            picture = Image.open(io.BytesIO(image.encoded_image_string))
            assert picture.size == (image.width, image.height)


def test_confusion_and_curves_are_weighted_sums():
    counted = evaluations.Counted(["a", "b"], np.zeros([2, 2]), *np.zeros([2, 2, 202]))
    shares = np.array([[0.9, 0.1], [0.25, 0.75], [0.5, 0.5], [np.nan, np.nan]])
    said = {
        "targets": np.array([0, 0, 1, 1]),
        "weights": np.array([2.0, 1.0, 0.5, 0.0]),
        "class_id": np.array([0, 1, 0, 0]),
        "probabilities": shares,
    }
    counted.add(said)
    np.testing.assert_array_equal(counted.confusion, [[2, 1], [0.5, 0]])
    value = counted.draw_curve("task/a", 0).value[0]
    drawn = tf.make_ndarray(value.tensor)
    assert value.tag == "task/a/pr_curves"
    for share, expected in ((0.0, [3, 0.5]), (0.25, [3, 0.5]), (0.3, [2, 0.5]), (0.6, [2, 0])):
        np.testing.assert_allclose(drawn[:2, round(share * 200)], expected)


@pytest.mark.parametrize("count", [2, 30, 120])
def test_a_matrix_is_drawn_of_any_size(count):
    from PIL import Image

    cells = np.diag(np.arange(count) + 1.0)
    drawn = pictures.draw_matrix(cells, [f"<class> {n} é" for n in range(count)], "a" * 40)
    picture = np.asarray(Image.open(io.BytesIO(drawn.png)))
    assert picture.shape == (drawn.height, drawn.width, 3)
    full = np.array([27, 108, 168])
    assert (picture == full).all(-1).sum() > count  # The diagonal, and nothing beside it.
    assert (np.abs(picture.astype(int) - full).sum(-1) < 3).sum() <= count * 46 * 46


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_are_drawn_with_their_lines(channels):
    images = np.full([5, 4, 6, channels], 0.5)
    lines, right = [["kind: 1 0.9"]] * 5, [[True], [False]] * 2 + [[True]]
    drawn = pictures.draw_rows(images, lines, right)
    assert drawn.png.startswith(b"\x89PNG") and drawn.width > 4 * 100
