import dataclasses

import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import chosen_rows, csv, field_splits, pipeline, subset

SPEC = spec.Spec(features={"x": "int64"}, labels={})


@pytest.fixture
def source(tmp_path):
    rows = [f"{i},u{i // 10},2024-01-{1 + i // 20:02d}" for i in range(400)]
    rows += ["400,u1,", "401,u1,31.01.2024"]
    (tmp_path / "a.csv").write_text("x,user,day\n" + "\n".join(rows) + "\n")
    return csv.Csv(files={"train": str(tmp_path / "a.csv")})


def read(source, split):
    data = pipeline.Pipeline(source=source, spec=SPEC, batch_size=64)
    found = [x for f, _ in data.dataset(split, training=False, seed=0) for x in f["x"].numpy()]
    assert [row["x"] for _, row in source.scan(split, SPEC)] == found
    return found


@pytest.mark.medium
def test_rows_of_one_key_lie_in_one_split(source):
    cut = field_splits.ByKey(source=source, field="user", held_out={"test": 0.3})
    train, test = read(cut, "train"), read(cut, "test")
    assert sorted(train + test) == list(range(402))
    users = [{x // 10 if x < 400 else 1 for x in part} for part in (train, test)]
    assert not users[0] & users[1]
    assert 4 <= len(users[1]) <= 20  # 12 of 40 users are expected; the deviation is 2.9.


@pytest.mark.medium
@pytest.mark.parametrize(
    ("field", "start"), [("day", "2024-01-19"), ("day", "2024-01-18 00:00:01"), ("x", 360)]
)
def test_the_last_rows_are_held_out_and_those_without_a_time_are_in_no_split(source, field, start):
    cut = field_splits.ByTime(source=source, field=field, starts={"test": start})
    assert read(cut, "train") == list(range(360))
    assert read(cut, "test") == list(range(360, 402 if field == "x" else 400))


@pytest.mark.parametrize("zone", ["", "Z", ":00.9", " UTC"])
def test_fractions_of_a_second_do_not_count(source, zone):
    starts = {"test": "2024-05-31 10:00:01"}
    cut = field_splits.ByTime(source=source, field="day", starts=starts)
    texts = tf.constant([f"2024-05-31T10:00{zone}", f"2024-05-31T10:01{zone}"])
    assert _take(cut, texts) == [False, True]


@pytest.mark.parametrize("start", ["2024-05-31 10:00", "2024-05-31T19:00+09:00"])
def test_times_with_offsets_are_compared_in_utc(source, start):
    cut = field_splits.ByTime(source=source, field="day", starts={"test": start})
    later = ["2024-05-31T19:01+09:00", "2024-05-31 02:00:00-0800", "2024-05-31T10:00Z"]
    assert _take(cut, later) == [True] * 3
    assert _take(cut, ["2024-05-31T11:00+09:00", "2024-05-31 01:59-08"]) == [False] * 2


def _take(cut, texts, first=0):
    """Return a list: True for each text whose row is in the split `test`."""
    numbers = first + tf.range(len(texts), dtype=tf.int64)
    return cut.takes("test", tf.constant(texts), numbers).numpy().tolist()


def test_times_are_compared_by_what_they_mean(source):
    cut = field_splits.ByTime(source=source, field="day", starts={"test": "2024-5-31 12:00"})
    later = ["2024-05-31 12:00", "2024-6-1", "2024/05/31 1:00 PM", "2024-10-01"]
    assert _take(cut, later) == [True] * 4
    assert _take(cut, ["2024-05-31 9:05", "2024/05/31 11:00 AM", "2024-5-4", "noon"]) == [False] * 4
    starts = {"a": "2024-9-30", "test": "2024-10-1"}
    assert field_splits.ByTime(source=source, field="day", starts=starts).new_splits == [*starts]


def test_an_unknown_name_of_a_month_is_no_time(source):
    cut = field_splits.ByTime(
        source=source, field="day", starts={"test": "2024-05-01"}, form="%d %b %Y"
    )
    texts = tf.constant(["30 Apr 2024", "15 May 2024", "15 Mai 2024", "15 Okt 2024"])
    numbers = tf.range(4, dtype=tf.int64)
    assert cut.takes("train", texts, numbers).numpy().tolist() == [True, False, False, False]
    assert cut.takes("test", texts, numbers).numpy().tolist() == [False, True, False, False]


def test_rows_without_a_time_are_counted_and_told(source):
    cut = field_splits.ByTime(source=source, field="day", starts={"test": "2024-01-19"})
    line = (
        "2 of 402 rows (0.5%) are in no split: their ByTime.field 'day' holds no time, for "
        "example '31.01.2024'."
    )
    within = subset.Subset(source=cut, share=0.5)
    assert chosen_rows.describe_left_out(within) == [line]
    numbers = dataclasses.replace(cut, field="x", starts={"test": 360})
    assert chosen_rows.describe_left_out(numbers) == []
    assert chosen_rows.describe_left_out(source) == []


@pytest.mark.parametrize("number", range(20))
def test_a_whole_number_and_the_float_that_equals_it_are_one_key(source, number):
    cut = field_splits.ByKey(source=source, field="user", held_out={"test": 0.5})
    assert len(set(_take(cut, [f"{number}", f"{number}.0", f"{number}."]))) == 1


def test_rows_without_a_key_are_dealt_one_by_one(source):
    cut = field_splits.ByKey(source=source, field="user", held_out={"test": 0.25})
    taken = _take(cut, [""] * 4000)
    assert 880 < sum(taken) < 1120  # The deviation is 27.
    assert taken == [_take(cut, [""], first)[0] for first in range(20)] + taken[20:]


@pytest.mark.medium
def test_a_scan_deals_rows_without_a_key_as_a_reading_does(tmp_path, monkeypatch):
    monkeypatch.setattr(chosen_rows, "_SCANNED_WITH_KEYS", 64)
    rows = [f"{i},{'u' * (i % 3 == 0)}" for i in range(400)]
    (tmp_path / "a.csv").write_text("x,user\n" + "\n".join(rows) + "\n")
    source = csv.Csv(files={"train": str(tmp_path / "a.csv")})
    cut = field_splits.ByKey(source=source, field="user", held_out={"test": 0.5})
    assert sorted(read(cut, "train") + read(cut, "test")) == list(range(400))


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ({"test": "5/31/24"}, "be a number or like 2024-05-31, got '5/31/24'"),
        ({"a": 2, "b": 1}, "be in ascending order"),
        ({"train": 2}, "name new splits"),
    ],
)
def test_starts_are_checked(source, starts, message):
    with pytest.raises(checks.UserError, match=message):
        field_splits.ByTime(source=source, field="x", starts=starts)
