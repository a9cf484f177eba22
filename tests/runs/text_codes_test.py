"""Runs that look texts up once: the same weights, resumed, on replicas; and which runs do not."""

import dataclasses
import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from mtl import features, networks, types
from mtl.data import coded_rows, mixture, pipeline, sampling
from mtl.features import embeddings
from mtl.runs import text_codes
from mtl.step import codes
from tests import tiny
from tests.data import sampler_order_test

SPEC = dataclasses.replace(tiny.TAGGED_SPEC, features={**tiny.TAGGED_SPEC.features, "age": "int64"})
SPLITS = {
    split: {**rows, "age": np.arange(len(rows["x"])) % 7}
    for split, rows in tiny.TAGGED_SPLITS.items()
}
COLUMNS = [
    features.Numeric(names=["x"]),
    features.Categorical(names=["word", "age"], dimension=2, min_count=14),
    features.Categorical(names=["tags"], vocabulary=["a", "c"], num_unknown=3, dimension=2),
    features.Hashed(names=["word", "tags", "age"], num_buckets=4, dimension=2, table="all"),
]


def _make(columns=COLUMNS, **run):
    made = tiny.make(splits=SPLITS, columns=columns, **run)
    return dataclasses.replace(made, data=dataclasses.replace(made.data, spec=SPEC, cache=True))


def _mix(batches="mixed", **run):
    """A run on two sources, of which the second lacks a text and a list."""
    made = _make(**run)
    absent = ["word", "tags"]
    few = {
        split: {name: own[:30] for name, own in rows.items() if name not in absent}
        for split, rows in SPLITS.items()
    }
    source = mixture.Mixture(
        sources={"first": made.data.source, "second": tiny.Rows(splits=few)},
        labels={"first": ["sign", "kind"], "second": ["size"]},
        absent_features={"second": absent},
        rates={"first": 2, "second": 1},
        batches=batches,
    )
    # A mixture needs no cache.
    data = dataclasses.replace(made.data, source=source, cache=False)
    return dataclasses.replace(made, data=data)


def _window(window, **run):
    """A run that reads its rows in windows."""
    made = _make(**run)
    source = tiny.Blocks(splits=SPLITS, window=window)
    data = dataclasses.replace(made.data, source=source, cache=False)
    return dataclasses.replace(made, data=data)


class _FilesOfRows(tiny.Rows):
    """Rows that name files."""

    names_files = True


def _observe(made):
    """The observer of a run, and the encoders that it would read with."""
    run = types.ObservedRun(experiment=made, model_dir="none", place=None)
    return text_codes.observe(run)


def _assert_same(make, folder, coded_columns):
    """Assert that a run trains the same weights with codes and without, and uses these codes."""
    found, find_ids = [], codes.find_ids

    def watch(values, column):
        found.append((column, find_ids(values, column) is not None))
        return find_ids(values, column)

    with mock.patch.object(codes, "find_ids", watch):
        coded = tiny.train(make(), folder / "coded")
    assert dict(found) == dict.fromkeys(coded_columns, True)
    with mock.patch.object(text_codes, "observe", lambda run: None):
        plain = tiny.train(make(), folder / "plain")
    assert coded.keys() == plain.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(coded[name], value, err_msg=name)


NAMES = (
    "categorical_word",
    "categorical_age",
    "categorical_tags",
    "hashed_word",
    "hashed_tags",
    "hashed_age",
)


@pytest.mark.medium
@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_weights_are_equal_to_the_bit(tmp_path, steps_per_call):
    make = functools.partial(_make, train_steps=12, steps_per_call=steps_per_call)
    _assert_same(make, tmp_path, NAMES)


@pytest.mark.medium
@pytest.mark.parametrize("batches", ["mixed", "alternating"])
def test_a_mixture_trains_the_same_weights(tmp_path, batches):
    _assert_same(functools.partial(_mix, batches, train_steps=12), tmp_path, NAMES)


@pytest.mark.medium
@pytest.mark.parametrize(("window", "steps_per_call"), [(40, 1), (12, 4)])
def test_windows_of_rows_train_the_same_weights(tmp_path, window, steps_per_call):
    make = functools.partial(_window, window, train_steps=30, steps_per_call=steps_per_call)
    _assert_same(make, tmp_path, NAMES)


@pytest.mark.medium
@pytest.mark.parametrize("sampler", [sampling.Power(label="kind"), sampler_order_test.GROUPS])
def test_samplers_train_the_same_weights(tmp_path, sampler):
    make = functools.partial(sampler_order_test._train, sampler, train_steps=12)
    _assert_same(make, tmp_path, ["categorical_word"])


