"""Networks for several tasks, AdaTT to STEM: their papers' equations, and whose loss moves what."""

import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks
from mtl.variables import stacks
from tests.networks.built import (
    TASKS,
    Built,
    X,
    build_trunk,
    draw_columns,
    run_mlp,
    softmax,
)

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1

GROUPED = draw_columns(age=3, click_job=4, long_job=2)
DOMAINS = np.eye(3, dtype=np.float32)[[0, 1, 0, 1, 1, 0, 0]]  # The third has no row.


def _assert_close(found, expected, **tolerance):
    np.testing.assert_allclose(found, expected, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _adatt(**settings):
    experts = [networks.MLP(layers=[4]), networks.MLP(layers=[4])]
    settings = {"experts": experts, "tower": networks.MLP(layers=[2]), **settings}
    return networks.AdaTT(**settings)


def _home(**settings):
    expert = networks.MLP(layers=[4], activation="linear")
    settings = {"experts": [expert, expert], "groups": {"all": TASKS}, **settings}
    return networks.HoME(**{"feature_rank": 2, **settings})


def _stem(**changes):
    own = {"click": ["click_*"], "click_long": ["long_*"]}
    settings = {"expert": networks.MLP(layers=[4]), "own": own, "num_specific": 2, "num_shared": 2}
    settings |= changes
    return networks.STEM(**{"tower": networks.MLP(layers=[2]), **settings})


def _pepnet(**settings):
    settings = {"domain": ["age"], "personal": ["click_job"], "gate_units": 3, **settings}
    return networks.PEPNet(**{"layers": [4, 3], **settings})


def _move(made, task):
    """Return the names of the variables that a task's loss moves, without "network/"."""
    return {
        name.removeprefix("network/")
        for name, gradient in made.gradients[task].items()
        if gradient is not None
    }


@pytest.mark.parametrize("num_shared", [0, 2])
@pytest.mark.always
def test_adatt_is_what_the_paper_says(num_shared):
    def change(values):
        return {n: np.array([0.2, 0.9], "f") if "native" in n else v for n, v in values.items()}

    made = Built(_adatt(num_native=2, num_shared=num_shared), change=change)
    counts = {"task_click": 2, "task_click_long": 2} | ({"shared": 2} if num_shared else {})
    given = dict.fromkeys(counts, X)
    for level in range(2):
        at = f"level_{level}"
        found = {
            g: [run_mlp(made.values, f"{at}/{g}/expert_{i}", given[g], 1) for i in range(n)]
            for g, n in counts.items()
        }
        everyone = [expert for experts in found.values() for expert in experts]
        mixed = {}
        for group in [g for g in counts if g != "shared" or level == 0]:
            kernel = made.values[f"network/{at}/{group}/gate/weights/kernel"]
            weights = softmax(given[group] @ kernel)
            native = made.values[f"network/{at}/{group}/native"]
            mixed[group] = sum(weights[:, [e]] * f for e, f in enumerate(everyone))
            mixed[group] = mixed[group] + native[0] * found[group][0] + native[1] * found[group][1]
        given = mixed
    for task in TASKS:
        expected = run_mlp(made.values, f"tower_{task}", given[f"task_{task}"], 1)
        _assert_close(made.towers[task], expected)


def test_every_task_of_adatt_moves_the_experts_of_all():
    made = Built(_adatt(num_native=1), apart=True)
    for task in TASKS:
        (other,) = set(TASKS) - {task}
        moved = _move(made, task)
        assert {name for name in moved if f"level_1/task_{other}/expert_" in name}
        assert not any(f"level_1/task_{other}/gate" in n or f"tower_{other}/" in n for n in moved)


@pytest.mark.parametrize(
    ("num_experts", "keeps"), [(1, True), (2, True), (2, False)], ids=["one", "two", "plain"]
)
@pytest.mark.always
def test_home_is_what_the_paper_says(num_experts, keeps):
    groups = {"first": ["click"], "second": ["click_long"]}
    network = _home(
        groups=groups,
        num_experts=num_experts,
        expert_norm=keeps,
        feature_rank=2 if keeps else 0,
        self_gates=keeps,
    )
    made = Built(network)  # Norms take their first averages: mean 0, variance 1.
    value = {name.removeprefix("network/"): v for name, v in made.values.items()}

    def expert(at, x):
        if keeps:
            low = x @ value[f"{at}/feature_gate/down/kernel"]
            x = x * 2 * _sigmoid(low @ value[f"{at}/feature_gate/up/kernel"])
        h = x @ value[f"{at}/hidden_0/kernel"]
        if not keeps:
            return np.maximum(h, 0)
        h = h / np.sqrt(1 + 1e-3)
        return h * _sigmoid(h)

    def mix(at, x, own, everyone):
        weights = softmax(x @ value[f"{at}/gate/weights/kernel"])
        mixed = sum(weights[:, [e]] * f for e, f in enumerate(everyone))
        if keeps:
            logits = x @ value[f"{at}/self_gate/kernel"]
            weights = _sigmoid(logits) if num_experts == 1 else softmax(logits)
            mixed = mixed + sum(weights[:, [e]] * f for e, f in enumerate(own))
        return mixed

    owners = ["shared", "group_first", "group_second"]
    seen = {"shared": owners, **{owner: [owner, "shared"] for owner in owners[1:]}}
    count = range(num_experts)
    found = {o: [expert(f"level_0/{o}/expert_{i}", X) for i in count] for o in owners}
    given = {
        o: mix(f"level_0/{o}", X, found[o], [f for s in seen[o] for f in found[s]]) for o in owners
    }
    for task, group in (("click", "group_first"), ("click_long", "group_second")):
        given[f"task_{task}"] = given[group]
    found = {o: [expert(f"level_1/{o}/expert_{i}", x) for i in count] for o, x in given.items()}
    for task, group in (("click", "group_first"), ("click_long", "group_second")):
        own = f"task_{task}"
        everyone = [f for s in (own, group, "shared") for f in found[s]]
        expected = mix(f"level_1/{own}", given[own], found[own], everyone)
        _assert_close(made.towers[task], expected)


def test_groups_of_home_are_apart():
    groups = {"first": ["click"], "second": ["click_long"]}
    made = Built(_home(groups=groups), apart=True)
    moved = _move(made, "click")
    assert not any("task_click_long" in name for name in moved)
    assert {name for name in moved if name.startswith("level_1/shared/expert_0")}
    # The shared gate of the first level weighs the experts of all groups.
    assert {name for name in moved if name.startswith("level_0/group_second/expert_0")}
    assert not any(name.startswith("level_1/group_second/") for name in moved)


def test_experts_of_home_stay_alive_where_plain_ones_die():
    """The collapse that its paper reports: units that are 0 for every row learn nothing more."""

    def sink(values):
        return {n: v - 9 if re.search("expert.*bias", n) else v for n, v in values.items()}

    def find(network):
        made = Built(network, training=True, change=sink)
        own = "level_1/task_click/expert_0/hidden_0/kernel"
        slope = np.abs(made.gradients["click"][f"network/{own}"]).max()
        return made.shown["gate/level_1/task_click/gate/dead_units"], slope

    assert find(_home(expert_norm=False, self_gates=False, feature_rank=0)) == (1, 0)
    dead, slope = find(_home())
    assert dead == 0 and slope > 0


def test_stem_is_what_the_paper_says():
    made = Built(_stem(), inputs=GROUPED)
    columns = {"task_click": "click_job", "task_click_long": "long_job", "shared": "age"}
    given = {group: GROUPED[column] for group, column in columns.items()}
    experts = [
        run_mlp(made.values, f"{group}/expert_{i}", x, 1)
        for group, x in given.items()
        for i in (0, 1)
    ]
    for task in TASKS:
        seen = np.concatenate([given[f"task_{task}"], given["shared"]], axis=1)
        weights = softmax(seen @ made.values[f"network/task_{task}/gate/weights/kernel"])
        mixed = sum(weights[:, [e]] * expert for e, expert in enumerate(experts))
        _assert_close(made.towers[task], run_mlp(made.values, f"tower_{task}", mixed, 1))


@pytest.mark.parametrize("apart", [False, True])
def test_stem_stops_the_gradients_into_other_tasks_tables_and_experts(apart):
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        inputs = {column: tf.constant(value) for column, value in GROUPED.items()}
        with stacks.separate_tasks(apart):
            towers = _stem()(inputs, TASKS, True)
        for task, own, other in (
            ("click", "click_job", "long_job"),
            ("click_long", "long_job", "click_job"),
        ):
            found = tf1.gradients(tf.reduce_sum(towers[task] ** 2), list(inputs.values()))
            moved = {c for c, g in zip(inputs, found, strict=True) if g is not None}
            assert moved == {"age", own} and other not in moved
            variables = tf1.trainable_variables()
            found = tf1.gradients(tf.reduce_sum(towers[task] ** 2), variables)
            names = {v.op.name for v, g in zip(variables, found, strict=True) if g is not None}
            assert any(name.startswith("shared/expert_0") for name in names)
            (rest,) = set(TASKS) - {task}
            assert not any(name.startswith(f"task_{rest}/") for name in names)


def test_pepnet_is_what_the_paper_says():
    made = Built(_pepnet(), inputs=GROUPED)
    value = {name.removeprefix("network/"): v for name, v in made.values.items()}

    def gate(at, prior, seen):
        joined = np.concatenate([GROUPED[prior], seen], axis=1)
        hidden = np.maximum(joined @ value[f"{at}/hidden/kernel"], 0)
        return 2 * _sigmoid(hidden @ value[f"{at}/scale/kernel"])

    inputs = GROUPED["long_job"] * gate("embedding_gate", "age", GROUPED["long_job"])
    for task in TASKS:
        hidden = inputs
        for layer in range(2):
            hidden = np.maximum(hidden @ value[f"tower_{task}/hidden_{layer}/kernel"], 0)
            hidden = hidden * gate(f"tower_{task}/gate_{layer}", "click_job", inputs)
        _assert_close(made.towers[task], hidden)


def test_neutral_gates_of_pepnet_are_no_gates_to_the_bit():
    def neutral(values):
        return {n: np.zeros_like(v) if "/scale/" in n else v for n, v in values.items()}

    gated = Built(_pepnet(), inputs=GROUPED, change=neutral)
    tower = networks.MLP(layers=[4, 3])
    plain = Built(
        networks.SharedBottom(trunk=networks.MLP(layers=[]), tower=tower),
        inputs={"long_job": GROUPED["long_job"]},
        change=lambda values: {name: gated.values[name] for name in values},
    )
    for task in TASKS:
        np.testing.assert_array_equal(gated.towers[task], plain.towers[task])


def test_no_gradient_goes_through_a_gate_into_what_it_sees():
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        inputs = {column: tf.constant(value) for column, value in GROUPED.items()}
        towers = _pepnet(layers=[2], activation="linear")(inputs, TASKS, True)
        total = tf.reduce_sum(towers["click"])
        (gradient,) = tf1.gradients(total, inputs["long_job"])
        session.run(tf1.global_variables_initializer())
        slope, values = session.run([gradient, {v.op.name: v for v in tf1.trainable_variables()}])

    def gate(at, prior, seen):
        hidden = np.concatenate([prior, seen], axis=1) @ values[f"{at}/hidden/kernel"]
        return 2 * _sigmoid(np.maximum(hidden, 0) @ values[f"{at}/scale/kernel"])

    x = GROUPED["long_job"]
    of_domain = gate("embedding_gate", GROUPED["age"], x)
    of_person = gate("tower_click/gate_0", GROUPED["click_job"], x * of_domain)
    kernel = values["tower_click/hidden_0/kernel"]
    _assert_close(slope, of_person @ kernel.T * of_domain)


def _find_moments(values, groups, group):
    """Return a group's mean and variance; a small group mixes in the moments of all rows."""
    values = values.astype(np.float64)
    own = values[groups == group]
    share = min((len(own) - 1) / 15, 1)
    variance = own.var(axis=0, ddof=1) if len(own) > 1 else 0.0
    return (
        share * own.mean(axis=0) + (1 - share) * values.mean(axis=0),
        share * variance + (1 - share) * values.var(axis=0, ddof=1),
    )


def test_star_is_what_the_paper_says():
    def change(values):
        random = np.random.default_rng(1)
        return {
            n: random.normal(size=v.shape).astype("f") if "domains" in n or "group" in n else v
            for n, v in values.items()
        }

    part = networks.STAR(domain="site", layers=[4, 3])
    output, values = build_trunk(part, {"x": X, "site": DOMAINS}, training=True, change=change)
    rows = DOMAINS.argmax(axis=1)
    hidden = np.zeros_like(X)
    for d in range(2):
        mean, variance = _find_moments(X, rows, d)
        normal = (X[rows == d] - mean) / np.sqrt(variance + 1e-3)
        gamma = values["norm/gamma"] * values["norm/group_gamma"][d]
        hidden[rows == d] = normal * gamma + values["norm/beta"] + values["norm/group_beta"][d]
    for layer in range(2):
        at = f"hidden_{layer}"
        kernels = values[f"{at}/shared/kernel"] * values[f"{at}/domains/kernel"][rows]
        biases = values[f"{at}/shared/bias"] + values[f"{at}/domains/bias"][rows]
        hidden = np.maximum(np.einsum("bd,bdh->bh", hidden, kernels) + biases, 0)
    _assert_close(output, hidden)


def test_star_starts_as_an_mlp_and_learns_by_domain():
    part = networks.STAR(domain="site", layers=[4], norm=False)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)  # One draw of sixteen leaves the first row without a live unit.
        tf1.train.get_or_create_global_step()
        output = part({"x": tf.constant(X), "site": tf.constant(DOMAINS)}, True)
        values = {v.op.name: v for v in tf1.trainable_variables()}
        of_first = tf1.gradients(output[0], values["hidden_0/domains/kernel"])[0]
        assert isinstance(of_first, tf.IndexedSlices)
        of_first = tf.convert_to_tensor(of_first)
        session.run(tf1.global_variables_initializer())
        found, values, gradient = session.run([output, values, of_first])
    _assert_close(found, np.maximum(X @ values["hidden_0/shared/kernel"], 0))
    assert np.abs(gradient[0]).max() > 0 and np.abs(gradient[1:]).max() == 0


