import pathlib
import random
import re

import pytest

import mtl
from mtl import verbs, versions
from mtl.configs import config

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = (ROOT / "docs" / "commands.md").read_text()


def write_rows(path, rng, rows):
    """Write a table of visits that can be learned."""
    with open(path, "w") as file:
        file.write("age,country,tags,clicked,minutes\n")
        for _ in range(rows):
            age, tag = rng.randint(18, 80), rng.choice("abc")
            minutes = "" if rng.random() < 0.3 else age / 10
            file.write(f"{age},{rng.choice(['DE', 'FR'])},{tag}|x,{int(age > 40)},{minutes}\n")


def write_data(folder):
    """Write the gin file that docs/commands.md prints, and the two files of rows that it reads."""
    rng = random.Random(0)
    write_rows(folder / "train.csv", rng, 400)
    write_rows(folder / "test.csv", rng, 100)
    (folder / "run.gin").write_text(re.search(r"```gin\n(.*?)```", COMMANDS, re.S).group(1))


@pytest.mark.slow
def test_the_run_on_own_data_trains_as_it_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    experiment = config.load(["run.gin"], ["Run.train_steps = 100"])
    metrics, steps = verbs.train(experiment, "model")
    assert steps == 100
    assert metrics["clicked/auc"] > 0.95
    assert metrics["minutes/rmse"] < 2.0


def test_the_readme_fits_a_screen():
    lines = README.splitlines()
    assert len(lines) <= 110
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("text", [README, COMMANDS], ids=["README", "commands"])
def test_every_file_and_module_that_is_named_exists(text):
    paths = re.findall(r"\b(?:docs|gin_configs|mtl)/[\w/.]+\.(?:md|svg|gin|py)\b", text)
    for path in paths:
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m ((?:launch|benchmarks|tests)\.\w+)", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module


def test_badges_say_what_the_project_file_says():
    project = (ROOT / "pyproject.toml").read_text()
    least, last = re.search(r'requires-python = ">=([\d.]+),<3\.(\d+)"', project).groups()
    first, end = re.search(r'"tensorflow>=([\d.]+),<2\.(\d+)"', project).groups()
    assert f'name = "{versions.DISTRIBUTION}"' in project
    assert f'"{versions.DISTRIBUTION}[' in project
    told = {
        "version": f"version {mtl.__version__}",
        "python": f"Python {least} to 3.{int(last) - 1}",
        "tensorflow": f"TensorFlow {first} to 2.{int(end) - 1}",
    }
    for name, text in told.items():
        assert f"![{text}](docs/badges/{name}.svg)" in README
        assert f"<title>{text}</title>" in (ROOT / "docs" / "badges" / f"{name}.svg").read_text()