@pytest.mark.medium
def test_lists_with_weights_train_the_same_weights(tmp_path):
    """Lists of fixed and of variable length; one list is also read without its weights."""
    rng = np.random.default_rng(4)
    splits = {
        split: {
            **rows,
            "tags/weights": [rng.random(len(own)).tolist() for own in rows["tags"]],
            "pair": rng.choice(tiny.TAGS, [len(rows["x"]), 2]),
            "pair/weights": rng.random([len(rows["x"]), 2]).astype(np.float32),
        }
        for split, rows in SPLITS.items()
    }
    kinds = {"tags/weights": ("float32", (None,))}
    kinds |= {"pair": ("string", (2,)), "pair/weights": ("float32", (2,))}
    fields = dataclasses.replace(SPEC, features={**SPEC.features, **kinds})
    plain = features.Categorical(names=["tags"], vocabulary=["a"], dimension=2, prefix="plain")
    lookups = [
        features.Categorical(names=["tags", "pair"], vocabulary=["a", "c"], dimension=2),
        features.Hashed(names=["pair"], num_buckets=4, dimension=2, pooling="sum"),
    ]
    columns = [COLUMNS[0], plain, features.Weighted(lookups=lookups)]

    def make():
        made = tiny.make(splits=splits, columns=columns, train_steps=12)
        data = dataclasses.replace(made.data, spec=fields, cache=True)
        return dataclasses.replace(made, data=data)

    names = ["weighted_categorical_tags", "weighted_categorical_pair", "weighted_hashed_pair"]
    names += [name.removeprefix("weighted_") for name in names]
    _assert_same(make, tmp_path, ["plain_tags", *names])


def test_a_mixture_reads_each_source_once_and_keeps_one_copy():
    """A new process, such as of a continued run, has counted no rows before."""
    made = _mix()
    load = functools.partial(features.load_statistics, "")
    hashed = dataclasses.replace(made, model=dataclasses.replace(made.model, columns=COLUMNS[3:]))
    data = coded_rows.code_texts(made.data, text_codes.list_encoders(hashed, load))
    reads, read_part = [], mixture._read_part

    def watch(part, spec):
        reads.append(part.name)
        return read_part(part, spec)

    with mock.patch.object(mixture, "_read_part", watch), tf.Graph().as_default():
        data.dataset("train", training=True, seed=1)
        data.dataset("train", training=True, seed=1, start_step=7)
    assert reads == ["first", "second"] and not made.data.source._row_cache[1]


@pytest.mark.thorough
@pytest.mark.slow
def test_replicas_slices_and_a_resumed_run_train_alike(tmp_path):
    plain = networks.SharedBottom(trunk=networks.MLP(layers=[4]), tower=networks.MLP(layers=[2]))
    make = functools.partial(_make, network=plain)
    tiny.assert_trains_in_parts(make, tmp_path / "parts", 8)
    tiny.assert_goes_on(_make, tmp_path / "resumed", 4)
    tiny.assert_goes_on(functools.partial(_window, 12), tmp_path / "windows", 4)


@pytest.mark.medium
def test_a_part_that_reads_the_texts_gets_them(tmp_path):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Reading(features.Numeric):
        """A column that reads a text without saying so."""

        def __call__(self, given, fitted):
            is_red = tf.cast(tf.equal(given["word"], "red"), tf.float32)
            return super().__call__({"x": given["x"] * is_red[:, tf.newaxis]}, fitted)

    made = _make(columns=[Reading(names=["x"]), *COLUMNS[1:]], train_steps=3)
    coded = tiny.train(made, tmp_path / "coded")
    with mock.patch.object(text_codes, "observe", lambda run: None):
        plain = tiny.train(made, tmp_path / "plain")
    for name, value in plain.items():
        np.testing.assert_array_equal(coded[name], value, err_msg=name)


def test_fields_of_other_columns_stay_texts():
    load = functools.partial(features.load_statistics, "")
    assert {
        field: set(columns) for field, columns in text_codes.list_encoders(_make(), load).items()
    } == {
        "word": {"categorical_word", "hashed_word"},
        "age": {"categorical_age", "hashed_age"},
        "tags": {"categorical_tags", "hashed_tags"},
    }
    crossed = features.Crossed(crosses=[["word", "age"]], num_buckets=9)
    made = _make(columns=[*COLUMNS, crossed])
    assert set(text_codes.list_encoders(made, load)) == {"tags", "age"}
    wide = features.Hashed(
        names=["word"], num_buckets=2**40, embedding=embeddings.QuotientRemainder()
    )
    assert not text_codes.list_encoders(_make(columns=[COLUMNS[0], wide]), load)
    with mock.patch.object(pipeline.Pipeline, "order_field", "word"):  # As of a sampler.
        assert set(text_codes.list_encoders(_make(), load)) == {"age", "tags"}
    keyed = dataclasses.replace(made.data, spec=dataclasses.replace(SPEC, keys=("tags",)))
    keyed = dataclasses.replace(made, data=keyed)
    assert set(text_codes.list_encoders(keyed, load)) == {"age"}


def test_runs_that_look_texts_up_at_every_step():
    made = _make()
    assert all(_observe(one) is not None for one in (made, _mix(), _window(40)))
    assert _observe(_make(micro_batches=2)) is None
    assert _observe(_make(columns=COLUMNS[:1])) is None
    for settings in (
        {"cache": False},
        {"cache": False, "sampler": sampling.Power(label="kind")},
        {"source": _FilesOfRows(splits=SPLITS)},
    ):
        data = dataclasses.replace(made.data, **settings)
        assert _observe(dataclasses.replace(made, data=data)) is None, settings
