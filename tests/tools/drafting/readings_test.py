"""Columns of numbers as people write them, and words that mean a missing value in one column."""

import csv as csv_lib
import sys

import pytest

from launch import new
from mtl import checks, verbs
from mtl.configs import config
from mtl.data import arrow

ROWS = 120


@pytest.fixture
def draft(tmp_path, monkeypatch):
    """draft({column: texts}, *flags): the text that is printed; y and x are added."""
    monkeypatch.chdir(tmp_path)

    def call(columns, *args, delimiter=",", task="y"):
        rows = range(ROWS)
        columns = {**columns, "x": [i * i % 7 + 0.5 for i in rows]}
        columns |= {} if "y" in columns else {"y": [i * 7 % 5 % 2 for i in rows]}
        with open("t.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv_lib.writer(file, delimiter=delimiter, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        argv = ["--data", "t.csv", "--task", task, "--force", *args]
        monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
        return new.draft(new._parse(argv))

    return call


def _scan(split="train"):
    """The values of all rows, as the drafted source reads them."""
    with config.isolated():
        data = config.load(["t.gin"]).data
    source = data.source.source
    return [row for _, row in source.scan(split, data.spec)]


NAMES = ("wage", "price", "share", "loss", "late")


@pytest.mark.slow
def test_a_spreadsheet_trains_with_the_numbers_that_people_wrote(draft):
    numbers = [round((i * 37 % 101) * 23.1 - 300, 1) for i in range(ROWS)]
    odd = ["TBD" if i == 7 else f"${x:,.2f}" for i, x in enumerate(numbers)]
    told = draft(
        {
            "wage": [f"{x:.1f}".replace(".", ",") for x in numbers],
            "price": [f"${x:,.2f}" for x in numbers],
            "share": [f"{x:.1f}%" for x in numbers],
            "loss": [f"({-x:.2f})" if x < 0 else f"{x:.2f}" for x in numbers],
            "late": ["<0.5" if x < 0 else x for x in numbers],
            "paid": odd,
        },
        *(word for name in NAMES for word in ("--keep", name)),  # Each tells `paid`.
        delimiter=";",
        task="paid",
    )
    assert "paid" in told and "heads.Regression: a number" in told
    assert "'TBD' of 'paid', in 1 rows, counts as a missing value." in told
    assert "Limits such as <0.5 or 10+ of 'late'" in told
    rows = _scan()
    for name in NAMES[:-1]:
        assert [row[name] for row in rows] == pytest.approx(numbers, rel=1e-6), name
    assert [row["late"] for row in rows] == pytest.approx([x if x >= 0 else 0.5 for x in numbers])
    paid = [row["paid"] for row in rows]
    assert paid[7] != paid[7] and paid[8:] == pytest.approx(numbers[8:], rel=1e-6)
    settings = ["Run.train_steps = 4", "Run.checkpoint_steps = 4"]
    metrics, steps = verbs.train(config.load(["t.gin"], settings), "run")
    assert steps == 4 and metrics["paid/rmse"] > 0


def test_a_form_is_asked_for_where_a_text_has_two(draft):
    texts = ["1,234" if i % 3 else f"{i % 9 + 1},{i % 7}11" for i in range(ROWS)]
    told = draft({"c": texts})
    assert "If '1,5' is right: --number_form 'c=1,5'" in told
    assert _scan()[1]["c"] == 1234
    told = draft({"c": texts}, "--number_form", "c=1,5")
    assert "--number_form" not in told.split("Look at")[-1].split("Next")[0]
    assert _scan()[1]["c"] == pytest.approx(1.234)
    with pytest.raises(checks.UserError, match="--number_form 'c' must hold numbers such as"):
        draft({"c": texts}, "--number_form", "c=$1.5")
    with pytest.raises(checks.UserError, match="--number_form must be one of"):
        draft({"c": texts}, "--number_form", "d=1,5")
    with pytest.raises(checks.UserError, match="must write the number 1.5"):
        draft({"c": texts}, "--number_form", "c=1,50")


def test_an_example_of_a_form_may_look_like_a_plain_number(draft):
    texts = [f"{1 + row % 9}.{100 + row}" for row in range(ROWS)]
    told = draft({"c": texts}, "--number_form", "c=1.234,5")
    assert f"written as in {min(texts)!r}" in told and _scan()[0]["c"] == 1100


def test_a_word_is_missing_in_its_column_and_a_class_in_another(draft):
    kinds = [["none", "low", "high"][i % 3] for i in range(ROWS)]
    numbers = ["none" if i % 20 == 0 else i / 7 for i in range(ROWS)]
    told = draft({"kind": kinds, "n": numbers}, task="kind")
    assert "heads.MultiClass: 3 classes" in told
    rows = _scan()
    assert [row["kind"] for row in rows] == kinds
    assert [row["n"] != row["n"] for row in rows] == [text == "none" for text in numbers]
    # As an input, too, the word is a category.
    draft({"kind": kinds, "n": numbers})
    assert [row["kind"] for row in _scan()] == kinds
    # No other column holds the mark, so that it may hold for all of them.
    draft({"n": numbers})
    with config.isolated():
        assert config.load(["t.gin"]).data.source.source.missing == ["", "none"]


def test_a_class_is_named_like_a_mark(draft):
    kinds = [["NA", "EU"][i % 2] for i in range(ROWS)]
    with pytest.raises(checks.UserError, match="--value 'NA'"):
        draft({"kind": kinds}, task="kind")
    told = draft({"kind": kinds}, "--value", "NA", task="kind")
    assert "two classes, 'EU' in 50.0%" in told or "two classes, 'NA' in 50.0%" in told
    assert [row["kind"] for row in _scan()] == kinds
    three = [["NA", "EU", "AS"][i % 3] for i in range(ROWS)]
    assert "missing in 33.3% ('NA'), which weighs nothing" in draft({"kind": three}, task="kind")


def test_a_word_among_numbers_is_a_value_if_the_user_says_so(draft):
    numbers = [i % 40 * 2.5 for i in range(ROWS)]
    for write in ("{:.1f}", "${:.2f}"):
        texts = ["TBD" if i == 7 else write.format(x) for i, x in enumerate(numbers)]
        assert "'TBD' of 'c', in 1 rows, counts as a missing value" in draft({"c": texts})
        draft({"c": texts}, "--value", "TBD")
        assert _scan()[7]["c"] == "TBD"


def test_words_among_many_numbers_of_a_label_are_missing_and_told(draft):
    texts = ["TBD" if i == 3 else f"{i / 7:.2f}" for i in range(ROWS)]
    told = draft({"c": texts}, task="c")
    assert "heads.Regression" in told
    assert "'TBD' of 'c', in 1 rows, counts as a missing value." in told


def test_texts_of_a_columnar_file_have_forms_and_marks(draft, monkeypatch):
    import pyarrow as pa
    from pyarrow import parquet

    numbers = [i * 12.5 for i in range(ROWS)]
    table = {
        "price": [f"${x:,.2f}" for x in numbers],
        "kind": [["none", "a"][i % 2] for i in range(ROWS)],
        "n": ["none" if i % 20 == 0 else str(i / 7) for i in range(ROWS)],
        "y": [i % 2 for i in range(ROWS)],
    }
    parquet.write_table(pa.table(table), "t.parquet")
    argv = ["--data", "t.parquet", "--task", "y", "--keep", "kind", "--force"]
    monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
    new.draft(new._parse(argv))
    rows = _scan()
    assert [row["price"] for row in rows] == pytest.approx(numbers)
    assert [row["kind"] for row in rows] == table["kind"] and rows[0]["n"] != rows[0]["n"]
    with config.isolated():
        assert isinstance(config.load(["t.gin"]).data.source.source, arrow.Arrow)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("texts", "names", "labels"),
    [
        (["0", "0.0", "1", "1.0"], ((), ()), [0, 0, 1, 1]),
        (["Yes", "yes", "NO", "no"], (["Yes", "yes"], ["NO", "no"]), ["Yes", "yes", "NO", "no"]),
        (["True", "TRUE", "False", "false"], ((), ()), [1, 1, 0, 0]),
        (["1", "1.0", "2", "+2"], ([2], [1]), [1, 1, 2, 2]),
        (["01", "02"], (["01"], ["02"]), ["01", "02"]),
        (["0.25", "0.75"], (["0.75"], ["0.25"]), ["0.25", "0.75"]),
    ],
)
def test_spellings_of_two_classes_are_two_classes(draft, texts, names, labels):
    told = draft({"c": (texts * ROWS)[:ROWS]}, task="c")
    assert "heads.Binary: two classes" in told
    with config.isolated():
        (head,) = config.load(["t.gin"]).model.heads
    assert [set(head.positive), set(head.negative)] in (
        [{*n} for n in names],
        [{*n} for n in names[::-1]],
    )
    assert [row["c"] for row in _scan()][: len(labels)] == labels


