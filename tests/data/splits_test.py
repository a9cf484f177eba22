"""Splits of one file: shares, keys, classes and folds, against counts by hand."""

import dataclasses
import itertools
import os
import pathlib
import shlex
import subprocess
import sys

import numpy as np
import pytest

from launch import new
from mtl import checks, spec
from mtl.configs import config
from mtl.data import chosen_rows, csv, field_splits, pipeline, splits, subset
from tests import pages, tiny

SPEC = spec.Spec(features={"x": "int64"}, labels={})
SHARES = {"train": 0.7, "validation": 0.1, "test": 0.2}
NUM = 6000
ROWS = {
    "x": np.arange(NUM),
    "user": np.array([b"u%d" % (i // 6) for i in range(NUM)], object),
    "day": np.array([b"%d" % (i % 3) for i in range(NUM)], object),
    "y": np.array([0 if i % 97 else 1 + i % 2 for i in range(NUM)]),
}
SOURCE = tiny.Rows(splits={"train": ROWS, "other": {name: v[:9] for name, v in ROWS.items()}})


def make(shares=SHARES, source=SOURCE, **settings):
    return splits.Splits(source=source, shares=shares, **settings)


def read(source, split):
    return [row["x"] for _, row in source.scan(split, SPEC)]


def read_batches(source, split):
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=500)
    return [x for f, _ in data.dataset(split, training=False, seed=0) for x in f["x"].numpy()]


KINDS = [{}, {"keys": ["user"]}, {"keys": ["user", "day"]}, {"stratify": "y"}]


@pytest.mark.medium
@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_each_row_is_in_one_split_and_shares_are_about_right(settings):
    cut = make(**settings)
    rows = {split: read(cut, split) for split in SHARES}
    assert sorted(itertools.chain(*rows.values())) == list(range(NUM))
    for split, share in SHARES.items():
        # Keys of six rows draw six times the variance.
        assert abs(len(rows[split]) - share * NUM) < 5 * (6 * NUM * share * (1 - share)) ** 0.5
        assert read_batches(cut, split) == rows[split]
    assert read(cut, "other") == list(range(9)) and chosen_rows.describe_left_out(cut) == []


def test_shares_draw_the_rows_of_a_subset_and_a_key_those_of_its_place():
    two = {"train": 0.8, "test": 0.2}
    part = subset.Subset(source=SOURCE, share=0.8, held_out={"test": 0.2}, seed=3)
    assert read(make(two, seed=3), "test") == read(part, "test")
    cut = field_splits.ByKey(source=SOURCE, field="user", held_out={"a": 0.3}, seed=3)
    assert read(make({"a": 0.3, "b": 0.7}, keys=["user"], seed=3), "a") == read(cut, "a")


def test_draws_are_the_same_on_every_machine():
    """These numbers never change: they were drawn once, by CPython 3.11 on x86-64."""
    assert splits.hash_rows(np.arange(3), 1).tolist() == [283456632, 1480173769, 1193533505]
    keys = [np.array(["ann", "7.0", ""]), np.array(["1", "7", " "])]
    assert splits.hash_keys(keys, np.arange(3), 1).numpy().tolist() == [
        959334326,
        27024991,
        1843633654,
    ]


@pytest.mark.parametrize(("key", "apart"), [(["user"], 1), (["user", "day"], 3)])
def test_rows_that_agree_in_all_keys_stay_together(key, apart):
    cut = make(keys=key)
    groups = [set() for _ in SHARES]
    for group, split in zip(groups, SHARES, strict=True):
        group |= {tuple(ROWS[name][x] for name in key) for x in read(cut, split)}
    assert sum(map(len, groups)) == len(set.union(*groups)) == NUM // 6 * apart


def test_rows_without_any_key_are_drawn_alone():
    source = tiny.Rows(splits={"train": {**ROWS, "user": np.full(NUM, b"", object)}})
    alone = read(make(source=source, keys=["user"]), "test")
    assert abs(len(alone) - 0.2 * NUM) < 150
    # A key beside a missing one still keeps its rows together.
    pairs = {ROWS["day"][x] for x in read(make(source=source, keys=["user", "day"]), "test")}
    rest = {ROWS["day"][x] for x in read(make(source=source, keys=["user", "day"]), "train")}
    assert not pairs & rest


@pytest.mark.parametrize("settings", [{}, {"folds": 5, "fold": 3}], ids=str)
@pytest.mark.parametrize("seed", [1, 2, 77])
def test_each_split_has_its_share_of_each_class_within_a_row(settings, seed):
    shares = {"train": 0.7, "validation": 0.3} if settings else SHARES
    cut = make(shares, stratify="y", seed=seed, **settings)
    parts = {s: 0.8 * share for s, share in shares.items()} | {"test": 0.2} if settings else shares
    totals = np.bincount(ROWS["y"])
    for split, share in parts.items():
        counts = np.bincount(ROWS["y"][read(cut, split)], minlength=3)
        assert (np.abs(counts - share * totals) <= 1).all()


def test_many_small_classes_do_not_all_miss_a_split():
    labels = np.arange(3000) // 3  # A split of a tenth has 0 or 1 of the three rows of a class.
    places = splits.rank_rows(labels, 1)
    arcs = splits.lay_arcs(SHARES, 0, splits.PLACES)
    sizes = {split: arc.holds(places).sum() for split, arc in arcs.items()}
    assert all(abs(sizes[split] - share * 3000) < 10 for split, share in SHARES.items())


def test_classes_of_texts_and_missing_labels(tmp_path):
    lines = [f"{i},{'' if i % 5 == 0 else 'yes' if i % 2 else 'no'}" for i in range(400)]
    (tmp_path / "a.csv").write_text("x,y\n" + "\n".join(lines) + "\n")
    source = csv.Csv(files={"train": str(tmp_path / "a.csv")})
    cut = make(source=source, stratify="y", label_type="string")
    rows = read(cut, "test")
    assert abs(sum(x % 5 == 0 for x in rows) - 16) <= 1
    assert abs(sum(x % 5 > 0 and x % 2 for x in rows) - 32) <= 1
    message = "field 'y' must be int64, got 'yes'. For a label of texts, set label_type = 'string'."
    with pytest.raises(checks.UserError, match=message):
        read(make(source=source, stratify="y"), "test")
    with open(tmp_path / "a.csv", "a") as file:
        file.write("400\n")
    with pytest.raises(checks.UserError, match="a.csv line 402: must have 2 columns, got 1"):
        read(make(source=source, stratify="y", label_type="string"), "test")


@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("folds", [2, 3, 7])
def test_folds_are_disjoint_and_cover_all_rows(settings, folds):
    some = {name: values[:600] for name, values in ROWS.items()}
    source = tiny.Rows(splits={"train": some, "other": some})
    cuts = [make({}, source, folds=folds, fold=fold, **settings) for fold in range(folds)]
    tests = [read(cut, "test") for cut in cuts]
    assert sorted(itertools.chain(*tests)) == list(range(600))
    for cut, test in zip(cuts, tests, strict=True):
        assert sorted(test + read(cut, "train")) == list(range(600))
        assert abs(len(test) - 600 / folds) < 5 * (6 * 600 / folds) ** 0.5


def test_other_rows_than_the_fold_have_their_shares():
    cut = make({"train": 0.75, "validation": 0.25}, folds=4, fold=1)
    rows = {split: read(cut, split) for split in ("train", "validation", "test")}
    assert sorted(itertools.chain(*rows.values())) == list(range(NUM))
    assert abs(len(rows["validation"]) - NUM * 3 / 16) < 150


def test_rows_in_no_split_are_counted_and_told():
    cut = make({"train": 0.5, "test": 0.3}, stratify="y")
    left = NUM - len(read(cut, "train")) - len(read(cut, "test"))
    (line,) = chosen_rows.describe_left_out(subset.Subset(source=cut, share=0.5))
    assert line == f"{left:,} of 6,000 rows (20.0%) are in no split: Splits.shares sum to 0.8."


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shares": {}}, "Splits.shares must map splits to shares, such as {'train': 0.9"),
        ({"shares": {"train": 0.9, "test": 0.2}}, "Splits.shares must sum to at most 1, got 1.1"),
        ({"shares": {"train": 1, "test": 0}}, r"Splits.shares\['test'\] must be above 0, got 0"),
        ({"shares": {"train": 0.9, "other": 0.1}}, "other split of the source than 'train', .*oth"),
        (
            {"keys": ["user"], "stratify": "y"},
            "Splits.stratify must be empty if Splits.keys is set, got 'y'",
        ),
        ({"folds": 1}, "Splits.folds must be at least 2, got 1"),
        ({"fold": 1}, "Splits.fold must be 0 if Splits.folds is not set, got 1"),
        ({"shares": {}, "folds": 5, "fold": 5}, "Splits.fold must be a fold of 0 to 4, got 5"),
        ({"folds": 5}, "must leave out the split of the fold, 'test'"),
        ({"keys": ["user", "user"]}, "Splits.keys"),
        ({"label_type": "float32"}, "Splits.label_type must be one of int64, string"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(checks.UserError, match=message):
        make(**settings)


def test_the_whole_split_is_not_read_beside_its_parts():
    with pytest.raises(checks.UserError, match="Splits.shares must have 'train', got"):
        read(make({"a": 0.5, "b": 0.5}), "train")


@pytest.mark.parametrize("settings", [{}, {"stratify": "y"}], ids=str)
def test_an_empty_split_is_one_clear_line(settings):
    cut = make({"train": 1 - 1e-9, "test": 1e-9}, **settings)
    with pytest.raises(checks.UserError, match="split 'test'.* must hold a (record|row), got 0"):
        read_batches(cut, "test")


def test_settings_compare_and_repeat():
    cut = make(keys=["user"])
    assert dataclasses.replace(cut, seed=1) == cut


@pytest.mark.slow
@pytest.mark.thorough
def test_the_recipe_of_cross_validation_runs_as_it_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(1)
    lines = [f"{age},{age + draw.normal() * 9 > 50:d}" for age in draw.integers(18, 80, 300)]
    (tmp_path / "train.csv").write_text("age,clicked\n" + "\n".join(lines) + "\n")
    argv = ["--data", "train.csv", "--task", "clicked", "--folds", "3", "--validation", "0.1"]
    monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
    new.main()
    drafted = (tmp_path / "train.gin").read_text().replace("'", '"').splitlines()
    blocks = pages.read_blocks("data.md", "gin")
    (block,) = (block for block in blocks if "splits.Splits.fold = %fold" in block)
    assert {*block.splitlines()} <= {*drafted}
    # The shell runs the block; three processes with few steps take the place of three trainings.
    few = "--gin_param 'Run.train_steps = 4' --gin_param 'Run.checkpoint_steps = 4'"
    recipe = pages.read_block("data.md", "sh").replace('$fold"', f'$fold" {few}')
    recipe = recipe.replace("python -m", f"{shlex.quote(sys.executable)} -m")
    root = str(pathlib.Path(splits.__file__).parents[2])
    done = subprocess.run(
        ["sh", "-e", "-c", recipe],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"fold-{fold}" in done.stdout for fold in range(3))
    with config.isolated():
        cuts = [config.load(["train.gin"], [f"fold = {fold}"]).data.source for fold in range(3)]
    ages = spec.Spec(features={"age": "float32"}, labels={})
    rows = [list(cut.scan("test", ages)) for cut in cuts]
    places = [place for part in rows for place, _ in part]
    assert len(places) == len(set(places)) == 300
