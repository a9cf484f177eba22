"""Messages about settings of a part that a later binding replaces."""

import logging
import pathlib
import re

import pytest

from mtl import experiment
from mtl.configs import config, gin_files, gin_usage
from mtl.optimization import optimizers, schedules

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADULT, MMOE = "gin_configs/experiments/adult_shared_bottom.gin", "gin_configs/networks/mmoe.gin"
ADAMW = "gin_configs/optimization/adamw.gin"


@pytest.fixture(autouse=True)
def _in_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def _tell(*files, params=()):
    return gin_usage.tell_replaced(gin_files.read(files, params), experiment.Experiment)


def test_a_network_behind_a_file_tells_what_it_takes_out_of_use():
    (line,) = _tell(ADULT, MMOE)
    assert line.startswith(f"{MMOE} line 8 replaces model.MultiTaskModel.network, so that nothing ")
    assert f"trunk/networks.MLP.dropout = 0.3 ({ADULT} line 46)" in line
    assert line.endswith(
        "tower = @tower/networks.MLP() (gin_configs/networks/shared_bottom_mlp.gin line 9)."
    )


def test_a_network_before_a_file_that_has_one_of_its_own_is_told():
    (line,) = _tell(MMOE, ADULT)
    assert "replaces model.MultiTaskModel.network" in line
    assert f"networks.MMoE.num_experts = 8 ({MMOE} line 10)" in line
    assert re.search(r" and \d more\.$", line)


def test_a_parameter_that_replaces_a_part_tells_what_nothing_uses():
    (line,) = _tell(ADULT, params=["update.Update.schedule = None"])
    assert line.startswith("--gin_param 'update.Update.schedule = None' replaces ")
    assert "nothing uses schedules.Cosine.value = 1.0" in line


def test_a_value_that_wins_over_another_is_not_told():
    assert _tell(ADULT, params=["Run.train_steps = 5", "trunk/networks.MLP.dropout = 0.0"]) == []


def test_settings_of_a_file_that_the_replacing_one_includes_are_not_told(tmp_path):
    path = tmp_path / "x.gin"
    start = (
        f'from __gin__ import dynamic_registration\nfrom mtl import networks\ninclude "{ADULT}"\n'
    )
    path.write_text(start + "networks.SharedBottom.trunk = @networks.Convnet()\n")
    assert _tell(str(path)) == []
    path.write_text(
        f'from __gin__ import dynamic_registration\ninclude "{ADULT}"\ninclude "{MMOE}"\n'
    )
    assert len(_tell(str(path))) == 1


@pytest.mark.medium
@pytest.mark.parametrize("path", sorted((ROOT / "gin_configs" / "experiments").rglob("*.gin")))
def test_no_shipped_experiment_takes_settings_of_its_own_out_of_use(path):
    assert _tell(str(path.relative_to(ROOT))) == []


@pytest.mark.medium
def test_an_optimizer_behind_a_file_keeps_its_schedule():
    """AdamW keeps its rate; the rate of the replaced optimizer is not used."""
    params = ["adult_dir = 'data'"]
    built = config.load([ADULT, ADAMW], params).model.update
    assert built.optimizer == optimizers.AdamW(learning_rate=0.001, weight_decay=0.01)
    assert built.schedule == schedules.Cosine(value=1.0, warmup_steps=100)
    (line,) = _tell(ADULT, ADAMW, params=params)
    assert f"nothing uses optimizers.LazyAdam.learning_rate = 0.002 ({ADULT} line 49)." in line


@pytest.mark.medium
def test_a_run_says_it_once(tmp_path, caplog):
    params = ["adult_dir = 'data'", "experiment.Run.seed = 77"]
    copy = tmp_path / "mmoe.gin"
    copy.write_text((ROOT / MMOE).read_text())
    with caplog.at_level(logging.WARNING, "mtl"):
        for _ in range(2):
            config.load([ADULT, str(copy)], params)
    (line,) = caplog.messages
    assert line.startswith(f"Warning: {copy} line 8 replaces model.MultiTaskModel.network")
