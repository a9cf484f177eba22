"""Pruning: cut weights are 0 to the bit, whatever moves weights; the rest trains as it would."""

import dataclasses
import functools
import itertools
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mtl import (
    auxiliary,
    checks,
    compat,
    distribution,
    features,
    heads,
    layers,
    model,
    networks,
    serving,
    transfer,
    verbs,
)
from mtl.balancing import methods, surgery, weighting
from mtl.checkpoints import run_directory
from mtl.files import checksums
from mtl.layers import quantization
from mtl.model import graph_options
from mtl.monitoring import doubts, event_files, summary
from mtl.optimization import clipping, optimizers, regularization, transforms, update
from mtl.sparsity import (
    criteria,
    densities,
    granularity,
    pruned_step,
    pruning,
    pruning_schedules,
    regrowth,
)
from mtl.tf_internals import saved_model
from mtl.tools.clip_audit import visits
from mtl.tools.drawing import sparsity_picture
from mtl.tools.pruning import finished_pruning
from mtl.variables import averaging, freezing, masks, pruned
from tests import tiny
from tests.conformance import optimizers as rows

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1

STATISTICS = features.Statistics(directory="", entries={})
BATCH = 8
TRUNK = "network/trunk/hidden_0/kernel"
TOWERS = ("network/tower_sign/hidden_0/kernel", "network/tower_size/hidden_0/kernel")
TOWERS_OF_TINY = [f"network/tower_{task}/hidden_0/kernel" for task in tiny.LABELS]
TABLE = "features/hashed_word/embedding"
SUM, PCGRAD = surgery.Sum(), surgery.Combine(method=methods.PCGrad())
HIDDEN = networks.MLP(layers=[6])
CUBIC = pruning_schedules.Cubic(end_step=9, every_steps=3)
LATE = pruning_schedules.Cubic(end_step=30, every_steps=7)  # For a run of 40 steps.
TEACHER = auxiliary.MeanTeacher(weight=5.0)
NEVER = pruning_schedules.OneShot(step=10**6)
# For tests of the cut weights, if the updates of the other weights do not matter.
BARE = {
    "regularization": regularization.Regularization(),
    "average": None,
    "clipping": None,
    "transforms": [],
}
RIGL = {
    "criterion": criteria.Random(),
    "schedule": pruning_schedules.OneShot(),
    "gradient": "dense",
    "regrowth": regrowth.Regrowth(until_step=8, every_steps=2),
}


def _part(**settings):
    return pruning.Pruning(**{"sparsity": 0.5, "schedule": CUBIC, **settings})


def _model(optimizer=None, parts=None, part=PCGRAD, frozen=None, **settings):
    """Two tasks with batch norm, a looked-up table, and whatever else moves weights."""
    penalty = regularization.Regularization(l1={"^network/": 0.01}, l2={"": 0.01})
    settings = {
        "optimizer": optimizer or optimizers.AdamW(learning_rate=0.02, weight_decay=0.1),
        "regularization": penalty,
        "average": averaging.ExponentialAverage(decay=0.9),
        "clipping": clipping.GlobalNorm(max_norm=5.0),
        "transforms": [transforms.Centralization(), transforms.Noise(scale=0.01)],
        **settings,
    }
    return model.MultiTaskModel(
        columns=[
            features.Numeric(names=["x"], normalization="none"),
            features.Hashed(names=["word"], num_buckets=8, dimension=3),
        ],
        network=networks.SharedBottom(
            trunk=networks.MLP(layers=[6], batch_norm=True, dropout=0.1),
            tower=networks.MLP(layers=[4]),
        ),
        heads=[heads.Binary(name="sign"), heads.Regression(name="size")],
        update=update.Update(**settings),
        surgery=part,
        pruning=[_part()] if parts is None else parts,
        freezing=frozen or freezing.Freezing(),
    )


@dataclasses.dataclass(frozen=True)
class _Beside:
    """Trunks side by side, each in the scope of its name."""

    trunks: Mapping[str, Any]

    def __call__(self, inputs, training):
        outputs = []
        for name, trunk in self.trunks.items():
            with tf1.variable_scope(name):
                outputs.append(trunk(inputs, training))
        return tf.concat(outputs, axis=1)


def _put_beside(made, trunks, tower=None):
    network = networks.SharedBottom(trunk=_Beside(trunks), tower=tower)
    return dataclasses.replace(made, network=network)


def _beside(rows, trunk=HIDDEN, tower=None, **settings):
    """A model with a trunk for each row, {name: settings of its part}, which cuts it alone."""
    parts = [_part(**{"patterns": [f"/{name}/"], **row}) for name, row in rows.items()]
    return _put_beside(_model(parts=parts, **settings), dict.fromkeys(rows, trunk), tower)


def _kernel(name, layer=0):
    return f"network/trunk/{name}/hidden_{layer}/kernel"


