"""Rows of cells as lines."""

from mtl import aligned


def test_columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_spaces():
    rows = [("task", "rows", ""), ("click", "7", "held")]
    assert aligned.align_columns(rows) == ["task   rows", "click  7     held"]
    assert aligned.align_columns(rows, right=[1]) == ["task   rows", "click     7  held"]
    assert aligned.align_columns([]) == []
