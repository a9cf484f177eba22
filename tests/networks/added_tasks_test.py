"""Tasks that are added to a network: those of before stay as they were, to the bit."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, distribution, networks, transfer, verbs
from mtl import heads as heads_lib
from mtl.balancing import methods, surgery
from mtl.checkpoints import run_directory
from mtl.layers import quantization
from mtl.optimization import optimizers, update
from mtl.sparsity import densities, pruning, pruning_schedules
from mtl.tools.pruning import finished_pruning
from mtl.variables import averaging, pruned
from tests import tiny

tf1 = tf.compat.v1

SHARED = networks.SharedBottom(
    trunk=networks.MLP(layers=[8, 6], batch_norm=True, dropout=0.1), tower=networks.MLP(layers=[4])
)
KERNELS = [f"network/trunk/hidden_{n}/kernel" for n in (0, 1)]


def _part(**settings):
    return networks.Piggyback(**{"network": SHARED, "added": ["size"], **settings})


def _build(network, tasks, x):
    with tf1.variable_scope("network"):
        return network({"x": x}, tasks, training=False)


def _values(load):
    """Give every variable a value that depends on its name."""
    for variable in tf1.global_variables():
        seed = np.frombuffer(variable.op.name.encode(), np.uint8)
        value = np.random.default_rng(seed).uniform(0.2, 1.0, variable.shape)
        if "_mask_" in variable.op.name:
            value = load(value)
        variable.load(value)


def _run(network, tasks, load=lambda value: value):
    x = np.random.default_rng(0).normal(size=[5, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        towers = _build(network, tasks, tf.constant(x))
        session.run(tf1.global_variables_initializer())
        _values(load)
        return session.run(dict(towers))


def test_with_all_weights_kept_it_is_the_network_to_the_bit():
    plain = _run(SHARED, tiny.LABELS)
    found = _run(_part(added=["kind", "size"]), tiny.LABELS, load=lambda value: value)
    for task, tower in plain.items():
        np.testing.assert_array_equal(found[task], tower)


def test_a_mask_concerns_its_task_alone():
    plain = _run(SHARED, tiny.LABELS)
    found = _run(_part(), tiny.LABELS, load=lambda value: value - 0.6)
    for task in ("sign", "kind"):
        np.testing.assert_array_equal(found[task], plain[task])
    assert (found["size"] != plain["size"]).any()


def test_the_gradient_of_a_mask_goes_to_its_scores():
    """The scores receive the gradient of the masks."""
    network = networks.SharedBottom(trunk=networks.MLP(layers=[4]))
    part = networks.Piggyback(network=network, added=["size"], kernels=["hidden_0/kernel$"])
    x = np.random.default_rng(0).normal(size=[5, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        tower = _build(part, ["sign", "size"], tf.constant(x))["size"]
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        scores = variables["network/trunk/hidden_0/kernel_mask_size"]
        gradients = tf.gradients(
            tf.reduce_sum(tf.square(tower)), [scores, variables["network/trunk/hidden_0/kernel"]]
        )
        session.run(tf1.global_variables_initializer())
        _values(lambda value: value - 0.6)
        kernel, bias, drawn = session.run(
            [variables[f"network/trunk/hidden_0/{own}"] for own in ("kernel", "bias")] + [scores]
        )
        found = session.run(gradients[0])
        assert gradients[1] is None  # The weights stay.
    mask = (drawn > 0.005).astype(np.float32)
    assert 0 < mask.mean() < 1
    hidden = np.maximum(x @ (kernel * mask) + bias, 0)
    by_weights = x.T @ (2 * hidden * (hidden > 0))
    np.testing.assert_allclose(found, kernel * by_weights, rtol=1e-4)


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """Train two tasks, then a run that adds the third; return the folder and both experiments."""
    root = tmp_path_factory.mktemp("piggyback")
    first = tiny.make(network=SHARED)
    heads = first.model.heads
    first = dataclasses.replace(first, model=dataclasses.replace(first.model, heads=heads[:2]))
    tiny.train(first, root / "first")
    made = tiny.make(network=_part(), check_rows=16, checkpoint_steps=20)
    adam = optimizers.AdamW(learning_rate=0.01, weight_decay=0.1)
    updated = update.Update(optimizer=adam, average=averaging.ExponentialAverage(decay=0.5))
    model = dataclasses.replace(
        made.model, update=updated, surgery=surgery.Combine(method=methods.PCGrad())
    )
    warm = transfer.WarmStart(source=str(root / "first"))
    second = dataclasses.replace(made, model=model, warm_start=warm)
    verbs.train(second, str(root / "second"))
    return root, first, second


@pytest.mark.medium
def test_tasks_of_before_stay_as_they_were_to_the_bit(stages):
    root, first, second = stages
    before = list(verbs.predict(first, str(root / "first")))
    after = list(verbs.predict(second, str(root / "second")))
    assert len(before) == len(after) == 48
    for one, other in zip(before, after, strict=True):
        assert {name: other[name] for name in one}.keys() == one.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.medium
def test_only_scores_tower_and_head_of_the_added_task_move(stages):
    root, *_ = stages
    start, end = (tiny.variables(root / "second", step) for step in (20, None))
    begin = tiny.variables(root / "first")
    moved = {
        name
        for name, value in end.items()
        if name in start and (value != start[name]).any() and "/Adam" not in name
    }
    moved = {name for name in moved if not name.endswith(("/average", "power", "_step"))}
    own = {f"{kernel}_mask_size" for kernel in KERNELS}
    assert own <= moved
    assert all(name in own or "_size/" in name or "/size/" in name for name in moved), moved
    for kernel in KERNELS:
        np.testing.assert_array_equal(end[kernel], begin[kernel])
        kept = end[f"{kernel}_mask_size"] > 0.005
        assert kept.any() and not kept.all()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"added": []}, r"Piggyback.added must name a task, got \[\]"),
        ({"added": ["size", "size"]}, "Piggyback.added"),
        ({"network": networks.MLP}, "Piggyback.network must be a network|Piggyback.network must"),
        ({"start": 0.001}, "Piggyback.start must be above threshold, 0.005"),
        ({"kernels": "kernel"}, "Piggyback.kernels must be a list of texts"),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(checks.UserError, match=says):
        _part(**settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"added": ["sizes"]}, "Piggyback.added must be one of .* Did you mean 'size'"),
        ({"added": list(tiny.LABELS)}, "leave out at least one task, an old task without masks"),
        ({"kernels": ["^network/none"]}, "Piggyback.kernels must match a kernel of the network"),
        (
            {"network": networks.CrossStitch(stages=[networks.MLP(layers=[4])])},
            "Piggyback.network must have the same shapes for one task and for several",
        ),
    ],
)
def test_settings_that_do_not_fit_the_tasks(settings, says):
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=says):
        _build(_part(**settings), tiny.LABELS, tf.zeros([2, 3]))


def test_free_weights_change_no_packed_task_that_is_quantised():
    """The scale of quantised weights depends only on the weights that a task keeps."""
    four = quantization.Quantization(weights={"^network/trunk/": quantization.Uniform(bits=4)})
    packed = networks.PackNet(network=SHARED, order=["sign", "size"])
    x = np.random.default_rng(0).normal(size=[5, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        with four.quantize_network(training=False):
            towers = _build(packed, ["sign", "size"], tf.constant(x))
        session.run(tf1.global_variables_initializer())
        _values(lambda value: value)
        by_name = {variable.op.name: variable for variable in tf1.global_variables()}
        owned = {kernel: np.random.default_rng(1).integers(0, 2, [3, 8]) for kernel in KERNELS[:1]}
        for kernel, own in owned.items():
            by_name[pruned.owner_name(kernel, "sign")].load(own, session)
        before = session.run(dict(towers))
        for kernel, own in owned.items():
            moved = np.where(own, session.run(by_name[kernel]), 5)
            by_name[kernel].load(moved, session)
        after = session.run(dict(towers))
    np.testing.assert_array_equal(after["sign"], before["sign"])
    assert (after["size"] != before["size"]).any()


def _prune(sparsity):
    schedule = pruning_schedules.OneShot(step=20)
    return [pruning.Pruning(sparsity=sparsity, schedule=schedule, density=densities.Uniform())]


def _pack(tasks, sparsity, source=None):
    """A run that adds the last task."""
    made = tiny.make(network=networks.PackNet(network=SHARED, order=tasks), check_rows=16)
    adam = optimizers.AdamW(learning_rate=0.02, weight_decay=0.1)
    model = dataclasses.replace(
        made.model,
        heads=[head for head in made.model.heads if head.name in tasks],
        update=update.Update(optimizer=adam, average=averaging.ExponentialAverage(decay=0.5)),
        pruning=[
            dataclasses.replace(part, patterns=["^network/trunk/"]) for part in _prune(sparsity)
        ],
    )
    warm = transfer.WarmStart(source=str(source)) if source else None
    return dataclasses.replace(made, model=model, warm_start=warm)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The folders of three runs, each of which adds a task, and the runs."""
    root = tmp_path_factory.mktemp("packnet")
    runs = []
    for number, sparsity in enumerate((0.6, 0.3, 0.1), 1):
        made = _pack(tiny.LABELS[:number], sparsity, root / str(number - 1) if runs else None)
        verbs.train(made, str(root / str(number)))
        runs.append(made)
    return root, runs


