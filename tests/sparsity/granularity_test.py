"""Groups of weights that are cut together, against NumPy."""

import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.serving import dead_units, folding, graphs
from mtl.sparsity import (
    criteria,
    cuts,
    densities,
    granularity,
    pruning,
    pruning_schedules,
)

RANDOM = np.random.default_rng(0)


def _select(part, scores, sparsity, progress=1.0, density=None):
    density = density or densities.Uniform()
    shares = density.densities([scores.shape], sparsity)
    own = tf.constant(scores, tf.float32)
    (mask,) = part.select([own], density, shares, tf.constant(progress, tf.float64))
    return np.broadcast_to(np.asarray(mask), scores.shape)


@pytest.mark.parametrize("shape", [(8, 3), (2, 2, 8, 3)])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (3, 8)])
def test_n_of_m_keeps_the_largest_of_neighbouring_inputs(shape, n, m):
    scores = RANDOM.random(shape)
    mask = _select(granularity.NOfM(n=n, m=m), scores, 0.5)
    for outer in np.ndindex(*shape[:-2]):
        for unit in range(shape[-1]):
            for first in range(0, shape[-2], m):
                own = (*outer, slice(first, first + m), unit)
                best = np.argsort(-scores[own])[:n]
                expected = np.isin(np.arange(m), best)
                np.testing.assert_array_equal(mask[own], expected)


@pytest.mark.parametrize(
    ("progress", "kept"), [(0.0, 4), (0.4, 4), (0.5, 3), (0.99, 3), (1 - 1e-12, 2), (1.0, 2)]
)
def test_on_the_way_n_is_rounded_up(progress, kept):
    mask = _select(granularity.NOfM(n=2, m=4), RANDOM.random([4, 1]), 0.5, progress)
    assert mask.sum() == kept


def test_blocks_go_by_their_mean():
    scores = RANDOM.random([4, 6])
    mask = _select(granularity.Blocks(shape=(2, 3)), scores, 0.5)
    means = scores.reshape([2, 2, 2, 3]).mean(axis=(1, 3))
    expected = means >= np.sort(means, axis=None)[2]
    np.testing.assert_array_equal(mask, expected.repeat(2, 0).repeat(3, 1))


@pytest.mark.parametrize("shape", [(5, 8), (3, 3, 2, 8)])
def test_units_go_by_their_mean(shape):
    scores = RANDOM.random(shape)
    mask = _select(granularity.Units(), scores, 0.75)
    best = np.argsort(-scores.reshape([-1, 8]).mean(axis=0))[:2]
    assert (mask == np.isin(np.arange(8), best)).all()
    assert granularity.Units().mask_shape(shape) == [*[1] * (len(shape) - 1), 8]


def test_rows_go_by_their_mean():
    scores = RANDOM.random([10, 3])
    mask = _select(granularity.TableRows(), scores, 0.7)
    best = np.argsort(-scores.mean(axis=1))[:3]
    np.testing.assert_array_equal(mask[:, 0], np.isin(np.arange(10), best))
    assert granularity.TableRows().group_shape([10, 3]) == [10, 1]


@pytest.mark.parametrize(
    ("part", "shape", "message"),
    [
        (granularity.NOfM(), (6, 2), "NOfM.m must divide the inputs of 'w', 6, got 4"),
        (
            granularity.Blocks(shape=[4, 4]),
            (8, 6),
            r"Blocks.shape must divide inputs and units of 'w', \(8, 6\), got \(4, 4\)",
        ),
        (granularity.TableRows(), (2, 2, 2), r"a table of 'w' must have rows, got \[2, 2, 2\]"),
    ],
)
def test_shapes_that_do_not_fit(part, shape, message):
    with pytest.raises(checks.UserError, match=message):
        part.check("w", shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: granularity.NOfM(n=4, m=4), "NOfM.n must be below m, 4, got 4"),
        (lambda: granularity.NOfM(n=0), "NOfM.n must be at least 1, got 0"),
        (lambda: granularity.Blocks(shape=4), "Blocks.shape must be a list of whole numbers"),
        (lambda: granularity.Blocks(shape=(0, 4)), "Blocks.shape must be at least 1, got 0"),
    ],
)
def test_settings(make, message):
    with pytest.raises(checks.UserError, match=message):
        make()


def _seen(shapes):
    return [
        criteria.Seen(name, tf.constant(RANDOM.normal(size=shape), tf.float32), None, None)
        for name, shape in shapes.items()
    ]


