"""The seven pages that lead by intent: every step works as it is typed, in an empty folder."""

import csv
import importlib.util
import json
import pathlib
import re

import numpy as np
import pytest

from mtl.tools.clip_audit import visits
from tests import pages, tiny
from tests.launch import page_reader

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGES = (
    "have_a_table",
    "have_an_estimator",
    "have_a_network",
    "tasks_fight",
    "rare_classes",
    "serve_a_model",
    "run_on_a_cluster",
)
SERVES = all(map(importlib.util.find_spec, ("aiohttp", "prometheus_client", "tensorflow_serving")))


@pytest.fixture
def type_page(launch_in, tmp_path):
    """Return a function that types a page in an empty folder, and returns the folder."""

    def type_blocks(name):
        reader = page_reader.Reader(launch_in, tmp_path)
        try:
            for block in pages.list_blocks(f"{name}.md"):
                reader.read(block)
        finally:
            reader.close()
        assert not reader.problems, reader.report()
        return tmp_path

    return type_blocks


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_five_to_eight_steps_to_type(name):
    text = (DOCS / f"{name}.md").read_text()
    start, *steps, rest = re.split(r"^## ", text, flags=re.M)
    assert len(re.findall(r"\.(?=\s)", start)) >= 2  # The start describes the result.
    assert [step.partition(".")[0] for step in steps] == [f"{n}" for n in range(1, len(steps) + 1)]
    assert 5 <= len(steps) <= 8
    assert all("\n```" in step for step in steps)
    assert rest.startswith("Where to read on") and rest.count("](") >= 3


def test_the_index_and_the_readme_lead_to_the_pages_first():
    index = (DOCS / "index.md").read_text()
    assert re.findall(r"\]\((\w+)\.md\)", index)[: len(PAGES)] == list(PAGES)
    readme = (DOCS.parent / "README.md").read_text()
    rest = readme[readme.index("## Where to go next") :]
    assert re.findall(r"\]\(docs/(\w+)\.md\)", rest)[: len(PAGES)] == list(PAGES)


@pytest.mark.slow
@pytest.mark.thorough
def test_i_have_a_table(type_page):
    folder = type_page("have_a_table")
    with open(folder / "scored.csv") as file:
        assert [row["id"] for row in csv.DictReader(file)] == ["0", "1", "2"]


@pytest.mark.slow
@pytest.mark.thorough
def test_i_have_an_estimator(type_page):
    runs = type_page("have_an_estimator") / "runs"
    once, stopped = tiny.variables(runs / "once"), tiny.variables(runs / "shop")
    assert once.keys() == stopped.keys() and once["global_step"] == 60
    for name, values in once.items():
        np.testing.assert_array_equal(stopped[name], values)
    rows, batches = visits.read(str(runs / "audited/clip_audit/training"))
    np.testing.assert_array_equal(batches["step"], np.arange(60))
    assert len(rows["id"]) == 60 * 32 and set(rows["id"]) <= set(range(512))
    tags = {tag for _, tag in tiny.scalars(runs / "audited")}
    assert {"weight/click", "amount/loss", "gradient_norm", "surgery/conflicts"} <= tags


@pytest.mark.slow
@pytest.mark.thorough
def test_i_have_a_network(type_page):
    runs = type_page("have_a_network") / "runs"
    mine, tuned = tiny.variables(runs / "mine"), tiny.variables(runs / "tuned")
    for name in ("network/rows/kernel", "network/columns/bias"):
        np.testing.assert_array_equal(tuned[name], mine[name])
    assert not np.array_equal(tuned["network/joined/kernel"], mine["network/joined/kernel"])


@pytest.mark.slow
@pytest.mark.thorough
def test_my_tasks_fight(type_page):
    metrics = _read_metrics(type_page("tasks_fight") / "runs")
    alone = metrics["clicked"]["clicked/auc"]
    assert metrics["together"]["clicked/auc"] < alone - 0.03
    assert metrics["log_loss"]["clicked/auc"] > alone - 0.02


@pytest.mark.slow
@pytest.mark.thorough
def test_my_classes_are_rare(type_page):
    metrics = _read_metrics(type_page("rare_classes") / "runs")
    few = {name: of["kind/few_shot_accuracy"] for name, of in metrics.items()}
    assert all(few[name] > few["joint"] + 0.1 for name in ("balanced", "retrained", "shifted"))


@pytest.mark.slow
@pytest.mark.skipif(not SERVES, reason="needs the extra 'serve'")
def test_i_serve(type_page):
    type_page("serve_a_model")


@pytest.mark.slow
@pytest.mark.thorough
def test_i_run_on_a_cluster(type_page):
    runs = type_page("run_on_a_cluster") / "runs"
    one, two = tiny.variables(runs / "one", 100), tiny.variables(runs / "two", 100)
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=0.05, atol=0.05, err_msg=name)


def _read_metrics(runs):
    """Return {name of a run: the metrics of its last evaluation}."""
    files = runs.glob("*/metrics.jsonl")
    return {file.parent.name: json.loads(file.read_text().splitlines()[-1]) for file in files}
