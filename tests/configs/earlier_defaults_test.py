"""Runs of an earlier version keep the defaults that they were trained by."""

import dataclasses

import pytest

from mtl.checkpoints import flat_settings, settings
from mtl.configs import config, gin_writing
from mtl.data import subset
from tests.configs import gin_files_test
from tests.launch import toy

GIN = "gin_configs/experiments/adult_transfer/pretrain.gin"
LINE = "subset.Subset.draw = "


@pytest.fixture(name="saved")
def _saved(tmp_path, monkeypatch):
    """The config.gin of a run, and its text."""
    monkeypatch.chdir(gin_files_test.ROOT)
    folder = tmp_path / "run"
    folder.mkdir()
    config.load([GIN])
    config.save(str(folder))
    path = folder / "config.gin"
    return path, config.read(str(path))


def _age(path, text):
    """Rewrite a run's config.gin as an earlier version wrote it, without the setting."""
    assert f"{LINE}'hash'\n" in text
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith(LINE)))


def _find_draw(*given, **named):
    return config.load(*given, **named).data.source.draw


@pytest.mark.medium
def test_a_run_keeps_the_split_that_it_was_trained_on(saved):
    path, text = saved
    folder = str(path.parent)
    assert _find_draw([str(path)]) == subset.HASH
    assert _find_draw([GIN], model_dir=folder) == subset.HASH
    _age(path, text)
    assert _find_draw([config.saved_in(folder)]) == subset.LATTICE
    # The run goes on with its earlier default, and its next config.gin has the setting.
    assert _find_draw([GIN], model_dir=folder) == subset.LATTICE
    config.save(folder)
    assert f"{LINE}'lattice'\n" in config.read(str(path))
    assert _find_draw([GIN], model_dir=folder) == subset.LATTICE
    assert _find_draw([str(path)]) == subset.LATTICE
    assert _find_draw([GIN], [f"{LINE}'hash'"], model_dir=folder) == subset.HASH
    assert _find_draw([GIN]) == subset.HASH


@pytest.mark.medium
def test_python_writes_it_and_tells_where_it_differs(saved):
    made = config.load([GIN])
    assert f"{LINE}'hash'\n" in gin_writing.write(made)
    path, text = saved
    _age(path, text)
    before = config.load([str(path)])
    assert flat_settings.compare({"before": before, "now": made}) == {
        "data.source.draw": {"before": "'lattice'", "now": "'hash'"}
    }


def test_the_input_of_a_run_of_before_goes_on_where_it_stood():
    """A new setting at its earlier default does not change the digest of the settings."""
    field = dataclasses.field(default="hash", metadata={"earlier": "lattice"})
    before = dataclasses.make_dataclass("Part", [("share", float)])
    now = dataclasses.make_dataclass("Part", [("share", float), ("draw", str, field)])
    digest = settings.compute_digest
    assert digest(now(0.5, "lattice")) == digest(before(0.5)) != digest(now(0.5))
    # Another setting had another default before, and was always part of the digest.
    field = dataclasses.field(default=None, metadata={"earlier": False, "written": True})
    changed = dataclasses.make_dataclass("Part", [("share", float), ("cache", bool, field)])
    before = dataclasses.make_dataclass("Part", [("share", float), ("cache", bool, False)])
    assert digest(changed(0.5, False)) == digest(before(0.5)) != digest(changed(0.5))


@pytest.mark.medium
def test_a_run_that_read_its_files_in_every_epoch_goes_on_to_do_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toy.write(tmp_path)
    made = config.load(["toy.gin"])
    assert made.data.cache is None and made.data.starts_anywhere
    folder = tmp_path / "run"
    folder.mkdir()
    config.save(str(folder))
    text = config.read(str(folder / "config.gin"))
    assert "pipeline.Pipeline.cache = None\n" in text
    (folder / "config.gin").write_text(text.replace("pipeline.Pipeline.cache = None\n", ""))
    assert config.load(["toy.gin"], model_dir=str(folder)).data.cache is False
