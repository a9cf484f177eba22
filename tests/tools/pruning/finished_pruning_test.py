"""Finished runs that are pruned: what is cut, what the new run holds, and how it goes on."""

import dataclasses
import itertools
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from mtl import auxiliary, checks, verbs
from mtl.balancing import methods, surgery, weighting
from mtl.checkpoints import run_directory
from mtl.optimization import optimizers
from mtl.runs import fitting
from mtl.sparsity import criteria, densities, granularity, pruning, pruning_schedules, regrowth
from mtl.tools.pruning import finished_pruning, tickets
from mtl.transfer import checkpoint
from mtl.variables import average_saver, averaging, pruned
from tests import pairs, tiny

pytestmark = pytest.mark.medium

tf1 = tf.compat.v1

TRUNK = "network/trunk/hidden_0/kernel"
TOWERS = [f"network/tower_{task}/hidden_0/kernel" for task in tiny.LABELS[:2]]
KERNELS = [TRUNK, *TOWERS]
ONCE = pruning_schedules.OneShot()


@pytest.fixture(scope="module", autouse=True)
def exports():
    """Runs export nothing, as no test here reads it."""
    with tiny.without_exports():
        yield


def _base(**run):
    """A run of two tasks, with averages and slots that do not start at 0."""
    made = tiny.make(optimizer=optimizers.Adagrad(learning_rate=0.1), **run)
    average = averaging.ExponentialAverage(decay=0.9)
    updated = dataclasses.replace(made.model.update, average=average)
    model = dataclasses.replace(made.model, heads=made.model.heads[:2], update=updated)
    return dataclasses.replace(made, model=model)


def _with(made, *parts, **run):
    model = dataclasses.replace(made.model, pruning=parts)
    return dataclasses.replace(made, model=model, run=dataclasses.replace(made.run, **run))


