"""Losses, gradients and metrics of maps agree with NumPy; mistakes are refused in one line."""

import math

import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, checks, features, heads, mixing, model, networks
from mtl.balancing import methods, surgery
from mtl.features import augmentations
from mtl.heads import softmax
from mtl.model import graph_options
from mtl.optimization import update
from tests.heads import harness

tf1 = tf.compat.v1

RANDOM = np.random.default_rng(0)
ROWS, HEIGHT, WIDTH = 9, 4, 5
SHAPE = (ROWS, HEIGHT, WIDTH)
WEIGHTS = RANDOM.uniform(0.5, 2, ROWS).astype("f")


def logits(size):
    return RANDOM.normal(size=(*SHAPE, size)).astype("f")


def holes(fill, values):
    """The values with a third of the places gone, and one row without any."""
    gone = RANDOM.random(SHAPE) < 0.3
    gone[4] = True
    values[gone] = fill
    return values, np.where(gone, 0, WEIGHTS[:, np.newaxis, np.newaxis])


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def softmax_losses(x, y):
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, np.maximum(y, 0)[..., np.newaxis], -1)[..., 0]


def segmentation():
    kind, weights = holes(255, RANDOM.integers(0, 3, SHAPE))
    kind[0, 0, 0], weights[0, 0, 0] = -1, 0
    safe = np.where(weights > 0, kind, 0)

    def metrics(x):
        said = x.argmax(-1)
        hits = [((said == c) & (kind == c)) * weights for c in range(4)]
        unions = [((said == c) | (kind == c)) * weights for c in range(4)]
        # Class 3 is never labelled, but predicted here and there.
        ious = [hit.sum() / union.sum() for hit, union in zip(hits, unions, strict=True)]
        return {
            "miou": np.mean(ious),
            "pixel_accuracy": np.sum(hits) / weights.sum(),
            **{f"iou/{c}": iou for c, iou in enumerate(ious)},
        }

    head = heads.Segmentation(name="y", classes=4, ignored=255, weight="w")
    return head, kind, weights, lambda x: softmax_losses(x, safe), metrics


def depth(scale, loss_type):
    given, weights = holes(0, RANDOM.uniform(0.5, 6, SHAPE).astype("f"))
    given[1, 1, 1], weights[1, 1, 1] = np.nan, 0
    safe = np.where(weights > 0, given, 1)

    def losses(x):
        error = x[..., 0] - (np.log(safe) if scale == "log" else safe)
        return np.abs(error) if loss_type == "absolute" else error**2

    def metrics(x):
        errors = np.abs((np.exp(x) if scale == "log" else x)[..., 0] - safe)
        means = {"abs_error": errors, "rel_error": errors / safe, "rmse": errors**2}
        found = {name: (each * weights).sum() / weights.sum() for name, each in means.items()}
        return {**found, "rmse": math.sqrt(found["rmse"])}

    head = heads.Depth(name="y", scale=scale, loss_type=loss_type, weight="w")
    return head, given, weights, losses, metrics


def normals():
    given, weights = holes(0, 3 * RANDOM.normal(size=(*SHAPE, 3)).astype("f"))
    given[1, 1, 1, 2], weights[1, 1, 1] = np.nan, 0
    safe = unit(np.where(weights[..., np.newaxis] > 0, given, 1))

    def metrics(x):
        angles = np.degrees(np.arccos((unit(x) * safe).sum(-1)))
        order = np.argsort(angles.ravel())
        reached = np.cumsum(weights.ravel()[order])
        median = angles.ravel()[order][np.searchsorted(reached, reached[-1] / 2)]
        found = {"mean_angle": (angles * weights).sum() / weights.sum(), "median_angle": median}
        for name, limit in (("11_25", 11.25), ("22_5", 22.5), ("30", 30)):
            found[f"within_{name}"] = ((angles < limit) * weights).sum() / weights.sum()
        return found

    return (
        heads.Normals(name="y", weight="w"),
        given,
        weights,
        lambda x: 1 - (unit(x) * safe).sum(-1),
        metrics,
    )