@pytest.mark.medium
def test_packed_tasks_stay_as_they_were_to_the_bit(packed):
    root, runs = packed
    for number in (1, 2):
        before = list(verbs.predict(runs[number - 1], str(root / str(number))))
        after = list(verbs.predict(runs[number], str(root / str(number + 1))))
        for one, other in zip(before, after, strict=True):
            for name, value in one.items():
                np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.medium
def test_each_task_gets_weights_that_were_free(packed):
    root, _ = packed
    values = [tiny.variables(root / str(number)) for number in (1, 2, 3)]
    for kernel in KERNELS:
        owned = [values[2][pruned.owner_name(kernel, task)] for task in tiny.LABELS]
        assert (sum(owned) <= 1).all()  # No weight belongs to two tasks.
        shares = np.cumsum([own.mean() for own in owned])
        np.testing.assert_allclose(shares, [0.4, 0.7, 0.9], atol=0.03)
        for number in (0, 1):
            kept = owned[number] == 1
            assert kept.any()
            for later in values[number + 1 :]:
                # A run starts from the averages of the one before, with which that is served.
                served = values[number][f"{kernel}/average"]
                np.testing.assert_array_equal(later[kernel][kept], served[kept])
        free = sum(owned) == 0
        assert free.any() and (values[2][kernel][free] == 0).all()
        # The weights of the second task were 0 in the run before, and have moved.
        second = owned[1] == 1
        assert (values[0][kernel][second] == 0).all() and (values[1][kernel][second] != 0).all()