def _train(made, calls, steps_per_call, start=None, slices=1):
    """The variables before the first and after each session call; steps_per_call 0: no loop."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(5)
        tf1.train.get_or_create_global_step()
        data = tiny.rows(64, seed=3)
        data.pop("kind")
        dataset = tf.data.Dataset.from_tensor_slices(data).repeat()
        dataset = dataset.batch(BATCH, drop_remainder=True)
        dataset = dataset.map(lambda row: ({"x": row.pop("x"), "word": row.pop("word")}, row))
        iterator = tf1.data.make_initializable_iterator(dataset)
        loop = {"steps_per_call": steps_per_call, "last_step": 10**6, "due_every": ()}
        inputs = (iterator, None) if steps_per_call else iterator.get_next()
        spec = made.model_fn(
            *inputs,
            compat.estimator.ModeKeys.TRAIN,
            options=graph_options.GraphOptions(
                statistics=STATISTICS, slices=slices, loop=loop if steps_per_call else None
            ),
        )
        names = {variable.op.name: variable for variable in tf1.global_variables()}
        session.run([tf1.global_variables_initializer(), iterator.initializer])
        for name, value in (start or {}).items():
            session.run(names[name].initializer, {names[name].initializer.inputs[1]: value})
        found = [session.run(names)]
        for _ in range(calls):
            session.run(spec.train_op)
            found.append(session.run(names))
        return found


def _mask(values, name):
    return values[pruned.mask_name(name)]


def _share(values, names):
    kept = sum(_mask(values, name).sum() for name in names)
    return 1 - kept / sum(_mask(values, name).size for name in names)


@pytest.mark.parametrize("part", [SUM, PCGRAD], ids=["sum", "pcgrad"])
def test_what_is_cut_is_zero_to_the_bit_under_every_optimizer(part):
    names = [row.name for row in rows.ROWS]
    moved = {f"/{row.name}/": row.optimizer for row in rows.ROWS}
    made = _put_beside(_model(part=part, optimizers=moved), dict.fromkeys(names, HIDDEN))
    kernels = [_kernel(name) for name in names]
    found = _train(made, calls=5, steps_per_call=4)
    for values in found[3:]:  # After steps 12 and later nothing more is cut.
        assert _share(values, kernels) == pytest.approx(0.5, abs=0.02)
        for row, name in zip(rows.ROWS, kernels, strict=True):
            cut = _mask(values, name) == 0
            assert cut.any() and (values[name][cut] == 0).all(), name
            assert (values[f"{name}/average"][cut] == 0).all(), name
            for slot in row.slots:
                state = values[f"{name}/{slot}"][cut]
                assert (
                    state == (0.1 if "Adagrad" in row.name or row.name == "FTRL" else 0)
                ).all() or ((state == 0).all() or slot in ("RMSProp", "Ftrl")), name
            np.testing.assert_array_equal(_mask(values, name), _mask(found[3], name))
    for name in kernels:
        kept = _mask(found[3], name) > 0
        if "FTRL" not in name:  # The penalty of FTRL holds weights at 0.
            assert (found[-1][name][kept] != found[3][name][kept]).all(), name
    masks = {pruned.mask_name(name) for name in kernels}
    assert {name for name in found[0] if pruned.is_state(name)} == masks


@pytest.mark.parametrize(
    ("part", "gradients"),
    [(SUM, ("stopped", "dense")), (PCGRAD, ("dense",))],
    ids=["sum", "pcgrad"],
)
def test_what_is_kept_trains_as_if_the_rest_were_not_there(part, gradients):
    """As with the entries frozen at 0 by a mask of `Freezing`, which knows nothing of pruning.

    It zeroes gradients after the surgery, as "dense" does.
    """
    random, weights, kept = np.random.default_rng(0), {}, {}
    for name, shape in ((TRUNK, (6, 6)), *((tower, (6, 4)) for tower in TOWERS)):
        mask = (random.random(shape) < 0.5).astype(np.float32)
        weights[name] = 0.5 * random.normal(size=shape).astype(np.float32) * mask
        kept[pruned.mask_name(name)] = mask
    held = freezing.Freezing(entries={"^network/.*/kernel$": masks.Nonzero()})
    expected = _train(_model(parts=[], part=part, frozen=held), 1, 6, weights)[-1]
    for gradient in gradients:
        parts = [_part(schedule=NEVER, gradient=gradient)]
        got = _train(_model(parts=parts, part=part), 1, 6, weights | kept)[-1]
        assert expected["global_step"] == got["global_step"] == 6
        for name, value in expected.items():
            told = f"{gradient}: {name}"
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6, err_msg=told)


def test_the_loop_changes_nothing():
    of_all = {"density": densities.Global()}
    settings = {
        "magnitude": {},
        "taylor": {
            "patterns": ["/taylor/", "/tower_sign/"],
            "criterion": criteria.Taylor(),
            **of_all,
        },
        "snip": {"criterion": criteria.Snip(), "schedule": pruning_schedules.OneShot()},
        "wanda": {"criterion": criteria.Wanda(), "density": densities.Uniform(per_unit=True)},
        "rigl": RIGL,
        "straight_through": {"gradient": "straight_through"},
        # The kernel of a tower belongs to a single task.
        "tasks": {
            "patterns": ["/tasks/", "/tower_size/"],
            "criterion": criteria.TaskSaliency(),
            "sparsity": 0.9,
            **of_all,
        },
    }
    made = _beside(settings, tower=networks.MLP(layers=[4]), **BARE)
    single, looped = (_train(made, *steps)[-1] for steps in ((7, 0), (1, 7)))
    for name in settings:
        assert (_mask(single, _kernel(name)) == 0).any(), name
    for name, value in single.items():
        np.testing.assert_array_equal(looped[name], value, err_msg=name)


def test_wanda_gathers_the_squares_of_what_goes_into_a_layer():
    part = _part(criterion=criteria.Wanda(momentum=0.5), schedule=NEVER, patterns=["/trunk/"])
    found = _train(_model(optimizers.SGD(learning_rate=1e-9), [part], average=None), 1, 2)[-1]
    x, table = tiny.rows(64, seed=3)["x"][: 2 * BATCH], found[TABLE]
    squares = (x.reshape([2, BATCH, 3]) ** 2).mean(axis=1)
    expected = 0.25 * squares[0] + 0.5 * squares[1]
    gathered = found[pruned.saliency_name(TRUNK)]
    assert gathered.shape == (6,)
    np.testing.assert_allclose(np.sort(gathered)[-3:], np.sort(expected), rtol=1e-4)
    assert (gathered[gathered < expected.min()] <= (table**2).max()).all()


def _cut_once(criterion, weights=None, combine=SUM):
    """All variables after the second step, which has cut once; the first one moved weights."""
    part = _part(
        criterion=criterion,
        schedule=pruning_schedules.OneShot(step=1),
        density=densities.Uniform(),
        patterns=["/trunk/"],
    )
    made = _model(optimizers.SGD(learning_rate=1e-3), [part], part=combine, **BARE)
    fixed = weighting.Fixed(weights=weights) if weights else weighting.Equal()
    return _train(dataclasses.replace(made, weighting=fixed), 1, 2)[-1]


@functools.cache
def _order_for_each_task():
    """The places of the weights, the best first, in two runs in which one task weighs something."""
    found = []
    for own in ("sign", "size"):
        alone = {task: 1.0 if task == own else 1e-20 for task in ("sign", "size")}
        values = _cut_once(criteria.Taylor(momentum=0.0), alone)
        found.append(np.argsort(-values[pruned.saliency_name(TRUNK)].ravel()))
    return found


@pytest.mark.parametrize("combine", [SUM, PCGRAD], ids=["sum", "pcgrad"])
def test_a_weight_stays_that_one_task_alone_needs(combine):
    """Two runs, each with the loss of a single task, show the weights that each task would keep."""
    found = _cut_once(criteria.TaskSaliency(), combine=combine)
    kept = set(np.flatnonzero(_mask(found, TRUNK)))
    halves, quarters = (
        [set(order[: int(share * order.size)]) for order in _order_for_each_task()]
        for share in (0.5, 0.25)
    )
    both, either = set.intersection(*halves), set.union(*halves)
    assert len(both) < len(either)
    np.testing.assert_allclose(found["pruning/overlap_0"], [len(both) / len(either)], rtol=1e-6)
    # The kept half contains the best quarter of each task, and is part of the union of best halves.
    assert len(kept) == 36 // 2
    assert set.union(*quarters) <= kept <= either


def test_entries_that_freezing_holds_are_never_cut():
    """Columns 0 and 3 stay as they are, and of the others more is cut."""
    settings = {
        "entries": {"density": densities.Uniform()},
        # More stay than are to be kept.
        "few": {"density": densities.Global(), "sparsity": 0.8},
        "n_of_m": {"granularity": granularity.NOfM(n=1, m=2), "sparsity": None},
        "units": {"granularity": granularity.Units(), "density": densities.Uniform()},
    }
    held = [1, 2, 4, 5]
    frozen = freezing.Freezing(entries={"/trunk/.*/kernel$": masks.Rows(rows=held, axis=1)})
    found = _train(_beside(settings, frozen=frozen), calls=4, steps_per_call=4)
    for name in map(_kernel, settings):
        first, last = found[0][name], found[-1][name]
        np.testing.assert_array_equal(last[:, [0, 3]], first[:, [0, 3]], err_msg=name)
        mask = np.broadcast_to(_mask(found[-1], name), last.shape)
        assert (mask[:, [0, 3]] == 1).all() and (mask[:, held] == 0).any(), name
        assert ((last == 0) == (mask == 0)).all(), name


def test_zeros_that_freezing_holds_are_cut_first():
    """A network that was pruned before loses other weights only beyond its zeros."""
    start = {TRUNK: np.where(np.arange(36).reshape([6, 6]) % 3 == 0, 0.0, 0.5).astype(np.float32)}
    frozen = freezing.Freezing(entries={TRUNK: masks.Nonzero()})
    part = _part(patterns=["/trunk/"], sparsity=1 / 3, density=densities.Uniform())
    found = _train(_model(parts=[part], part=SUM, frozen=frozen, **BARE), 4, 4, start)[-1]
    np.testing.assert_array_equal(_mask(found, TRUNK) == 0, start[TRUNK] == 0)


@pytest.mark.parametrize(
    ("settings", "combine"),
    [
        (
            {
                "magnitude": {},
                "taylor": {"criterion": criteria.Taylor()},
                "tasks": {"criterion": criteria.TaskSaliency()},
                "wanda": {"criterion": criteria.Wanda()},
            },
            PCGRAD,
        ),
        ({"wanda": {"criterion": criteria.Wanda()}, "rigl": RIGL}, SUM),
    ],
    ids=["pcgrad", "sum"],
)
def test_slices_cut_as_the_whole_batch_does(settings, combine):
    """The layers have so many weights that the scores of a single slice would cut other weights."""
    by_layer = {name: {"density": densities.Uniform(), **own} for name, own in settings.items()}
    trunk = networks.MLP(layers=[24, 12])
    made = _beside(by_layer, trunk=trunk, part=combine, **BARE)
    # A step a call: on a busy machine a call of several ends after a second.
    whole, slices = (_train(made, 12, 0, slices=count)[-1] for count in (1, 4))
    for name in [_kernel(own, layer) for own in settings for layer in (0, 1)]:
        np.testing.assert_array_equal(_mask(slices, name), _mask(whole, name), err_msg=name)
        np.testing.assert_allclose(slices[name], whole[name], 1e-3, 1e-5, err_msg=name)
        if pruned.saliency_name(name) in whole:
            gathered = [found[pruned.saliency_name(name)] for found in (slices, whole)]
            bound = 1e-6 * gathered[1].max()
            np.testing.assert_allclose(*gathered, rtol=1e-3, atol=bound, err_msg=name)
    for kind in {"taylor", "wanda"} & settings.keys():
        assert pruned.saliency_name(_kernel(kind)) in whole


def test_balancing_sees_no_gradient_of_what_is_cut():
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Watching:
        reads_losses = False

        def __call__(self, losses, variables, batch):
            gradients = batch.sum(
                lambda forward: tf.gradients(list(forward.losses.values()), variables)
            )
            named = zip(variables, gradients, strict=True)
            seen.append({v.op.name: own for v, own in named if "/trunk/" in v.op.name})
            return gradients, {f"{task}/loss": loss for task, loss in losses.items()}

    once = {"schedule": pruning_schedules.OneShot()}
    kinds = {"stopped": once, "dense": {**once, "gradient": "dense"}}
    made = _beside(kinds, part=Watching(), **BARE)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.create_global_step()
        batch = {"x": tf.random.normal([BATCH, 3], seed=1), "word": tf.fill([BATCH], "a")}
        labels = {"sign": tf.constant([0, 1] * 4, tf.int64), "size": tf.range(8.0)}
        spec = made.model_fn(
            batch, labels, "train", options=graph_options.GraphOptions(statistics=STATISTICS)
        )
        session.run(tf1.global_variables_initializer())
        session.run(spec.train_op)
        held = {variable.op.name: variable for variable in tf1.global_variables()}
        found, values = session.run([seen, held])
    for kind in kinds:
        own, kept = found[0][_kernel(kind)], _mask(values, _kernel(kind))
        assert ((own[kept == 0] == 0).all()) == (kind == "stopped")
        assert (own[kept > 0] != 0).any()


def test_weights_grow_again_from_zero_at_the_same_sparsity():
    part = _part(
        criterion=criteria.Random(),
        schedule=pruning_schedules.OneShot(),
        gradient="dense",
        regrowth=regrowth.Regrowth(until_step=100, every_steps=4),
    )
    # Without decays and averages a weight that has grown starts with a plain step.
    made = _model(optimizers.SGD(learning_rate=0.1), [part], SUM, **BARE)
    found = _train(made, 13, 1)
    swapped = 0
    for before, after in zip(found[1:], found[2:], strict=False):
        assert _mask(after, TRUNK).sum() == _mask(found[1], TRUNK).sum()
        assert (after[TRUNK][_mask(after, TRUNK) == 0] == 0).all()
        grown = (_mask(after, TRUNK) > 0) & (_mask(before, TRUNK) == 0)
        swapped += grown.sum()
        # The step of the swap masks gradients as the step began: growth starts at 0.
        assert (after[TRUNK][grown] == 0).all()
    assert swapped > 3
    assert (found[-1][TRUNK][_mask(found[-1], TRUNK) > 0] != 0).any()


def test_straight_through_weights_live_behind_their_masks():
    found = _train(_model(parts=[_part(gradient="straight_through")]), 4, 5)
    cut = _mask(found[-1], TRUNK) == 0
    assert cut.sum() > 0 and (found[-1][TRUNK][cut] != 0).all()
    assert (found[-1][TRUNK][cut] != found[-2][TRUNK][cut]).all()


@pytest.mark.parametrize(
    ("gradient", "combine"), [("straight_through", SUM), ("stopped", PCGRAD), ("dense", PCGRAD)]
)
def test_a_pruning_that_comes_later_changes_no_teacher(gradient, combine):
    """The teacher reads averages through masks, of which all are ones so far."""
    parts = [_part(schedule=NEVER, gradient=gradient)]
    plain, cut = (
        dataclasses.replace(_model(parts=own, part=combine), auxiliary_losses=[TEACHER])
        for own in ([], parts)
    )
    expected = _train(plain, 12, 0)
    start = {name: value for name, value in expected[0].items() if value.any()}  # No state.
    found = _train(cut, 12, 0, start=start)
    for name, value in expected[-1].items():
        np.testing.assert_array_equal(found[-1][name], value, err_msg=name)
    without = _train(_model(parts=[], part=combine), 12, 0, start=start)
    assert (without[-1][TRUNK] != expected[-1][TRUNK]).any()


def test_rows_of_a_table_are_cut_and_its_gradient_stays_sparse():
    part = _part(patterns=["^features/"], granularity=granularity.TableRows())
    kinds = {
        "lazy": optimizers.LazyAdam(learning_rate=0.1),
        "adam": optimizers.Adam(learning_rate=0.1),
        "row_wise": optimizers.RowWiseAdagrad(learning_rate=0.1),
    }
    made = _model(parts=[part], optimizers={f"/{kind}_": own for kind, own in kinds.items()})
    columns = [dataclasses.replace(made.columns[1], prefix=kind) for kind in kinds]
    made = dataclasses.replace(made, columns=columns)
    found = _train(made, 6, 3)
    for name in [f"features/{kind}_word/embedding" for kind in kinds]:
        for values in found[4:]:
            mask = _mask(values, name)
            assert mask.shape == (8, 1) and mask.sum() == 4, name
            assert (values[name][mask[:, 0] == 0] == 0).all(), name
            assert (values[f"{name}/average"][mask[:, 0] == 0] == 0).all(), name
        kept = (values[name] != found[0][name]).all(axis=1)
        assert kept[mask[:, 0] > 0].sum() >= 2, name  # Words that no row holds stay.


def test_the_gradient_of_kernels_that_are_looked_up_stays_sparse():
    mask = np.random.default_rng(1).integers(0, 2, [3, 2, 4]).astype(np.float32)
    factors = np.random.default_rng(2).normal(size=[2, 2, 4]).astype(np.float32)
    part = _part(patterns=["^network/"])

    def step(features, labels):
        with tf1.variable_scope("network/domains"):
            kernels = tf1.get_variable("kernel", [3, 2, 4])
        loss = tf.reduce_sum(factors * tf.gather(kernels, [2, 0]))
        (variable,) = tf1.trainable_variables()
        return tf.gradients(loss, variable)[0], {}

    with tf.Graph().as_default(), tf1.Session() as session:
        found, _ = pruned_step.wrap_step([part], step, is_watched=True)(None, None)
        assert isinstance(found, tf.IndexedSlices)
        (held,) = (v for v in tf1.global_variables() if v.op.name.endswith("pruning_mask"))
        session.run(tf1.global_variables_initializer())
        held.load(mask, session)
        values, rows = session.run([found.values, found.indices])
    assert rows.tolist() == [2, 0]
    np.testing.assert_array_equal(values, factors * mask[[2, 0]])


def test_a_table_of_16_bits_is_not_cut():
    part = _part(patterns=["^features/"], granularity=granularity.TableRows())
    made = _model(optimizers.LazyAdam(), [part], SUM, average=None)
    columns = [made.columns[0], dataclasses.replace(made.columns[1], storage="bfloat16")]
    with pytest.raises(checks.UserError, match="must choose 32 bits, got 'bfloat16'. The table"):
        _train(dataclasses.replace(made, columns=columns), 0, 0)


@pytest.mark.parametrize("part", [SUM, PCGRAD], ids=["sum", "pcgrad"])
def test_a_step_never_reads_a_table_whole(part):
    """But for the cut itself, in its branch; masks of entries are handed on without a copy."""
    sizes = {"rows": 997, "entries": 991}
    columns = [
        features.Hashed(names=["word"], num_buckets=size, dimension=3, prefix=name)
        for name, size in sizes.items()
    ]

    def find_whole(parts):
        """Ops that give a whole table, {name of the table: {(type, scope)}}."""
        with tf.Graph().as_default() as graph:
            tf1.train.create_global_step()
            made = _model(optimizers.LazyAdam(), parts, part)
            batch = {"word": tf.fill([BATCH], "a")}
            labels = {"sign": tf.ones([BATCH], tf.int64), "size": tf.ones([BATCH])}
            made = dataclasses.replace(made, columns=columns)
            made.model_fn(
                batch, labels, "train", options=graph_options.GraphOptions(statistics=STATISTICS)
            )
            return {
                name: {
                    (op.type, op.name.rpartition("/")[0])
                    for op in graph.get_operations()
                    if any(output.shape == (size, 3) for output in op.outputs)
                }
                for name, size in sizes.items()
            }

    parts = [
        _part(patterns=["^features/rows_"], granularity=granularity.TableRows()),
        _part(patterns=["^features/entries_"], granularity=granularity.Entries()),
    ]
    pruned_, plain = find_whole(parts), find_whole([])
    passed_on = {"rows": set(), "entries": {"StatelessIf", "If", "Identity", "ReadVariableOp"}}
    for name in sizes:
        more = {one for one in pruned_[name] - plain[name] if "pruning_mask" not in one[1]}
        assert {kind for kind, _ in more} <= passed_on[name], more


def test_a_step_that_cuts_nothing_passes_few_ops():
    """TensorFlow visits every op of a branch that is not taken, except the ops in a function."""
    with tf.Graph().as_default() as graph:
        tf1.train.create_global_step()
        batch = {"x": tf.zeros([BATCH, 3]), "word": tf.fill([BATCH], "a")}
        labels = {"sign": tf.ones([BATCH], tf.int64), "size": tf.ones([BATCH])}
        parts = [
            _part(patterns=["/trunk/"], density=densities.ErdosRenyiKernel()),
            _part(patterns=["/tower_"], density=densities.Global()),
        ]
        _model(parts=parts, part=SUM).model_fn(
            batch, labels, "train", options=graph_options.GraphOptions(statistics=STATISTICS)
        )
        library = {
            one.signature.name: one.node_def for one in graph.as_graph_def().library.function
        }
        taken = [
            op.get_attr("then_branch").name for op in graph.get_operations() if "If" in op.type
        ]
    branches = [[node.op for node in library[name]] for name in taken]
    assert not any("TopKV2" in ops or "Sort" in ops for ops in branches)
    choosing = [ops for ops in branches if any("PartitionedCall" in op for op in ops)]
    assert [len([op for op in ops if op != "Identity"]) for ops in choosing] == [1, 1]


@pytest.mark.parametrize("part", [SUM, PCGRAD], ids=["sum", "pcgrad"])
def test_units_are_cut_with_bias_scale_and_offset(part):
    units = _part(patterns=["/trunk/"], granularity=granularity.Units())
    made = _model(optimizers.AdamW(learning_rate=0.05, weight_decay=0.1), [units], part)
    made = dataclasses.replace(
        made,
        network=networks.SharedBottom(
            trunk=networks.Parallel(
                trunks=[
                    networks.MLP(layers=[6], batch_norm=True),
                    networks.MLP(layers=[6], activation="tanh"),
                ]
            )
        ),
    )
    found = _train(made, 4, 5)
    names = [name.removesuffix("/pruning_mask") for name in found[0] if "pruning_mask" in name]
    assert len(names) == 2 and all(name.endswith("hidden_0/kernel") for name in names)
    for values in found[3:]:
        for name in names:
            cut = _mask(values, name)[0] == 0
            assert cut.sum() == 3
            layer = name.removesuffix("/kernel")
            beside = [f"{layer}/bias", f"{layer}_norm/gamma", f"{layer}_norm/beta"]
            beside = [own for own in beside if own in values]
            assert beside
            for own in [name, *beside]:
                for state in (own, f"{own}/average", f"{own}/Adam", f"{own}/Adam_1"):
                    assert (values[state][..., cut] == 0).all(), state
                    assert (values[state][..., ~cut] != 0).any(), state


@pytest.mark.parametrize("part", [SUM, PCGRAD], ids=["sum", "pcgrad"])
def test_units_are_cut_in_slices_and_where_gradients_have_rows(part):
    """The layers of STAR, and a table, of which a step moves what the batch looks up."""
    star = networks.STAR(domain="of_word", layers=[6, 4], norm=False)
    once = pruning_schedules.OneShot(step=1)
    units = _part(
        patterns=["^network/", "^features/"], granularity=granularity.Units(), schedule=once
    )
    made = _model(optimizers.LazyAdam(learning_rate=0.05), [units], part, **BARE)
    domain = features.Hashed(names=["word"], num_buckets=3, dimension=None, prefix="of")
    made = dataclasses.replace(
        made,
        columns=[*made.columns, domain],
        network=networks.SharedBottom(trunk=star, tower=HIDDEN),
    )
    whole, slices = (_train(made, 4, 0, slices=count) for count in (1, 2))
    kernels = [name for name in whole[-1] if pruned.mask_name(name) in whole[-1]]
    assert TABLE in kernels and len(kernels) == 7
    for name, value in whole[-1].items():
        np.testing.assert_allclose(slices[-1][name], value, 1e-3, 1e-5, err_msg=name)
    for name in kernels:
        cut = _mask(slices[-1], name).reshape([-1]) == 0
        assert (slices[-1][name][..., cut] == 0).all() and (slices[-1][name] != 0).any()
        bias = slices[-1].get(name.replace("kernel", "bias"))
        assert bias is None or (bias[..., cut] == 0).all(), name
    assert _share(slices[-1], kernels) > 0.2


def _convolve(inputs, training):
    """A convolution [3, 3, 2, 4] and a dense layer [12, 4]."""
    images = tf.reshape(tf.concat(list(inputs.values()), 1), [-1, 3, 1, 2])
    hidden = layers.conv(images, 4, "conv", activation=tf.tanh)
    return layers.dense(tf.reshape(hidden, [-1, 12]), 4, "hidden", tf.tanh)


def test_groups_of_dense_and_convolution_layers_stay_cut():
    kinds = {
        "n_of_m": {"granularity": granularity.NOfM(n=1, m=2), "sparsity": None},
        "blocks": {"granularity": granularity.Blocks(shape=(2, 2))},
        "units": {"granularity": granularity.Units()},
    }
    settings = {kind: {"density": densities.Uniform(), **own} for kind, own in kinds.items()}
    first, *_, last = _train(_beside(settings, trunk=_convolve, **BARE), 4, 6)
    shapes = {"conv": (3, 3, 2, 4), "hidden": (12, 4)}
    for kind, (layer, shape) in itertools.product(kinds, shapes.items()):
        name = f"network/trunk/{kind}/{layer}/kernel"
        kept = np.broadcast_to(_mask(last, name) > 0, shape)
        assert kept.mean() == 0.5 and first[name].shape == shape, name
        np.testing.assert_array_equal(last[name] != 0, kept, err_msg=name)
        assert (last[name][kept] != first[name][kept]).all(), name
        *_, inputs, units = shape
        if kind == "n_of_m":
            pairs = kept.reshape([-1, inputs // 2, 2, units]).sum(2)
            np.testing.assert_array_equal(pairs, np.ones_like(pairs))
        elif kind == "blocks":
            blocks = kept.reshape([-1, inputs // 2, 2, units // 2, 2]).sum((2, 4))
            assert set(np.unique(blocks)) == {0, 4}
        else:
            alive = kept.reshape([-1, units]).all(0)
            np.testing.assert_array_equal(kept.reshape([-1, units]).any(0), alive)
            bias = last[f"network/trunk/{kind}/{layer}/bias"]
            np.testing.assert_array_equal(bias != 0, alive)


def test_what_is_frozen_is_not_cut():
    frozen = freezing.Freezing(frozen=["^network/trunk/"])
    found = _train(_model(part=SUM, frozen=frozen, **BARE), 1, 12)[-1]
    assert pruned.mask_name(TRUNK) not in found
    assert _share(found, TOWERS) == pytest.approx(0.5, abs=0.05)


def test_what_is_held_up_to_a_step_is_cut_from_then_on():
    frozen = freezing.Freezing(until={"^network/trunk/": 4})
    with pytest.raises(checks.UserError, match="Pruning.schedule must begin at step 4 or lat"):
        _train(_model(frozen=frozen, part=SUM), 0, 0)
    late = pruning_schedules.Cubic(begin_step=4, end_step=9, every_steps=2)
    found = _train(_model(parts=[_part(schedule=late)], part=SUM, frozen=frozen, **BARE), 3, 4)
    assert _mask(found[1], TRUNK).all() and (_mask(found[3], TRUNK) == 0).any()
    np.testing.assert_array_equal(found[1][TRUNK], found[0][TRUNK])


def test_a_cut_that_was_missed_is_made_up_for():
    """As where several processes share a global step, and none sees the one of the cut."""
    part = _part(schedule=pruning_schedules.OneShot(step=5))
    made = _model(parts=[part], part=SUM, **BARE)
    found = _train(made, 1, 1, start={"global_step": np.int64(7)})[-1]
    assert _share(found, [TRUNK, *TOWERS]) == pytest.approx(0.5, abs=0.02)


def test_a_run_that_goes_on_may_cut_more():
    first = _train(_model(part=SUM, **BARE), 1, 12)[-1]
    more = [_part(sparsity=0.8)]
    start = {
        name: value
        for name, value in first.items()
        if name == "global_step" or name.startswith("pruning/") or name in (TRUNK, *TOWERS)
    }
    start |= {pruned.mask_name(name): _mask(first, name) for name in (TRUNK, *TOWERS)}
    after = _train(_model(parts=more, part=SUM, **BARE), 1, 2, start)[-1]
    assert _share(after, [TRUNK, *TOWERS]) == pytest.approx(0.8, abs=0.03)
    assert (_mask(after, TRUNK) <= _mask(first, TRUNK)).all()


def test_the_first_part_that_chooses_a_variable_cuts_it():
    first = _part(patterns=["/trunk/"], sparsity=0.9, density=densities.Uniform())
    names = ["^network/.*kernel", "^head/size/"]
    rest = _part(patterns=names, cuts_heads=True, density=densities.Uniform())
    found = _train(_model(parts=[first, rest], part=SUM, **BARE), 1, 12)[-1]
    assert _share(found, [TRUNK]) == pytest.approx(0.9, abs=0.02)
    assert _share(found, [*TOWERS, "head/size/logits/kernel"]) == pytest.approx(0.5, abs=0.01)
    assert pruned.mask_name("head/sign/logits/kernel") not in found


def _show(inputs, training):
    """A trunk that lets its kernel be watched as its product has it."""
    hidden = HIDDEN(inputs, training)
    with tf1.variable_scope("hidden_0", reuse=True):
        kernel = tf1.get_variable("kernel", [6, 6])
    shown = tf1.get_variable("shown", [6, 6], trainable=False)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, shown.assign(kernel))
    return hidden


GRADIENTS = {kind: {"gradient": kind} for kind in ("stopped", "straight_through")}


def test_quantised_zeros_are_zeros():
    four = quantization.Quantization(weights={"^network/": quantization.Uniform(bits=4)})
    made = _beside(GRADIENTS, trunk=_show, **BARE)
    _, cut_once, after = _train(dataclasses.replace(made, quantization=four), 2, 12)
    for kind, name in zip(GRADIENTS, map(_kernel, GRADIENTS), strict=True):
        shown, cut = after[f"network/trunk/{kind}/shown"], _mask(cut_once, name) == 0
        assert cut.any() and (shown[cut] == 0).all() and (shown[~cut] != 0).any(), name
        steps = np.unique(np.abs(shown[:, np.flatnonzero((~cut).sum(0) > 1)[0]]))
        assert len(steps) <= 9  # The magnitudes of signed 4-bit values, with one step size.
        assert (after[name][cut] == 0).all() == (kind == "stopped")


def test_a_quantizer_without_a_zero_is_refused():
    """The sign of 0 would be a weight again."""
    signs = quantization.Quantization(weights={"/tower_": quantization.Binary()})
    made = _beside(GRADIENTS, tower=networks.MLP(layers=[4]), part=SUM)
    _train(dataclasses.replace(made, quantization=signs), 0, 0)
    for own in GRADIENTS.values():
        parts = [*made.pruning, _part(patterns=["/tower_"], **own)]
        with pytest.raises(checks.UserError, match="Quantization.weights must include the value 0"):
            _train(dataclasses.replace(made, quantization=signs, pruning=parts), 0, 0)


def test_scores_that_are_not_finite_cut_nothing():
    part = _part(criterion=criteria.Snip(), schedule=pruning_schedules.OneShot(step=1))
    made = _model(parts=[part], part=SUM, if_not_finite="skip", **BARE)
    broken = {"head/sign/logits/bias": np.array([np.nan], np.float32)}
    found = _train(made, 3, 1, start=broken)[-1]
    assert _mask(found, TRUNK).all() and _mask(found, TOWERS[1]).all()


# Whole runs: checkpoints, resume, replicas, evaluation, export, transfer.


def _run(directory, parts=None, train=verbs.train, **run):
    parts = parts or [_part(schedule=LATE)]
    made = tiny.make(**run)
    made = dataclasses.replace(
        made,
        model=dataclasses.replace(made.model, pruning=parts),
        # With variables, so that their zeros can be looked at.
        serving=dataclasses.replace(made.serving, optimized=serving.AsTrained()),
    )
    train(made, str(directory))
    return tiny.variables(directory)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run that has cut half of its weights."""
    directory = tmp_path_factory.mktemp("pruned") / "run"
    _run(directory, check_rows=16, checkpoint_steps=20, keep_checkpoints=1)
    return directory


