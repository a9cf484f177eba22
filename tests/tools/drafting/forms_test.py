"""Texts of numbers as people write them: which form they have, and which texts have none."""

import collections

import pytest

from mtl.tools.drafting import forms

NUMBERS = [round(3.17 * n * n - 40 * n, 2) for n in range(1, 60)]


def _swap(text):
    return text.replace(",", "_").replace(".", ",").replace("_", ".")


def _find(write, numbers=NUMBERS, **settings):
    return forms.find_form(collections.Counter(map(write, numbers)), **settings)


@pytest.mark.parametrize(
    ("write", "example"),
    [
        (lambda x: f"{x:.2f}".replace(".", ","), "1,5"),
        (lambda x: f"{x:,.2f}", "1,234.5"),
        (lambda x: _swap(f"{x:,.2f}"), "1.234,5"),
        (lambda x: f"{x:,.0f}".replace(",", "\u202f"), "1 234,5"),
        (lambda x: f"{x:,.1f}".replace(",", "'"), "1'234.5"),
        (lambda x: f"${x:,.2f}", "$1,234.5"),
        (lambda x: _swap(f"{x:,.2f} €"), "1.234,5€"),
        (lambda x: f"USD {x:.2f}", "USD 1.5"),
        (lambda x: f"{x:.1f}%", "1.5%"),
        (lambda x: f"{x:.1f} km", "1.5 km"),
        (lambda x: f"({-x:.2f})" if x < 0 else f"{x:.2f}", "1.5"),
        (lambda x: f"{x:.2f}".replace("-", "\u2212"), "1.5"),
        (lambda x: f"{x:.2e}", "1.5"),
        (lambda x: "<0.5" if x < 0 else f"{x:.2f}", "<1.5"),
        (lambda x: "900+" if x > 900 else f"{x:.0f}", "<1.5"),
    ],
)
def test_numbers_have_the_form_of_all_their_texts(write, example):
    found = _find(write)
    assert (found.example, found.words) == (example, ())
    for number in NUMBERS:
        assert forms.is_of(write(number), example)
    odd = _find(lambda x: "TBD" if x == NUMBERS[7] else write(x))
    assert (odd.example, odd.words) == (example, ("TBD",))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: f"{int(x) % 30}h {int(x) % 60}m",
        lambda x: f"{int(x) % 24:02}:{int(x) % 60:02}",
        lambda x: f"{int(x) % 28 + 1:02}.05.2024",
        lambda x: f"2024-05-{int(x) % 28 + 1:02}",
        lambda x: f"P{int(x)}",
        lambda x: f"{int(abs(x)):06}",
        lambda x: f"+49 {int(abs(x)) + 10**8}",
        lambda x: f"{int(x)}-{int(x) + 10}",
        lambda x: f"{int(x) % 9}/{int(x) % 7}",
        lambda x: f"{x} km" if x > 500 else f"{x} m",
        lambda x: f"{int(x) % 40}{'ABC'[int(x) % 3]}",
        lambda x: f"row {int(x)}",
        lambda x: hex(int(abs(x)) + 10),
    ],
)
def test_other_texts_have_no_form(write):
    assert _find(write) is None


def test_numbers_that_may_be_others_name_the_other_form():
    thousands = [1234, 56, 12345, 999]
    assert _find("{:,}".format, thousands).twin == "1,5"
    found = _find("{:,}".format, thousands, prefers_comma=True)
    assert (found.example, found.twin) == ("1,5", "1,234.5")
    assert _find("{:,}".format, [*thousands, 1234567], prefers_comma=True).twin == ""
    assert _find("{:,} €".format, [56, 12]).twin == ""


def test_numbers_of_a_form_that_are_equal_count_together():
    assert forms.read_values({"$1,200": 2, "$1200": 3}, "$1,234.5") == {"1200": 5}
