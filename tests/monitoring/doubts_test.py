"""Doubts are told at each start, kept by kind, and part of the summary."""

import logging

from mtl.monitoring import doubts, summary


def test_lines_of_a_kind_replace_those_before(tmp_path, caplog):
    directory = str(tmp_path)
    assert doubts.read_all_doubts(directory) == [] and not list(tmp_path.iterdir())
    doubts.record_doubts(directory, "data", [])
    assert not list(tmp_path.iterdir())
    with caplog.at_level(logging.WARNING):
        doubts.record_doubts(directory, "data", ["one", "two"])
        doubts.record_doubts(directory, "settings", ["three"])
    assert caplog.messages == ["Warning: one", "Warning: two", "Warning: three"]
    doubts.record_doubts(directory, "data", ["two"])
    assert doubts.read_all_doubts(directory) == ["two", "three"] and doubts.read_doubts(
        directory, "data"
    ) == ["two"]
    text = summary.of_training(directory, {"global_step": 5}, 5, "mtl")
    assert "  Warning: two\n  Warning: three\n" in text
    for kind in ("data", "settings"):
        doubts.record_doubts(directory, kind, [])
    assert "Warning" not in summary.of_training(directory, {"global_step": 5}, 5, "mtl")
    (tmp_path / "warnings.json").write_text("{")
    assert doubts.read_all_doubts(directory) == []