@pytest.mark.medium
@pytest.mark.parametrize(
    ("texts", "classes", "labels"),
    [
        (["1", "1.0", "2", "2.0", "4"], ["1", "2", "4"], [1, 1, 2, 2, 4]),
        (["0", "0.0", "1", "2"], 3, [0, 0, 1, 2]),
        (["01", "02", "1"], ["01", "02", "1"], ["01", "02", "1"]),
        (["1", "2", "4"], ["1", "2", "4"], ["1", "2", "4"]),
    ],
)
def test_numbers_that_are_equal_are_one_class_and_codes_are_not(draft, texts, classes, labels):
    draft({"c": (texts * ROWS)[:ROWS]}, task="c")
    with config.isolated():
        (head,) = config.load(["t.gin"]).model.heads
    assert head.classes == classes
    assert [row["c"] for row in _scan()][: len(labels)] == labels


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda i: f"{i}h {i % 60}m", "have classes that repeat.*Is the label a duration"),
        (
            lambda i: ["a", "b", "c", "d"][i // 3] if i < 12 and i % 3 == 0 else i / 7,
            "--missing 'a'",
        ),
        (lambda i: "7" if i % 2 else "7.0", "must vary"),
    ],
)
def test_a_label_of_nearly_as_many_classes_as_rows_is_asked_for(draft, write, message):
    with pytest.raises(checks.UserError, match=message):
        draft({"c": [write(i) for i in range(ROWS)]}, task="c")


