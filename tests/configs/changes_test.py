"""The settings that a run has saved, if its training fails."""

import numpy as np
import pytest

from mtl import checks, transfer
from mtl.configs import changes, config
from mtl.runs import failures


@pytest.mark.parametrize(
    ("error", "has_step", "kept"),
    [
        (checks.UserError("a label is wrong"), False, "a = 1"),
        (checks.UserError("the loss is NaN"), True, "a = 2"),
        (KeyboardInterrupt(), False, "a = 1"),
    ],
    ids=["mistake", "not finite", "interrupted"],
)
def test_an_exception_before_a_checkpoint_leaves_the_settings_of_the_last_one(
    tmp_path, error, has_step, kept
):
    """`launch.debug` replays a loss that is not finite, with the settings that made it so."""
    config.save(str(tmp_path), "a = 1")
    with pytest.raises(type(error)), changes.undone_without_checkpoint(str(tmp_path)):
        config.save(str(tmp_path), "a = 2")
        if has_step:
            (tmp_path / failures.FILE).write_text('{"step": 3}')
        raise error
    assert config.read_saved(str(tmp_path)).endswith(kept.encode())


def test_settings_stay_that_alone_fit_a_checkpoint_with_larger_tables(tmp_path):
    path = tmp_path / "model.ckpt-3"
    for rows, kept in ((3, b"a = 1"), (5, b"a = 2")):
        config.save(str(tmp_path), "a = 1")
        transfer.write_checkpoint({"table": np.zeros([3]), "global_step": 3}, str(path))
        with pytest.raises(checks.UserError), changes.undone_without_checkpoint(str(tmp_path)):
            transfer.write_checkpoint({"table": np.zeros([rows]), "global_step": 3}, str(path))
            config.save(str(tmp_path), "a = 2")
            raise checks.UserError("a label is wrong")
        assert config.read_saved(str(tmp_path)).endswith(kept)


def test_a_new_run_keeps_the_settings_with_which_it_failed(tmp_path):
    with (
        pytest.raises(checks.UserError),
        changes.undone_without_checkpoint(str(tmp_path)),
    ):
        config.save(str(tmp_path), "a = 2")
        raise checks.UserError("a label is wrong")
    assert config.read_saved(str(tmp_path)).endswith(b"a = 2")
