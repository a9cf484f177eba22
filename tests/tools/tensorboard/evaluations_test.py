"""The curves and pictures of evaluations agree with predictions and labels."""

import csv
import dataclasses
import io
import xml.etree.ElementTree

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, verbs
from mtl.monitoring import curves
from mtl.runs import evaluation
from mtl.tools.drawing import curve_files
from mtl.tools.tensorboard import evaluations, pictures
from tests import tiny
from tests.tools.tensorboard import shown_run

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
    scored = {
        "sign": (predicted["sign/probability"], labels["sign"] == 1, labels["importance"]),
        **{
            f"kind/{n}": (predicted["kind/probabilities"][:, n], kind == n, known) for n in range(3)
        },
    }
    assert {t for t in found[60] if "pr_curves" in t} == {f"{t}/pr_curves" for t in scored}
    thresholds = np.arange(curves.NUM_THRESHOLDS) / (curves.NUM_THRESHOLDS - 1)
    for tag, (scores, is_hit, weights) in scored.items():
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
        shown = {tag for tag, value in tags.items() if value.HasField("image")}
        kinds = ("confusion", "roc_curves", "reliability")
        of_tasks = {f"{kind}/{task}" for kind in kinds for task in ("sign", "kind")}
        assert shown == {*of_tasks, "predictions/image"}
        for tag in shown:
            image = tags[tag].image
            picture = Image.open(io.BytesIO(image.encoded_image_string))
            assert picture.size == (image.width, image.height)


@pytest.mark.slow
def test_histograms_count_probabilities(found, predicted):
    labels = shown_run.SPLITS["test"]
    for tag, scores, weights in (
        ("sign", predicted["sign/probability"], labels["importance"]),
        ("kind/2", predicted["kind/probabilities"][:, 2], (labels["kind"] >= 0) * 1.0),
    ):
        histogram = found[60][f"prediction_histograms/{tag}"].histo
        expected, edges = np.histogram(scores, 50, (0, 1), weights=weights)
        np.testing.assert_allclose(histogram.bucket, expected)
        np.testing.assert_allclose(histogram.bucket_limit, edges[1:])
        assert histogram.sum == pytest.approx((weights * scores).sum(), abs=1e-4)


@pytest.mark.slow
def test_curves_are_written_as_files(run, predicted):
    metrics = verbs.evaluate(shown_run.make(), str(run), with_curves=True)
    folder = run / "curves" / "eval_step_60"
    kinds = ("confusion", "histogram", "reliability", "thresholds")
    endings = [".svg", *(f"_{kind}.csv" for kind in kinds)]
    names = {f"{task}{ending}" for task in ("kind", "sign") for ending in endings}
    assert {path.name for path in folder.iterdir()} == names
    for task in ("kind", "sign"):
        xml.etree.ElementTree.parse(folder / f"{task}.svg")
    # The metrics of the same evaluation agree.
    rows = _read(folder / "sign_reliability.csv")
    gaps = [r["weight"] * abs(r["mean_prediction"] - r["share"]) for r in rows]
    error = sum(gaps) / sum(row["weight"] for row in rows)
    assert error == pytest.approx(metrics["sign/calibration_error"], abs=1e-6)
    rows = _read(folder / "sign_thresholds.csv")
    x, y = ([0, *(row[name] for row in rows)] for name in ("false_positive_rate", "recall"))
    area = np.sum(np.diff(x) * (np.array(y)[1:] + np.array(y)[:-1]) / 2)
    assert area == pytest.approx(metrics["sign/auc"], abs=2e-3)
    (right, *_, also_right) = (row["weight"] for row in _read(folder / "sign_confusion.csv"))
    weight = shown_run.SPLITS["test"]["importance"].sum()
    assert (right + also_right) / weight == pytest.approx(metrics["sign/accuracy"], abs=1e-6)
    classes = {row["class"] for row in _read(folder / "kind_histogram.csv")}
    assert classes == {"0", "1", "2"}


