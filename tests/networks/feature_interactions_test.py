"""Trunks that multiply columns with each other: their papers' equations, in NumPy."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, networks
from mtl.optimization import optimizers, update
from tests import tiny
from tests.networks.built import TASKS, Built, build_trunk, draw_columns, softmax

pytestmark = pytest.mark.medium

INPUTS = draw_columns(age=1, job=4, pay=1, day=6)
FIELDS = draw_columns(a=4, b=4, c=4)
JOINED = np.concatenate(list(INPUTS.values()), axis=1)


def _assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def _relu(x):
    return np.maximum(x, 0)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _normalise(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _stack(values, scope, inputs=INPUTS, width=4):
    """Fields, [B, F, width], as the trunk projects them."""
    return np.stack(
        [
            x if x.shape[1] == width else x @ values[f"{scope}field_{column}/projection/kernel"]
            for column, x in inputs.items()
        ],
        axis=1,
    )


def test_fm_is_the_sum_over_all_pairs():
    output, values = build_trunk(networks.FM(dimension=4), INPUTS)
    v = _stack(values, "")
    pairs = sum(v[:, i] * v[:, j] for i, j in itertools.combinations(range(4), 2))
    _assert_close(output, np.concatenate([JOINED, pairs], axis=1))
    alone, _ = build_trunk(networks.FM(dimension=4, linear=False), INPUTS)
    _assert_close(alone, output[:, -4:])


def test_a_head_of_ones_on_fm_is_rendles_machine():
    """With numbers x[i] as columns: b + sum w[i] x[i] + sum <v[i], v[j]> x[i] x[j]."""
    x = draw_columns(a=1, b=1, c=1)
    output, values = build_trunk(networks.FM(dimension=5), x)
    v = {column: values[f"field_{column}/projection/kernel"][0] for column in x}
    w = np.array([0.3, -0.2, 0.7])
    expected = sum(weight * x[column][:, 0] for weight, column in zip(w, x, strict=True))
    for i, j in itertools.combinations(x, 2):
        expected = expected + (v[i] @ v[j]) * x[i][:, 0] * x[j][:, 0]
    _assert_close(output @ np.concatenate([w, np.ones(5)]), expected)


@pytest.mark.parametrize("split_half", [False, True])
def test_cin_is_what_the_paper_says(split_half):
    trunk = networks.CIN(layers=[6, 3], dimension=4, activation="tanh", split_half=split_half)
    output, values = build_trunk(trunk, INPUTS)
    first = hidden = _stack(values, "")
    expected = []
    for layer, size in enumerate([6, 3]):
        kernel = values[f"hidden_{layer}/kernel"].reshape(hidden.shape[1], 4, size)
        maps = np.tanh(np.einsum("bid,bjd,ijh->bhd", hidden, first, kernel))
        is_cut = split_half and layer == 0
        hidden = maps[:, : size // 2] if is_cut else maps
        expected.append((maps[:, size // 2 :] if is_cut else maps).sum(axis=2))
    _assert_close(output, np.concatenate(expected, axis=1))


def test_autoint_is_what_the_paper_says():
    trunk = networks.AutoInt(num_layers=2, num_heads=2, units=3, dimension=4)
    output, values = build_trunk(trunk, INPUTS)
    hidden = _stack(values, "")
    for layer in range(2):
        at = {
            name: values[f"layer_{layer}/{name}/kernel"]
            for name in ("query", "key", "value", "residual")
        }
        parts = []
        for head in range(2):
            own = slice(3 * head, 3 * head + 3)
            query, key, value = (hidden @ at[n][:, own] for n in ("query", "key", "value"))
            parts.append(softmax(query @ key.transpose(0, 2, 1)) @ value)
        hidden = _relu(np.concatenate(parts, axis=2) + hidden @ at["residual"])
    _assert_close(output, hidden.reshape(7, -1))


@pytest.mark.parametrize(("rank", "gated"), [(None, False), (None, True), (2, False), (3, True)])
def test_cross_layers_are_what_the_papers_say(rank, gated):
    trunk = networks.Cross(num_layers=2, rank=rank, gated=gated)

    def change(values):
        return {n: np.full_like(v, 0.3) if "bias" in n else v for n, v in values.items()}

    output, values = build_trunk(trunk, INPUTS, change=change)
    hidden = JOINED
    for layer in range(2):

        def run(name, layer=layer, hidden=hidden):
            at = f"layer_{layer}/{name}"
            if rank is None:
                return hidden @ values[f"{at}/kernel"] + values.get(f"{at}/bias", 0)
            low = hidden @ values[f"{at}/down/kernel"]
            return low @ values[f"{at}/up/kernel"] + values.get(f"{at}/up/bias", 0)

        added = JOINED * run("cross")
        hidden = hidden + (added * _sigmoid(run("gate")) if gated else added)
    _assert_close(output, hidden)


def test_experts_of_low_rank_are_mixed_as_the_paper_says():
    trunk = networks.Cross(num_layers=1, rank=2, num_experts=3)

    def change(values):
        return {n: np.full_like(v, 0.3) if "bias" in n else v for n, v in values.items()}

    output, values = build_trunk(trunk, INPUTS, change=change)
    weights = softmax(JOINED @ values["layer_0/gate/kernel"])
    down, up = values["layer_0/down/kernel"], values["layer_0/up/kernel"]
    expected = JOINED
    for e in range(3):
        v, u, c = (
            down[:, 2 * e : 2 * e + 2],
            up[2 * e : 2 * e + 2],
            values["layer_0/core/kernel"][e],
        )
        inner = np.tanh(np.tanh(JOINED @ v) @ c) @ u + values["layer_0/up/bias"]
        expected = expected + weights[:, [e]] * JOINED * inner
    _assert_close(output, expected)


@pytest.mark.parametrize("parallel", [True, False])
def test_masknet_is_what_the_paper_says(parallel):
    trunk = networks.MaskNet(blocks=[5, 3], reduction=0.5, parallel=parallel)
    output, values = build_trunk(trunk, INPUTS)
    hidden = np.concatenate([_normalise(x) for x in INPUTS.values()], axis=1)
    expected = []
    for block in range(2):
        at = {n.removeprefix(f"block_{block}/"): v for n, v in values.items()}
        mask = _relu(JOINED @ at["aggregation/kernel"]) @ at["projection/kernel"]
        expected.append(_relu(_normalise((mask * hidden) @ at["hidden/kernel"])))
        hidden = hidden if parallel else expected[-1]
    _assert_close(output, np.concatenate(expected, axis=1) if parallel else hidden)


@pytest.mark.parametrize("bilinear", ["all", "each", "interaction"])
def test_fibinet_is_what_the_paper_says(bilinear):
    trunk = networks.FiBiNET(dimension=None, reduction=1, bilinear=bilinear)
    output, values = build_trunk(trunk, FIELDS)
    v = np.stack(list(FIELDS.values()), axis=1)
    squeezed = _relu(v.mean(axis=2) @ values["weights/squeeze/kernel"])
    weighed = v * _relu(squeezed @ values["weights/excite/kernel"])[..., np.newaxis]
    expected = []
    for name, given in (("plain", v), ("weighed", weighed)):
        kernel = values[f"{name}/kernel"]
        for pair, (i, j) in enumerate(itertools.combinations(range(3), 2)):
            own = {"all": kernel, "each": kernel[i], "interaction": kernel[pair % len(kernel)]}
            expected.append((given[:, i] @ own[bilinear]) * given[:, j])
    _assert_close(output, np.concatenate(expected, axis=1))


@pytest.mark.parametrize("contexts", [[(), ()], [["job"], ["age", "d*"]]])
def test_final_mlp_is_what_the_paper_says(contexts):
    streams = [networks.MLP(layers=[4]), networks.MLP(layers=[6])]
    trunk = networks.FinalMLP(streams=streams, contexts=contexts, gate_units=3, num_heads=2)
    output, values = build_trunk(trunk, INPUTS)
    seen = [["job"], ["age", "day"]]
    outputs = []
    for index in range(2):
        given = np.concatenate([INPUTS[column] for column in seen[index]], axis=1)
        given = given if contexts[index] else values[f"gate_{index}/context"]
        gate = _relu(given @ values[f"gate_{index}/hidden/kernel"])
        gated = JOINED * 2 * _sigmoid(gate @ values[f"gate_{index}/scale/kernel"])
        outputs.append(_relu(gated @ values[f"stream_{index}/hidden_0/kernel"]))
    first, second = outputs[0].reshape(7, 2, 2), outputs[1].reshape(7, 2, 3)
    products = [
        ((first[:, k] @ values["products/kernel"][k]) * second[:, k]).sum(axis=1) for k in range(2)
    ]
    _assert_close(output, np.concatenate([*outputs, np.stack(products, axis=1)], axis=1))


def test_wide_columns_go_past_the_network():
    inner = networks.SharedBottom(trunk=networks.MLP(layers=[3]))
    made = Built(networks.WideAndDeep(network=inner, wide=["job", "d*"]), inputs=INPUTS)
    kernel = made.values["network/network/trunk/hidden_0/kernel"]
    deep = _relu(np.concatenate([INPUTS["age"], INPUTS["pay"]], axis=1) @ kernel)
    for task in TASKS:
        expected = np.concatenate([deep, INPUTS["job"], INPUTS["day"]], axis=1)
        _assert_close(made.towers[task], expected)


def test_the_wide_part_has_an_optimizer_of_its_own(tmp_path):
    columns = [
        features.Numeric(names=["x"]),
        features.Categorical(names=["word"], prefix="wide", dimension=1),
    ]
    network = networks.WideAndDeep(network=networks.SharedBottom(trunk=networks.MLP(layers=[4])))
    made = tiny.make(network=network, columns=columns, train_steps=4, checkpoint_steps=4)
    ftrl = optimizers.FTRL(learning_rate=0.1)
    part = update.Update(
        optimizer=optimizers.Adagrad(learning_rate=0.1), optimizers={"^features/wide_": ftrl}
    )
    made = dataclasses.replace(
        made,
        data=dataclasses.replace(
            made.data, source=tiny.Rows(splits=tiny.TAGGED_SPLITS), spec=tiny.TAGGED_SPEC
        ),
        model=dataclasses.replace(made.model, update=part),
    )
    variables = tiny.train(made, tmp_path)
    slots = {name for name in variables if "wide_word/embedding/" in name}
    assert slots and all("Ftrl" in name for name in slots)
    kernel = "network/network/trunk/hidden_0/kernel/"
    others = {name for name in variables if name.startswith(kernel)}
    assert others and all("Adagrad" in name for name in others)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: networks.FM(dimension=0), "FM.dimension must be"),
        (lambda: networks.CIN(layers=[]), "CIN.layers must hold a size"),
        (lambda: networks.CIN(layers=[3, 2], split_half=True), "CIN.layers must be even"),
        (lambda: networks.AutoInt(num_heads=0), "AutoInt.num_heads must be"),
        (lambda: networks.Cross(num_experts=2), "Cross.rank must be set"),
        (lambda: networks.Cross(num_experts=2, rank=2, gated=True), "Cross.gated must be False"),
        (lambda: networks.MaskNet(reduction=0), "MaskNet.reduction must be"),
        (lambda: networks.FiBiNET(bilinear="eech"), "Did you mean 'each'?"),
        (
            lambda: networks.FinalMLP(streams=[networks.MLP()]),
            "FinalMLP.streams must hold two trunks",
        ),
        (
            lambda: build_trunk(
                networks.FinalMLP(streams=[networks.MLP(layers=[3])] * 2, num_heads=2), INPUTS
            ),
            "FinalMLP.num_heads must divide 3 units",
        ),
        (
            lambda: build_trunk(
                networks.FinalMLP(streams=[networks.MLP()] * 2, contexts=[["jib"], []]), INPUTS
            ),
            "FinalMLP.contexts must name columns, got 'jib'. Did you mean 'job'?",
        ),
        (
            lambda: Built(
                networks.WideAndDeep(network=networks.SharedBottom(trunk=networks.MLP())),
                inputs=INPUTS,
            ),
            "WideAndDeep.wide must name columns, got 'wide_*'. The columns are age, job, pay, day.",
        ),
        (
            lambda: Built(
                networks.WideAndDeep(
                    network=networks.SharedBottom(trunk=networks.MLP()), wide=["*"]
                ),
                inputs=INPUTS,
            ),
            "WideAndDeep.wide must leave a column to the network",
        ),
        (
            lambda: build_trunk(
                networks.AutoInt(), {**INPUTS, "photo": np.zeros([7, 2, 2, 1], np.float32)}
            ),
            "AutoInt inputs must be vectors, got (2, 2, 1). Column 'photo' has that shape",
        ),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as error:
        make()
    assert says in str(error.value) and "\n" not in str(error.value)
