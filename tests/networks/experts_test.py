"""Networks of experts and gates: equations, and variables of single tasks and of all tasks."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, networks, types
from mtl.balancing import methods, surgery, task_gradients
from mtl.monitoring import event_files
from mtl.networks import gates
from mtl.optimization import optimizers
from mtl.tools.drawing import gates_picture
from mtl.variables import stacks
from tests import tiny
from tests.networks.built import TASKS, Built, X, run_mlp, softmax

tf1 = tf.compat.v1


def _mmoe(**settings):
    settings = {"expert": networks.MLP(layers=[6, 4]), "num_experts": 3, **settings}
    return networks.MMoE(**{"tower": networks.MLP(layers=[2]), **settings})


def _ple(levels=2, **settings):
    experts = [networks.MLP(layers=[4]) for _ in range(levels)]
    settings = {"num_specific": 1, "num_shared": 2, **settings}
    return networks.PLE(experts=experts, tower=networks.MLP(layers=[2]), **settings)


@pytest.mark.medium
def test_mmoe_is_what_the_paper_says():
    made = Built(_mmoe())
    experts = [run_mlp(made.values, f"expert_{i}", X, 2) for i in range(3)]
    for task in TASKS:
        weights = softmax(X @ made.values[f"network/gate_{task}/weights/kernel"])
        mixed = sum(weights[:, [i]] * expert for i, expert in enumerate(experts))
        expected = run_mlp(made.values, f"tower_{task}", mixed, 1)
        np.testing.assert_allclose(made.towers[task], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.medium
def test_ple_is_what_the_paper_says():
    made, groups = Built(_ple()), [*(f"task_{task}" for task in TASKS), "shared"]
    counts = {group: 2 if group == "shared" else 1 for group in groups}
    given = dict.fromkeys(groups, X)
    for level in range(2):
        found = {
            g: [
                run_mlp(made.values, f"level_{level}/{g}/expert_{i}", given[g], 1) for i in range(n)
            ]
            for g, n in counts.items()
        }
        mixed = {}
        for group in groups[: 3 - level]:
            seen = groups if group == "shared" else [group, "shared"]
            experts = [expert for other in seen for expert in found[other]]
            kernel = made.values[f"network/level_{level}/{group}/gate/weights/kernel"]
            weights = softmax(given[group] @ kernel)
            mixed[group] = sum(weights[:, [i]] * expert for i, expert in enumerate(experts))
        given = mixed
    for task in TASKS:
        expected = run_mlp(made.values, f"tower_{task}", given[f"task_{task}"], 1)
        np.testing.assert_allclose(made.towers[task], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.medium
def test_the_last_level_has_no_shared_gate():
    gates_built = {name for name in Built(_ple()).names if "/shared/gate/" in name}
    assert gates_built == {"network/level_0/shared/gate/weights/kernel"}


@pytest.mark.medium
@pytest.mark.parametrize("network", [_mmoe(), _ple()], ids=["mmoe", "ple"])
def test_experts_differ_from_the_start(network):
    made = Built(network)
    kernels = [made.values[n] for n in made.names if re.search(r"expert_\d/hidden_0/kernel", n)]
    first = [kernel for kernel in kernels if kernel.shape == kernels[0].shape]
    for index, kernel in enumerate(first):
        for other in first[:index]:
            assert np.abs(kernel - other).max() > 0.01


@pytest.mark.medium
def test_experts_may_change_places_with_their_gates():
    order = [2, 0, 1]

    def permute(values):
        changed = dict(values)
        for name, value in values.items():
            if "/gate_" in name:
                changed[name] = value[:, order]
            for new, old in enumerate(order):
                if f"/expert_{new}/" in name:
                    changed[name] = values[name.replace(f"expert_{new}", f"expert_{old}")]
        return changed

    one, other = Built(_mmoe()), Built(_mmoe(), change=permute)
    for task in TASKS:
        np.testing.assert_allclose(one.towers[task], other.towers[task], rtol=1e-5, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("kind", [networks.MMoE, networks.OMoE])
def test_one_expert_is_the_shared_bottom_to_the_bit(kind):
    body, tower = networks.MLP(layers=[6, 4]), networks.MLP(layers=[2])
    plain = Built(networks.SharedBottom(trunk=body, tower=tower), apart=True)

    def of_plain(values):
        return {n: plain.values.get(n.replace("expert_0", "trunk"), v) for n, v in values.items()}

    made = Built(kind(expert=body, num_experts=1, tower=tower), change=of_plain, apart=True)
    for task in TASKS:
        np.testing.assert_array_equal(made.towers[task], plain.towers[task])
        for name, gradient in plain.gradients[task].items():
            own = made.gradients[task][name.replace("trunk", "expert_0")]
            np.testing.assert_array_equal(own, gradient, err_msg=name)


@pytest.mark.medium
@pytest.mark.parametrize("devices", [[], ["GPU:0"]], ids=["cpu", "gpu"])
@pytest.mark.parametrize("network", [_mmoe(), _ple(1), _ple(3)], ids=["mmoe", "cgc", "ple"])
def test_copies_at_once_are_those_built_one_by_one(network, devices, monkeypatch):
    """The layers of copies are built otherwise where there is a GPU; the graph runs anywhere."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: devices)
    together, apart = Built(network), Built(network, apart=True)
    assert together.names == apart.names
    same = Built(network, apart=True, change=lambda values: together.values)
    for task in TASKS:
        np.testing.assert_allclose(together.towers[task], same.towers[task], rtol=1e-5, atol=1e-6)
        for name, value in together.values.items():
            own, gradient = (
                np.zeros_like(value)
                if made.gradients[task][name] is None
                # No loss depends on the variable; in a stack, its gradient is 0 instead.
                else made.gradients[task][name]
                for made in (same, together)
            )
            np.testing.assert_allclose(gradient, own, rtol=1e-4, atol=1e-5, err_msg=name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """A gate that takes one expert, whatever it sees."""

    expert: int

    def __call__(self, inputs, scopes, num_experts, training):
        return tf.tile(
            tf.one_hot([[self.expert]], num_experts), [tf.shape(inputs)[0], len(scopes), 1]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fixed:
    """A gate over as many experts as it is told, whatever there are."""

    count: int

    def __call__(self, inputs, scopes, num_experts, training):
        return tf.ones([tf.shape(inputs)[0], len(scopes), self.count]) / self.count


@pytest.mark.medium
def test_a_gate_of_one_expert_sends_the_gradient_there_alone():
    made = Built(_mmoe(gate=Chosen(expert=1)))
    for name, gradient in made.gradients["click"].items():
        if "/expert_" in name:
            assert (np.abs(gradient).max() > 0) == ("/expert_1/" in name), name


@pytest.mark.medium
@pytest.mark.parametrize(
    ("network", "own"),
    [
        (networks.SingleTask(trunk=networks.MLP(layers=[3])), "tower_{}/"),
        (_mmoe(), "(gate|tower)_{}/"),
        (_ple(1), "(level_0/task_{}/(gate|expert_0)|tower_{})/"),
        (_ple(2), "(level_0/task_{}/gate|level_1/task_{}/(gate|expert_0)|tower_{})/"),
    ],
    ids=["single_task", "mmoe", "cgc", "ple"],
)
def test_what_belongs_to_one_task_is_not_shared(network, own):
    """Under a surgery, as the model builds it: shared variables are told by the graph."""
    made = Built(network, apart=True)
    for task in TASKS:
        pattern = "network/" + own.replace("{}", task)
        others = [t for t in TASKS if t != task]
        mine = {name for name in made.names if re.match(pattern, name)}
        assert mine == {n for n in made.names if made.gradients[others[0]][n] is None}


@pytest.mark.medium
def test_surgery_weighs_only_what_is_shared():
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        with tf1.variable_scope("network"), stacks.separate_tasks(True):
            towers = _mmoe()({"x": tf.constant(X)}, TASKS, True)
        losses = [tf.reduce_sum(tower**2) for tower in towers.values()]
        variables = tf1.trainable_variables()
        found = task_gradients.TaskGradients.from_losses(losses, variables, towers.shared)
        shared = {variables[n].op.name for n in found.shared}
    assert shared and all("/expert_" in name for name in shared)


def test_dropped_experts_leave_weights_that_sum_to_one():
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        inputs = tf.constant(np.tile(X, [200, 1]))
        weights = gates.Softmax(dropout=0.5)(inputs, ["a", "b"], 3, training=True)
        kernel = tf1.trainable_variables()[0]
        gradient = tf1.gradients(weights[:, 0, 0], kernel)[0]
        session.run(tf1.global_variables_initializer())
        value, slope = session.run([weights, gradient])
    np.testing.assert_allclose(value.sum(axis=-1), 1, rtol=1e-5)
    # All three are left out of an eighth of the rows, and then all stay.
    is_none = (value > 0).all(axis=-1).mean()
    assert 0.2 < is_none < 0.3 and np.isfinite(slope).all()


def test_gates_keep_every_expert_outside_of_training():
    gate = gates.Softmax(dropout=0.9, temperature=0.5)
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = gate(tf.constant(X), ["a"], 4, training=False)
        (kernel,) = tf1.trainable_variables()
        session.run(tf1.global_variables_initializer())
        value, w = session.run([weights, kernel])
    np.testing.assert_allclose(value[:, 0], softmax(X @ w / 0.5), rtol=1e-5)


def test_the_smooth_step():
    with tf.Graph().as_default(), tf1.Session() as session:
        at = tf.constant([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
        step = gates.smooth_step(at, gamma=2.0)
        value, slope = session.run([step, tf1.gradients(step, at)[0]])
    # -2 (t / 2)^3 + 3/2 (t / 2) + 1/2
    np.testing.assert_allclose(value, [0, 0, 0.15625, 0.5, 0.84375, 1, 1], atol=1e-6)
    np.testing.assert_allclose(slope[[0, 3, 6]], [0, 0.75, 0], atol=1e-6)


@pytest.mark.parametrize("num_experts", [4, 5])
@pytest.mark.parametrize("static", [False, True])
def test_dselect_k_takes_as_many_experts_as_it_has_selectors(num_experts, static):
    gate = gates.DSelectK(k=2, entropy=0.0, static=static)
    with tf.Graph().as_default(), tf1.Session() as session:
        weights = gate(tf.constant(X), ["a", "b"], num_experts, training=True)
        session.run(tf1.global_variables_initializer())
        soft = session.run(weights)
        for variable in tf1.trainable_variables():
            if "/codes" in variable.op.name:  # Far from 0, codes are 0 and 1.
                variable.load(1e6 * session.run(variable), session)
        hard = session.run(weights)
    for value in (soft, hard):
        np.testing.assert_allclose(value.sum(axis=-1), 1, rtol=1e-5)
    # A code of no expert, of which five have three, leaves its share to the other selector's.
    is_spread = np.isclose(hard, 1 / num_experts).all(axis=-1)
    assert (((hard > 0).sum(axis=-1) <= 2) | is_spread).all()


def test_the_entropy_of_selectors_is_a_penalty():
    with tf.Graph().as_default(), tf1.Session() as session:
        gates.DSelectK(k=2, entropy=0.5)(tf.constant(X), ["a"], 4, training=True)
        (penalty,) = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        session.run(tf1.global_variables_initializer())
        for variable in tf1.trainable_variables():
            variable.load(np.zeros(variable.shape), session)
        # All codes are 1/2: two selectors, each uniform over four experts.
        assert session.run(penalty) == pytest.approx(0.5 * 2 * np.log(4), rel=1e-5)
        gates.DSelectK(k=2, entropy=0.5)(tf.constant(X), ["b"], 4, training=False)
        assert len(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)) == 1


@pytest.mark.medium
def test_monitors_show_the_gates_of_a_training_step():
    made = Built(_mmoe(), training=True)
    assert {"gate/gate_click/expert_2", "gate/gate_click_long/entropy"} < set(made.shown)
    assert Built(_mmoe(), training=False).shown == {}
    shown = Built(_ple(), training=True).shown
    assert "gate/level_0/shared/gate/task_click_long_0" in shown
    assert "gate/level_1/task_click/gate/shared_1" in shown


def test_monitors_of_gates_are_those_of_numpy():
    random = np.random.default_rng(0)
    weights = random.dirichlet([1, 1, 1], [8, 2]).astype(np.float32)
    experts = random.normal(size=[8, 3, 5]).astype(np.float32)
    experts[:, 0, 1] = experts[:, 2, 4] = 0
    experts[:7, 1, 1] = 0  # Alive in one row.
    found = gates._describe_gates(tf.constant(weights), tf.constant(experts)).numpy()
    entropies = -(weights * np.log(weights)).sum(axis=-1).mean(axis=0) / np.log(3)
    units = experts.transpose(1, 0, 2).reshape(3, -1)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    similarity = np.mean([units[i] @ units[j] for i in range(3) for j in range(3) if i != j])
    shared = [[2 / 15, similarity]] * 2
    expected = np.concatenate([weights.mean(axis=0), entropies[:, np.newaxis], shared], axis=1)
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-4)


@pytest.mark.medium
@pytest.mark.parametrize("method", [None, methods.MGDA()], ids=["sum", "surgery"])
def test_a_run_shows_its_gates(tmp_path, method):
    made = tiny.make(network=_ple(), train_steps=8, summary_steps=4)
    if method:
        on = surgery.Combine(method=method, on="representation")
        made = dataclasses.replace(made, model=dataclasses.replace(made.model, surgery=on))
    tiny.train(made, tmp_path)
    shown = {tag: v for (step, tag), v in tiny.scalars(tmp_path).items() if step == 8}
    gate = "gate/level_1/task_kind/gate"
    weights = [shown[f"{gate}/{name}"] for name in ("task_kind_0", "shared_0", "shared_1")]
    assert sum(weights) == pytest.approx(1, abs=1e-5)
    assert 0 < shown[f"{gate}/entropy"] <= 1 + 1e-6
    weights, others = gates_picture.group(event_files.read_record(str(tmp_path)).curves)
    assert set(weights) == {
        f"level_{level}/task_{task}/gate" for level in (0, 1) for task in made.model.tasks
    } | {"level_0/shared/gate"}
    assert set(weights["level_1/task_kind/gate"]) == {"task_kind_0", "shared_0", "shared_1"}
    assert list(others) == ["entropy", "similarity", "dead_units"]
    picture = (tmp_path / "gates.svg").read_text()
    assert picture.startswith("<svg") and "mean weights, level_1/task_kind/gate" in picture
    assert 0 <= shown[f"{gate}/dead_units"] <= 1 and -1 <= shown[f"{gate}/similarity"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "method"),
    [(_mmoe(), methods.PCGrad()), (_ple(), None)],
    ids=["mmoe, surgery", "ple, sum"],
)
def test_slices_and_replicas_train_as_the_whole_batch_does(network, method, tmp_path):
    def make(**run):
        made = tiny.make(network=network, optimizer=optimizers.SGD(learning_rate=0.05), **run)
        parts = {"surgery": surgery.Combine(method=method)} if method else {}
        return dataclasses.replace(made, model=dataclasses.replace(made.model, **parts))

    tiny.assert_trains_in_parts(make, tmp_path, 5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: _mmoe(num_experts=0), "MMoE.num_experts must be"),
        (lambda: _mmoe(expert=networks.MLP), "MMoE.expert must be a part such as @networks.MLP()"),
        (
            lambda: Built(_mmoe(gate=Fixed(count=5))),
            "Fixed weights must be [B, 2, 3], of 2 gates over 3 experts",
        ),
        (lambda: _mmoe(gate=networks.MLP()), "MMoE.gate must be a part such as @gates.Softmax()"),
        (lambda: networks.PLE(experts=[]), "PLE.experts must hold a level"),
        (lambda: networks.PLE(experts=networks.MLP()), "PLE.experts must be a list"),
        (lambda: _ple(num_shared=0), "PLE.num_shared must be"),
        (lambda: gates.Softmax(temperature=0), "Softmax.temperature must be"),
        (lambda: gates.DSelectK(k=0), "DSelectK.k must be"),
        (lambda: Built(_mmoe(gate=gates.DSelectK(k=4))), "DSelectK.k must be at most 3, the numb"),
        (
            lambda: _mmoe()(
                {"image": tf1.placeholder(tf.float32, [None, 4, None, 1])}, TASKS, True
            ),
            "MLP inputs must have a fixed shape",
        ),
    ],
)
def test_bad_settings_are_one_line(make, says):
    with tf.Graph().as_default(), pytest.raises(checks.UserError) as error:
        make()
    assert says in str(error.value) and "\n" not in str(error.value)


def test_no_output_is_shared_by_networks_of_single_tasks():
    with tf.Graph().as_default():
        network = networks.SingleTask(trunk=networks.MLP(layers=[3]))
        towers = network({"x": tf.constant(X)}, TASKS, False)
        assert isinstance(towers, types.Towers) and towers.shared == ()
