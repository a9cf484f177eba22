"""Before the first step, a run that moves no variable is refused; early ends are reported."""

import dataclasses
import functools

import pytest

from mtl import checks
from mtl.monitoring import doubts
from mtl.optimization import optimizers, schedules, update
from mtl.runs import evaluation_graph, preparation
from mtl.variables import freezing
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
