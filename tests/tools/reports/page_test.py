"""A page is one file: XML, nothing from outside, no scripts, all text escaped, and small."""

import html.parser
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from mtl.tools.drawing import line_charts
from mtl.tools.reports import blocks, curve_sections, page, report, row_sections
from tests.tools.reports import runs

BAD = "<script>alert('x')</script>\x00\x1b & \"é"
OUTSIDE = re.compile(
    r"https?:|\bsrc=|@import|url\(|<script|<link|<iframe|javascript:|\bon\w+=", re.I
)


class _Checked(html.parser.HTMLParser):
    """The tags and the text of a page, as a browser finds them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def assert_stands_alone(text):
    root = ElementTree.fromstring(text.split("<!DOCTYPE html>")[1])
    assert root.tag == "html"
    # A quoted text may hold anything; what is markup may not.
    assert not [tag for tag in _Checked(text).tags if tag in ("script", "link", "img", "iframe")]
    for element in root.iter():
        for name, value in element.attrib.items():
            assert name not in ("src", "srcset", "action") and not name.startswith("on"), element
            assert name != "href" or value.startswith("#"), value
    assert not OUTSIDE.search(root.find("head/style").text)


def _every_block():
    figure = line_charts.draw_curves(BAD, {BAD: {0: 1.0, 5: 2.0}, "b": {0: 1.0}}, BAD, mark=3)
    table = blocks.Table(
        ["a", BAD],
        [
            [BAD, 0.9944444298744202],
            [blocks.Quiet(BAD), blocks.Marked(7)],
            [blocks.Right(BAD), blocks.Bar(0.25)],
            [float("nan"), float("-inf")],
        ],
        BAD,
    )
    return [
        blocks.Heading(BAD),
        blocks.Text(BAD, "warning"),
        table,
        blocks.Figures([figure], BAD),
        blocks.Matrix(BAD, [BAD, "b"], np.array([[3.0, 1.0], [0.0, 0.0]])),
        blocks.Commands([(BAD, BAD)]),
        blocks.Side([table], [blocks.Text(BAD)]),
        blocks.Fold(BAD, [table]),
    ]


def test_whatever_a_user_names_is_text():
    section = blocks.Section("all", BAD, _every_block())
    text = page.render(blocks.Page(BAD, BAD, "good", [BAD], [section], [BAD]))
    assert_stands_alone(text)
    seen = _Checked(text)
    assert "<script>alert('x')</script>" in seen.text
    assert "\x00" not in text and "\x1b" not in text
    for whole in ('<data value="0.9944444298744202"', ">0.9944</data>", ">n/a</data>", ">25.0%"):
        assert whole in text
    # Every kind of block is there.
    assert {"table", "figure", "svg", "pre", "details", "h3"} <= set(seen.tags)


@pytest.mark.medium
def test_ten_tasks_and_a_thousand_evaluations_are_small():
    run = runs.of_many_tasks(10, 1000)
    seen = runs.seen_rows(run.experiment.model.tasks, 5000)
    verdicts = report._judge(run, seen)
    built = [
        blocks.Section("verdict", "Verdict", report._tell_verdict(run, verdicts)),
        blocks.Section("curves", "Curves", curve_sections.tell_curves(run, verdicts)),
        blocks.Section("balancing", "Balancing", curve_sections.tell_balancing(run)),
        blocks.Section("head", "Heads", row_sections.tell_evaluation(run, verdicts, seen)),
        blocks.Section("settings", "Configuration", report._tell_settings(run)),
    ]
    text = page.render(blocks.Page("many", "finished", "good", [], built, []))
    assert_stands_alone(text)
    assert 150_000 < len(text.encode()) < 500_000
    curves = curve_sections.tell_curves(run, verdicts)
    assert len(curves) == 1 + 10 + 1
    assert "no label of a task, the task's training loss is 0" in curves[0].text
    assert len(verdicts) == 10
    sides = [block for block in built[3].blocks if isinstance(block, blocks.Side)]
    assert len(sides) == 10
    for side in sides:  # The metrics, and the pictures beside them.
        assert [type(block) for block in side.narrow] == [blocks.Table]
        assert blocks.Table not in map(type, side.wide)


def test_of_hundreds_of_tasks_those_with_least_skill_are_drawn():
    run = runs.of_many_tasks(50, 2)
    verdicts = report._judge(run, None)
    chosen = row_sections.choose_tasks(run, verdicts)
    skills = {one.task: one.skill for one in verdicts}
    assert len(chosen) == row_sections.MOST_TASKS
    left = [skills[task] for task in skills if task not in chosen]
    assert max(skills[task] for task in chosen) <= min(left)
