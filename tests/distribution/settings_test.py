"""Training on several devices of one machine, through the whole experiment."""

import dataclasses
import functools
import json
import types

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, compat, distribution, features, networks, transfer, verbs
from mtl.balancing import methods, surgery
from mtl.distribution import resources
from mtl.optimization import clipping, optimizers, regularization, update
from mtl.runs import estimators
from mtl.variables import freezing
from tests import tiny

pytestmark = pytest.mark.optimizes_graphs

TWO_CPUS = distribution.Distribution(
    strategy="mirrored",
    devices=["/cpu:0", "/cpu:1"],
    resources=resources.Resources(inter_op_threads=2),
)
PCGRAD = surgery.Combine(method=methods.PCGrad())
LATE = {"^network/trunk/": 20, "^features/": 40}


def _experiment(where, surgery_part=None, batch_norm=False, **run):
    """Clipped, decayed, penalised; tables, lists, labels missing; frozen, some up to a step."""
    network = networks.SharedBottom(
        trunk=networks.MLP(layers=[8], batch_norm=batch_norm), tower=networks.MLP(layers=[4])
    )
    held = freezing.Freezing(frozen=["^network/tower_size/"], until=LATE)
    columns = [
        features.Numeric(names=["x"]),
        features.Categorical(names=["word", "tags"], dimension=2),
    ]
    plain = tiny.make(network=network, columns=columns, train_steps=50, checkpoint_steps=25, **run)
    source = tiny.Rows(splits=tiny.TAGGED_SPLITS)
    data = dataclasses.replace(plain.data, source=source, spec=tiny.TAGGED_SPEC)
    part = update.Update(
        optimizer=optimizers.AdamW(learning_rate=0.01, weight_decay=0.1, epsilon=1e-3),
        clipping=clipping.GlobalNorm(max_norm=0.5),
        regularization=regularization.Regularization(l2={"/kernel$": 0.01}),
    )
    parts = {"update": part, "freezing": held} | ({"surgery": surgery_part} if surgery_part else {})
    model = dataclasses.replace(plain.model, **parts)
    return dataclasses.replace(plain, data=data, model=model, distribution=where)


def _until(step, part):
    """The same experiment, up to an earlier step."""
    return dataclasses.replace(part, run=dataclasses.replace(part.run, train_steps=step))


@pytest.fixture(scope="module")
def train_alone(tmp_path_factory):
    """Trains on one device: (experiment, folder)."""

    @functools.cache
    def train(normalized):
        part = PCGRAD if normalized else None
        made = _experiment(distribution.Distribution(strategy="none"), part, normalized)
        folder = tmp_path_factory.mktemp("alone") / "run"
        tiny.train(made, folder)
        return made, folder

    return train


@pytest.mark.slow
@pytest.mark.parametrize("normalized", [False, True], ids=["sum in slices", "PCGrad, batch norm"])
def test_two_replicas_train_as_one_device_does(normalized, train_alone, tmp_path):
    """Weights, slots, averages and metrics, from one start."""
    one, alone = train_alone(normalized)
    mirrored, slices = tmp_path / "mirrored", 1 if normalized else 2
    tiny.copy_until(alone, mirrored, 0)
    run = dataclasses.replace(one.run, micro_batches=slices)
    two = dataclasses.replace(one, run=run, distribution=TWO_CPUS)
    weights, others = tiny.variables(alone), tiny.train(two, mirrored)
    assert weights.keys() == others.keys() and others["global_step"] == 50
    expected, actual = verbs.evaluate(one, str(alone)), verbs.evaluate(two, str(mirrored))
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    first, middle = (tiny.variables(mirrored, step) for step in (0, 25))
    frozen = [name for name in first if name.startswith("network/tower_size/")]
    assert frozen and not any("Adam" in name for name in frozen)
    for name in frozen:
        np.testing.assert_array_equal(others[name], first[name], err_msg=name)
    table = "features/categorical_word/embedding"
    for name in (table, f"{table}/Adam"):
        np.testing.assert_array_equal(middle[name], first[name])
        assert (others[name] != first[name]).any()
    losses, their_losses = tiny.scalars(alone), tiny.scalars(mirrored)
    for key in [key for key in losses if key[1] in ("loss", "gradient_norm", "kind/loss")]:
        np.testing.assert_allclose(their_losses[key], losses[key], rtol=1e-4, err_msg=key)


