"""Times and ids: which units of times are inputs, which columns are left out, with which hint."""

import collections
import datetime

import numpy as np
import pyarrow as pa
import pytest

from mtl import times
from mtl.tools.drafting import columns, inputs, inspection, lines

ROWS = 240


def _choose(name, texts, keep=False, form=""):
    texts = list(map(str, texts))
    column = columns.Column(name)
    array = pa.chunked_array([texts])
    column.add(array)
    facts = column.summarize(["", *column.find_marks()], array)
    forms = {name: form} if form else {}
    found = inspection.Inspection(
        dialect=lines.Dialect(paths=("t.csv",), delimiter=",", columns=(name,), time_forms=forms),
        rows_of={"t.csv": len(texts)},
        marks=("",),
        marks_in={},
        facts={name: facts},
        sample=pa.table({name: array}),
        places=np.arange(len(texts)),
    )
    return inputs.choose_input(facts, found, "|", keep)


def _days(form):
    day = np.datetime64("2021-03-01")
    return [(day + 3 * (i * 37 % ROWS)).item().strftime(form) for i in range(ROWS)]


@pytest.mark.parametrize(
    ("form", "known"),
    [
        *(("%Y-%m-%d", ""), ("%Y-%m-%dT%H:%M:%S+01:00", ""), ("%Y/%m/%d", "")),
        *((form, form) for form in ("%d.%m.%Y", "%d.%m.%y %H:%M", "%m/%d/%y", "%d/%m/%Y")),
        *((form, form) for form in ("%m/%d/%Y %I:%M %p", "%d-%b-%y", "%Y%m%d", "%Y%m%dT%H%M%S")),
        ("%b %d, %Y", "%b %d, %Y"),
        ("%d %B %Y", "%d %b %Y"),
        ("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %Y"),
        ("%a, %d %b %Y %H:%M:%S +0000", "%a, %d %b %Y %H:%M:%S %z"),
    ],
)
def test_times_are_inputs_by_units_that_come_again(form, known):
    chosen = _choose("c", _days(form))
    assert chosen.why.endswith(": by weekday") and chosen.parts == ("times",)
    assert chosen.times.form == known and "--time 'c'" in chosen.doubt


@pytest.mark.parametrize(
    ("form", "has_zones"),
    [
        ("%Y-%m-%dT%H:%M:%S", False),
        ("%Y-%m-%dT%H:%M:%SZ", True),
        ("%Y-%m-%d %H:%M:%S+0200", True),
        ("%d.%m.%Y %H:%M CET", True),
        ("%d.%m.%Y", False),
    ],
)
def test_a_draft_tells_that_zones_are_ignored(form, has_zones):
    assert ("as written, whatever the zone: by" in _choose("c", _days(form)).why) == has_zones
    assert (
        "Their zones are ignored: new rows need" in _choose("c", _days(form)).doubt
    ) == has_zones


@pytest.mark.parametrize("form", ["%Y%m", "%Y-%m", "%Y-W%V", "%YQ1"])
def test_times_whose_units_do_not_come_again_are_left_out(form):
    chosen = _choose("c", _days(form))
    assert chosen.why.startswith("left out: a time") and "--time 'c'" in chosen.doubt
    assert not chosen.dtype


def test_units_follow_the_span_and_the_clock():
    start = datetime.datetime(2021, 3, 1)

    def units(step):
        return _choose(
            "c", [start + datetime.timedelta(hours=step * i) for i in range(ROWS)]
        ).times.units

    assert units(1) == ("hour",)
    assert units(5) == ("weekday", "hour")
    assert units(24) == ("weekday",)
    assert units(24 * 7) == ("month",)
    assert units(100) == ("month", "weekday", "hour")


