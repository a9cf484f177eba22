"""The recipe of docs/histories.md, run as it is printed."""

import csv
import subprocess
import sys

import pytest

from mtl import verbs
from mtl.configs import config
from tests import pages


@pytest.mark.slow
def test_a_click_log_becomes_a_model_that_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make_clicks.py").write_text(pages.read_block("histories.md", "python"))
    (tmp_path / "clicks.gin").write_text(pages.read_block("histories.md", "gin"))
    subprocess.run([sys.executable, "make_clicks.py"], check=True)
    made = config.load(["clicks.gin"], ["Run.train_steps = 400", "Run.checkpoint_steps = 400"])
    metrics, _ = verbs.train(made, "run")
    assert metrics["click/auc"] > 0.75
    rows = list(verbs.predict(made, "run"))
    with open("test.csv") as file:
        given = list(csv.DictReader(file))
    liked = [row["category"] in row["clicked_categories"] for row in given]
    of_liked = [row["click/probability"] for row, own in zip(rows, liked, strict=True) if own]
    others = [row["click/probability"] for row, own in zip(rows, liked, strict=True) if not own]
    assert sum(of_liked) / len(of_liked) > sum(others) / len(others) + 0.2
