"""Doubts are told at each start, kept by kind, and part of the summary."""

import logging

from mtl.monitoring import doubts, summary


def test_lines_of_a_kind_replace_those_before(tmp_path, caplog):
    directory = str(tmp_path)
    assert doubts.told(directory) == [] and not list(tmp_path.iterdir())
    doubts.tell(directory, "data", [])
    assert not list(tmp_path.iterdir())
    with caplog.at_level(logging.WARNING):
        doubts.tell(directory, "data", ["one", "two"])
        doubts.tell(directory, "settings", ["three"])
    assert caplog.messages == ["Warning: one", "Warning: two", "Warning: three"]
    doubts.tell(directory, "data", ["two"])
    assert doubts.told(directory) == ["two", "three"] and doubts.of(directory, "data") == ["two"]
    text = summary.of_training(directory, {"global_step": 5}, 5, "mtl")
    assert "  Warning: two\n  Warning: three\n" in text
    for kind in ("data", "settings"):
        doubts.tell(directory, kind, [])
    assert "Warning" not in summary.of_training(directory, {"global_step": 5}, 5, "mtl")
    (tmp_path / "warnings.json").write_text("{")
    assert doubts.told(directory) == []
