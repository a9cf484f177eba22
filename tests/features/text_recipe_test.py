"""The recipe of docs/text.md, run as it is printed."""

import csv
import subprocess
import sys

import pytest

from mtl import verbs
from mtl.configs import config
from tests import pages


@pytest.mark.slow
def test_messages_become_a_model_that_knows_what_they_are_about(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers", reason="needs the extra `text`")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make_messages.py").write_text(pages.read_block("text.md", "python"))
    (tmp_path / "messages.gin").write_text(pages.read_block("text.md", "gin"))
    subprocess.run([sys.executable, "make_messages.py"], check=True)
    # Inflections that no message of the training split has.
    unseen = ["passwords and LOGINS.,,", "parcels: packages,,"]
    (tmp_path / "unseen.csv").write_text("\n".join(["message,about,urgent", *unseen]))
    files = {"train": "train.csv", "test": "test.csv", "unseen": "unseen.csv"}
    settings = ["Run.train_steps = 200", "Run.checkpoint_steps = 200", f"Csv.files = {files}"]
    made = config.load(["messages.gin"], settings)
    metrics, _ = verbs.train(made, "run")
    assert metrics["about/accuracy"] > 0.9 and metrics["urgent/auc"] > 0.9
    rows = list(verbs.predict(made, "run", "unseen"))
    assert [row["about/class"] for row in rows] == [b"account", b"parcel"]
    with open("test.csv") as file:
        expected = [row["about"] for row in csv.DictReader(file)]
    found = [row["about/class"].decode() for row in verbs.predict(made, "run")]
    assert sum(map(str.__eq__, found, expected)) > 0.9 * len(expected)
