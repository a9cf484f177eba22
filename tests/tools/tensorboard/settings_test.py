"""Wrong settings are one line each, before anything is trained."""

import dataclasses
import sys
import types

import pytest

from mtl import checks, features, heads
from mtl.runs import training
from mtl.tools import attached, tensorboard
from tests import tiny
from tests.tools.tensorboard import shown_run


def _start(made, folder):
    observers = attached.list_observers(made)
    training.Training(made, str(folder), lambda: None, observers=observers)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"weights": 0}, "TensorBoard.weights must be at least 1, got 0."),
        ({"graph": 1}, "TensorBoard.graph must be True or False, got 1."),
        ({"updates": [5, 5]}, "TensorBoard.updates must name no step twice, got [5, 5]."),
        ({"variables": "x"}, "TensorBoard.variables must be a list of patterns, got 'x'."),
        ({"num_images": 500}, "TensorBoard.num_images must be at most 100, got 500."),
    ],
)
def test_a_wrong_value_is_one_line(settings, says):
    with pytest.raises(checks.UserError) as refused:
        tensorboard.TensorBoard(**settings)
    assert str(refused.value) == says


def test_items_for_what_a_model_lacks_are_refused():
    made = tiny.make()
    numbers = dataclasses.replace(made.model, heads=[heads.Regression(name="size")])
    for item, model, says in (
        ("predictions", made.model, "The model has no column @features.Image()."),
        ("confusion", numbers, "No task has classes."),
        ("pr_curves", numbers, "No task has classes."),
        ("reliability", numbers, "No task has classes."),
    ):
        shown = tensorboard.TensorBoard(**{item: True})
        with pytest.raises(checks.UserError) as refused:
            dataclasses.replace(made, model=model, tensorboard=shown)
        assert str(refused.value) == f"TensorBoard.{item} must be False, got True. {says}"


@pytest.mark.parametrize(
    "item, value, says",
    [
        ("weights", [10, 100], "must be due up to the last step, 60, got [10, 100]."),
        ("gradients", 61, "must be due up to the last step, 60, got 61."),
        (
            "confusion",
            [10],
            "must name steps that are evaluated: multiples of 30, and 60, got [10]",
        ),
        ("pr_curves", 45, "must name steps that are evaluated: multiples of 30, and 60, got 45."),
        ("predictions", [90], "multiples of 30, and 60, got [90]."),
    ],
)
def test_steps_beyond_the_run_are_refused(tmp_path, item, value, says):
    with pytest.raises(checks.UserError) as refused:
        _start(shown_run.make(**{item: value}), tmp_path)
    assert f"TensorBoard.{item} must " in str(refused.value) and says in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_an_item_that_no_summary_meets_is_refused(tmp_path):
    made = tiny.make(train_steps=5)
    made = dataclasses.replace(made, tensorboard=tensorboard.TensorBoard(weights=True))
    with pytest.raises(checks.UserError, match="last step, 5, got True. Run.summary_steps is 10."):
        _start(made, tmp_path)


def test_chosen_steps_need_evaluations_by_steps(tmp_path):
    made = shown_run.make(confusion=[30])
    run = dataclasses.replace(made.run, checkpoint_steps=None, checkpoint_secs=60.0)
    with pytest.raises(checks.UserError, match="TensorBoard.confusion must be True or False if"):
        _start(dataclasses.replace(made, run=run), tmp_path)


def test_gradients_of_many_tasks_and_parameter_servers_are_refused():
    run, shown = tiny.make().run, tensorboard.TensorBoard(task_gradients=True)
    with pytest.raises(checks.UserError, match="with more than 32 losses, .* There are 33."):
        shown.check_run(run, True, 33, 1, False)
    with pytest.raises(checks.UserError, match="task_gradients must be False with parameter serv"):
        shown.check_run(run, True, 2, 1, True)
    tensorboard.TensorBoard().check_run(run, True, 33, 8, True)


def test_pictures_need_their_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    columns, tasks = [features.Image(names=["image"])], [heads.Regression(name="size")]
    made = types.SimpleNamespace(model=types.SimpleNamespace(columns=columns, heads=tasks))
    with pytest.raises(checks.UserError) as refused:
        tensorboard.TensorBoard(predictions=True).check_experiment(made)
    line = "TensorBoard.predictions must be False without the package pillow, from 10.1 on, got"
    assert str(refused.value) == f"{line} True. pip install 'pillow>=10.1' installs it."
