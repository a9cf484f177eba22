"""Mixup and CutMix equal NumPy for the same draws; models that cannot mix are refused."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from mtl import checks, compat, mixing, types
from mtl.balancing import example_clipping, methods, monitored, surgery, weighting
from mtl.model import graph_options
from mtl.step import draws
from mtl.tools import clip_audit
from tests import images, tiny

tf1 = tf.compat.v1
ModeKeys = compat.estimator.ModeKeys

RANDOM = np.random.default_rng(0)
INPUTS = {
    "image_a": RANDOM.random((8, 6, 5, 3)).astype(np.float32),
    "image_b": RANDOM.random((8, 6, 5, 1)).astype(np.float32),
    "numeric_x": RANDOM.random((8, 4)).astype(np.float32),
}


def _mix(part, steps=(0,), inputs=INPUTS, slice_=0):
    """The mixtures of these steps."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        step = tf1.train.create_global_step()
        with draws.draw_for_slice(slice_, 4):
            mixture = part({name: tf.constant(values) for name, values in inputs.items()})
        found = []
        for number in steps:
            step.load(number, session)
            found.append(session.run(mixture))
        return found


def test_mixup_is_the_weighted_mean_of_a_row_and_its_partner():
    for mixture in _mix(mixing.Mixup(alpha=1.0), range(5)):
        assert sorted(mixture.partners) == list(range(8))
        assert 0 < mixture.share < 1
        for name, values in INPUTS.items():
            for row, partner in enumerate(mixture.partners):
                expected = mixture.share * values[row] + (1 - mixture.share) * values[partner]
                np.testing.assert_allclose(mixture.inputs[name][row], expected, rtol=1e-5)


def test_cutmix_puts_one_box_of_the_partner_into_every_image():
    part = mixing.CutMix(columns=["image_a", "image_b"])
    shares = []
    for mixture in _mix(part, range(20)):
        np.testing.assert_array_equal(mixture.inputs["numeric_x"], INPUTS["numeric_x"])
        boxes = []
        for name in part.columns:
            values, mixed = INPUTS[name], mixture.inputs[name]
            others = values[mixture.partners]
            moved = np.where(mixture.partners != np.arange(8))[0]
            for row in moved:
                is_box = (mixed[row] != values[row]).all(-1)
                boxes.append(is_box)
                np.testing.assert_array_equal(mixed[row][is_box], others[row][is_box])
                np.testing.assert_array_equal(mixed[row][~is_box], values[row][~is_box])
        for is_box in boxes:
            np.testing.assert_array_equal(is_box, boxes[0])
        rows, columns = boxes[0].any(1), boxes[0].any(0)
        np.testing.assert_array_equal(boxes[0], rows[:, np.newaxis] & columns)
        assert mixture.share == pytest.approx(1 - boxes[0].mean(), abs=1e-6)
        shares.append(mixture.share)
    assert len(set(shares)) > 5


