"""Each recipe for long tails has the parts that its name promises; some train on MNIST."""

import numpy as np
import pytest

from benchmarks import long_tail
from launch import stages
from mtl.configs import config
from mtl.data import sampling
from tests import tiny

FOLDER = long_tail.FOLDER
RECIPES = sorted({row[0] for row in long_tail.recipes().values()})
FROZEN = {
    "crt": ["^network/"],
    "decoupled_balanced_softmax": ["^network/"],
    "lws": ["^network/", "^head/digit/logits/kernel$", "^head/digit/logits/bias$"],
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_what_it_says(name):
    made = config.load([str(FOLDER / f"{name}.gin")])
    (head,) = made.model.heads
    assert list(made.model.freezing.frozen) == FROZEN.get(name, [])
    assert made.model.freezing.batch_norm == "inference"
    balanced = made.data.sampler == sampling.Power(label="digit", exponent=0.0)
    assert balanced == (name in ("crt", "lws")) and balanced == (made.data.sampler is not None)
    parts = (made.refit, head.classifier, head.objective.margin, head.objective.class_weights)
    kinds = tuple(type(part).__name__ for part in parts)
    assert kinds == {
        "ncm": ("NearestMean", "Linear", "NoneType", "NoneType"),
        "tau_norm": ("TauNormalized", "Linear", "NoneType", "NoneType"),
        "logit_adjustment": ("LogitAdjusted", "Linear", "NoneType", "NoneType"),
        "lws": ("NoneType", "Scaled", "NoneType", "NoneType"),
        "balanced_softmax": ("NoneType", "Linear", "LogitAdjustment", "NoneType"),
        "decoupled_balanced_softmax": ("NoneType", "Linear", "LogitAdjustment", "NoneType"),
        "class_balanced": ("NoneType", "Linear", "NoneType", "EffectiveNumber"),
        "ldam_drw": ("NoneType", "Cosine", "LDAM", "EffectiveNumber"),
    }.get(name, ("NoneType", "Linear", "NoneType", "NoneType"))
    excluded = None if made.warm_start is None else list(made.warm_start.exclude)
    assert excluded == {"crt": ["^head/"], "decoupled_balanced_softmax": ["^head/"], "lws": []}.get(
        name
    )


def test_settings_that_must_agree():
    drw = config.load([str(FOLDER / "ldam_drw.gin")])
    (head,) = drw.model.heads
    assert head.classifier.scale == head.objective.margin.scale
    assert head.objective.class_weights.start_step < drw.run.train_steps
    tau = config.load([str(FOLDER / "tau_norm.gin")])
    assert tau.refit.split not in (tau.data.eval_split, tau.data.train_split)


def test_differences_are_paired_and_have_standard_errors():
    joint = np.array([[80.0, 1, 2, 3], [90.0, 1, 2, 3]])
    other = joint + [[1.0, 0, 0, 0], [3.0, 0, 0, 0]]
    lines = long_tail.table({"joint": joint, "other": other}).splitlines()
    assert lines[2] == "| joint | 85.0 |  | 1.0 | 2.0 | 3.0 |"
    assert lines[3] == "| other | 87.0 | +2.0 ± 1.0 | +0.0 ± 0.0 | +0.0 ± 0.0 | +0.0 ± 0.0 |"


@pytest.mark.slow
def test_what_is_frozen_stays_to_the_bit_and_the_rest_is_new(real_data, tmp_path):
    files = [str(FOLDER / f"{name}.gin") for name in ("joint", "crt", "lws")]
    params = (
        f'mnist_dir = "{real_data / "mnist"}"',
        "Run.train_steps = 40",
        "Run.checkpoint_steps = 40",
    )
    for _ in stages.run(stages.plan(files, params, str(tmp_path))):
        pass
    joint, crt, lws = (tiny.variables(tmp_path / name) for name in ("joint", "crt", "lws"))
    network = [name for name in joint if name.startswith("network/") and "Momentum" not in name]
    assert any("moving_mean" in name for name in network)
    for name in network:
        np.testing.assert_array_equal(joint[name], crt[name])
        np.testing.assert_array_equal(joint[name], lws[name])
    for name in ("kernel", "bias"):
        key = f"head/digit/logits/{name}"
        np.testing.assert_array_equal(joint[key], lws[key])
        assert not np.array_equal(joint[key], crt[key])
    start = tiny.variables(tmp_path / "crt", 0)
    for name in ("head/digit/logits/bias", "head/digit/logits/kernel/Momentum"):
        assert joint[name].any() and crt[name].any() and not start[name].any()
    assert not np.array_equal(start["head/digit/logits/kernel"], joint["head/digit/logits/kernel"])
    slots = {name for name in [*crt, *lws] if name.endswith("/Momentum")}
    trained = {f"head/digit/logits/{name}/Momentum" for name in ("kernel", "bias", "scale_offset")}
    assert slots == trained
    assert (lws["head/digit/logits/scale_offset"] != 0).all()
