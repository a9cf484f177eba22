"""Whole runs with a history: served as ragged and as padded rows, in slices, on replicas."""

import dataclasses

import numpy as np
import pytest

from mtl import features, histories, networks, verbs
from mtl.balancing import methods, surgery
from mtl.optimization import optimizers
from tests import tiny
from tests.histories import padding

pytestmark = pytest.mark.medium

ENCODERS = {
    "gru": histories.GRU(units=4),
    "convolution": histories.Convolution(filters=4),
    "target": histories.TargetAttention(layers=[8, 4]),
    "hashed": histories.HashedAttention(num_hashes=6),
    "evolution": histories.InterestEvolution(units=4),
    "bst": histories.Transformer(dimension=8, num_heads=2, joins_target=True),
}


def _make(*names, shows_weights=(), **settings):
    """With a history for each of the encoders."""
    token = {"dimension": 4, "table": "token", "min_count": 1}
    word = features.Categorical(names=["word"], **token)
    made = [
        features.History(
            name=name,
            events=[features.Categorical(names=["tags"], prefix=f"{name}_event", **token)],
            encoder=ENCODERS[name],
            target=["categorical_word"],
            last=6,
            shows_weights=name in shows_weights,
        )
        for name in names
    ]
    columns = [features.Numeric(names=["x"]), *made, word]
    made = tiny.make(splits=tiny.TAGGED_SPLITS, columns=columns, **settings)
    return dataclasses.replace(
        made,
        data=dataclasses.replace(made.data, spec=tiny.TAGGED_SPEC),
        model=dataclasses.replace(made.model, heads=made.model.heads[:2]),
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A run with all encoders, whose export was compared with the Estimator."""
    directory = tmp_path_factory.mktemp("served") / "run"
    made = _make(*ENCODERS, check_rows=32, train_steps=8, checkpoint_steps=4)
    tiny.train(made, directory)
    verbs.export(made, str(directory), str(directory / "export" / "latest"))
    return made, directory


def test_ragged_and_padded_rows_are_served_alike(served):
    """The export's own check compares rows of tf.Examples with the Estimator."""
    made, directory = served
    variables = tiny.variables(directory)
    assert variables["features/token/embedding"].shape == (3 + 4 + 1, 4)
    assert not [n for n in variables if "categorical_" in n or "_event" in n]
    rows = {key: values[:8] for key, values in tiny.TAGGED_SPLITS["test"].items()}
    given = {name: rows[name] for name in ("x", "word", "tags")}
    padding.assert_padding_changes_nothing(made, directory, given, {"tags": b"b"})


def test_a_run_that_was_stopped_goes_on_to_the_bit(served, tmp_path):
    tiny.assert_same_from(*served, tmp_path / "parts", 4)


@pytest.mark.slow
def test_slices_and_replicas_train_as_the_whole_batch_does(tmp_path):
    def make(**run):
        made = _make(
            "evolution",
            network=networks.SharedBottom(trunk=networks.MLP(layers=[8])),
            optimizer=optimizers.SGD(learning_rate=0.05),
            **run,
        )
        combined = surgery.Combine(method=methods.PCGrad())
        return dataclasses.replace(made, model=dataclasses.replace(made.model, surgery=combined))

    tiny.assert_trains_in_parts(make, tmp_path, 5)


def test_predictions_show_how_much_each_event_counts(served):
    made, directory = served
    names = ["target", "hashed", "evolution", "bst"]
    plain = list(verbs.predict(made, str(directory)))
    shown = list(verbs.predict(_make(*ENCODERS, shows_weights=names), str(directory)))
    assert plain[0].keys() == shown[0].keys() - {f"{name}/attention" for name in names}
    assert len(shown[0]) == len(plain[0]) + len(names)
    for row, (before, after) in zip(
        tiny.TAGGED_SPLITS["test"]["tags"], zip(plain, shown, strict=True), strict=True
    ):
        count = min(len(row), 6)
        for name in names:
            weights = after.pop(f"{name}/attention")
            assert len(weights) >= count and (weights[count:] == 0).all()
            if name != "hashed":
                assert (weights[:count] != 0).all()
            if name == "evolution" and count:
                np.testing.assert_allclose(weights.sum(), 1, rtol=1e-5)
        for key, value in before.items():
            np.testing.assert_array_equal(after[key], value)
