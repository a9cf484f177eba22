"""Nothing on a page is cut off, with long and many names: as a browser lays it out, and before."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from mtl.tools.drawing import bar_charts, line_charts, matrices
from mtl.tools.reports import blocks, comparison, comparison_page, page
from tests.tools.reports import runs

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
NAMES = [
    "married civilian spouse present",
    "never_married_and_never_lived_together",
    "x" * 70,
    "WWWWWWWWWWWWWWWWWWWWWWWWWWW",
    "минуты просмотра после клика",
    "短",
]
WIDTHS = (1000, 1200, 1440)
RANDOM = np.random.default_rng(0)

# Lists what is wider than where it stands: tables, letters of pictures, and the page.
_SCRIPT = """<script>
const found = [];
for (const e of document.querySelectorAll('.scroll'))
  if (e.scrollWidth > e.clientWidth + 1) found.push([e.innerText.slice(0, 40), e.scrollWidth]);
for (const s of document.querySelectorAll('svg')) {
  const b = s.getBoundingClientRect();
  for (const t of s.querySelectorAll('text')) {
    const r = t.getBoundingClientRect();
    if (r.left < b.left - .5 || r.right > b.right + .5 || r.top < b.top - .5
        || r.bottom > b.bottom + .5) found.push([s.getAttribute('aria-label'), t.textContent]);
  }
}
if (document.documentElement.scrollWidth > innerWidth) found.push(['page', innerWidth]);
document.body.textContent = 'found' + JSON.stringify(found) + 'end';
</script></body>"""


def draw():
    """Figures of all kinds."""
    bars = [bar_charts.Bar(name, 0.1 * i, 0.1 * i - 1, 0.1 * i) for i, name in enumerate(NAMES)]
    many = [f"user_clicked_on_the_recommended_item_{i}" for i in range(12)]
    curves = {name: {step: 1234567.0 + step for step in range(10, 90, 10)} for name in NAMES}
    return [
        line_charts.draw_curves("many", curves, NAMES[2]),
        line_charts.draw("one", {"a": [(1e7, 2e-9)]}, NAMES[2], NAMES[3]),
        bar_charts.draw("bars", bars, NAMES[1]),
        matrices.draw("few", NAMES, NAMES, RANDOM.uniform(-1, 1, (6, 6)), *NAMES[:2]),
        matrices.draw("many", many, many, RANDOM.uniform(-1, 1, (12, 12)), *NAMES[:2]),
    ]


def describe_report():
    """Return a page with the blocks of a report and of an explanation."""
    metrics = [["normalized_entropy_of_a_task", 0.9688, 0.9699], ["auc", 0.99995, 0.99996]]
    header = ["metric", "best (step 1234567)", "last (step 1234567)"]
    classes = [f"class number {i} of twelve" for i in range(12)]
    told = [
        blocks.Side([blocks.Table(header, metrics)], [blocks.Figures(draw()[:2])]),
        blocks.Matrix("few", NAMES[:5], RANDOM.integers(0, 400_000, (5, 5))),
        blocks.Matrix("many", classes, RANDOM.integers(0, 400_000, (12, 12))),
        blocks.Table(["field", *NAMES], [["a_long_name_of_a_field", *RANDOM.random(6)]]),
        blocks.Table(["part", "setting", "value"], [["experiment", "files", "/data/" * 60]]),
        blocks.Figures(draw()),
    ]
    return blocks.Page("run " * 30, "", "", [], [blocks.Section("a", "A", told)], [])


def describe_pictures():
    """Return a page of pictures alone, which fit into narrow windows, too."""
    section = blocks.Section("a", "A", [blocks.Figures(draw())])
    return blocks.Page("run", "", "", [], [section], [])


def describe_comparison():
    """A comparison of eight runs."""
    metrics = {"sign/auc": 0.99995, "sign/average_loss": 0.3, "size/rmse": 123456.789}
    names = [f"runs/experiment_with_a_long_name_{i}_of_the_grid_search" for i in range(8)]
    return comparison_page.describe(
        comparison.compare({name: runs.make(name, metrics=metrics) for name in names})
    )


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="there is no Chromium, which lays the page out")
@pytest.mark.parametrize(
    ("describe", "width"),
    [
        *((one, width) for one in (describe_report, describe_comparison) for width in WIDTHS),
        *((describe_pictures, width) for width in (400, 800)),
    ],
)
def test_a_browser_cuts_nothing_off(describe, width, tmp_path):
    text = page.render(describe()).replace("<details>", '<details open="">')
    path = tmp_path / "page.html"
    path.write_text(text.replace("</body>", _SCRIPT))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
    command = [
        BROWSER,
        *flags,
        f"--user-data-dir={tmp_path}/profile",
        "--dump-dom",
        f"file://{path}",
    ]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"found(\[.*\])end", html.unescape(told), re.S).group(1)
    assert json.loads(found) == []


def test_only_numbers_keep_to_one_line_in_tables():
    """A name that may not be broken makes a table wider than the page."""
    style = re.search(r"<style>(.*?)</style>", page.render(describe_report()), re.S).group(1)
    kept = re.findall(r"^([^{}\n]+) \{[^}]*white-space: nowrap", style, re.M)
    assert kept == ["td.number", ".matrix td"]
    assert "th, td { overflow-wrap: anywhere;" in style and "overflow: hidden" not in style
