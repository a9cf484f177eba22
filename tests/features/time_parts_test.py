"""Units of times and days between them, beside Python's datetime."""

import datetime
import random

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, times
from mtl.spec import time_texts

UNITS = {
    "month": lambda time: time.month,
    "day": lambda time: time.day,
    "weekday": lambda time: time.weekday() + 1,
    "hour": lambda time: time.hour + 1,
    "minute": lambda time: time.minute + 1,
}
FORMS = [
    *("%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%d %b %Y, %H:%M:%S"),
    *("%b %d, %Y %H:%M:%S", "%Y%m%dT%H%M%S", "%Y%m%d%H%M%S", "%a %b %d %H:%M:%S %Y"),
    *("%d-%b-%y %H.%M.%S",),
]


def _draw(first=1970, last=2068):
    rng = random.Random(0)
    start = datetime.datetime(first, 1, 1)
    seconds = int((datetime.datetime(last, 12, 31) - start).total_seconds())
    drawn = [start + datetime.timedelta(seconds=rng.randrange(seconds)) for _ in range(300)]
    return [*drawn, datetime.datetime(2000, 2, 29, 23, 59, 59), datetime.datetime(1970, 1, 1)]


def _ids(encoded, field, units=UNITS):
    return {unit: encoded[f"time_{field}_{unit}"][:, 0].tolist() for unit in units}


def _expect(drawn):
    return {unit: [float(read(time)) for time in drawn] for unit, read in UNITS.items()}


@pytest.mark.medium
@pytest.mark.parametrize("form", FORMS)
def test_units_are_those_of_the_calendar(encode, form):
    drawn = _draw()
    texts = [time.strftime(form) for time in drawn]
    own = "" if form.startswith("%Y-") else form
    column = features.TimeParts(names=["t"], units=[*UNITS], form=own)
    assert _ids(encode([column], {"t": np.array(texts)}), "t") == _expect(drawn)
    read = [times.read_parts(text, times.read_form("a form", own)) for text in texts]
    assert read == [time.timetuple()[:6] for time in drawn]


@pytest.mark.medium
@pytest.mark.parametrize("form", times.SINCE_1970)
@pytest.mark.parametrize("as_texts", [False, True])
def test_numbers_since_1970_are_times_in_utc(encode, form, as_texts):
    drawn = _draw(1905)
    start = datetime.datetime(1970, 1, 1)
    numbers = [int((time - start).total_seconds()) * times.SINCE_1970[form] for time in drawn]
    values = np.array(list(map(str, numbers)) if as_texts else numbers)
    column = features.TimeParts(names=["t"], units=[*UNITS], form=form)
    assert _ids(encode([column], {"t": values}), "t") == _expect(drawn)
    parts = time_texts.divide_seconds(
        tf.constant([number // times.SINCE_1970[form] for number in numbers])
    )
    assert parts["year"].numpy().tolist() == [time.year for time in drawn]


def test_other_texts_and_days_that_no_month_has_share_a_place(encode):
    texts = ["", "soon", "2024-02-30", "2023-02-29", "2024-05-31 24:00", "2024-13-01", "2024-02-29"]
    column = features.TimeParts(names=["t"], units=["month"])
    encoded = encode([column], {"t": np.array(texts)})
    assert encoded["time_t_month"][:, 0].tolist() == [0, 0, 0, 0, 0, 0, 2]
    unknown = column.find_unknown({"t": tf.constant(texts)}, None)["t"].numpy().tolist()
    assert unknown == [False, *[True] * 5, False]
    assert [times.read_parts(text, times.ISO) is None for text in texts] == [*[True] * 6, False]


@pytest.mark.parametrize(
    ("text", "minute"),
    [("2024-05-31 10:59", 60), ("2024-05-31 10:75", 0), ("2024-05-31 1099", 0)],
)
def test_a_minute_that_no_clock_shows_shares_the_extra_place(encode, text, minute):
    column = features.TimeParts(names=["t"], units=["minute"])
    encoded = encode([column], {"t": np.array([text])})
    assert encoded["time_t_minute"][:, 0].tolist() == [minute]
    assert (times.read_parts(text, times.ISO) is None) == (minute == 0)


def test_a_leap_second_is_a_time_and_a_second_after_it_is_not():
    texts = ["2016-12-31 23:59:60", "2016-12-31 23:59:61"]
    _, is_time = time_texts.read_parts(tf.constant(texts), times.ISO)
    assert is_time.numpy().tolist() == [True, False]
    assert [times.read_parts(text, times.ISO) is not None for text in texts] == [True, False]


def test_a_missing_number_is_no_time(encode):
    column = features.TimeParts(names=["t"], units=["hour"], form="seconds")
    encoded = encode([column], {"t": np.array([-1, -2, 0])})
    assert encoded["time_t_hour"][:, 0].tolist() == [0, 24, 1]
    assert not column.find_unknown({"t": tf.constant([-1, 0])}, None)["t"].numpy().any()


def test_lists_of_times_are_pooled_and_one_hot(encode):
    column = features.TimeParts(names=["t"], units=["weekday"], dimension=None, pooling="sum")
    batch = {"t": [["2024-01-01", "2024-01-02", "2024-01-08"], [""]]}
    encoded = encode([column], batch)["time_t_weekday"]
    assert encoded.tolist() == [[0, 2, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]]


def test_days_between_two_times_are_normalised(encode):
    batch = {
        "visit": np.array(["2024-03-01 12:00", "2024-03-03", "", "2024-03-05"]),
        "sign_up": np.array(["2024-02-28", "2024-02-29", "2024-02-29", "?"]),
    }
    column = features.DaysSince(names=["visit"], since="sign_up", missing_flags=True)
    encoded = encode([column], batch)["days_visit"]
    days = np.array([2.5, 3.0])
    expected = (days - days.mean()) / days.std()
    np.testing.assert_allclose(encoded[:2, 0], expected, rtol=1e-6)
    assert encoded[2:].tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "%d.%m"}, "TimeParts.form must give a year by %Y or %y, got '%d.%m'"),
        ({"form": "%Y %y"}, "TimeParts.form must give each part once, got '%y'"),
        ({"form": "%Y-%j"}, "TimeParts.form must use .*, got '%j'"),
        ({"form": "second"}, "Did you mean 'seconds'"),
        ({"units": ["week"]}, "TimeParts.units must be one of .*Did you mean 'weekday'"),
    ],
)
def test_a_mistake_is_one_line(settings, message):
    with pytest.raises(checks.UserError, match=message):
        features.TimeParts(names=["t"], **settings)


def test_fractions_are_refused(encode):
    column = features.TimeParts(names=["t"], form="seconds")
    with pytest.raises(checks.UserError, match="TimeParts.names must name fields of strings or"):
        encode([column], {"t": np.array([0.5])})
