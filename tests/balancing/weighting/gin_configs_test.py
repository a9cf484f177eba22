"""Every method has a file that builds it as its class is, and trains a real run."""

import pathlib
import re

import pytest

from mtl.balancing import weighting
from mtl.configs import config
from tests import tiny

ROOT = pathlib.Path(__file__).parents[3]
DIGITS = "gin_configs/experiments/digits_shared_bottom.gin"
TASKS = ("digit", "parity", "loops")
FILES = {
    "equal": weighting.Equal,
    "fixed": weighting.Fixed,
    "scheduled": weighting.Scheduled,
    "random_loss_weighting": weighting.RandomLossWeighting,
    "geometric_loss": weighting.GeometricLoss,
    "log_loss": weighting.LogLoss,
    "smooth_tchebycheff": weighting.SmoothTchebycheff,
    "smooth_tchebycheff_mtl": weighting.SmoothTchebycheffMTL,
    "dynamic_weight_average": weighting.DynamicWeightAverage,
    "famo": weighting.FAMO,
    "uncertainty_weighting": weighting.UncertaintyWeighting,
    "imtl_l": weighting.IMTLL,
}
NEEDED = {
    "fixed": 'weighting.Fixed.weights = {"digit": 1.0, "parity": 0.5, "loops": 2.0}',
    "scheduled": 'weighting.Scheduled.weights = {"digit": 1.0, "parity": @ramp/schedules.'
    'Polynomial(), "loops": 2.0}\nramp/schedules.Polynomial.value = 0.1\n'
    "ramp/schedules.Polynomial.end_value = 1.0\nramp/schedules.Polynomial.decay_steps = 20",
}


def test_every_method_has_a_file():
    assert {built.__name__ for built in FILES.values()} == set(weighting.__all__)


def _experiment(name, tmp_path, *params):
    """Return the experiment on digits with the weighting of a file."""
    text = f'include "{DIGITS}"\ninclude "gin_configs/balancing/{name}.gin"\n{NEEDED.get(name, "")}'
    imports = "from mtl.balancing import weighting\nfrom mtl.optimization import schedules\n"
    path = tmp_path / f"{name}.gin"
    path.write_text(f"from __gin__ import dynamic_registration\n{imports}{text}\n")
    return config.load([str(path)], params)


@pytest.mark.parametrize("name", FILES)
def test_builds_the_defaults_of_its_class(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    built = _experiment(name, tmp_path).model.weighting
    assert type(built) is FILES[name]
    if name not in NEEDED:
        assert built == FILES[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scheduled", "famo", "uncertainty_weighting"])
def test_trains_and_shows_its_weights(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    params = [
        "experiment.Run.train_steps = 30",
        "experiment.Run.checkpoint_steps = 30",
        "experiment.Run.summary_steps = 10",
    ]
    values = tiny.train(_experiment(name, tmp_path, *params), tmp_path / "run")
    assert values["global_step"] == 30
    shown = tiny.scalars(tmp_path / "run")
    weights = {task: shown[30, f"weight/{task}"] for task in TASKS}
    assert all(weight >= 0 for weight in weights.values()) and any(weights.values())
    assert shown[30, "digit/loss"] < shown[10, "digit/loss"]
    saved = (name for name in values if name.startswith("balancing/"))
    assert bool([found for found in saved if not re.search("Adam", found)]) == (name != "scheduled")


def test_the_page_on_balancing_has_every_file():
    page = (ROOT / "docs/balancing.md").read_text()
    table = page[page.index("## Weightings") : page.index("## Surgeries")]
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(FILES)