SEVERAL = (
    _part(
        patterns=["/trunk/hidden_0/", "/tower_size/"],
        schedule=pruning_schedules.OneShot(step=25),
        criterion=criteria.TaskSaliency(),
        density=densities.Uniform(),
    ),
    _part(patterns=["/trunk/hidden_1/"], schedule=LATE, criterion=criteria.Wanda()),
    _part(
        patterns=["/trunk/hidden_2/"],
        schedule=LATE,
        criterion=criteria.Movement(),
        gradient="straight_through",
    ),
    _part(
        patterns=["/tower_sign/"],
        **{**RIGL, "regrowth": regrowth.Regrowth(until_step=30, every_steps=3)},
    ),
    _part(patterns=["/tower_kind/"], schedule=LATE, criterion=criteria.Taylor()),
)


def _make_several(**run):
    """With a part for every kind of state that is kept between steps."""
    trunk = networks.MLP(layers=[8, 6, 6], dropout=0.2, batch_norm=True)
    network = networks.SharedBottom(trunk=trunk, tower=networks.MLP(layers=[4]))
    made = tiny.make(network=network, checkpoint_steps=20, **run)
    return dataclasses.replace(made, model=dataclasses.replace(made.model, pruning=SEVERAL))


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Return the folder of a run with `SEVERAL`, and the variables of its last checkpoint."""
    directory = tmp_path_factory.mktemp("several") / "run"
    return directory, tiny.train(_make_several(), directory)


def test_a_run_that_was_stopped_goes_on_to_the_bit(several, tmp_path):
    whole, found = several
    doubts.record_doubts(str(whole), "settings", ["of a shorter run"])
    tiny.assert_same_from(_make_several(), whole, tmp_path / "parts", 20)
    verbs.train(_make_several(), str(tmp_path / "parts"))
    assert not doubts.read_doubts(str(tmp_path / "parts"), "settings")
    halfway = tiny.variables(whole, 20)
    assert sum(name.endswith("/saliency") for name in found) == 3
    # Masks of all parts have changed since.
    for name in (TRUNK, *TOWERS_OF_TINY):
        assert (_mask(found, name) != _mask(halfway, name)).any(), name


def test_the_overlap_of_tasks_is_of_shared_layers_alone(several):
    directory, found = several
    overlap = found["pruning/overlap_0"]
    assert overlap.shape == (1,) and 0 < overlap[0] < 1
    shown = {tag: value for (_, tag), value in tiny.scalars(directory).items()}
    np.testing.assert_allclose(shown[f"pruning/{TRUNK}/task_overlap"], overlap)
    assert [tag for tag in shown if tag.endswith("/task_overlap")] == [
        f"pruning/{TRUNK}/task_overlap"
    ]
    drawn = sparsity_picture.group(event_files.read_record(str(directory)).curves)
    assert list(drawn) == ["sparsity", "dead_units", "churn", "task_overlap"]
    np.testing.assert_allclose(drawn["task_overlap"]["trunk/hidden_0"][40], overlap[0])
    assert "overlap of the tasks" in (directory / "sparsity.svg").read_text()


def test_two_replicas_in_slices_cut_as_one_process_does(tmp_path):
    tower = networks.MLP(layers=[8])
    network = networks.SharedBottom(trunk=networks.MLP(layers=[8, 8]), tower=tower)
    settings = {"schedule": LATE, "density": densities.Uniform()}
    parts = [
        _part(patterns=["/trunk/hidden_0/"], criterion=criteria.Taylor(), **settings),
        _part(patterns=["/trunk/"], criterion=criteria.TaskSaliency(), **settings),
        _part(patterns=["/tower_size/"], **{**settings, **RIGL}),
        _part(patterns=["/tower_"], criterion=criteria.Wanda(), **settings),
    ]
    two_devices = {"strategy": "mirrored", "devices": ["/cpu:0", "/cpu:1"]}
    found = []
    for devices, slices in (({"strategy": "none"}, 1), (two_devices, 2)):
        made = tiny.make(network=network, micro_batches=slices)
        made = dataclasses.replace(
            made,
            model=dataclasses.replace(made.model, heads=made.model.heads[1:], pruning=parts),
            distribution=distribution.Distribution(**devices),
        )
        found.append(tiny.train(made, tmp_path / devices["strategy"]))
    one, two = found
    for name in (TRUNK, TRUNK.replace("hidden_0", "hidden_1"), *TOWERS_OF_TINY[1:]):
        np.testing.assert_array_equal(_mask(two, name), _mask(one, name), err_msg=name)
        np.testing.assert_allclose(two[name], one[name], rtol=1e-3, atol=1e-5, err_msg=name)
        assert ((two[name] == 0) == (_mask(two, name) == 0)).all()


def _require_zeros(directory, values):
    """The export has no masks, and zeros where they were."""
    version = max((directory / "export" / "latest").iterdir())
    reader = tf.train.load_checkpoint(str(version / "variables" / "variables"))
    names = reader.get_variable_to_shape_map()
    assert not [name for name in names if pruned.is_state(name)]
    expected = np.where(_mask(values, TRUNK) == 0, 0, values[TRUNK])
    np.testing.assert_array_equal(reader.get_tensor(TRUNK), expected)


def test_the_export_holds_exact_zeros_and_predicts_as_the_run(finished, tmp_path):
    """The export's own check compares it with the Estimator on held-out rows."""
    values = tiny.variables(finished)
    assert ((values[TRUNK] == 0) == (_mask(values, TRUNK) == 0)).all()
    _require_zeros(finished, values)
    parts = [_part(schedule=pruning_schedules.OneShot(), gradient="straight_through")]
    hidden = _run(tmp_path, parts, check_rows=16, train_steps=4)
    assert (hidden[TRUNK] != 0).all() and (_mask(hidden, TRUNK) == 0).any()
    _require_zeros(tmp_path, hidden)