@pytest.mark.slow
def test_replicas_start_warm_as_one_device_does_and_one_device_goes_on(train_alone, tmp_path):
    """With rows that moved, and the optimizer's state."""
    whole, source = train_alone(False)
    one = _until(1, whole)
    splits = {
        split: {**rows, "word": rows["word"][::-1]} for split, rows in tiny.TAGGED_SPLITS.items()
    }
    splits["train"]["word"] = np.where(splits["train"]["sign"], b"green", b"violet").astype(object)
    warm = transfer.WarmStart(source=str(source), slots=True, new_rows="mean")
    found = []
    for where in (one.distribution, TWO_CPUS):
        data = dataclasses.replace(one.data, source=tiny.Rows(splits=splits))
        made = dataclasses.replace(one, data=data, warm_start=warm, distribution=where)
        tiny.train(made, tmp_path / where.strategy)
        found.append(tiny.variables(tmp_path / where.strategy, 0))
    alone, mirrored = found
    assert tiny.train(_until(2, one), tmp_path / "mirrored")["global_step"] == 2
    saved = tiny.variables(source)
    name = "network/trunk/hidden_0/kernel"
    for warmed in ("head/kind/logits/kernel", "head/kind/logits/kernel/Adam"):
        np.testing.assert_array_equal(mirrored[warmed], saved[warmed])
    assert alone.keys() == mirrored.keys()
    for name, value in alone.items():
        np.testing.assert_array_equal(mirrored[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"strategy": "mirrord"},
            "Distribution.strategy must be one of .*, got 'mirrord'. Did you mean 'mirrored'",
        ),
        ({"devices": ["/cpu:0"]}, 'Distribution.devices must be empty, got .*strategy "mirrored"'),
        (
            {"strategy": "mirrored", "devices": ["/gpu:7"]},
            "Distribution.devices must exist, got '/gpu:7'. Visible GPUs: ",
        ),
        (
            {"strategy": "mirrored", "devices": ["/cpu:0", "/cpu:2"]},
            "Distribution.devices must exist, got '/cpu:2'. .* Processor: /cpu:0, /cpu:1.",
        ),
        (
            {"resources": 4},
            r"Distribution.resources must be built, such as @resources.Resources",
        ),
        ({"min_shard_bytes": 0}, "Distribution.min_shard_bytes must be at least 1, got 0"),
    ],
    ids=["misspelt", "devices of none", "no such GPU", "no such CPU", "no part", "no size"],
)
def test_mistakes(settings, message):
    with pytest.raises(checks.UserError, match=message):
        distribution.Distribution(**settings).find_place()


@pytest.mark.parametrize(
    ("part", "settings", "message"),
    [
        (distribution.Communication, {"implementation": "rings"}, "Did you mean 'ring'"),
        (
            distribution.Communication,
            {"bytes_per_pack": -1},
            "bytes_per_pack must be at least 0",
        ),
        (
            distribution.Communication,
            {"num_packs": 1.5},
            "num_packs must be a whole number",
        ),
        (resources.Resources, {"intra_op_threads": "4"}, "intra_op_threads must be a whole number"),
        (
            resources.Resources,
            {"inter_op_threads": -2},
            "inter_op_threads must be at least 0",
        ),
        (resources.Resources, {"memory_growth": 1}, "memory_growth must be True or False, got 1"),
    ],
)
def test_mistakes_of_parts(part, settings, message):
    with pytest.raises(checks.UserError, match=message):
        part(**settings)


_JOBS = {"chief": ["localhost:1"], "worker": ["localhost:2"]}


