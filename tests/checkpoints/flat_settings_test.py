"""Settings as a flat list, with their defaults, and where runs differ."""

import dataclasses

import numpy as np

from mtl.checkpoints import flat_settings
from mtl.tools import clip_audit
from tests import tiny


def test_every_setting_has_its_place_its_value_and_its_default():
    found = {one.path: one for one in flat_settings.flatten(tiny.make(keep_checkpoints=7))}
    assert found["run.keep_checkpoints"].value == "7"
    assert found["run.keep_checkpoints"].default == "3"
    assert not found["run.keep_checkpoints"].is_default
    assert found["run.seed"].is_default
    assert found["run.train_steps"].default is None and not found["run.train_steps"].is_default
    assert found["model.heads[kind].classes"].value == "3"
    assert found["model.network.trunk.layers"].kind == "MLP"
    assert found["model.network"].value == "SharedBottom()"


def test_only_long_texts_are_cut():
    assert flat_settings.cut("x" * 40, most=40) == "x" * 40
    text = "".join(map(str, range(40)))
    cut = flat_settings.cut(text, most=40)
    first, last = cut.split(" ... ")
    assert len(cut) == 40 and text.startswith(first) and text.endswith(last) and last


def test_only_what_differs_is_compared():
    one, other = tiny.make(), tiny.make(seed=2)
    assert flat_settings.compare({"a": one, "b": other}) == {"run.seed": {"a": "1", "b": "2"}}
    assert flat_settings.compare({"a": one, "b": one}) == {}


def test_of_a_part_that_one_run_lacks_defaults_are_not_told():
    plain = tiny.make()
    audited = dataclasses.replace(plain, clip_audit=clip_audit.ClipAudit(window=7))
    assert flat_settings.compare({"a": plain, "b": audited}) == {
        "clip_audit": {"a": "None", "b": "ClipAudit()"},
        "clip_audit.window": {"a": "(none)", "b": "7"},
    }


def test_runs_are_grouped_by_all_but_their_seed():
    made = {"a": tiny.make(), "b": tiny.make(seed=2), "c": tiny.make(seed=2, micro_batches=2)}
    assert flat_settings.group_by_seed(made) == [["a", "b"], ["c"]]
    one = dataclasses.replace(made["a"], run=dataclasses.replace(made["a"].run, seed=3))
    assert flat_settings.group_by_seed({"a": made["a"], "d": one}) == [["a", "d"]]


def _with_positives(names, seed=1):
    made = tiny.make(seed=seed)
    sign = dataclasses.replace(made.model.heads[0], positive=names)
    model = dataclasses.replace(made.model, heads=[sign, *made.model.heads[1:]])
    return dataclasses.replace(made, model=model)


def test_long_lists_that_differ_in_their_middle_are_not_equal():
    names = [f"name {place}" for place in range(100)]
    other = [*names[:50], "another", *names[51:]]
    made = {"a": _with_positives(names), "b": _with_positives(other, seed=2)}
    (path,) = [path for path in flat_settings.compare(made) if path != flat_settings.SEED]
    row = flat_settings.compare(made)[path]
    assert row == {"a": repr(names), "b": repr(other)}
    assert flat_settings.group_by_seed(made) == [["a"], ["b"]]
    shown = flat_settings.cut_apart(row, 48)
    assert shown["a"] != shown["b"] and max(map(len, shown.values())) <= 48


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
    value: object = 5
    hidden: object = dataclasses.field(default=0, repr=False)


def test_ways_to_write_one_value_are_no_difference():
    made = {"a": _Part(value=[1, 2.0]), "b": _Part(value=(1.0, 2))}
    assert flat_settings.compare(made) == {}
    (first, _) = flat_settings.flatten(_Part(value=5.0))
    assert first.is_default


def test_arrays_whose_middles_differ_are_written_apart():
    one = np.zeros(5000)
    other = np.where(np.arange(5000) == 2500, 1.0, one)
    row = flat_settings.compare({"a": _Part(value=one), "b": _Part(value=other)})["value"]
    assert row["a"] != row["b"]


def test_a_setting_that_is_not_in_the_repr_is_compared():
    made = {"a": _Part(), "b": _Part(hidden=7)}
    assert flat_settings.compare(made) == {"hidden": {"a": "0", "b": "7"}}
    assert flat_settings.group_by_seed(made) == [["a"], ["b"]]


def test_a_value_is_cut_only_where_it_is_shown():
    text = repr(list(range(1000)))
    (first, _) = flat_settings.flatten(_Part(value=list(range(1000))))
    assert first.value == text and len(flat_settings.cut(text)) <= 160
    assert flat_settings.cut(text).endswith("998, 999]")