SHAPES = {"stem/kernel": [3, 3, 1, 8], "block_0/conv_1/kernel": [3, 3, 8, 8], "out/kernel": [8, 6]}


def test_units_that_go_together_are_the_same_in_each_kernel():
    units = granularity.Units(together=["^(stem|block_.*/conv_1)/kernel$"])
    part = pruning.Pruning(
        sparsity=0.5,
        schedule=pruning_schedules.OneShot(),
        density=densities.Uniform(),
        granularity=units,
    )
    seen = _seen(SHAPES)
    ones = [tf.ones(units.mask_shape(shape)) for shape in SHAPES.values()]
    stem, conv, out = (
        mask.numpy() for mask in part.select_masks(seen, ones, tf.constant(1.0, tf.float64)).masks
    )
    assert stem.shape == conv.shape == (1, 1, 1, 8) and out.shape == (1, 6)
    np.testing.assert_array_equal(stem, conv)
    assert stem.sum() == 4 and out.sum() == 3
    scores = [np.abs(one.weights.numpy()).mean(axis=(0, 1, 2)) for one in seen[:2]]
    best = np.argsort(-(scores[0] + scores[1]))[:4]
    np.testing.assert_array_equal(np.flatnonzero(stem), np.sort(best))


@pytest.mark.parametrize(
    ("together", "says"),
    [
        (["stem"], "Units.together must match at least two kernels that are cut, got 'stem'"),
        (["kernel$"], "Units.together must match kernels with equally many units, got {"),
        (["stem|conv_1", "stem|block_0"], "Units.together must not match a kernel twice"),
        (["("], "Units.together must hold regular expressions"),
    ],
)
def test_patterns_of_what_goes_together(together, says):
    with pytest.raises(checks.UserError, match=re.escape(says)):
        units = granularity.Units(together=together)
        units.list_together(list(SHAPES), list(SHAPES.values()))


@pytest.mark.parametrize("is_together", [False, True])
def test_channels_of_a_residual_sum_leave_an_export_where_they_go_together(is_together):
    """Half of the units are cut, with their scales and offsets, and the graph gives the same."""
    network = networks.ResNet(depth=8, filters=[4, 6, 8], shortcut="projection")
    random = np.random.default_rng(1)  # With this seed, layers of a sum lose other units.
    sums = ["^(stem|block_0_0/conv_1)/kernel$"]
    sums += [f"^block_{size}_0/(conv_1|shortcut)/kernel$" for size in (1, 2)]
    part = pruning.Pruning(
        sparsity=0.5,
        schedule=pruning_schedules.OneShot(),
        density=densities.Uniform(),
        granularity=granularity.Units(together=sums if is_together else ()),
    )
    images = random.normal(size=[3, 8, 8, 1]).astype(np.float32)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.compat.v1.placeholder(tf.float32, [None, 8, 8, 1], "images")
        tf.identity(network({"images": given}, training=False), "out")
        variables = {v.op.name: v for v in tf.compat.v1.global_variables()}
        session.run(tf.compat.v1.global_variables_initializer())
        for variable in variables.values():
            variable.load(random.uniform(0.5, 1.5, variable.shape), session)
        kernels = [name for name in variables if name.endswith("/kernel")]
        values = session.run({name: variables[name] for name in kernels})
        seen = [criteria.Seen(n, tf.constant(values[n]), None, None) for n in kernels]
        ones = [tf.ones([1, 1, 1, values[name].shape[-1]]) for name in kernels]
        chosen = part.select_masks(seen, ones, tf.constant(1.0, tf.float64))
        masks = dict(zip(kernels, session.run(chosen.masks), strict=True))
        for name, mask in masks.items():
            for own in (name, *cuts.list_beside(name)):
                if own in variables:
                    kept = mask if own == name else mask.ravel()
                    variables[own].load(session.run(variables[own]) * kept, session)
        expected = session.run("out:0", {"images:0": images})
        names = ["images", "out"]
        graph = dead_units.remove_units(folding.fold_graph(session, names), names)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph.pruned(names), name="")
        found = session.run("out:0", {"images:0": images})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    constants = [graph.value(name) for name in graphs.Graph(graph.pruned(names)).nodes]
    stem = next(c.shape for c in constants if c is not None and c.shape[:3] == (3, 3, 1))
    assert (stem[-1] == 2) == is_together
