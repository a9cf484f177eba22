"""A folder of any name trains, goes on and is used, or is refused before anything is written."""

import pytest

from mtl import checks, verbs
from tests import tiny


@pytest.mark.slow
def test_a_run_in_a_folder_whose_name_is_a_pattern_of_others(tmp_path):
    neighbour = tmp_path / "run1"
    for folder in (neighbour, neighbour / "best", neighbour / "input"):
        folder.mkdir()
        for step in (2, 4, 6, 100):
            for file in ("index", "data-00000-of-00001", "meta"):
                (folder / f"model.ckpt-{step}.{file}").write_text("another's")
    before = sorted(neighbour.rglob("*"))
    run = str(tmp_path / "run*")
    made = tiny.make(train_steps=4, checkpoint_steps=2, keep_checkpoints=1)
    _, steps = verbs.train(made, run)
    assert steps == 4 and tiny.checkpoint_steps(run) == [4]
    _, steps = verbs.train(tiny.make(train_steps=6, checkpoint_steps=2, keep_checkpoints=1), run)
    assert steps == 2 and tiny.checkpoint_steps(run) == [6]
    assert verbs.evaluate(made, run)["global_step"] == 6
    assert len(list(verbs.predict(made, run, checkpoint="best"))) == 48
    assert verbs.export(made, run, str(tmp_path / "export?"))
    assert sorted(neighbour.rglob("*")) == before


@pytest.mark.parametrize("name", ["run[1]", "run\\x", "run\\"])
def test_a_name_under_which_tensorflow_finds_nothing_is_refused_first(tmp_path, name):
    run, made = str(tmp_path / name), tiny.make()
    for verb in (
        verbs.train,
        verbs.evaluate,
        lambda made, run: list(verbs.predict(made, run)),
        lambda made, run: verbs.export(made, run, str(tmp_path / "export")),
    ):
        with pytest.raises(checks.UserError, match="must have no backslash and no"):
            verb(made, run)
    with pytest.raises(checks.UserError, match="--checkpoint must have no backslash"):
        verbs.evaluate(made, str(tmp_path), checkpoint=run + "/model.ckpt-2")
    assert not list(tmp_path.iterdir())
