"""Before the first step, a run that moves no variable is refused; early ends are reported."""

import dataclasses
import functools
import shutil

import pytest

from mtl import auxiliary, checks, networks, transfer, verbs
from mtl.balancing import weighting
from mtl.checkpoints import run_directory
from mtl.monitoring import doubts
from mtl.optimization import optimizers, schedules, update
from mtl.runs import evaluation_graph, preparation
from mtl.tools.explaining import opened
from mtl.tools.explaining import rows as rows_lib
from mtl.transfer import refit
from mtl.variables import freezing, row_names
from tests import tiny

ENDED = schedules.Polynomial(value=0.1, decay_steps=1)


def _prepare_run(made, model_dir):
    build = functools.partial(evaluation_graph.EvaluationGraph, made, model_dir)
    preparation.prepare_run(made, model_dir, build)


def _prepare(tmp_path, until=None, **settings):
    made = tiny.make(train_steps=20)
    model = dataclasses.replace(
        made.model,
        update=update.Update(**settings),
        freezing=freezing.Freezing(until=until or {}),
    )
    _prepare_run(dataclasses.replace(made, model=model), str(tmp_path))
    return [line for line in doubts.read_all_doubts(str(tmp_path)) if "never varies" not in line]


@pytest.mark.medium
def test_a_run_in_which_nothing_ever_moves_is_refused(tmp_path):
    message = "Run.train_steps must go past step 20, up to which Freezing.until freezes all"
    with pytest.raises(checks.UserError, match=message):
        _prepare(tmp_path, until={"": 20})


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings, where",
    [
        ({"rates": {"": ENDED}}, "Update.rates['']"),
        ({"optimizer": optimizers.LazyAdam(learning_rate=ENDED)}, "Update.optimizer"),
    ],
)
def test_a_rate_that_ends_early_is_told(tmp_path, settings, where):
    (line,) = _prepare(tmp_path, **settings)
    assert line.startswith(f"The learning rate of {where}"), line
    assert "is 0 from step 1 to step 20, the last (Run.train_steps)" in line


@pytest.mark.medium
def test_what_is_held_to_the_end_is_told(tmp_path):
    (line,) = _prepare(tmp_path, until={"^head/sign/": 20})
    assert line.startswith("Freezing.until freezes 'head/sign/")
    assert line.endswith(
        "up to step 20, and the run ends at step 20 (Run.train_steps): it never changes."
    )


@pytest.mark.medium
def test_an_update_of_ones_own_is_not_judged(tmp_path):
    made = tiny.make(train_steps=20)
    standard = update.Update()

    def own(gradients, variables, losses=None):
        return standard(gradients, variables, losses)

    model = dataclasses.replace(made.model, update=own)
    _prepare_run(dataclasses.replace(made, model=model), str(tmp_path))
    assert not [
        line for line in doubts.read_all_doubts(str(tmp_path)) if "never varies" not in line
    ]