CASES = {
    "segmentation": segmentation(),
    "depth": depth("linear", "absolute"),
    "depth of logarithms": depth("log", "squared"),
    "normals": normals(),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@pytest.mark.medium
@every_case
def test_loss_and_gradient_are_those_of_the_labelled_places(case):
    head, label, weights, losses, _ = case
    x = logits(head.size)
    loss, gradient = harness.loss(head, x, {"y": label, "w": WEIGHTS})

    def mean(x):
        return (losses(x.astype(float)) * weights).sum() / weights.sum()

    np.testing.assert_allclose(loss, mean(x), rtol=1e-5)
    assert not gradient[weights == 0].any()
    for place in zip(*np.nonzero(weights[:3] > 0), strict=True):
        step = np.zeros(x.shape)
        step[place] = 1e-4 * RANDOM.normal(size=head.size)
        wanted = (mean(x + step) - mean(x - step)) / 2
        np.testing.assert_allclose((gradient * step).sum(), wanted, rtol=1e-3, atol=1e-9)


@pytest.mark.medium
@every_case
def test_metrics_are_those_of_the_whole_split_whatever_the_batches(case):
    head, label, _, _, metrics = case
    x = logits(head.size)
    found = harness.evaluate(head, x, {"y": label, "w": WEIGHTS}, num_batches=4)
    wanted = metrics(x.astype(float))
    assert found.keys() - wanted.keys() <= {"average_loss", "accuracy_baseline", "nan_predictions"}
    for name, value in wanted.items():
        # The median is one of 18,000 bins.
        atol = 0.01 if name == "median_angle" else 0
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=atol, err_msg=name)


@pytest.mark.medium
@every_case
def test_a_nan_at_a_labelled_place_is_counted(case):
    head, label, weights, _, metrics = case
    x = logits(head.size)
    x[4, 1, 1] = np.nan  # A row without labels.
    assert harness.evaluate(head, x, {"y": label, "w": WEIGHTS})["nan_predictions"] == 0
    x[(0, *np.argwhere(weights[0] > 0)[0])] = np.nan
    found = harness.evaluate(head, x, {"y": label, "w": WEIGHTS})
    assert found["nan_predictions"] == 1
    assert all(np.isnan(found[name]) for name in metrics(x))