def _part(**settings):
    return pruning.Pruning(**{"sparsity": 0.5, "schedule": ONCE, **settings})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 40 steps, which keeps all of its checkpoints."""
    folder = str(tmp_path_factory.mktemp("finished") / "run")
    tiny.train(_base(checkpoint_steps=10, keep_checkpoints=9), folder)
    return folder


def _files(folder):
    return {p: p.read_bytes() for p in pathlib.Path(folder).rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def halved(finished, tmp_path_factory):
    """The run, and one pruned by magnitude: (folder, metrics, share)."""
    folder, before = str(tmp_path_factory.mktemp("halved") / "run"), _files(finished)
    part = _part(density=densities.Uniform())
    metrics, share = verbs.prune(_with(_base(), part), finished, folder)
    assert _files(finished) == before  # The run stays as it is.
    return folder, metrics, share


def test_cuts_the_weights_that_are_served(finished, halved):
    folder, metrics, share = halved
    source, new = checkpoint.read_checkpoint(finished), tiny.variables(folder)
    assert share == 0.5 and metrics["global_step"] == 40
    for name in KERNELS:
        served, mask = source[f"{name}/average"], new[pruned.mask_name(name)]
        assert mask.mean() == 0.5
        assert np.abs(served[mask == 1]).min() > np.abs(served[mask == 0]).max()
        for own in (name, f"{name}/average"):
            np.testing.assert_array_equal(new[own], served * mask)
        slot = f"{name}/Adagrad"
        expected = np.where(mask == 1, source[slot], np.float32(0.1))
        np.testing.assert_array_equal(new[slot], expected)
    others = [n for n in source if not n.startswith(tuple(KERNELS)) and f"{n}/average" in source]
    assert {"head/sign/logits/kernel", "features/categorical_word/embedding"} <= set(others)
    for name in others:
        np.testing.assert_array_equal(new[name], source[f"{name}/average"])


@pytest.mark.parametrize("name", ["clipped examples", "images moved at random"])
def test_prunes_a_run_whose_step_counts_its_rows(name, tmp_path):
    made = pairs.make([pairs.BY_NAME[name]], train_steps=2)
    tiny.train(made, tmp_path / "run")
    part = _part(patterns=["trunk/hidden_0/kernel$"])
    _, share = verbs.prune(_with(made, part), str(tmp_path / "run"), str(tmp_path / "pruned"))
    assert share == pytest.approx(0.5, abs=0.02)


def test_goes_on_with_the_masks(halved, tmp_path):
    folder, *_ = halved
    before = tiny.variables(folder)
    again = shutil.copytree(folder, tmp_path / "again")
    made = _with(_base(train_steps=60), _part(density=densities.Uniform()))
    after = tiny.train(made, again)
    assert after["global_step"] == before["global_step"] + 20
    for name in KERNELS:
        own = pruned.mask_name(name)
        np.testing.assert_array_equal(after[own], before[own])
        assert (after[name][after[own] == 0] == 0).all()
        is_kept = after[own] == 1
        assert (after[name][is_kept] != before[name][is_kept]).mean() > 0.5


@pytest.fixture(scope="module")
def by_criterion(finished, tmp_path_factory):
    """A cut by a criterion for each kernel, and the run with it: (cut, folder)."""
    chosen = (criteria.Wanda(), criteria.Random(), criteria.Snip())
    parts = [
        _part(criterion=own, density=densities.Uniform(), patterns=[f"^{name}$"])
        for name, own in zip(KERNELS, chosen, strict=True)
    ]
    folder = str(tmp_path_factory.mktemp("by_criterion") / "run")
    return _cut(_with(_base(), *parts), finished, folder), folder


def _cut(experiment, finished, folder):
    """Write the pruned run without an evaluation or an export, and return the cut."""
    path = run_directory.checkpoint_path(finished, "latest")
    cut = finished_pruning.choose_cut(experiment, finished, path, rows=96)
    finished_pruning.write_run(experiment, finished, path, cut, folder)
    return cut


@pytest.fixture(scope="module")
def reconstructed(finished, tmp_path_factory):
    """The run pruned by SparseGpt: (experiment, folder, share)."""
    part = _part(criterion=criteria.SparseGpt(block=2), density=densities.Uniform())
    experiment = _with(_base(), part)
    folder = str(tmp_path_factory.mktemp("reconstructed") / "run")
    return experiment, folder, verbs.prune(experiment, finished, folder)[1]


def test_every_criterion_cuts_its_share_and_no_other_weight(finished, by_criterion):
    cut, folder = by_criterion
    assert sorted(cut.masks) == sorted(KERNELS) and cut.sparsity == 0.5 and not cut.weights
    source, new = tiny.variables(finished), tiny.variables(folder)
    for name in KERNELS:
        kept = cut.masks[name] == 1
        assert kept.mean() == 0.5, name
        np.testing.assert_array_equal(new[name], source[f"{name}/average"] * kept, err_msg=name)
        np.testing.assert_array_equal(new[f"{name}/average"], new[name], err_msg=name)


def test_sparse_gpt_cuts_its_share_and_moves_the_others(finished, reconstructed):
    _, folder, share = reconstructed
    source, new = tiny.variables(finished), tiny.variables(folder)
    assert share == 0.5
    for name in KERNELS:
        kept = new[pruned.mask_name(name)] == 1
        assert kept.mean() == 0.5 and (new[name][~kept] == 0).all()
        assert (new[f"{name}/average"] == new[name]).all()
        assert (new[name][kept] != source[f"{name}/average"][kept]).any()


def test_wanda_reads_the_inputs_of_the_checkpoint(finished, by_criterion):
    """The inputs of the trunk are the columns: numbers, and rows of the table."""
    cut, _ = by_criterion
    values = checkpoint.read_checkpoint(finished)
    rows = tiny.SPLITS["train"]
    x = (rows["x"] - rows["x"].mean(0)) / rows["x"].std(0)
    table = values["features/categorical_word/embedding/average"]
    vocabulary = pathlib.Path(finished, "statistics")
    tokens = next(p for p in vocabulary.rglob("*") if p.is_file() and b"blue\n" in p.read_bytes())
    order = tokens.read_bytes().split()
    words = table[[order.index(word) for word in rows["word"]]]
    squares = np.concatenate([np.square(x).mean(0), np.square(words).mean(0)])
    assert len(squares) == values[TRUNK].shape[0]
    kernel = values[f"{TRUNK}/average"]
    candidates = [squares, np.roll(squares, 2)]  # Whichever column comes first.
    scores = [np.abs(kernel) * np.sqrt(own)[:, np.newaxis] for own in candidates]
    least = [np.sort(own.ravel())[kernel.size // 2] for own in scores]
    expected = [own >= at for own, at in zip(scores, least, strict=True)]
    assert any((cut.masks[TRUNK] == own).all() for own in expected)


def test_units_that_taylor_cuts_go_with_bias_scale_and_offset(finished, tmp_path):
    units = granularity.Units()
    part = _part(criterion=criteria.Taylor(), granularity=units, patterns=[f"^{TRUNK}$"])
    cut = _cut(_with(_base(), part), finished, str(tmp_path / "run"))
    new = tiny.variables(tmp_path / "run")
    is_cut = new[pruned.mask_name(TRUNK)].ravel() == 0
    assert cut.sparsity == 0.5 and is_cut.sum() == 4
    layer = "network/trunk/hidden_0"
    names = [n for n in (f"{layer}/bias", f"{layer}_norm/gamma", f"{layer}_norm/beta") if n in new]
    assert len(names) >= 2
    for name in names:
        assert (new[name][is_cut] == 0).all() and (new[name][~is_cut] != 0).any()


def _balanced(made, weighting_part, surgery_part, auxiliary_losses=()):
    model = dataclasses.replace(
        made.model,
        weighting=weighting_part,
        surgery=surgery_part,
        auxiliary_losses=auxiliary_losses,
    )
    return dataclasses.replace(made, model=model)


FIXED = weighting.Fixed(weights={"sign": 0.05, "kind": 3.0})
PCGRAD = surgery.Combine(method=methods.PCGrad())
SURE = auxiliary.EntropyMinimization(heads=["sign"], weight=0.7)


@pytest.mark.parametrize(
    ("weighting_part", "surgery_part", "losses"),
    [
        (FIXED, surgery.Sum(), ()),
        (weighting.UncertaintyWeighting(), PCGRAD, ()),
        (weighting.UncertaintyWeighting(), surgery.Sum(), (SURE, auxiliary.PiModel())),
    ],
    ids=["fixed", "learned_pcgrad", "learned_auxiliary"],
)
def test_scores_are_of_the_loss_that_was_trained(
    weighting_part, surgery_part, losses, tmp_path, monkeypatch
):
    """By the weights of tasks that the checkpoint holds, combined as in training."""
    monkeypatch.setattr(finished_pruning, "_BATCH", 96)
    base = _balanced(_base(), weighting_part, surgery_part, losses)
    tiny.train(base, tmp_path / "run")
    made = _with(base, _part(criterion=criteria.Snip(), patterns=[TRUNK]))
    path = run_directory.checkpoint_path(str(tmp_path / "run"), "latest")
    cut = finished_pruning.choose_cut(made, str(tmp_path / "run"), path, rows=96)
    scores = _compute_scores(base, tmp_path / "run", path)
    least = np.sort(scores, axis=None)[scores.size // 2]
    np.testing.assert_array_equal(cut.masks[TRUNK], scores >= least)
    plain = _compute_scores(base, tmp_path / "run", path, is_plain=True)
    assert ((plain >= np.sort(plain, axis=None)[plain.size // 2]) != (scores >= least)).any()


def _compute_scores(made, folder, path, is_plain=False):
    """|w g| of the trunk over all rows, g of the losses weighted here."""
    model = made.model.fitted(fitting.load_statistics(str(folder)))
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.train.get_or_create_global_step()
        rows = {name: tf.constant(values) for name, values in tiny.SPLITS["train"].items()}
        labels = {name: rows[name] for name in tiny.LABELS[:2]}
        inputs = {name: rows[name] for name in ("x", "word")}
        activations = model.infer_activations(inputs, labels, fitting.load_statistics(str(folder)))
        losses = {h.name: h.loss(activations.logits[h.name], labels) for h in model.heads}
        for part in model.auxiliary_losses[:1]:
            losses[part.name] = part.weight * tf.reduce_mean(part(activations))
        variables = tf1.trainable_variables()
        saved = checkpoint.read_checkpoint(path)
        if is_plain:
            weights = dict.fromkeys(model.heads_by_task, 1.0)
        elif isinstance(model.weighting, weighting.Fixed):
            weights = model.weighting.weights
        else:
            states = {task: f"balancing/log_variance/{task}/average" for task in losses}
            weights = {task: np.exp(-saved[name]) for task, name in states.items()}
        weighted = {task: tf.constant(w, tf.float32) * losses[task] for task, w in weights.items()}
        part = surgery.Sum() if is_plain else model.surgery
        gradients, _ = part(weighted, variables)
        found = {v.op.name: g for v, g in zip(variables, gradients, strict=True)}
        session.run(tf1.tables_initializer())
        average_saver.Saver().restore(session, path)
        (weight,) = [v for v in variables if v.op.name == TRUNK]
        return np.abs(np.multiply(*session.run([weight, found[TRUNK]])))


def test_sparse_gpt_changes_predictions_less_than_magnitude(finished, tmp_path):
    whole = [row["sign/probability"] for row in verbs.predict(_base(), finished)]
    changes = []
    for criterion in (criteria.Magnitude(), criteria.SparseGpt()):
        part = _part(criterion=criterion, density=densities.Uniform(), patterns=[f"^{TRUNK}$"])
        experiment, folder = _with(_base(), part), str(tmp_path / type(criterion).__name__)
        _cut(experiment, finished, folder)
        new = [row["sign/probability"] for row in verbs.predict(experiment, folder)]
        changes.append(np.square(np.subtract(new, whole)).mean())
    assert changes[1] < changes[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"schedule": pruning_schedules.Cubic(end_step=9)}, "OneShot"),
        ({"criterion": criteria.Movement()}, "need no training steps"),
        (
            {
                "criterion": criteria.Random(),
                "gradient": "dense",
                "regrowth": regrowth.Regrowth(until_step=9),
            },
            "Pruning.regrowth must be None",
        ),
        ({"criterion": criteria.SparseGpt(), "density": densities.Global()}, "layer by layer"),
        ({"criterion": criteria.SparseGpt(), "granularity": granularity.Units()}, "Entries or"),
        ({"criterion": criteria.Wanda(), "patterns": ["embedding$"]}, "layers.dense and layers.co"),
    ],
)
def test_refuses_what_it_cannot_do(finished, tmp_path, settings, says):
    with pytest.raises(checks.UserError, match=says):
        verbs.prune(_with(_base(), _part(**settings)), finished, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_refuses_a_folder_with_a_run_and_a_run_without_a_part(finished, halved, tmp_path):
    with pytest.raises(checks.UserError, match="--output_dir must hold no run"):
        verbs.prune(_with(_base(), _part()), finished, halved[0])
    with pytest.raises(checks.UserError, match="MultiTaskModel.pruning must hold a part"):
        verbs.prune(_base(), finished, str(tmp_path / "run"))


def test_sparse_gpt_cannot_be_asked_for_in_training(reconstructed, tmp_path):
    experiment, folder, _ = reconstructed
    with pytest.raises(checks.UserError, match="launch.prune uses this criterion"):
        verbs.train(experiment, str(tmp_path / "new"))
    (part,), longer = experiment.model.pruning, _base(train_steps=60)
    more = _with(longer, dataclasses.replace(part, sparsity=0.75))
    with pytest.raises(checks.UserError, match=r"to cut 0.75 of the weights.*has cut 0.5"):
        verbs.train(more, folder)
    again = shutil.copytree(folder, tmp_path / "run")
    assert tiny.train(_with(longer, part), again)["global_step"] == 60


@pytest.fixture(scope="module")
def found(finished, tmp_path_factory):
    """Return the folder of the rounds, and {name: ticket}."""
    folder = str(tmp_path_factory.mktemp("tickets") / "root")
    return folder, _train_tickets(finished, folder, 4)


def _train_tickets(finished, folder, count, rounds=2, step=10, sparsity=0.4375):
    """Train the first `count` tickets of two rounds: round one, its controls, round two."""
    source = _base(checkpoint_steps=40)
    parts = [
        _part(sparsity=0.75, density=densities.Uniform(), patterns=[f"^{TRUNK}$"]),
        _part(sparsity=sparsity, density=densities.Uniform()),
    ]
    search = tickets.train_tickets(
        source, _with(source, *parts), finished, folder, rounds, step, tickets.CONTROLS
    )
    return {ticket.name: ticket for ticket in itertools.islice(search, count)}


def test_goes_back_to_the_runs_own_first_steps(finished, found):
    folder, _ = found
    first = tiny.variables(finished, step=10)
    assert {n: v.tobytes() for n, v in tiny.variables(f"{folder}/start", 10).items()} == {
        name: value.tobytes() for name, value in first.items()
    }
    for name in ("round_1", "round_2"):
        start, end = tiny.variables(f"{folder}/{name}", 10), tiny.variables(f"{folder}/{name}")
        for kernel in KERNELS:
            mask = start[pruned.mask_name(kernel)]
            np.testing.assert_array_equal(start[kernel], first[kernel] * mask)
            np.testing.assert_array_equal(end[pruned.mask_name(kernel)], mask)
            assert (end[kernel][mask == 0] == 0).all()
        np.testing.assert_array_equal(
            start["head/sign/logits/kernel"], first["head/sign/logits/kernel"]
        )


def test_each_round_cuts_the_same_share_of_the_smallest_that_are_left(finished, found):
    folder, by_name = found
    shares = {TRUNK: (0.5, 0.75), **dict.fromkeys(TOWERS, (0.25, 0.4375))}
    before, first = tiny.variables(finished), tiny.variables(f"{folder}/round_1")
    second = tiny.variables(f"{folder}/round_2")
    for kernel in KERNELS:
        own = pruned.mask_name(kernel)
        assert tuple(1 - found[own].mean() for found in (first, second)) == shares[kernel]
        served = np.abs(before[f"{kernel}/average"])
        assert served[first[own] == 1].min() > served[first[own] == 0].max()
        assert (second[own] <= first[own]).all()
        served = np.abs(first[f"{kernel}/average"])
        left = served[(first[own] == 1) & (second[own] == 0)]
        assert served[second[own] == 1].min() > left.max()


def test_controls_are_what_they_say(found):
    folder, by_name = found
    assert sorted(by_name) == sorted(
        ["round_1", "round_2", *(f"round_1_{control}" for control in tickets.CONTROLS)]
    )
    ticket = tiny.variables(f"{folder}/round_1", 10)
    shuffled = tiny.variables(f"{folder}/round_1_shuffled", 10)
    other = tiny.variables(f"{folder}/round_1_reinitialised", 0)
    for kernel in KERNELS:
        own = pruned.mask_name(kernel)
        assert shuffled[own].sum() == ticket[own].sum()
        assert (other[own] == ticket[own]).all()
        kept = ticket[own] == 1
        assert (other[kernel][kept] != ticket[kernel][kept]).all()
    assert any(
        (shuffled[pruned.mask_name(k)] != ticket[pruned.mask_name(k)]).any() for k in KERNELS
    )


def test_what_is_done_is_not_done_again(finished, found):
    folder, by_name = found

    def times():
        return {p: p.stat().st_mtime_ns for p in pathlib.Path(folder).rglob("model.ckpt-*")}

    before = times()
    again = _train_tickets(finished, folder, 2)
    assert times() == before
    assert list(again) == ["round_1", "round_1_shuffled"]
    for name, ticket in again.items():
        assert ticket.metrics == by_name[name].metrics


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 3}, "--rounds of a search that goes on in .* must stay 2, got 3"),
        ({"step": 5}, "--rewind_to of a search that goes on in .* must stay 10, got 5"),
        ({"sparsity": 0.5}, "the settings of Pruning of a search .* must stay .*0.4375"),
    ],
    ids=["rounds", "step", "sparsity"],
)
def test_a_search_goes_on_only_with_its_own_settings(finished, found, change, message):
    with pytest.raises(checks.UserError, match=message):
        _train_tickets(finished, found[0], 2, **change)


def test_refuses_what_no_ticket_can_be(finished, tmp_path):
    source = _base()
    part = _part(criterion=criteria.SparseGpt(), density=densities.Uniform())
    with pytest.raises(checks.UserError, match="keep the weights as they are"):
        list(tickets.train_tickets(source, _with(source, part), finished, str(tmp_path), 1, 0))
    with pytest.raises(checks.UserError, match="--rewind_to must be below the steps"):
        experiment = _with(source, _part())
        list(tickets.train_tickets(source, experiment, finished, str(tmp_path), 1, 40))