def test_a_domain_without_rows_keeps_its_averages():
    part = networks.STAR(domain="site", layers=[4])
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        part({"x": tf.constant(X), "site": tf.constant(DOMAINS)}, True)
        averages = {v.op.name: v for v in tf1.global_variables() if "moving" in v.op.name}
        session.run(tf1.global_variables_initializer())
        session.run(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        found = session.run(averages)
    mean, variance = found["norm/moving_mean"], found["norm/moving_variance"]
    for d in range(2):
        expected = _find_moments(X, DOMAINS.argmax(axis=1), d)
        _assert_close(mean[d], expected[0])
        _assert_close(variance[d], expected[1])
    np.testing.assert_array_equal(mean[2], 0)
    np.testing.assert_array_equal(variance[2], 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: _adatt(num_native=0), "AdaTT.num_native must be"),
        (lambda: _home(experts=[networks.MLP()]), "HoME.experts must hold two trunks"),
        (lambda: _home(groups={"a": ["click"], "b": ["click"]}), "hold each name once"),
        (lambda: _home(groups={"a": []}), "HoME.groups['a'] must name a task"),
        (lambda: Built(_home(groups={"a": ["clik", "click"]})), "Did you mean 'click'?"),
        (lambda: Built(_home(groups={"a": ["click"]})), "HoME.groups must hold every task"),
        (lambda: Built(_stem(own={"clik": ["x"]})), "Did you mean 'click'?"),
        (
            lambda: Built(_stem(own={"click": ["click_*"]}), inputs=GROUPED),
            "STEM.own['click_long'] must name a column",
        ),
        (
            lambda: Built(_stem(own={t: ["click_*"] for t in TASKS}), inputs=GROUPED),
            "STEM.own['click_long'] must not name columns of another task, got ['click_job']",
        ),
        (
            lambda: Built(_stem(own={"click": ["clik_job"]}), inputs=GROUPED),
            "STEM.own['click'] must name columns, got 'clik_job'. Did you mean 'click_job'?",
        ),
        (
            lambda: Built(
                _stem(own={"click": ["click_*", "age"], "click_long": ["long_*"]}), inputs=GROUPED
            ),
            "STEM.own must leave one column or more that all tasks share",
        ),
        (lambda: _pepnet(layers=[]), "PEPNet.layers must hold a size"),
        (lambda: Built(_pepnet(domain=["ag"]), inputs=GROUPED), "Did you mean 'age'?"),
        (
            lambda: Built(_pepnet(domain=["*"]), inputs=GROUPED),
            "PEPNet inputs must hold a column that is not",
        ),
        (
            lambda: build_trunk(networks.STAR(domain="sit"), {"x": X, "site": DOMAINS}),
            "STAR.domain must be one of x, site, got 'sit'. Did you mean 'site'?",
        ),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as error:
        make()
    assert says in str(error.value) and "\n" not in str(error.value)