def _pack_shortly(tasks, parts, **settings):
    """A run of 3 steps, cut as these parts say."""
    made = _pack(tasks, 0.5)
    model = dataclasses.replace(made.model, pruning=parts)
    run = dataclasses.replace(made.run, train_steps=3)
    return dataclasses.replace(made, model=model, run=run, **settings)


def _cut_at(step):
    schedule = pruning_schedules.OneShot(step=step)
    settings = {"patterns": ["^network/trunk/"], "density": densities.Uniform()}
    return [pruning.Pruning(sparsity=0.5, schedule=schedule, **settings)]


@pytest.mark.medium
def test_weights_that_the_last_step_cuts_are_free(tmp_path):
    values = tiny.train(_pack_shortly(["sign"], _cut_at(2)), tmp_path / "first")
    for kernel in KERNELS:
        owned = values[pruned.owner_name(kernel, "sign")]
        assert owned.mean() == 0.5
        np.testing.assert_array_equal(owned, values[kernel] != 0)
    warm = transfer.WarmStart(source=str(tmp_path / "first"))
    second = _pack_shortly(["sign", "kind"], [], warm_start=warm)
    after = tiny.train(second, tmp_path / "second")
    for kernel in KERNELS:
        is_free = values[kernel] == 0
        assert (after[kernel][is_free] != 0).any()
        np.testing.assert_array_equal(
            after[kernel][~is_free], values[f"{kernel}/average"][~is_free]
        )


