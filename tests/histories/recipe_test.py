"""The recipe of docs/histories.md, run as it is printed."""

import csv
import pathlib
import re
import subprocess
import sys

import pytest

from launch import config
from mtl.runs import verbs

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "histories.md").read_text()


def _print(kind):
    return re.search(rf"```{kind}\n(.*?)```", PAGE, re.S).group(1)


@pytest.mark.slow
def test_a_click_log_becomes_a_model_that_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make_clicks.py").write_text(_print("python"))
    (tmp_path / "clicks.gin").write_text(_print("gin"))
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
