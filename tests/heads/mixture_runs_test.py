"""Whole runs with mixtures: without a label, in slices, stopped in between, exported, by gin."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import experiment, features, heads, model, networks, serving, spec, verbs
from mtl.configs import config
from mtl.data import pipeline
from mtl.optimization import optimizers, update
from tests import tiny

SPEC = spec.Spec(features={"x": ("float32", (3,)), "draw": "int64"}, labels={})
SPLITS = {
    split: {"x": rows["x"], "draw": np.arange(len(rows["x"])) % 3}
    for split, rows in tiny.SPLITS.items()
}


def make(spec_=SPEC, splits=None, with_heads=None, check_rows=0, num_starts=2, **run):
    """A density of the columns; no head, and no field, has a label."""
    density = heads.GaussianMixture(
        name="usual", num_components=3, covariance="full", num_starts=num_starts, num_samples=4
    )
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=tiny.Rows(splits=splits or SPLITS), spec=spec_, batch_size=16
        ),
        model=model.MultiTaskModel(
            columns=[features.Numeric(names=["x"])],
            network=networks.SharedBottom(trunk=networks.MLP(layers=[])),
            heads=with_heads or [density],
            update=update.Update(optimizer=optimizers.Adam(learning_rate=0.03)),
        ),
        run=experiment.Run(
            **{"train_steps": 40, "checkpoint_steps": 20, "summary_steps": 10, **run}
        ),
        serving=serving.Serving(check_rows=check_rows),
    )


def examples():
    """The rows of the test split as serialized tf.Examples."""
    return [
        SPEC.serialize({name: values[row] for name, values in SPLITS["test"].items()})
        for row in range(48)
    ]


@pytest.mark.slow
def test_a_run_without_labels_is_exported_and_served_as_predicted(tmp_path):
    made = make(check_rows=32)
    verbs.train(made, str(tmp_path))
    metrics = verbs.evaluate(made, str(tmp_path), "test", "latest")
    assert metrics["usual/log_likelihood"] == pytest.approx(-metrics["average_loss"])
    predicted = list(verbs.predict(made, str(tmp_path), "test", "latest"))
    likelihood = np.mean([row["usual/log_density"] for row in predicted])
    assert likelihood == pytest.approx(metrics["usual/log_likelihood"], rel=1e-5)
    serve = tiny.served(tmp_path)
    outputs = {name: value.numpy() for name, value in serve(tf.constant(examples())).items()}
    for name, value in outputs.items():
        expected = np.stack([row[name] for row in predicted])
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    samples = outputs["usual/samples"]
    assert samples.shape == (48, 4, 3)
    assert len(np.unique(samples.reshape(-1, 3), axis=0)) == 48 * 4
    alone = serve(tf.constant(examples()[5:6]))["usual/samples"].numpy()
    np.testing.assert_allclose(alone, samples[5:6], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_bit_and_slices_are_the_whole_batch(tmp_path):
    whole = tiny.assert_goes_on(make, tmp_path, 20)
    assert "head/usual/average_losses" in whole
    slices = tiny.train(make(micro_batches=4), tmp_path / "slices")
    for name, value in whole.items():
        if "average_losses" not in name:
            np.testing.assert_allclose(slices[name], value, rtol=2e-3, atol=2e-4, err_msg=name)


@pytest.mark.slow
def test_a_density_beside_a_head_with_labels_and_samples_of_a_number(tmp_path):
    """The trunk learns as it would without the density."""
    labelled = dataclasses.replace(SPEC, labels={"size": "float32"})
    splits = {split: {**rows, "size": tiny.SPLITS[split]["size"]} for split, rows in SPLITS.items()}
    number = heads.MixtureDensity(
        name="size", num_components=2, quantiles=[0.1, 0.9], num_samples=5
    )
    density = heads.GaussianMixture(name="usual", num_components=2)
    found, runs = {}, {}
    for name, both, train in (
        ("both", [number, density], verbs.train),
        ("one", [number], tiny.train),
    ):
        made = make(labelled, splits, both, check_rows=32, checkpoint_steps=40)
        trunk = networks.SharedBottom(trunk=networks.MLP(layers=[8], activation="tanh"))
        made = dataclasses.replace(made, model=dataclasses.replace(made.model, network=trunk))
        train(made, str(tmp_path / name))
        runs[name] = made
        found[name] = tiny.variables(tmp_path / name)
    trunk_names = [n for n in found["one"] if n.startswith("network/") and "Adam" not in n]
    assert len(trunk_names) == 2
    for name in trunk_names:
        np.testing.assert_allclose(found["both"][name], found["one"][name], rtol=1e-4, atol=1e-5)
    outputs = tiny.served(tmp_path / "both")(tf.constant(examples()))
    assert outputs["size/samples"].shape == (48, 5)
    low, high = (outputs["size/quantiles"][:, end : end + 1] for end in (0, 1))
    samples = outputs["size/samples"]
    share = np.mean((low < samples) & (samples < high))
    assert share == pytest.approx(0.8, abs=0.1)
    # Fields that are kept beside the predictions change no draw.
    kept = verbs.predict(runs["both"], str(tmp_path / "both"), "test", "latest", ["size", "x"])
    predicted = np.stack([row["size/samples"] for row in kept])
    np.testing.assert_allclose(samples, predicted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_experiment_on_census_records(real_data, tmp_path):
    """A single Gaussian of the five standardised columns has a log-likelihood of -6.9."""
    params = [
        f'adult_dir = "{real_data / "adult"}"',
        "Run.train_steps = 200",
        "Run.checkpoint_steps = 200",
        "Serving.check_rows = 0",
    ]
    made = config.load(["gin_configs/experiments/adult_mixture.gin"], params)
    verbs.train(made, str(tmp_path))
    metrics = verbs.evaluate(made, str(tmp_path), "test", "latest")
    assert metrics["usual/log_likelihood"] > -3
    assert 1 < metrics["usual/used_components"] <= 8
