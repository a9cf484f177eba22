import pytest
import tensorflow as tf

from mtl import checks, spec
from mtl.data import csv, field_splits, pipeline

SPEC = spec.Spec(features={"x": "int64"}, labels={})


@pytest.fixture
def source(tmp_path):
    rows = [f"{i},u{i // 10},2024-01-{1 + i // 20:02d}" for i in range(400)] + ["400,u1,"]
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
    assert sorted(train + test) == list(range(401))
    users = [{min(x, 400) // 10 if x < 400 else 1 for x in part} for part in (train, test)]
    assert not users[0] & users[1]
    assert 4 <= len(users[1]) <= 20  # Of 40 users 12 are expected, and 2.9 is the deviation.


@pytest.mark.medium
@pytest.mark.parametrize(
    ("field", "start"), [("day", "2024-01-19"), ("day", "2024-01-18 00:00:01"), ("x", 360)]
)
def test_the_last_rows_are_held_out_and_those_without_a_time_are_in_no_split(source, field, start):
    cut = field_splits.ByTime(source=source, field=field, starts={"test": start})
    assert read(cut, "train") == list(range(360))
    assert read(cut, "test") == list(range(360, 400 + (field == "x")))


@pytest.mark.parametrize("zone", ["", "Z", "+02:00", "-05:00", ":00.9", ":00+0200"])
def test_neither_a_zone_nor_fractions_of_a_second_count(source, zone):
    starts = {"test": "2024-05-31 10:00:01"}
    cut = field_splits.ByTime(source=source, field="day", starts=starts)
    texts = tf.constant([f"2024-05-31T10:00{zone}", f"2024-05-31T10:01{zone}"])
    assert cut.takes("test", texts).numpy().tolist() == [False, True]


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ({"test": "5/31/24"}, "be a number, or as 2024-05-31, got '5/31/24'"),
        ({"a": 2, "b": 1}, "be in ascending order"),
        ({"train": 2}, "name new splits"),
    ],
)
def test_starts_are_checked(source, starts, message):
    with pytest.raises(checks.UserError, match=message):
        field_splits.ByTime(source=source, field="x", starts=starts)
