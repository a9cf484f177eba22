import itertools

import numpy as np

from benchmarks import rbm


def test_likelihoods_are_those_of_all_states_of_visible_and_hidden_units():
    random = np.random.default_rng(3)
    kernel, hidden, visible = (random.normal(size=size) for size in ([5, 4], [4], [5]))
    every = np.array(list(itertools.product([0.0, 1.0], repeat=5)))
    states = np.array(list(itertools.product([0.0, 1.0], repeat=4)))
    joint = every @ kernel @ states.T + states @ hidden + (every @ visible)[:, np.newaxis]
    expected = np.log(np.exp(joint).sum(1) / np.exp(joint).sum())
    found = rbm.compute_log_likelihoods(every, kernel, hidden, visible)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_the_digits_are_rows_of_bits():
    fields = rbm.read_fields()
    assert {split: values["x"].shape for split, values in fields.items()} == {
        "train": (1437, 64),
        "test": (360, 64),
    }
    for values in fields.values():
        assert set(np.unique(values["x"])) == {0, 1} and set(values["digit"]) == set(range(10))
