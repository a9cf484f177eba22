"""Numbers as people write them, read alike by Python, TensorFlow and Arrow."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from mtl import checks, spec
from mtl.data import csv, written_numbers

# {example of a form: {text: its number}}; the numbers are written by hand.
FORMS = {
    "1,5": {
        "72,89": 72.89,
        "-3,5": -3.5,
        "\u22123,5": -3.5,
        "7": 7,
        "5,": 5,
        "1,5e3": 1500,
        "(2,5)": -2.5,
    },
    "$1,234.5": {"$1,234.50": 1234.5, "-$5": -5, "$-5": -5, "($12.50)": -12.5, "$1234": 1234},
    "1.234,5 €": {"1.234,50 €": 1234.5, "12€": 12, "-1.234.567\u00a0€": -1234567, "3,5-€": -3.5},
    "1 234,5": {"1\u202f234,5": 1234.5, "1 234 567": 1234567, "+1,5": 1.5},
    "1'234.5": {"1'234.5": 1234.5, "-.5": -0.5},
    "1.5%": {"45.3%": 45.3, "45 %": 45, "\u22121%": -1},
    "1.5 km/h": {"3.2 km/h": 3.2, "3km/h": 3},
    "EUR 1.5": {"EUR 12.5": 12.5, "EUR2": 2},
    "<1.5": {"<0.5": 0.5, "10+": 10, "\u2265 3": 3, "<=2": 2, "4.5": 4.5, "-1": -1},
}
OTHERS = {
    "1,5": ["1 234", "x5", "/5", "\u202f5", "1.5", "1.234", "1,2,3", "x", "1e", "--1", "(1", "nan"],
    "$1,234.5": ["12.50", "$12,34", "$-5-", "€5", "$", "-$-5"],
    "1.5%": ["45", "0.45", "%", "1,5%"],
    "1.5 km/h": ["300 m", "3 km/hour"],
    "1 234,5": ["12 34", "1.5"],
    "<1.5": ["0.5<", "+", "<", "<-"],
}


def _read_plain(example, text):
    form = written_numbers.read_form("where", example)
    array = pc.replace_substring_regex(pa.array([text]), *form.rewrites[0])
    for pattern, replacement in form.rewrites[1:]:
        array = pc.replace_substring_regex(array, pattern, replacement)
    is_whole = pc.match_substring_regex(pa.array([text]), form.pattern)[0].as_py()
    assert is_whole == (re.fullmatch(form.pattern, text) is not None)
    plain = written_numbers.to_plain(form, text)
    assert plain == (array[0].as_py() if is_whole else text + form.mark)
    return plain


@pytest.mark.parametrize("example", FORMS)
def test_a_number_of_a_form_is_that_number(example):
    for text, number in FORMS[example].items():
        assert float(_read_plain(example, text)) == number, text


@pytest.mark.parametrize("example", OTHERS)
def test_a_text_of_another_form_is_no_number(example):
    for text in OTHERS[example]:
        with pytest.raises(ValueError, match="could not convert"):
            float(_read_plain(example, text))


@pytest.mark.parametrize("example", ["1.23", "1,234,5", "1", "", "2.5", 3, "1.55"])
def test_another_example_is_refused(example):
    with pytest.raises(checks.UserError, match=r"number_forms.*must write the number"):
        csv.Csv(files={"train": "a.csv"}, number_forms={"x": example})


def _write(tmp_path, cells):
    lines = ["x;y;note", *(f"{cell};1;NA" for cell in cells)]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"files": {"train": str(tmp_path / "a.csv")}, "delimiter": ";"}


@pytest.mark.medium
@pytest.mark.parametrize("example", FORMS)
def test_all_readers_of_a_file_take_the_forms_and_the_marks(tmp_path, example):
    cells = [*FORMS[example], "n/a", ""]
    # A default is a plain number, also if it could be one of the form.
    fields = spec.Spec(
        features={"x": "float32", "note": "string"}, labels={"y": "int64"}, defaults={"x": 1.234}
    )
    read = csv.Csv(
        **_write(tmp_path, cells), number_forms={"x": example}, missing_in={"x": ["n/a"]}
    )
    expected = np.float32([*FORMS[example].values(), 1.234, 1.234])
    decoded = read.decode(next(iter(read.records("train").batch(99))), fields, True)
    np.testing.assert_array_equal(decoded["x"], expected)
    values = np.concatenate([block["x"] for block in read.read_values("train", fields)])
    np.testing.assert_array_equal(values, expected)
    rows = [row for _, row in read.scan("train", fields)]
    np.testing.assert_array_equal(np.float32([row["x"] for row in rows]), expected)
    # A mark for missing values in one field is a plain value in other fields.
    assert {row["note"] for row in rows} == {"NA"} and set(decoded["note"].numpy()) == {b"NA"}


def test_a_text_of_another_form_names_its_line(tmp_path):
    fields = spec.Spec(features={"x": "float32"}, labels={"y": "int64"})
    read = csv.Csv(**_write(tmp_path, ["1,5", "1.234"]), number_forms={"x": "1,5"})
    problems = [(where, row) for where, row in read.scan("train", fields) if isinstance(row, str)]
    ((where, problem),) = problems
    assert where.endswith("a.csv line 3") and "'1.234, not as 1,5'" in problem


@pytest.mark.parametrize("kind", ["string", ("float32", (None,)), ("float32", (2,))])
def test_a_form_is_that_of_single_numbers(tmp_path, kind):
    fields = spec.Spec(features={"x": kind}, labels={"y": "int64"})
    read = csv.Csv(**_write(tmp_path, ["1,5"]), number_forms={"x": "1,5"})
    with pytest.raises(checks.UserError, match="must name a field of single numbers"):
        list(read.scan("train", fields))
