"""The recipe of docs/ranking.md, run as it is printed."""

import csv
import subprocess
import sys

import numpy as np
import pytest

from mtl import verbs
from mtl.configs import config
from tests import pages
from tests.heads import by_hand


@pytest.mark.slow
def test_a_search_log_becomes_a_model_that_ranks(tmp_path, monkeypatch):
    """Metrics of whole queries agree with the predictions, whatever the batches."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make_searches.py").write_text(pages.read_block("ranking.md", "python"))
    (tmp_path / "searches.gin").write_text(pages.read_block("ranking.md", "gin"))
    subprocess.run([sys.executable, "make_searches.py"], check=True)
    settings = ["Run.train_steps = 100", "Run.checkpoint_steps = 100", "Run.micro_batches = 2"]
    made = config.load(["searches.gin"], settings)
    metrics, _ = verbs.train(made, "run")  # Its export is compared with it.
    assert metrics["grade/ndcg_at_5"] > 0.85
    with open("test.csv") as file:
        given = list(csv.DictReader(file))
    scores = np.array([row["grade/score"] for row in verbs.predict(made, "run")])
    keys = np.array([row["query"] for row in given])
    grades = np.array([int(row["grade"]) for row in given])
    expected = by_hand.metrics(keys, scores, grades, np.ones(len(keys)), 5)
    for name, value in expected.items():
        assert metrics[f"grade/{name}"] == pytest.approx(value, abs=1e-6), name
