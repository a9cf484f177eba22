"""Histories: the content of an event, the last events that count, and the target."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, histories, spec
from mtl.data import csv, pipeline
from mtl.features import encoding

tf1 = tf.compat.v1

BATCH = {
    "clicked": [["a", "b", "c"], [], ["b"]],
    "prices": [[1, 2, 30], [], [4]],
    "times": [[10, 70, 100], [], [107]],
    "now": np.array([100, 100, 100], np.int64),
    "item": np.array(["a", "b", "c"], object),
}


@dataclasses.dataclass(frozen=True)
class Seen:
    """An encoder that shows what it is given."""

    seen: dict = dataclasses.field(default_factory=dict)

    def __call__(self, events, target):
        self.seen.update(events=events, target=target)
        return histories.Pooling(kind="sum")(events, target)


def _items(**settings):
    return features.Categorical(
        **{"names": ["clicked"], "min_count": 1, "dimension": 2, **settings}
    )


def _history(**settings):
    return features.History(
        **{"name": "clicks", "events": [_items()], "encoder": Seen()} | settings
    )


def _run(history, fit, others=(), batch=BATCH):
    """Return the encoder's events (a list of arrays) and target, outputs, and variable names."""
    columns = [history, *others]
    fitted = fit(columns, BATCH)
    tensors = {}
    for name, values in batch.items():
        is_list = isinstance(values, list)
        dtype = tf.string if name in ("clicked", "item") else tf.int64
        tensors[name] = (
            tf.ragged.constant(values, dtype, ragged_rank=1, row_splits_dtype=tf.int64)
            if is_list
            else tf.constant(values)
        )
    with tf.Graph().as_default(), tf1.Session() as session:
        inputs = {
            name: tf.RaggedTensor.from_row_splits(v.flat_values.numpy(), v.row_splits.numpy())
            if isinstance(v, tf.RaggedTensor)
            else tf.constant(v.numpy())
            for name, v in tensors.items()
        }
        outputs = features.encode_columns(columns, inputs, fitted)
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        for variable in tf1.global_variables():
            rows, width = variable.shape
            variable.load(np.arange(rows)[:, np.newaxis] + np.arange(width) / 10, session)
        seen = {name: value for name, value in history.encoder.seen.items() if value is not None}
        seen, outputs = session.run((seen, outputs))
        names = [variable.op.name for variable in tf1.global_variables()]
    events = seen["events"]
    splits = events.row_splits
    lists = [events.values[splits[n] : splits[n + 1]] for n in range(len(splits) - 1)]
    return lists, seen.get("target"), outputs, names


def test_an_event_is_what_its_columns_make_of_its_entries(fit):
    prices = features.Numeric(names=["prices"])
    history = _history(events=[_items(), prices])
    events, _, outputs, names = _run(history, fit)
    fitted = np.array([1, 2, 30, 4])
    scaled = (fitted - fitted.mean()) / fitted.std()
    # By frequency: b is the first of the vocabulary, then a and c.
    np.testing.assert_allclose(
        events[0], [[1, 1.1, scaled[0]], [0, 0.1, scaled[1]], [2, 2.1, scaled[2]]], rtol=1e-5
    )
    assert events[1].shape == (0, 3)
    np.testing.assert_allclose(events[2], [[0, 0.1, scaled[3]]], rtol=1e-5)
    assert list(outputs) == ["clicks"] and outputs["clicks"].shape == (3, 3)
    assert names == ["features/categorical_clicked/embedding"]


def test_lists_of_fixed_length_are_events_too(fit):
    column = _history(events=[features.Identity(names=["places"], size=9, dimension=2)])
    fitted = fit([column], {"places": [[1, 2], [3, 4]]})
    with tf.Graph().as_default():
        given = {"places": tf.constant([[1, 2], [3, 4]])}
        features.encode_columns([column], given, fitted)
        assert column.encoder.seen["events"].row_lengths().shape == [2]