def test_a_form_is_asked_for_if_days_may_be_months():
    texts = [f"{1 + i % 12:02d}/{1 + i // 12 % 12:02d}/{2020 + i // 80}" for i in range(ROWS)]
    chosen = _choose("c", texts)
    assert (chosen.times.form, chosen.times.twin) == ("%m/%d/%Y", "%d/%m/%Y")
    assert _choose("c", texts, form="%d/%m/%Y").times.form == "%d/%m/%Y"
    sure = _choose("c", [*texts[:-1], "31/12/2022"]).times
    assert (sure.form, sure.twin) == ("%d/%m/%Y", "")


@pytest.mark.parametrize("unit", times.SINCE_1970)
@pytest.mark.parametrize("shift", [0, 0.5])
def test_numbers_since_1970_are_times(unit, shift):
    scale = times.SINCE_1970[unit]
    numbers = [1.6e9 + 86_477.0 * i + shift for i in range(ROWS)]
    texts = [f"{number * scale:.1f}" if shift else int(number * scale) for number in numbers]
    chosen = _choose("c", texts)
    assert chosen.times.form == unit and "--keep 'c'" in chosen.doubt
    assert chosen.dtype == "string" and chosen.times.units == ("weekday", "hour")
    assert _choose("c", texts, keep=True).dtype in ("int64", "float32")


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("c", [i * 7919 for i in range(ROWS)]),
        ("year", [1990 + i % 30 for i in range(ROWS)]),
        ("price", [20_130_001 + 100 * i for i in range(ROWS)]),
        ("heat_index", [1000 + 37 * i for i in range(ROWS)]),
        ("air_quality_index", [i % 170 * 3 for i in range(ROWS)]),
        ("turkey", [5 * i for i in range(ROWS)]),
    ],
)
def test_other_numbers_are_inputs(name, numbers):
    assert _choose(name, numbers).dtype == "int64"


@pytest.mark.parametrize(
    ("name", "texts", "why"),
    [
        ("", range(ROWS), "the number of a row"),
        ("Unnamed: 0", range(ROWS), "an id"),
        ("user_id", [7919 * i for i in range(ROWS)], "an id"),
        ("index", [3 * i for i in range(ROWS)], "an id"),
        ("c", [f"{i * 2654435761 % 2**32:08x}" for i in range(ROWS)], "an id"),
    ],
)
def test_ids_are_no_inputs(name, texts, why):
    assert _choose(name, texts).why.startswith(f"left out: {why}")


@pytest.mark.parametrize("name", ["user_id", "patient", "customer", "sales_person", "userId"])
def test_repeated_ids_may_be_keys(name):
    texts = [f"k{i // 4}" for i in range(4 * ROWS)]
    counts = collections.Counter(texts)
    column = columns.Column(name)
    column.add(pa.chunked_array([texts]))
    facts = column.summarize([""], pa.chunked_array([texts]))
    assert facts.distinct == len(counts) and inputs.looks_like_key(facts)


@pytest.mark.parametrize("text", ["{}h 5m", "{}:45:01", "0x{}f", "{}_000", "{} 1/2"])
def test_amounts_in_an_odd_form_are_told(text):
    chosen = _choose("c", [text.format(i % 60 + 100) for i in range(ROWS)])
    assert "is an amount, write it as a number" in chosen.doubt


def test_numbers_among_many_words_are_left_out_with_the_flags():
    texts = [["TBD", "n.a.", "later", "none yet"][i] if i < 4 else i / 7 for i in range(ROWS)]
    chosen = _choose("c", texts)
    assert "left out: numbers, mixed with other texts" in chosen.why
    assert "--missing 'TBD' --missing 'n.a.'" in chosen.doubt


def test_values_with_a_line_break_do_not_count_as_known():
    some = _choose("c", ["a", "b", "c\nd"] * ROWS)
    assert some.why == "category, 3 values, 1 of them unknown to the model because of a line break"
    # Without another value, a vocabulary would be empty.
    assert _choose("c", ["a\nb", "c\nd"] * ROWS).parts == ("hashes",)