def test_the_export_leaves_out_units_that_nothing_feeds(tmp_path):
    settings = {"density": densities.Uniform(), "granularity": granularity.Units()}
    once = _part(schedule=pruning_schedules.OneShot(), sparsity=0.75, **settings)
    made = tiny.make(check_rows=16, train_steps=4, checkpoint_steps=4)
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, pruning=[once]))
    verbs.train(made, str(tmp_path))
    kernel = tiny.variables(tmp_path)[TRUNK]
    alive = (kernel != 0).any(axis=0).sum()
    assert kernel.shape == (5, 8) and alive == 2
    (version,) = (tmp_path / "export" / "latest").iterdir()
    nodes = saved_model.read(str(version)).graph_def.node
    shapes = {
        tuple(dim.size for dim in node.attr["value"].tensor.tensor_shape.dim)
        for node in nodes
        if node.op == "Const"
    }
    assert (5, alive) in shapes and (5, 8) not in shapes
    with pytest.raises(
        checks.UserError, match=r"must hold variables.*use the model_dir of the run\.$"
    ):
        transfer.WarmStart(source=str(version)).plan([], {})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (None, f"it also holds '{pruned.mask_name(TOWERS_OF_TINY[1])}'"),
        ({"patterns": ["^network/", "^head/size/"], "cuts_heads": True}, "it lacks 'head/size/l"),
        ({"granularity": granularity.Units()}, r"has shape \[8, 4\] there and \[1, 4\] here"),
    ],
    ids=["none", "more", "units"],
)
def test_a_run_does_not_go_on_with_masks_of_others(finished, tmp_path, settings, says):
    folder = str(shutil.copytree(finished, tmp_path / "run"))
    made = tiny.make(train_steps=50)
    parts = [] if settings is None else [_part(schedule=LATE, **settings)]
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, pruning=parts))
    with pytest.raises(checks.UserError, match=f"is of another pruning: .*{says}"):
        verbs.train(made, folder)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"granularity": granularity.Units()},
            "Pruning.granularity must cut as in .*, where the mask",
        ),
        ({"patterns": ["/trunk/"]}, "Pruning.patterns must choose all cut weights of .*, also 'n"),
    ],
    ids=["units", "fewer"],
)
def test_a_run_is_not_pruned_again_in_another_way(finished, settings, says):
    """Cut weights without a mask would grow again."""
    part = _part(schedule=pruning_schedules.OneShot(), sparsity=0.7, **settings)
    made = tiny.make()
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, pruning=[part]))
    path = run_directory.checkpoint_path(str(finished), "latest")
    with pytest.raises(checks.UserError, match=says):
        finished_pruning.choose_cut(made, str(finished), path, rows=16)


