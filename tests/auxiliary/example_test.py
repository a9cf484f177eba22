"""The custom loss of the docs, and auxiliary losses combined with clipping and attacks."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from examples import auxiliary_losses
from mtl import auxiliary, checks, verbs
from mtl.auxiliary import perturbations
from mtl.balancing import example_clipping
from mtl.configs import config
from mtl.variables import averaging
from tests import images, tiny
from tests.auxiliary import probe

tf1 = tf.compat.v1

GIN_FILES = pathlib.Path(__file__).parents[2] / "gin_configs"


def test_a_loss_of_ones_own_makes_predictions_rise():
    source = pathlib.Path(auxiliary_losses.__file__).read_text()
    assert len(source.split('"""', 2)[2].strip().splitlines()) <= 30
    part = auxiliary_losses.Rising(task="size", column="numeric_x")
    made = images.make_model(auxiliary_losses=[part])
    first, last = (images.take_steps(made, steps=steps)[1]["rising/loss"] for steps in (1, 40))
    assert 0 <= last < 0.5 * first


@pytest.mark.parametrize(
    "part, message",
    [
        (auxiliary_losses.Rising(task="sizes", column="numeric_x"), "Did you mean 'size'?"),
        (auxiliary_losses.Rising(task="size", column="numeric_y"), "Did you mean 'numeric_x'?"),
    ],
)
def test_its_mistakes_are_one_line(part, message):
    with pytest.raises(checks.UserError) as error, tf.Graph().as_default():
        tf1.train.create_global_step()
        images.build_step(images.make_model(auxiliary_losses=[part]))
    assert message in str(error.value)


@pytest.mark.medium
@pytest.mark.parametrize("norm", perturbations.NORMS)
def test_the_loop_of_an_attack_takes_the_steps_that_training_takes(norm):
    part = auxiliary.Adversarial(epsilon=0.3, norm=norm, steps=4, random_start=True)
    with probe.open_step() as (activations, session):
        with tf1.variable_scope("auxiliary/it"):
            unrolled = list(part._ascend(activations))[-1]
            looped = part.attack(activations)
        found = session.run([looped.inputs, unrolled.inputs, activations.inputs])
    for column, values in found[0].items():
        np.testing.assert_allclose(values, found[1][column], rtol=1e-4, atol=1e-5)
    assert np.abs(found[0]["numeric_x"] - found[2]["numeric_x"]).max() > 0.05


@pytest.mark.medium
def test_an_evaluation_under_attack_is_worse_and_a_line_of_metrics(tmp_path):
    attack = auxiliary.Adversarial(epsilon=1.0, steps=5, columns=["numeric_x"])
    made = dataclasses.replace(tiny.make(train_steps=30, checkpoint_steps=30), attack=attack)
    metrics, _ = verbs.train(made, str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    attacked = verbs.evaluate(made, str(tmp_path), is_attacked=True)
    assert attacked["sign/average_loss"] > 1.03 * metrics["sign/average_loss"]
    assert attacked["size/rmse"] > metrics["size/rmse"]
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    told = tmp_path / "metrics.jsonl"  # The line says that it was attacked.
    assert after.pop(told).startswith(before.pop(told)) and after == before
    assert verbs.evaluate(made, str(tmp_path)) == metrics
    with pytest.raises(checks.UserError, match=r"Experiment.attack must be set, got None"):
        verbs.evaluate(tiny.make(), str(tmp_path), is_attacked=True)


@pytest.mark.medium
@pytest.mark.parametrize(
    "part",
    [auxiliary.Adversarial(epsilon=0.3), auxiliary.VirtualAdversarial(), auxiliary.InputNoise()],
    ids=lambda part: part.name,
)
def test_gradients_of_single_examples_add_up_to_those_of_the_batch(part):
    """With a bound that nothing reaches, clipping each example changes nothing."""
    settings = {"auxiliary_losses": [part]}
    whole, _ = images.take_steps(images.make_model(**settings), steps=1)
    clipping = example_clipping.ExampleClipping(max_norm=1e6)
    clipped, _ = images.take_steps(images.make_model(**settings, surgery=clipping), steps=1)
    bound, _ = images.take_steps(
        images.make_model(**settings, surgery=dataclasses.replace(clipping, max_norm=0.01)),
        steps=1,
    )
    moved = 0.0
    for name, value in whole.items():
        np.testing.assert_allclose(clipped[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
        moved = max(moved, np.abs(bound[name] - value).max())
    assert moved > 1e-3


def test_rows_that_see_one_another_cannot_be_clipped_one_by_one():
    part = auxiliary.Contrastive(noise=0.1)
    clipping = example_clipping.ExampleClipping(max_norm=1.0)
    with pytest.raises(checks.UserError), tf.Graph().as_default():
        tf1.train.create_global_step()
        images.build_step(images.make_model(auxiliary_losses=[part], surgery=clipping))


@pytest.mark.parametrize("path", sorted(GIN_FILES.glob("auxiliary/*.gin")), ids=lambda p: p.stem)
def test_files_of_losses_go_with_an_experiment(path):
    of_funnels = path.stem in ("inverse_propensity", "doubly_robust")
    experiment = "funnel" if of_funnels else "digits_few"
    made = config.load([str(GIN_FILES / "experiments" / f"{experiment}.gin"), str(path)])
    if path.stem == "attack":
        assert made.attack.steps == 100
        assert not made.model.auxiliary_losses
    else:
        (loss,) = made.model.auxiliary_losses
        assert loss.name in made.model.loss_names


@pytest.mark.medium
def test_a_run_that_was_stopped_goes_on_to_the_bit(tmp_path):
    """With draws, a teacher of averages that the checkpoint holds, and several steps a call."""
    losses = [auxiliary.MeanTeacher(noise=0.3), auxiliary.VirtualAdversarial()]

    def train(folder, train_steps, steps_per_call):
        made = tiny.make(train_steps=train_steps, checkpoint_steps=6, steps_per_call=steps_per_call)
        average = averaging.ExponentialAverage(decay=0.9)
        moved = dataclasses.replace(made.model.update, average=average)
        model = dataclasses.replace(made.model, auxiliary_losses=losses, update=moved)
        return tiny.train(dataclasses.replace(made, model=model), tmp_path / folder)

    whole = train("whole", 12, 5)
    train("stopped", 6, 1)
    found = train("stopped", 12, 1)
    assert set(found) == set(whole)
    for name, value in whole.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
