"""A warm start in a `model_fn` written by hand, with the checks of `transfer.WarmStart`."""

import numpy as np
import pytest

from mtl import transfer
from tests import tiny
from tests.model_fns import twin

KERNEL, HEAD = "network/trunk/hidden_0/kernel", "head/sign/logits/kernel"


@pytest.mark.medium
def test_what_is_chosen_starts_from_the_source(trained, tmp_path):
    start = transfer.WarmStart(source=str(trained.twin), include=["^network/"])
    model_dir = tmp_path / "run"
    estimator = twin.estimator(model_dir, start=start)
    estimator.train(twin.read_rows, max_steps=1)
    first, source = tiny.variables(model_dir, step=0), tiny.variables(trained.twin)
    np.testing.assert_array_equal(first[KERNEL], source[KERNEL])
    assert (first[HEAD] != source[HEAD]).any()
    assert first["global_step"] == 0
    table = (model_dir / "warm_start.txt").read_text()
    assert "9 warmed" in table
    assert HEAD in table
    estimator.train(twin.read_rows, max_steps=2)  # Goes on from its own checkpoint.
    assert (tiny.variables(model_dir)[KERNEL] != source[KERNEL]).any()