@pytest.mark.parametrize(
    "strategy, jobs, chosen",
    [
        ("auto", {}, (distribution.MIRRORED, 3)),
        ("mirrored", {}, (distribution.MIRRORED, 3)),
        ("none", {}, (distribution.ONE, 1)),
        ("auto", _JOBS, (distribution.WORKERS, 3)),
        ("auto", {**_JOBS, "ps": ["localhost:3"]}, (distribution.SERVERS, 1)),
    ],
)
def test_strategy_and_devices_of_a_machine_with_three_gpus(strategy, jobs, chosen, monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 3)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if jobs:
        task = {"type": "worker", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": task}))
    place = distribution.Distribution(strategy=strategy).find_place()
    devices = [f"/gpu:{number}" for number in range(chosen[1])]
    assert (place.strategy, list(place.devices)) == (chosen[0], devices)


def test_devices_that_several_machines_do_not_use_are_refused(monkeypatch):
    """TensorFlow takes every visible GPU there, so parts of a batch would have no replica."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind] * 3)
    made = types.SimpleNamespace(num_replicas_in_sync=6)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda **settings: made)
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": _JOBS, "task": task}))
    every = distribution.Distribution()
    assert every.build_strategy(every.find_place())[0] is made
    some = dataclasses.replace(every, strategy="multi_worker_mirrored", devices=["/gpu:1"])
    message = "Distribution.devices must give 6 replicas, as TensorFlow makes .*, not 2, got .*gpu"
    with pytest.raises(checks.UserError, match=message):
        some.build_strategy(some.find_place())


def test_a_session_is_told_of_threads_and_memory(tmp_path):
    """Beside what Estimator tells it by itself."""
    taken = resources.Resources(intra_op_threads=3, inter_op_threads=2, memory_growth=True)
    made = dataclasses.replace(tiny.make(), distribution=distribution.Distribution(resources=taken))
    given = estimators.build_estimator(made, str(tmp_path), checkpoint=None).config.session_config
    plain = compat.estimator.Estimator(lambda features: None, str(tmp_path))._session_config
    threads = given.intra_op_parallelism_threads, given.inter_op_parallelism_threads
    assert (*threads, given.gpu_options.allow_growth) == (3, 2, True)
    for field in ("intra_op_parallelism_threads", "inter_op_parallelism_threads", "gpu_options"):
        given.ClearField(field)
    assert given == plain


def test_packs():
    options = distribution.Communication(implementation="nccl", bytes_per_pack=1 << 20).options()
    kinds = tf.distribute.experimental.CommunicationImplementation
    assert (options.bytes_per_pack, options.implementation) == (1 << 20, kinds.NCCL)
    packed = distribution.Communication(num_packs=2)
    assert isinstance(packed.reduction(on_cpu=False), tf.distribute.NcclAllReduce)
    assert isinstance(packed.reduction(on_cpu=True), tf.distribute.ReductionToOneDevice)
    assert distribution.Communication().reduction(on_cpu=False) is None


def test_the_batch_must_divide(tmp_path):
    message = "replicas must divide Pipeline.batch_size, 16, got 6"
    with pytest.raises(checks.UserError, match=message):
        verbs.train(_experiment(TWO_CPUS, micro_batches=3), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.medium
def test_a_run_on_gpus_is_evaluated_without(tmp_path):
    alone = tiny.make(train_steps=1)
    tiny.train(alone, tmp_path)
    gpus = distribution.Distribution(strategy="mirrored", devices=["/gpu:0", "/gpu:1"])
    there = dataclasses.replace(alone, distribution=gpus)
    assert verbs.evaluate(there, str(tmp_path)) == verbs.evaluate(alone, str(tmp_path))


def test_settings_of_a_session_are_added_to_those_that_are_there():
    config_proto = tf.compat.v1.ConfigProto
    own = compat.estimator.RunConfig(session_config=config_proto(device_count={"CPU": 3}))
    added = config_proto(inter_op_parallelism_threads=2)
    found = resources.configure_session(own, added).session_config
    assert found.device_count["CPU"] == 3 and found.inter_op_parallelism_threads == 2
    assert not own.session_config.inter_op_parallelism_threads
    plain = resources.configure_session(compat.estimator.RunConfig(), added).session_config
    assert plain.allow_soft_placement and plain.inter_op_parallelism_threads == 2