def test_a_warm_start_takes_no_mask_of_another_shape(finished):
    units = _part(schedule=LATE, granularity=granularity.Units())
    warm = transfer.WarmStart(source=str(finished), include=["^network/.*kernel$"])
    made = tiny.make()
    model_ = dataclasses.replace(made.model, pruning=[units])
    made = dataclasses.replace(made, model=model_, warm_start=warm)
    says = r"pruning_mask' must have its shape \[1, \d\] in .*Set Pruning.granularity as in the"
    with pytest.raises(checks.UserError, match=says):
        verbs.plan_warm_start(made)


def test_a_warm_start_takes_masks_along(finished, tmp_path):
    before = tiny.variables(finished)
    made = tiny.make(train_steps=10)
    warm = transfer.WarmStart(source=str(finished), include=["^network/.*kernel$"])
    late = _part(schedule=pruning_schedules.OneShot(step=9), sparsity=0.6, patterns=["/trunk/"])
    # Regrowth keeps the sparsity, so it causes no doubt; cuts after the last step cause one.
    parts = [late, _part(patterns=["/tower_sign/"], **RIGL), _part(schedule=LATE)]
    made = dataclasses.replace(
        made, model=dataclasses.replace(made.model, pruning=parts), warm_start=warm
    )
    verbs.train(made, str(tmp_path / "next"))
    after = tiny.variables(tmp_path / "next")
    assert (_mask(after, TRUNK) <= _mask(before, TRUNK)).all()
    assert _share(after, [TRUNK]) > _share(before, [TRUNK])
    assert (after[TRUNK][_mask(after, TRUNK) == 0] == 0).all()
    (told,) = doubts.read_doubts(str(tmp_path / "next"), "settings")
    assert told.startswith("Pruning.schedule cuts up to step 30, and the run ends at step 10")


