import pathlib
import random
import re

import pytest

from launch import config
from mtl.runs import verbs

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _write_rows(path, rng, rows):
    with open(path, "w") as file:
        file.write("age,country,tags,clicked,minutes\n")
        for _ in range(rows):
            age, tag = rng.randint(18, 80), rng.choice("abc")
            minutes = "" if rng.random() < 0.3 else age / 10
            file.write(f"{age},{rng.choice(['DE', 'FR'])},{tag}|x,{int(age > 40)},{minutes}\n")


def write_data(folder):
    """The gin file that the README prints, and the two files of rows that it reads."""
    rng = random.Random(0)
    _write_rows(folder / "train.csv", rng, 400)
    _write_rows(folder / "test.csv", rng, 100)
    (folder / "run.gin").write_text(re.search(r"```gin\n(.*?)```", README, re.S).group(1))


@pytest.mark.slow
def test_the_run_on_own_data_trains_as_it_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    experiment = config.load(["run.gin"], ["Run.train_steps = 100"])
    metrics, steps = verbs.train(experiment, "model")
    assert steps == 100
    assert metrics["clicked/auc"] > 0.95
    assert metrics["minutes/rmse"] < 2.0


def test_every_file_and_module_that_the_readme_names_exists():
    for path in re.findall(r"\b(?:docs|gin_configs|mtl)/[\w/.]+\.(?:md|svg|gin|py)\b", README):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m ((?:launch|benchmarks|tests)\.\w+)", README):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