@pytest.mark.medium
def test_a_finished_run_that_is_pruned_has_free_weights(tmp_path):
    source, target = str(tmp_path / "run"), str(tmp_path / "pruned")
    tiny.train(_pack_shortly(["sign"], []), source)
    made = _pack_shortly(["sign"], _cut_at(0))
    path = run_directory.checkpoint_path(source, "latest")
    cut = finished_pruning.choose_cut(made, source, path, rows=8)
    finished_pruning.write_run(made, source, path, cut, target)
    values = tiny.variables(target)
    for kernel in KERNELS:
        owned = values[pruned.owner_name(kernel, "sign")]
        np.testing.assert_array_equal(owned, cut.masks[kernel])
        assert owned.mean() == 0.5


@pytest.mark.medium
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_task_that_finds_no_free_weight_is_refused(is_packed, tmp_path):
    """The earlier run is a PackNet without pruning, or a pruned network without PackNet."""
    first = _pack_shortly(["sign"], [])
    if not is_packed:
        plain = dataclasses.replace(first.model, network=SHARED, pruning=_cut_at(1))
        first = dataclasses.replace(first, model=plain)
    tiny.train(first, tmp_path / "first")
    warm = transfer.WarmStart(source=str(tmp_path / "first"))
    says = (
        "WarmStart.source must leave weights free for 'kind', which PackNet adds, got 0. Prune the "
        r"earlier run: all weights of 2 kernels belong to \['sign'\]."
    )
    with pytest.raises(checks.UserError, match=says):
        tiny.train(_pack_shortly(["sign", "kind"], [], warm_start=warm), tmp_path / "second")