def test_files_of_curves_need_a_task_with_classes(tmp_path):
    made = tiny.make()
    model = dataclasses.replace(made.model, heads=[made.model.heads_by_task["size"]])
    made = dataclasses.replace(made, model=model)
    with pytest.raises(checks.UserError, match="^--curves must be left out if no task has clas"):
        evaluation.watch_curves(made, str(tmp_path), "test", False, curve_files.write_curves)


def _read(path):
    """The rows of a CSV, with numbers as such."""
    with open(path, newline="") as file:
        texts = ("class", "true", "predicted")
        return [
            {name: cell if name in texts else float(cell) for name, cell in row.items()}
            for row in csv.DictReader(file)
        ]


def test_thresholds_tell_rare_events_apart():
    """If all probabilities are near 0, evenly spaced thresholds would tell nothing."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-8, 1, 4000)
    targets = (rng.random(4000) < 0.02).astype(float)
    scores = (1 / (1 + np.exp(-logits - targets))).astype("f")
    weights = rng.random(4000)
    weights[0], scores[0] = 0, np.nan
    counted = curves.Counted(["a"], None)
    for rows in np.array_split(np.arange(4000), 3):
        counted.add(
            {"targets": targets[rows], "weights": weights[rows], "probability": scores[rows]}
        )
    traced = counted.trace_thresholds(0)
    assert len(traced) > 300
    for one in traced[:: len(traced) // 20]:
        chosen = scores >= one.threshold * (1 - 1e-6)
        true, false = (weights[chosen & (targets == kind)].sum() for kind in (1, 0))
        assert one.recall == pytest.approx(true / weights[targets == 1].sum(), abs=1e-3)
        assert one.false_positive_rate == pytest.approx(
            false / weights[targets == 0].sum(), abs=1e-3
        )
        assert one.precision == pytest.approx(true / (true + false), abs=1e-3)
    assert traced[-1].recall == traced[-1].false_positive_rate == 1
    bars = counted.count_predictions(0)
    total = sum(bar.positives + bar.negatives for bar in bars)
    assert total == pytest.approx(weights.sum())


def test_a_split_without_rows_has_no_curves():
    counted = curves.Counted(["a"], None)
    assert counted.trace_thresholds(0) == counted.bin_shares(0) == []


def test_confusion_and_curves_are_weighted_sums():
    counted = curves.Counted(["a", "b"], np.zeros([2, 2]))
    shares = np.array([[0.9, 0.1], [0.25, 0.75], [0.5, 0.5], [np.nan, np.nan]])
    said = {
        "targets": np.array([0, 0, 1, 1]),
        "weights": np.array([2.0, 1.0, 0.5, 0.0]),
        "class_id": np.array([0, 1, 0, 0]),
        "probabilities": shares,
    }
    counted.add(said)
    np.testing.assert_array_equal(counted.confusion, [[2, 1], [0.5, 0]])
    value = evaluations.draw_pr_curve("task/a", counted, 0).value[0]
    drawn = tf.make_ndarray(value.tensor)
    assert value.tag == "task/a/pr_curves"
    for share, expected in ((0.0, [3, 0.5]), (0.25, [3, 0.5]), (0.3, [2, 0.5]), (0.6, [2, 0])):
        np.testing.assert_allclose(drawn[:2, round(share * 200)], expected)
    found = [(15 * share.low, 15 * share.high, share.weight) for share in counted.bin_shares(0)]
    np.testing.assert_allclose(found, [(3, 4, 1.0), (7, 8, 0.5), (13, 14, 2.0)])


def test_the_colour_of_a_cell_is_its_share_of_the_row():
    drawn = pictures.draw_matrix(np.array([[1.0, 3.0], [1.0, 3.0]]), ["cat", "dog"], "animal")
    pixels = tf.io.decode_png(drawn.png).numpy().reshape(-1, 3)
    colors = {tuple(color) for color in np.unique(pixels, axis=0)}
    for share in (0.25, 0.75):
        assert tuple(np.round(255 + (pictures._COLOR - 255) * share).astype(int)) in colors


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