@pytest.mark.parametrize("share", [0.0, 0.1, 0.36, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("place", [(0.0, 0.0), (0.5, 0.3), (0.99, 0.99)])
def test_a_box_is_that_of_the_paper(share, place):
    """As `rand_bbox` of the paper's code draws it, of height 8 and width 5."""
    is_box, kept = mixing.cut_box(tf.constant(share), tf.constant(place), 8, 5)
    side = np.sqrt(np.float32(1) - np.float32(share))
    height, width = int(8 * side), int(5 * side)
    middle = int(8 * np.float32(place[0])), int(5 * np.float32(place[1]))
    expected = np.zeros([8, 5], bool)
    top, bottom = np.clip([middle[0] - height // 2, middle[0] + height // 2], 0, 8)
    left, right = np.clip([middle[1] - width // 2, middle[1] + width // 2], 0, 5)
    expected[top:bottom, left:right] = True
    np.testing.assert_array_equal(is_box, expected)
    area = (bottom - top) * (right - left)
    assert float(kept) == pytest.approx(1 - area / 40, abs=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("alpha", [1e-3, 0.2, 1.0, 8.0])
def test_shares_are_drawn_from_beta(alpha):
    with tf.Graph().as_default(), tf1.Session() as session:
        number = tf1.placeholder(tf.int32, [])
        share = mixing.draw_beta(alpha, tf.stack([7, number]))
        drawn = np.array([session.run(share, {number: n}) for n in range(2000)])
    assert np.isfinite(drawn).all()
    # In float32 the shares of a small alpha are 0 or 1 as a rule.
    below = [np.mean(drawn < at) for at in (0.01, 0.2, 0.5, 0.8, 0.99)]
    expected = scipy.stats.beta(alpha, alpha).cdf([0.01, 0.2, 0.5, 0.8, 0.99])
    np.testing.assert_allclose(below, expected, atol=0.04)


def test_draws_count_by_step_and_slice():
    part = mixing.Mixup(alpha=1.0)
    first, again, second = _mix(part, (0, 0, 1))
    (other,) = _mix(part, slice_=1)
    assert first.share == again.share
    np.testing.assert_array_equal(first.partners, again.partners)
    assert len({first.share, second.share, other.share}) == 3


def test_the_rate_is_that_of_steps_that_mix():
    steps = _mix(mixing.Mixup(alpha=1.0, rate=0.3), range(200))
    plain = [mixture for mixture in steps if mixture.share == 1]
    assert 0.6 < len(plain) / 200 < 0.8
    for name, values in INPUTS.items():
        np.testing.assert_array_equal(plain[0].inputs[name], values)


def _expected_losses(mixture, logits, labels):
    """Return the mixed losses in NumPy: both labels of a row, by their shares and row weights."""
    log_probabilities = logits["kind"] - np.log(np.exp(logits["kind"]).sum(1, keepdims=True))
    totals = {"kind": [0.0, 0.0], "size": [0.0, 0.0]}
    for row, partner in enumerate(mixture.partners):
        for share, own in ((mixture.share, row), (1 - mixture.share, partner)):
            kind, size = labels["kind"][own], labels["size"][own]
            if kind != -1:
                totals["kind"][0] -= share * log_probabilities[row, kind]
                totals["kind"][1] += share
            weight = share * labels["row_weight"][own]
            totals["size"][0] += weight * (logits["size"][row, 0] - size) ** 2
            totals["size"][1] += weight
    return {task: total / weights for task, (total, weights) in totals.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kept(types.Mixing):
    """Mixes, and keeps the mixture."""

    mixing: types.Mixing
    kept: list

    def __call__(self, inputs):
        self.kept.append(self.mixing(inputs))
        return self.kept[-1]


class _Straight:
    """Hands the numbers to every head, and keeps nothing of the images."""

    def __call__(self, inputs, tasks, training):
        return types.Towers(dict.fromkeys(tasks, inputs["numeric_x"]))


@pytest.mark.medium
def test_losses_equal_numpy_and_a_missing_label_counts_for_no_side():
    kept = []
    made = images.make_model(
        mixing=_Kept(mixing=mixing.Mixup(alpha=1.0), kept=kept), network=_Straight()
    )
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        tf1.train.create_global_step()
        results = []
        made.model_fn(
            {name: tf.constant(values) for name, values in images.FEATURES.items()},
            {name: tf.constant(values) for name, values in images.LABELS.items()},
            ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=images.STATISTICS,
                training_hooks=lambda result: results.append(result) or {},
            ),
        )
        session.run(tf1.global_variables_initializer())
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        weights = session.run(variables)
        mixture, values = session.run([kept[0], results[0].values])
    logits = {
        task: mixture.inputs["numeric_x"] @ weights[f"head/{task}/logits/kernel"]
        + weights[f"head/{task}/logits/bias"]
        for task in ("kind", "size")
    }
    losses = dict(zip(results[0].names, values, strict=True))
    for task, expected in _expected_losses(mixture, logits, images.LABELS).items():
        assert losses[f"{task}/loss"] == pytest.approx(expected, rel=1e-5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Seen(types.AuxiliaryLoss):
    """The squared distance between the network's inputs and the numbers of the row."""

    name: str = "seen"
    field: str = "x"
    reads_features: bool = False
    reads_labels: bool = False

    def __call__(self, activations):
        rows = activations.labels if self.field in images.LABELS else activations.features
        numbers = tf.reshape(rows[self.field], [images.ROWS, -1])
        return tf.reduce_sum((activations.inputs["numeric_x"] - numbers) ** 2, 1)


@pytest.mark.medium
def test_a_loss_that_reads_features_sees_rows_that_are_not_mixed():
    made = images.make_model(
        mixing=mixing.Mixup(alpha=1.0), auxiliary_losses=[_Seen(reads_features=True)]
    )
    _, losses = images.take_steps(made, steps=1)
    assert losses["seen/loss"] == 0


@pytest.mark.parametrize("field", ["x", "size"])
def test_fields_of_mixed_rows_are_kept_from_losses_that_do_not_declare_them(field):
    made = images.make_model(mixing=mixing.Mixup(), auxiliary_losses=[_Seen(field=field)])
    declared = "reads_features" if field == "x" else "reads_labels"
    message = f"auxiliary loss 'seen' must set {declared} = True to read fields .*'{field}'"
    with pytest.raises(checks.UserError, match=message), tf.Graph().as_default():
        tf1.train.create_global_step()
        images.build_step(made)


@pytest.mark.medium
def test_a_task_without_a_label_leaves_its_head_unmoved():
    made = images.make_model(mixing=mixing.Mixup(alpha=1.0))
    labels = {**images.LABELS, "kind": np.full(images.ROWS, -1)}
    (before, _), (after, losses) = (images.take_steps(made, 1, n, labels) for n in (0, 2))
    assert losses["kind/loss"] == 0
    name = "head/kind/logits/kernel"
    np.testing.assert_array_equal(after[name], before[name])


@pytest.mark.medium
def test_gradients_are_those_of_the_mixed_loss():
    """The step of gradient descent against finite differences of the reported loss."""
    kept = []
    made = images.make_model(mixing=_Kept(mixing=mixing.CutMix(columns=["image_photo"]), kept=kept))
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        graph.seed = 1
        step = tf1.train.create_global_step()
        spec = made.model_fn(
            {name: tf.constant(values) for name, values in images.FEATURES.items()},
            {name: tf.constant(values) for name, values in images.LABELS.items()},
            ModeKeys.TRAIN,
            options=graph_options.GraphOptions(statistics=images.STATISTICS),
        )
        session.run(tf1.global_variables_initializer())
        variables = {v.op.name: v for v in tf1.trainable_variables()}
        before = session.run(variables)
        session.run(spec.train_op)
        moved = {name: before[name] - value for name, value in session.run(variables).items()}
        assert session.run(kept[0].share) < 0.99
        for name, place in (("network/trunk/hidden_0/kernel", (3, 1)),) + (
            ("head/kind/logits/kernel", (2, 0)),
            ("head/size/logits/bias", (0,)),
        ):
            losses = []
            for change in (1e-2, -1e-2):
                for other, value in before.items():
                    variables[other].load(value, session)
                changed = before[name].copy()
                changed[place] += change
                variables[name].load(changed, session)
                step.load(0, session)
                losses.append(session.run(spec.loss))
            slope = (losses[0] - losses[1]) / 2e-2
            assert moved[name][place] / 0.1 == pytest.approx(slope, rel=2e-2, abs=1e-4), name


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rolled(types.Mixing):
    """The partner is the next row of the same pair; draws nothing, so that cuts are comparable."""

    def __call__(self, inputs):
        rows = next(iter(inputs.values())).shape[0]
        partners = tf.range(rows) + tf.tile([1, -1], [rows // 2])
        mixed = {k: 0.7 * v + 0.3 * tf.gather(v, partners) for k, v in inputs.items()}
        return types.Mixture(mixed, partners, tf.constant(0.7))


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weighting": weighting.UncertaintyWeighting()},
        {"surgery": surgery.Combine(method=methods.PCGrad())},
        {"surgery": monitored.Monitored(every_steps=1)},
    ],
    ids=["sum", "uncertainty", "pcgrad", "monitored"],
)
def test_slices_and_replicas_add_up_to_the_whole_batch(settings):
    """The pairs are the same, and some slices lack more labels than others."""
    made = images.make_model(mixing=_Rolled(), **settings)
    expected, monitors = images.take_steps(made)
    actual, of_slices = images.take_steps(made, 4)
    assert of_slices["kind/loss"] == pytest.approx(monitors["kind/loss"], rel=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    if not settings:
        for name, value in images.take_steps_on_replicas(made, 2).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize("mode", [ModeKeys.EVAL, ModeKeys.PREDICT])
def test_graphs_that_do_not_train_hold_no_op_more(mode):
    plain, mixed = images.make_model(), images.make_model(mixing=mixing.Mixup())
    assert images.build_graph(mixed, mode) == images.build_graph(plain, mode)


class _Foreign(types.Head):
    """A head that tells the loss of a batch and not those of its rows."""

    name = "foreign"
    logits = loss = label_weight = predictions = metrics = export_outputs = check = None


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"heads": [_Foreign()]}, "as the loss of head 'foreign' is not a sum over rows"),
        ({"mixing": mixing.Mixup}, "MultiTaskModel.mixing must be a part such as @mixing.Mixup()"),
        ({"mixing": 3}, "MultiTaskModel.mixing must be a part such as @mixing.Mixup()"),
    ],
)
def test_a_model_that_cannot_mix_is_refused(settings, message):
    with pytest.raises(checks.UserError) as error:
        images.make_model(**{"mixing": mixing.Mixup(), **settings})
    assert message in str(error.value)


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings, slices, message",
    [
        ({"surgery": example_clipping.ExampleClipping(max_norm=1.0)}, 1, "Leave out mixing"),
        ({"surgery": surgery.Combine(method=methods.MoDo(samples=2))}, 1, "Leave out MultiTa"),
        ({}, images.ROWS, "must have at least two rows to mix, got 1"),
        ({"mixing": mixing.CutMix()}, 1, "CutMix.columns must be images [B, H, W, C], got 'num"),
        ({"mixing": mixing.Mixup(columns=["image_phot"])}, 1, "Did you mean 'image_photo'?"),
    ],
)
def test_a_step_that_cannot_mix_is_refused(settings, slices, message):
    made = images.make_model(**{"mixing": mixing.Mixup(), **settings})
    with pytest.raises(checks.UserError) as error:
        images.take_steps(made, slices, 0)
    assert message in str(error.value)


def test_images_of_different_sizes_share_no_box():
    inputs = {"image_a": INPUTS["image_a"], "image_c": INPUTS["image_a"][:, 1:]}
    with pytest.raises(checks.UserError, match="be images of the same size"):
        _mix(mixing.CutMix(), inputs=inputs)


def test_the_audit_of_examples_is_refused():
    made = tiny.make()
    mixed = dataclasses.replace(made.model, mixing=mixing.Mixup())
    with pytest.raises(checks.UserError, match="Experiment.clip_audit must be None if"):
        dataclasses.replace(made, model=mixed, clip_audit=clip_audit.ClipAudit(key="word"))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: mixing.Mixup(alpha=0), "Mixup.alpha must be above 0"),
        (lambda: mixing.CutMix(rate=1.5), "CutMix.rate must be in (0, 1]"),
        (lambda: mixing.Mixup(columns=[]), "Mixup.columns must hold a name"),
        (lambda: mixing.Mixup(columns="image"), "Mixup.columns must be a list of texts"),
        (lambda: mixing.CutMix(columns=["a", "a"]), "CutMix.columns must hold each name once"),
    ],
)
def test_settings_are_checked_at_construction(make, message):
    with pytest.raises(checks.UserError) as error:
        make()
    assert message in str(error.value)
