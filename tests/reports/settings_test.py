"""Settings as a flat list, with their defaults, and where runs differ."""

import dataclasses

from mtl import clip_audit
from mtl.reports import settings
from tests import tiny


def test_every_setting_has_its_place_its_value_and_its_default():
    found = {one.path: one for one in settings.flatten(tiny.make(keep_checkpoints=7))}
    assert found["run.keep_checkpoints"].value == "7"
    assert found["run.keep_checkpoints"].default == "3"
    assert not found["run.keep_checkpoints"].is_default
    assert found["run.seed"].is_default
    assert found["run.train_steps"].default is None and not found["run.train_steps"].is_default
    assert found["model.heads[kind].classes"].value == "3"
    assert found["model.network.trunk.layers"].kind == "MLP"
    assert found["model.network"].value == "SharedBottom()"


def test_only_what_differs_is_compared():
    one, other = tiny.make(), tiny.make(seed=2)
    assert settings.compare({"a": one, "b": other}) == {"run.seed": {"a": "1", "b": "2"}}
    assert settings.compare({"a": one, "b": one}) == {}


def test_of_a_part_that_one_run_lacks_defaults_are_not_told():
    plain = tiny.make()
    audited = dataclasses.replace(plain, clip_audit=clip_audit.ClipAudit(window=7))
    assert settings.compare({"a": plain, "b": audited}) == {
        "clip_audit": {"a": "None", "b": "ClipAudit()"},
        "clip_audit.window": {"a": "(none)", "b": "7"},
    }


def test_runs_are_grouped_by_all_but_their_seed():
    made = {"a": tiny.make(), "b": tiny.make(seed=2), "c": tiny.make(seed=2, micro_batches=2)}
    assert settings.group_by_seed(made) == [["a", "b"], ["c"]]
    one = dataclasses.replace(made["a"], run=dataclasses.replace(made["a"].run, seed=3))
    assert settings.group_by_seed({"a": made["a"], "d": one}) == [["a", "d"]]