@pytest.mark.slow
def test_stored_fractions_and_infinite_numbers(draft, monkeypatch):
    import pyarrow as pa
    from pyarrow import parquet

    table = {
        "x": [i / 7 for i in range(ROWS)],
        "odd": [float("inf") if i == 3 else i / 9 for i in range(ROWS)],
        "c": [[0.3, 0.7][i % 2] for i in range(ROWS)],
    }
    parquet.write_table(pa.table(table), "t.parquet")

    def call(task):
        argv = ["--data", "t.parquet", "--task", task, "--force"]
        monkeypatch.setattr(sys, "argv", ["launch.new", *argv])
        return new.draft(new._parse(argv))

    with pytest.raises(checks.UserError, match="--task 'odd' must hold finite numbers"):
        call("odd")
    assert "'odd' holds infinite numbers" in call("c")
    made = config.load(["t.gin"], ["Run.train_steps = 4", "Run.checkpoint_steps = 4"])
    assert "odd" not in made.data.spec.features
    metrics, _ = verbs.train(made, "run")
    assert 0 <= metrics["c/auc"] <= 1


def test_words_in_an_order_are_ordinal(draft):
    told = draft({"c": [["Low", "Medium", "High"][i % 3] for i in range(ROWS)]}, task="c")
    assert "The words have an order. If not: heads.MultiClass." in told
    with config.isolated():
        (head,) = config.load(["t.gin"]).model.heads
    assert list(head.classes) == ["Low", "Medium", "High"] and type(head).__name__ == "Ordinal"
    told = draft({"c": [["Low", "Red", "High"][i % 3] for i in range(ROWS)]}, task="c")
    assert "heads.Ordinal" not in told
    told = draft({"c": [["Low", "low", "High"][i % 3] for i in range(ROWS)]}, task="c")
    assert "heads.Ordinal" not in told


def _draw_lists():
    bits = [f"{i % 32:05b}" for i in range(ROWS)]
    return [[w for w, bit in zip("abcde", own, strict=True) if bit == "1"] for own in bits]


@pytest.mark.parametrize("delimiter", ["|", ";", "^", "~", "\x02"])
def test_lists_are_seen_and_read(draft, delimiter):
    lists = _draw_lists()
    told = draft({"c": [delimiter.join(own) for own in lists]})
    assert "list, 5 values between" in told
    assert [row["c"] for row in _scan()] == lists


def test_words_and_gaps_among_prices_are_missing(draft):
    texts = [f"${1 + row / 4:.2f}" for row in range(ROWS)]
    texts[::5], texts[1::10] = ["none"] * len(texts[::5]), [""] * len(texts[1::10])
    missing = 100 * sum(not text.startswith("$") for text in texts) / ROWS
    (line,) = (line for line in draft({"c": texts}).splitlines() if "written as in" in line)
    assert line.split()[:2] == ["c", f"{missing:.1f}%"]


def test_lists_between_other_characters_are_asked_for(draft):
    lists = _draw_lists()
    texts = [" ".join(own) for own in lists]
    assert "If it is a list between ' ': --list_delimiter ' '" in draft({"c": texts})
    assert "list, 5 values between ' '" in draft({"c": texts}, "--list_delimiter", " ")
    assert [row["c"] for row in _scan()] == lists
    told = draft({"c": [",".join(own) for own in lists]})
    assert "If it is a list between ',': write a|b|c" in told
    assert "holds lists such as" in draft({"c": list(map(str, lists))})
    sentences = [f"the {w} of the {v} is near" for w in "abcdefghij" for v in "klmnopqrstuv"]
    assert "list between" not in draft({"c": sentences})
    cities = ["New York", "Los Angeles", "San Francisco", "Berlin", "Paris", "Bonn"] * (ROWS // 6)
    assert "list between" not in draft({"c": cities})
    with pytest.raises(checks.UserError, match="--list_delimiter must be one character"):
        draft({"c": texts}, "--list_delimiter", "::")
    with pytest.raises(checks.UserError, match="--list_delimiter must differ"):
        draft({"c": texts}, "--list_delimiter", ",")