@pytest.mark.medium
@every_case
def test_what_rows_weigh_adds_up_to_what_labels_weigh(case):
    head, label, weights, _, _ = case
    with tf.Graph().as_default(), tf1.Session() as session:
        labels = {"y": tf.constant(label), "w": tf.constant(WEIGHTS)}
        total, by_row = session.run([head.label_weight(labels), head.row_weights(labels)])
    np.testing.assert_allclose(by_row, weights.sum((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(total, weights.sum(), rtol=1e-6)


def test_a_class_that_is_nowhere_is_left_out_of_the_mean():
    head = heads.Segmentation(name="y", classes=3)
    x = np.eye(3, dtype="f")[[[[0, 1, 1, 0]]]]
    found = harness.evaluate(head, x, {"y": np.array([[[0, 0, 1, 0]]])}, num_batches=1)
    assert np.isnan(found["iou/2"])
    np.testing.assert_allclose(found["miou"], (2 / 3 + 1 / 2) / 2)


def test_small_angles_are_exact():
    turned = np.radians([1e-3, 0.004, 179.999])
    x = np.stack([np.sin(turned), np.zeros(3), np.cos(turned)], -1).astype("f")[:, None, None]
    label = np.tile(np.array([0, 0, 5], "f"), [3, 1, 1, 1])
    found = harness.evaluate(heads.Normals(name="y"), x, {"y": label}, num_batches=2)
    np.testing.assert_allclose(found["mean_angle"], (1e-3 + 0.004 + 179.999) / 3, rtol=1e-6)
    np.testing.assert_allclose(found["within_30"], 2 / 3, rtol=1e-6)


def test_a_normal_of_zeros_is_at_a_right_angle_to_its_label():
    x = np.zeros([2, 1, 1, 3], "f")
    label = np.array([[0, 0, 1], [1, 2, 2]], "f")[:, None, None]
    found = harness.evaluate(heads.Normals(name="y"), x, {"y": label}, num_batches=1)
    assert found["mean_angle"] == 90 and found["within_30"] == 0 and found["average_loss"] == 1
    assert found["median_angle"] == pytest.approx(90, abs=0.01)


def make(network=None, head=None, **settings):
    return model.MultiTaskModel(
        columns=[features.Image(names=["x"], augmentations=settings.pop("augmentations", ()))],
        network=network or networks.SharedBottom(trunk=networks.UNet(filters=[2])),
        heads=[head or heads.Depth(name="far")],
        update=update.Update(),
        **settings,
    )


def build(made, label=(4, 6)):
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        statistics = features.Statistics(directory="", entries={})
        rows = {"x": tf.zeros([2, 4, 6, 1])}
        made.model_fn(
            rows,
            {"far": tf.zeros([2, *label])},
            "eval",
            options=graph_options.GraphOptions(statistics=statistics),
        )


TRUNK = networks.MLP(layers=[3])
SAYS = {
    "another size": (
        lambda: build(make(), (2, 3)),
        "head 'far': label 'far' must be a map of (4, 6), the size of its tower, got (2, 3). A",
    ),
    "no map as a label": (
        lambda: build(make(), ()),
        "head 'far': label 'far' must have shape (None, None) in one example, got ().",
    ),
    "no map as a tower": (
        lambda: build(make(networks.SharedBottom(trunk=TRUNK))),
        "MultiTaskModel.network, SharedBottom, tower 'far' must be a map, [B, H, W, C] of known "
        "sizes, got (2, 3). The trunk networks.UNet returns maps.",
    ),
    "a map for a number": (
        lambda: build(make(head=heads.Regression(name="far"))),
        "tower 'far' must be [B, H] of a known H, got (2, 4, 6, 2). Regression predicts no maps.",
    ),
    "a flip": (
        lambda: make(augmentations=[augmentations.Cutout(), augmentations.Flip()]),
        "Image.augmentations must not move pixels, as the label map of task 'far' would stay in "
        "place, got 'Flip'.",
    ),
    "cutmix": (
        lambda: make(mixing=mixing.CutMix()),
        "MultiTaskModel.mixing must mix all pixels alike, as task 'far' has a label for each pixel",
    ),
    "vectors": (
        lambda: networks.UNet()({"a": tf.zeros([2, 4, 4, 1]), "b": tf.zeros([2, 3])}, True),
        "UNet inputs must all be images, got ['b']. A vector cannot",
    ),
    "experts": (
        lambda: build(make(networks.MMoE(expert=networks.UNet(filters=[2])))),
        "an expert or a stage that is mixed with others must return vectors, [B, H], got (2, 4, 6, "
        "2). SharedBottom, SingleTask and MTAN take trunks that return maps.",
    ),
    "counted classes": (
        lambda: heads.Segmentation(
            name="y",
            classes=3,
            objective=softmax.CrossEntropy(class_weights=softmax.EffectiveNumber()),
        ),
        "Segmentation.objective of task 'y' must not need the number of rows of each class",
    ),
    "depth": (
        lambda: heads.Depth(name="y", scale="logg"),
        "Depth.scale of task 'y' must be one of linear, log, got 'logg'. Did you mean 'log'?",
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize(("act", "says"), SAYS.values(), ids=list(SAYS))
def test_a_mistake_is_one_line(act, says):
    with pytest.raises(checks.UserError) as caught:
        act()
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.medium
def test_maps_are_as_far_apart_as_their_places_on_average():
    pairs = [
        (heads.Segmentation(name="y", classes=3), heads.MultiClass(name="y", classes=3)),
        (heads.Depth(name="y"), heads.Regression(name="y")),
    ]
    with tf.Graph().as_default(), tf1.Session() as session:
        for dense, plain in pairs:
            maps = [tf.constant(logits(dense.size)) for _ in range(2)]
            places = [tf.reshape(each, [-1, dense.size]) for each in maps]
            found, wanted = session.run([dense.divergence(*maps), plain.divergence(*places)])
            np.testing.assert_allclose(found, wanted.reshape(ROWS, -1).mean(1), rtol=1e-5)
        one, other = [tf.constant(unit(logits(3))) for _ in range(2)]
        found, cosines = session.run(
            [heads.Normals(name="y").divergence(one, 2 * other), tf.reduce_sum(one * other, -1)]
        )
        np.testing.assert_allclose(found, (1 - cosines).mean((1, 2)), rtol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings",
    [
        {
            "augmentations": [augmentations.Cutout(size=2)],
            "mixing": mixing.Mixup(),
            "surgery": surgery.Combine(method=methods.MGDA(), on="representation"),
        },
        {"auxiliary_losses": [auxiliary.VirtualAdversarial(), auxiliary.Adversarial()]},
    ],
    ids=["mixup and surgery", "auxiliary losses"],
)
def test_a_step_moves_all_weights(settings):
    made = make(head=heads.Normals(name="far"), **settings)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        statistics = features.Statistics(directory="", entries={})
        pixels, maps = RANDOM.random((6, 4, 6, 1)), RANDOM.normal(size=(6, 4, 6, 3))
        rows = {"x": tf.constant(255 * pixels, tf.float32)}, {"far": tf.constant(maps, tf.float32)}
        built = made.model_fn(
            *rows, "train", options=graph_options.GraphOptions(statistics=statistics)
        )
        session.run(tf1.global_variables_initializer())
        variables = tf1.trainable_variables()
        before = session.run(variables)
        session.run(built.train_op)
        for variable, was, now in zip(variables, before, session.run(variables), strict=True):
            assert np.isfinite(now).all() and (now != was).any(), variable.name
