"""The table has every setting that can be a path; settings that hold names refuse paths."""

import contextlib
import dataclasses
import functools
import inspect
import pathlib
import re
import typing

import pytest
import tensorflow as tf

from launch import parts
from mtl import auxiliary, checks, heads, networks
from mtl.configs import places, trust
from mtl.data import csv, image_files
from mtl.model import combined
from mtl.tools import tracking
from mtl.transfer import warm_start
from tests.conformance import settings

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "security.md"

# Settings that may hold text, and are words of a list, names of fields, tasks or columns, patterns
# or parts. One that names a file, a folder or a server belongs into `places.TABLE`.
_WORDS = """
    activation activations added after at batch_norm bilinear boundaries by calibration_slices
    class_counts class_weights classes classifier columns combine comment compression contexts
    covariance crosses default defaults delimiter density devices direction distance distribution
    domain dtype entries event eviction exclude extensions features field fields frozen gain
    gaussian gradient granularity group groups head heads held_out ideal if_not_finite
    implementation include item item_columns item_counts item_delimiter kernels key keys kind l1 l2
    label label_type labels list_delimiter lookups loss_type metric missing names negative negatives
    new_rows norm normalization normalizer not_decayed now observers of on optimizers order outputs
    own padding parts passthrough patterns personal pooling positive positive_weight preferences
    primary prior projection propensity query rates replacement salt scale scopes shortcut
    signature signatures skipped slices storage strategy target task tasks temperature tensor times
    together type_defaults uneven units until variables visible weight weight_delimiter weights
    wide within
"""
# Words that name a place in one part and something else in another.
_IN_SOME_PARTS = """
    Arrow.rename Arrow.sheet ClickStream.rows Experiment.clip_audit Experiment.tensorboard
    Funnel.rows RelatedTasks.rows Field.name MLflow.experiment MLflow.run_name
    MLflow.tags Pipeline.eval_split Pipeline.train_split RBM.output Tfds.rename WandB.mode
    Subset.draw SvmLight.vector WandB.run_name WandB.tags WarmStart.rename ByTime.starts
    ByTime.form TimeParts.form DaysSince.form DaysSince.since
    Field.part_of Joined.tables Joined.table_split
    Mixture.sources Mixture.batches Mixture.absent_features Mixture.splits Mixture.name_field
    Splits.shares Splits.stratify Splits.fold_split Csv.missing_in Csv.number_forms Csv.rename
"""
OTHERS = {*_WORDS.split(), *_IN_SOME_PARTS.split()}
# A file or a scope of a run is named after these.
NAMES = ("name", "prefix", "table", "model_name")


@functools.cache
def _settings():
    """{Part.setting: (part, setting)} of all settings of all parts that may hold text."""
    found = {}
    for kind in parts.find_parts():
        hints = typing.get_type_hints(kind, localns={"tf": tf})
        for field in dataclasses.fields(kind):
            told = inspect.formatannotation(hints[field.name])
            if field.init and re.search(r"\b(str|bytes|Any|object|PathLike|Callable)\b", told):
                found[f"{kind.__name__}.{field.name}"] = (kind, field.name)
    return found


def test_every_setting_that_can_name_a_place_is_in_the_table():
    assert len(_settings()) > 380
    known = {*places.TABLE, *OTHERS}
    named_alike = {"split", *NAMES}
    unknown = [
        name
        for name, (_, setting) in _settings().items()
        if name not in known and setting not in known and setting not in named_alike
    ]
    assert not unknown, f"Put them into places.TABLE, or into OTHERS of this test: {unknown}"
    assert not {*places.TABLE} - {*_settings()}


def test_a_name_is_no_path():
    made = 0
    for name, (kind, setting) in _settings().items():
        if setting in NAMES and name not in {*places.TABLE, *OTHERS}:
            with pytest.raises(checks.UserError):
                kind(**settings.required(kind) | {setting: "../x"})
            made += 1
    assert made > 50


def test_the_docs_have_the_table():
    assert places.write_table() in DOCS.read_text()


@pytest.mark.parametrize(
    ("part", "setting", "does"),
    [
        (
            auxiliary.Distillation(teacher="x"),
            "Distillation.teacher",
            "run code, write and connect",
        ),
        (
            auxiliary.FeatureDistillation(teacher="x", tensor="y"),
            "FeatureDistillation.teacher",
            "run code",
        ),
        (tracking.MLflow(), "MLflow.tracking_uri", "write and connect"),
        (tracking.MLflow(tracking_uri="mlruns"), "MLflow.tracking_uri", "write and connect"),
        (tracking.WandB(), "WandB.project", "connect"),
        (csv.Csv(files={"train": ["a.csv", "gs://b/a.csv"]}), "Csv.files", "connect"),
        (csv.Csv(files={"train": "a.csv"}, data_dir="hdfs://b"), "Csv.data_dir", "connect"),
        (warm_start.WarmStart(source="gs://b/run"), "WarmStart.source", "connect"),
        (combined.MeanGain(baselines={"y/auc": "s3://b"}), "MeanGain.baselines", "connect"),
        (
            image_files.ImageFiles(source=csv.Csv(files={"a": "a"}), fields=["x"], folder="gs://b"),
            "ImageFiles.folder",
            "connect",
        ),
    ],
)
def test_what_does_more_than_read_is_refused_unless_it_is_named(part, setting, does):
    rule = f"^{setting} must be left out with --trusted_packages, as it may {does}"
    within = {"some": [part]}
    trust.EVERYTHING.check_built(within)
    with pytest.raises(checks.UserError, match=rule):
        trust.Trusted([]).check_built(within)
    with pytest.raises(checks.UserError, match=rule):
        trust.Trusted([], ["Tfds.data_dir"]).check_built(within)
    trust.Trusted([], [setting]).check_built(within)


@pytest.mark.parametrize(
    "part",
    [
        csv.Csv(files={"train": "/data/a.csv"}, data_dir="a:/b"),
        csv.Csv(files={"train": "file:///data/a.csv"}),
        warm_start.WarmStart(source="runs/a"),
        combined.MeanGain(baselines={"y/auc": "runs/a", "z/auc": 0.5}),
        heads.Binary(name="y", label="gs"),
        networks.KerasModel(build=networks.MLP),
    ],
)
def test_what_reads_is_allowed(part):
    trust.Trusted([]).check_built(part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extended(auxiliary.Distillation):
    """A part of a trusted package: what it has of mtl does what it does there."""

    name: str = "extended"


def test_a_part_that_extends_ours_is_refused_as_ours():
    with pytest.raises(checks.UserError, match="^Distillation.teacher must be left out"):
        trust.Trusted(["tests"]).check_built(Extended(teacher="theirs"))


def test_a_part_that_is_built_opens_nothing_elsewhere(monkeypatch):
    """The check comes after it."""
    opened = []
    for name in ("exists", "isdir", "glob", "listdir", "stat", "GFile"):
        monkeypatch.setattr(tf.io.gfile, name, lambda path, *rest: opened.append(path))
    url = "gs://bucket/x"
    built = 0
    for name, (kind, setting) in _settings().items():
        if name not in places.TABLE or setting in ("head", "build"):
            continue
        forms = [url, {"train": url}, {"train": {"x": url}}, {"y/auc": url}]
        for value in forms:
            with contextlib.suppress(checks.UserError):
                kind(**settings.required(kind) | {setting: value})
                built += 1
    assert not opened and built > 30