def test_the_audit_of_a_checkpoint_sees_no_gradient_of_what_is_cut(finished, tmp_path):
    norms = []
    for parts in ([_part(schedule=LATE)], []):
        made = tiny.make()
        made = dataclasses.replace(made, model=dataclasses.replace(made.model, pruning=parts))
        output = str(tmp_path / f"{len(parts)}")
        verbs.audit_clipping(made, str(finished), "latest", output)
        norms.append(visits.read(output)[1]["norm"])
    assert (norms[0] < norms[1]).all()


def test_the_best_checkpoint_is_one_of_which_all_is_cut(finished):
    """A less pruned network is better, and would otherwise replace the requested network."""
    best = checksums.read_json(str(finished / "best" / "best.json"), "")
    assert (best["step"], best["last_step"], best["steps_since"]) == (40, 40, [])
    kept = tiny.variables(finished / "best")
    assert _share(kept, [TRUNK, *TOWERS_OF_TINY]) == pytest.approx(0.5, abs=0.01)
    made = _model(parts=[_part(schedule=pruning_schedules.Cubic(end_step=30))])
    assert [made.find_first_final_step(steps) for steps in (40, 31, 30)] == [31, 31, 0]


def test_a_run_shows_sparsity_dead_units_and_churn(finished):
    values, found = tiny.variables(finished), tiny.scalars(finished)
    mask = _mask(values, TRUNK)
    assert found[40, f"pruning/{TRUNK}/sparsity"] == pytest.approx(1 - mask.mean())
    dead = (mask == 0).all(axis=0).mean()
    assert found[40, f"pruning/{TRUNK}/dead_units"] == pytest.approx(dead)
    assert (30, f"pruning/{TRUNK}/churn") in found
    shares = [found[step, f"pruning/{TRUNK}/sparsity"] for step in (10, 20, 30, 40)]
    assert shares == sorted(shares) and shares[0] > 0
    drawn = sparsity_picture.group(event_files.read_record(str(finished)).curves)
    assert list(drawn) == ["sparsity", "dead_units", "churn"]
    assert "trunk/hidden_0" in drawn["sparsity"]
    assert (finished / "sparsity.svg").read_text().startswith("<svg")


