"""The gin lines of docs/representations.md, as a run reads them."""

import pathlib
import re

from mtl import auxiliary
from mtl.configs import config
from mtl.optimization import schedules

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_lines_of_the_page_make_a_run(tmp_path):
    page = (ROOT / "docs" / "representations.md").read_text()
    domains, codes = re.findall(r"^```\n((?:from|networks).*?)^```$", page, re.M | re.S)
    experiment = ROOT / "gin_configs" / "experiments" / "adult_shared_bottom.gin"
    path = tmp_path / "run.gin"
    imports = "".join(
        f"from mtl import {name}\n" for name in ("heads", "model", "networks", "spec")
    )
    head = f'from __gin__ import dynamic_registration\n{imports}include "{experiment}"\n'
    path.write_text(head + domains + codes)
    made = config.load([str(path)], [])
    (part,) = made.model.auxiliary_losses
    assert isinstance(part, auxiliary.GradientReversal)
    assert part.label_fields == ["is_new"]
    assert part.reversal == schedules.Sigmoid(value=0.3)
    assert made.model.network.trunk.num_groups == 8
    names = ("domain", "codebook", "commitment")
    assert made.model.loss_names == (*made.model.tasks, *names)