def _set_model(made, **settings):
    return dataclasses.replace(made, model=dataclasses.replace(made.model, **settings))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with tasks, classes and a vocabulary of the settings, and its folder."""
    folder = str(tmp_path_factory.mktemp("trained"))
    network = networks.CrossStitch(stages=[networks.MLP(layers=[4])])
    made = _set_model(tiny.make(train_steps=1), network=network)
    made = _name_classes(made, ["low", "middle", "high"])
    verbs.train(made, folder)
    return made, folder


def _name_classes(made, classes):
    sign, kind, *others = made.model.heads
    return _set_model(made, heads=[sign, dataclasses.replace(kind, classes=classes), *others])


@pytest.mark.medium
def test_tasks_keep_their_order(trained, tmp_path):
    """States of balancing methods, and weights of some networks, have a place for each task."""
    made, folder = trained
    turned = _set_model(made, heads=made.model.heads[::-1])
    message = "MultiTaskModel.heads must keep the order sign, kind, size, got 'size, kind, sign'"
    with pytest.raises(checks.UserError, match=message):
        _prepare_run(turned, folder)
    warm = transfer.WarmStart(source=folder)
    _prepare_run(dataclasses.replace(made, warm_start=warm), str(tmp_path / "same"))
    with pytest.raises(checks.UserError, match=f"{message}. CrossStitch has variables by the pla"):
        _prepare_run(dataclasses.replace(turned, warm_start=warm), str(tmp_path / "turned"))
    partial = transfer.WarmStart(source=folder, exclude=["^network/stitch_"])
    _prepare_run(dataclasses.replace(turned, warm_start=partial), str(tmp_path / "partial"))


@pytest.mark.medium
def test_tasks_may_move_if_nothing_has_a_place_for_each(tmp_path):
    made, run = tiny.make(train_steps=1), str(tmp_path / "run")
    tiny.train(made, run)
    turned = _set_model(made, heads=made.model.heads[::-1])
    _prepare_run(turned, run)
    assert row_names.load(run)[row_names.TASKS].names == ("size", "kind", "sign")
    balanced = _set_model(made, weighting=weighting.FAMO())
    tiny.train(balanced, str(tmp_path / "balanced"))
    turned = _set_model(balanced, heads=made.model.heads[::-1])
    message = (
        "keep the order sign, kind, size, got .*. balancing/famo/.* may have a value for each l"
    )
    with pytest.raises(checks.UserError, match=message):
        _prepare_run(turned, str(tmp_path / "balanced"))


@pytest.mark.medium
def test_auxiliary_losses_keep_their_order_if_balancing_has_places(tmp_path):
    ours = [
        auxiliary.SupervisedContrastive(head="kind", layers=[], name=name) for name in ("a", "b")
    ]
    made, run = _set_model(tiny.make(train_steps=1), auxiliary_losses=ours), str(tmp_path / "run")
    balanced = _set_model(made, weighting=weighting.FAMO())
    tiny.train(balanced, run)
    turned = _set_model(balanced, auxiliary_losses=ours[::-1])
    message = (
        "MultiTaskModel.auxiliary_losses must keep the order a, b, got 'b, a'. balancing/famo/"
    )
    with pytest.raises(checks.UserError, match=message):
        _prepare_run(turned, run)
    _prepare_run(balanced, run)
    tiny.train(made, str(tmp_path / "equal"))
    _prepare_run(_set_model(made, auxiliary_losses=ours[::-1]), str(tmp_path / "equal"))


@pytest.mark.medium
def test_a_run_of_an_earlier_version_gets_a_record_of_its_tasks(trained, tmp_path):
    """Its record has the classes of heads, whose order is the order of the tasks."""
    made, folder = trained
    turned = _set_model(made, heads=made.model.heads[::-1])
    run = shutil.copytree(folder, str(tmp_path / "run"))
    named = row_names.load(run)
    del named[row_names.TASKS]
    row_names.save(named, run)
    _prepare_run(made, run)
    assert row_names.load(run)[row_names.TASKS].names == ("sign", "kind", "size")
    two = {f"head/{task}/": named["head/kind/"] for task in ("sign", "kind")}
    row_names.save(two, run)
    for command in (_prepare_run, verbs.evaluate):
        with pytest.raises(checks.UserError, match="keep the order sign, kind, got 'size, kind, s"):
            command(turned, run)
    (tmp_path / "run" / row_names.FILE).unlink()
    _prepare_run(made, run)
    assert row_names.load(run).keys() == {*named, row_names.TASKS}


@pytest.mark.medium
def test_a_refit_needs_the_order_of_its_source(trained, tmp_path):
    made, folder = trained
    nearest = refit.NearestMean(task="kind", source=folder)
    made = dataclasses.replace(made, refit=nearest)
    turned = _set_model(made, heads=made.model.heads[::-1])
    for wrong, order in (
        (turned, "sign, kind, size"),
        (_name_classes(made, ["middle", "low", "high"]), "low, middle, high"),
    ):
        with pytest.raises(checks.UserError, match=f"must keep the order {order}, got"):
            _prepare_run(wrong, str(tmp_path))
        assert run_directory.find_latest(str(tmp_path)) is None


@pytest.mark.medium
def test_classes_keep_their_order_and_may_get_other_names(trained):
    made, folder = trained
    message = "the classes or values of 'head/kind' must keep the order low, middle, high, got"
    with pytest.raises(checks.UserError, match=message):
        _prepare_run(_name_classes(made, ["middle", "low", "high"]), folder)
    _prepare_run(_name_classes(made, ["low", "medium", "high"]), folder)
    assert row_names.load(folder)["head/kind/"].names == ("low", "medium", "high")
    with pytest.raises(checks.UserError, match="keep the order low, medium, high"):
        _prepare_run(_name_classes(made, ["medium", "low", "high"]), folder)


def _explain(made, folder):
    (rows, *_) = rows_lib.read_batches(made, "test", 4)
    with opened.open_model(made, folder, run_directory.find_latest(folder), rows):
        raise AssertionError


@pytest.mark.medium
@pytest.mark.parametrize(
    "command",
    [
        verbs.evaluate,
        lambda *of_run: list(verbs.predict(*of_run)),
        lambda made, folder: verbs.export(made, folder, f"{folder}/models"),
        _explain,
    ],
)
def test_every_command_needs_the_order_of_the_checkpoint(trained, command):
    """In another order, weights of one task, class or value would predict another."""
    made, folder = trained
    turned = _set_model(made, heads=made.model.heads[::-1])
    message = "MultiTaskModel.heads must keep the order sign, kind, size, got 'size, kind, sign'"
    with pytest.raises(checks.UserError, match=f"{message}. CrossStitch has variables by the pla"):
        command(turned, folder)
    classes = _name_classes(made, ["middle", "low", "high"])
    with pytest.raises(checks.UserError, match="keep the order low, m.*Only a warm start matches"):
        command(classes, folder)