def test_the_summary_tells_how_much_is_cut(finished):
    values, names = tiny.variables(finished), [TRUNK, *TOWERS_OF_TINY]
    total = sum(_mask(values, name).size for name in names)
    kept = int(sum(_mask(values, name).sum() for name in names))
    cut, counted, packed = pruned.count_weights(tf.train.latest_checkpoint(finished))
    assert (cut, counted) == (total - kept, total) and 4 * kept < packed < 4 * total
    text = summary.of_training(str(finished), {"global_step": 40}, 40, "mtl")
    expected = f"{100 * cut / total:.1f}% of {total} pruned: {4 * total} bytes, {packed} packed"
    assert f"  weights cut      {expected}" in text
    assert sparsity_picture.draw_panels({"loss": {1: 2.0}}) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"patterns": ["^netwrok/"]}, r"Pruning.patterns must match a variable, got '\^netwrok/'"),
        (
            {"patterns": ["kind/logits/kernel", "size"]},
            "Pruning.patterns must match a variable, got 'kind/logits/kernel'",
        ),
        (
            {"patterns": ["^network/.*/kernel$", "^head/sign"]},
            r"Pruning.patterns must choose weights that can be cut, got '\^head/sign'. To cut hea",
        ),
        (
            {"patterns": ["bias$"], "cuts_heads": True},
            "Pruning.patterns must choose weights that can be cut, got 'bias.'. Frozen weights",
        ),
        ({"granularity": granularity.NOfM(), "sparsity": None}, "NOfM.m must divide the inputs of"),
        (
            {"patterns": ["^network/"], "granularity": granularity.TableRows()},
            "Pruning.patterns must choose only tables, whose rows are cut: 'network/trunk/hid",
        ),
        (
            {"patterns": ["^features/"], "gradient": "dense"},
            "Pruning.gradient must be 'stopped' for the table 'features/hashed_word/embedding', go",
        ),
        (
            {"patterns": ["^features/"], "criterion": criteria.TaskSaliency()},
            "Pruning.patterns must choose only kernels that a task's loss depends on, got",
        ),
        (
            {"patterns": ["^features/"], "criterion": criteria.Snip()},
            "Pruning.patterns must choose only weights that a loss depends on, got 'feat",
        ),
    ],
)
def test_patterns_that_choose_nothing_that_can_be_cut(settings, message):
    with pytest.raises(checks.UserError, match=message):
        _train(_model(parts=[_part(**settings)], part=SUM), 0, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 0}, r"Pruning.sparsity must be in \(0, 1\), got 0"),
        ({"sparsity": 1.0}, r"Pruning.sparsity must be in \(0, 1\), got 1.0"),
        ({"sparsity": None}, r"Pruning.sparsity must be a share in \(0, 1\), got None"),
        ({"sparsity": float("nan")}, "Pruning.sparsity must be a float32, got nan"),
        ({"patterns": "network"}, "Pruning.patterns must be a list of patterns, got 'network'"),
        ({"patterns": []}, r"Pruning.patterns must not be empty, got \[\]"),
        ({"cuts_heads": 1}, "Pruning.cuts_heads must be True or False, got 1"),
        ({"gradient": "stop"}, "Pruning.gradient must be one of .* Did you mean 'stopped'"),
        (
            {"schedule": 100},
            r"Pruning.schedule must be a part such as @pruning_schedules.Cubic\(\)",
        ),
        ({"density": densities.Global}, r"Pruning.density must be a part such as @densities.G"),
        ({"granularity": granularity.NOfM()}, None),
        (
            {"granularity": granularity.NOfM(), "sparsity": 0.9},
            "Pruning.sparsity must be None or 0.5, the sparsity of NOfM, got 0.9",
        ),
        (
            {"granularity": granularity.TableRows(), "criterion": criteria.Snip()},
            "Pruning.criterion must read only weights if rows of tables are cut",
        ),
        (
            {"granularity": granularity.TableRows(), "gradient": "dense"},
            "Pruning.gradient must be 'stopped' if rows of tables are cut, got 'dense'",
        ),
        (
            {"granularity": granularity.Units(), "gradient": "straight_through"},
            "Pruning.gradient must be 'stopped' or 'dense' if whole units are cut, got 'straig",
        ),
        (
            {"density": densities.Uniform(per_unit=True), "granularity": granularity.Blocks()},
            "Uniform.per_unit must be False unless single weights are cut, got True. Blocks cut",
        ),
        (
            {"regrowth": regrowth.Regrowth(until_step=9)},
            "Pruning.gradient must be 'dense' if weights grow by their gradients, got 'stopped'",
        ),
        (
            {"regrowth": regrowth.Regrowth(until_step=9), "granularity": granularity.Blocks()},
            "Pruning.granularity must be Entries if weights grow again",
        ),
    ],
)
def test_settings(settings, message):
    if message is None:
        assert _part(**settings).final_sparsity == 0.5
        return
    with pytest.raises(checks.UserError, match=message):
        _part(**settings)


def test_a_part_with_nothing_left_to_cut():
    parts = [_part(patterns=["kernel"]), _part(patterns=["/trunk/"])]
    with pytest.raises(checks.UserError, match="got \\['/trunk/'\\]. Earlier entries of"):
        _train(_model(parts=parts, part=SUM), 0, 0)


def test_a_model_takes_a_list_of_parts():
    with pytest.raises(checks.UserError, match="MultiTaskModel.pruning must be a list"):
        _model(parts=_part())
    with pytest.raises(checks.UserError, match="MultiTaskModel.pruning must be a list, such as"):
        _model(parts=[pruning.Pruning])