@pytest.mark.medium
def test_tasks_of_before_need_the_statistics_of_before(stages, tmp_path):
    """With other rows, the means and words of the inputs differ, which no frozen weight undoes."""
    root, first, second = stages
    train = {**tiny.SPLITS["train"], "x": tiny.SPLITS["train"]["x"] + 5}
    source = tiny.Rows(splits={**tiny.SPLITS, "train": train})
    second = dataclasses.replace(second, data=dataclasses.replace(second.data, source=source))
    message = (
        "WarmStart.statistics must be True, because old tasks need the statistics of numeric_x"
    )
    with pytest.raises(checks.UserError, match=message):
        verbs.train(second, str(tmp_path / "run"))
    # Earlier versions wrote no checksums.
    plain = dataclasses.replace(second, data=first.data)
    copied = shutil.copytree(root / "first", tmp_path / "first")
    entries = json.loads((copied / "statistics" / "statistics.json").read_text())
    for entry in [entries, *entries.values()]:
        entry.pop("checksum", None) if isinstance(entry, dict) else None
    (copied / "statistics" / "statistics.json").write_text(json.dumps(entries))
    warm = dataclasses.replace(second.warm_start, source=str(copied))
    verbs.train(dataclasses.replace(plain, warm_start=warm), str(tmp_path / "old"))
    warm = dataclasses.replace(second.warm_start, statistics=True)
    second = dataclasses.replace(second, warm_start=warm)
    verbs.train(second, str(tmp_path / "again"))
    before = list(verbs.predict(first, str(root / "first")))
    after = list(verbs.predict(second, str(tmp_path / "again")))
    for one, other in zip(before, after, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


@pytest.mark.medium
def test_tasks_of_before_need_the_moments_of_their_labels_of_before(tmp_path):
    """With other labels, the moments differ by which a head scales its predictions."""

    def make(network, tasks, **settings):
        quantile = heads_lib.Quantile(name="size", levels=[0.5])
        made = tiny.make(network=network, train_steps=1, **settings)
        new_heads = [quantile, *made.model.heads[:2]][:tasks]
        return dataclasses.replace(made, model=dataclasses.replace(made.model, heads=new_heads))

    first, train = make(SHARED, 2), tiny.SPLITS["train"]
    tiny.train(first, tmp_path / "first")
    splits = {**tiny.SPLITS, "train": {**train, "size": train["size"] * 2 + 5}}
    warm = transfer.WarmStart(source=str(tmp_path / "first"))
    second = make(_part(added=["kind"]), 3, splits=splits)
    message = "WarmStart.statistics must be True, .* need the statistics of moments/size there"
    with pytest.raises(checks.UserError, match=message):
        tiny.train(dataclasses.replace(second, warm_start=warm), tmp_path / "second")
    warm = dataclasses.replace(warm, statistics=True)
    tiny.train(dataclasses.replace(second, warm_start=warm), tmp_path / "second")
    before = list(verbs.predict(first, str(tmp_path / "first")))
    after = list(verbs.predict(second, str(tmp_path / "second")))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(other["size/quantiles"], one["size/quantiles"])


@pytest.mark.medium
def test_a_run_that_adds_a_task_needs_one_to_add_it_to(tmp_path):
    for made in (_pack(tiny.LABELS, 0.3), tiny.make(network=_part())):
        with pytest.raises(checks.UserError, match="Experiment.warm_start must be set, because"):
            verbs.train(made, str(tmp_path / "run"))
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["piggyback", "packnet"])
def test_two_replicas_add_a_task_as_one_process_does(kind, tmp_path):
    plain = networks.SharedBottom(trunk=networks.MLP(layers=[8]), tower=networks.MLP(layers=[4]))
    is_packed, pair = kind == "packnet", ["sign", "size"]
    piggyback = networks.Piggyback(network=plain, added=["size"])
    start = networks.PackNet(network=plain, order=["sign"]) if is_packed else plain
    added = networks.PackNet(network=plain, order=pair) if is_packed else piggyback

    def train(name, network, tasks, strategy, source=None, sparsity=0.3):
        made = tiny.make(network=network)
        parts = _prune(sparsity) if is_packed else []
        model = dataclasses.replace(
            made.model,
            heads=[head for head in made.model.heads if head.name in tasks],
            pruning=[dataclasses.replace(part, patterns=["^network/trunk/"]) for part in parts],
        )
        devices = ["/cpu:0", "/cpu:1"] if strategy == "mirrored" else []
        made = dataclasses.replace(
            made,
            model=model,
            distribution=distribution.Distribution(strategy=strategy, devices=devices),
            warm_start=transfer.WarmStart(source=str(tmp_path / source)) if source else None,
        )
        return tiny.train(made, tmp_path / name)

    train("first", start, ["sign"], "none", sparsity=0.6)
    one = train("one", added, pair, "none", source="first")
    two = train("two", added, pair, "mirrored", source="first")
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=2e-3, atol=2e-5, err_msg=name)
    kernel = "network/trunk/hidden_0/kernel"
    name = pruned.owner_name(kernel, "size") if is_packed else f"{kernel}_mask_size"
    assert np.unique(one[name]).size > 1


def test_the_order_names_each_task():
    part = networks.PackNet(network=SHARED, order=["sign", "size"])
    says = r"PackNet.order must name each task once, \['sign', 'kind', 'size'\]"
    with tf.Graph().as_default(), pytest.raises(checks.UserError, match=says):
        _build(part, tiny.LABELS, tf.zeros([2, 3]))