def test_the_last_events_count_and_know_their_places(fit):
    history = _history(last=2, place_dimension=2)
    events, *_ = _run(history, fit)
    np.testing.assert_allclose(events[0], [[0, 0.1, 1, 1.1], [2, 2.1, 0, 0.1]])
    assert len(events[1]) == 0
    np.testing.assert_allclose(events[2], [[0, 0.1, 0, 0.1]])


def test_gaps_are_powers_of_two_up_to_now(fit):
    history = _history(times="times", now="now", gap_dimension=1)
    events, *_ = _run(history, fit)
    # Gaps of 90, 30 and 0; of -7, which counts as 0.
    assert [round(gap) for gap in events[0][:, 2]] == [6, 4, 0]
    assert events[2][:, 2].tolist() == [0]


def test_a_target_is_other_columns_and_may_share_their_table(fit):
    item = features.Categorical(names=["item"], min_count=1, dimension=2, table="item")
    history = _history(events=[_items(table="item")], target=["categorical_item"])
    for others in ([item], [item, features.Numeric(names=["now"])]):
        events, target, outputs, names = _run(history, fit, others)
        assert names == ["features/item/embedding"]
        # Over both fields: b three times, a and c twice each.
        np.testing.assert_allclose(target[:, 0], [1, 0, 2])
        np.testing.assert_allclose(events[0][:, 0], [1, 0, 2])
        assert set(outputs) >= {"categorical_item", "clicks"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"events": []}, "History.events must hold a column"),
        ({"events": features.Hashed}, "History.events must be a list"),
        ({"encoder": histories.Pooling}, "History.encoder must be"),
        ({"encoder": histories.TargetAttention()}, "name the columns that TargetAttention"),
        ({"place_dimension": 4}, "History.last must be set if History.place_dimension is set"),
        ({"times": "times"}, "History.now must be set if times is set"),
        ({"now": "now"}, "History.times must be set if now is set"),
        ({"last": 0}, "History.last must be"),
        ({"name": "a b"}, "History.name must"),
        (
            {"shows_weights": True},
            "shows_weights must be False, because Seen does not weigh events",
        ),
    ],
)
def test_settings_that_make_no_sense(settings, says):
    with pytest.raises(checks.UserError, match=says):
        _history(**settings)


def test_columns_that_do_not_fit(fit):
    with pytest.raises(checks.UserError, match="'categorical_item'"):
        item = features.Categorical(names=["item"], min_count=1)
        _run(_history(target=["categorical_itm"]), fit, [item])
    with pytest.raises(checks.UserError, match=r"clicks must read fields that are lists.*'item'"):
        _run(_history(events=[features.Hashed(names=["item"], num_buckets=9)]), fit)
    twice = _history(events=[features.Hashed(names=["item"], num_buckets=9)])
    with pytest.raises(checks.UserError, match="must have distinct names, got .'hashed_item'."):
        encoding.check_columns([twice, *twice.events], BATCH)


def test_lists_of_one_row_are_equally_long(fit):
    history = _history(events=[_items(), features.Numeric(names=["prices"])])
    wrong = {**BATCH, "prices": [[1, 2], [3], [4]]}
    says = "features.clicks must read lists of equal length in a row, clicked and prices"
    with pytest.raises(tf.errors.InvalidArgumentError, match=says):
        _run(history, fit, batch=wrong)


def test_the_record_whose_lists_differ_is_found(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("clicked,prices,kinds,y\na|b,1|2,u;v|w,1\na|b,1|2,u,0\n")
    made = spec.Spec(
        features={
            "clicked": ("string", (None,)),
            "prices": ("int64", (None,)),
            "kinds": ("string", (None, None)),
        },
        labels={"y": "int64"},
    )
    source = csv.Csv(files={"train": str(path)})
    data = pipeline.Pipeline(source=source, spec=made, batch_size=2)
    names = ["clicked", "prices", "kinds"]
    history = _history(events=[features.Hashed(names=names, num_buckets=9)])
    problem = data.diagnose(tf.errors.InvalidArgumentError(None, None, ""), "train", (), [history])
    says = "must read lists of equal length in a row, got clicked of 2, prices of 2, kinds of 1."
    assert problem == f"{path} line 3: features.clicks {says}"
