"""A hand-written Estimator that was trained, which tests here read alone."""

import types

import pytest

from mtl import model_fns
from tests.model_fns import twin


@pytest.fixture(scope="package")
def trained(tmp_path_factory):
    """Our model and the twin, from the same weights; the twin saves its input."""
    folder = tmp_path_factory.mktemp("twins")
    twin.our_estimator(folder / "ours").train(twin.read_rows, max_steps=twin.STEPS)
    own = folder / "twin"
    twin.start_alike(folder / "ours", own)
    rows = model_fns.SavedInput(twin.read_rows, str(own))
    made = twin.estimator(own)
    made.train(rows.read, max_steps=twin.STEPS, saving_listeners=[rows])
    return types.SimpleNamespace(ours=folder / "ours", twin=own, estimator=made)
