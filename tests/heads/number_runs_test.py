"""A run of heads for numbers: learned, exported and reported, with censored rows."""

import dataclasses

import numpy as np
import pytest

from mtl import heads, verbs
from mtl.tools.reports import report
from tests import tiny


def make(**run):
    """Return an experiment with four heads for one number; half of the rows are censored."""
    rng = np.random.default_rng(4)
    more = {}
    for split, rows in tiny.SPLITS.items():
        size = rows["size"]
        seen = rng.integers(0, 2, len(size))
        more[split] = {**rows, "size": np.where(size < 1.5, 0, size).astype("f"), "seen": seen}
    made = tiny.make(splits=more, check_rows=20, **run)
    spec = dataclasses.replace(made.data.spec, labels={"size": "float32", "seen": "int64"})
    own = [
        heads.Quantile(name="quantiles", label="size"),
        heads.Tweedie(name="tweedie", label="size"),
        heads.ZeroInflatedLogNormal(name="value", label="size"),
        heads.Survival(name="survival", label="size", event="seen", boundaries=[1, 2, 3]),
    ]
    return dataclasses.replace(
        made,
        data=dataclasses.replace(made.data, spec=spec),
        model=dataclasses.replace(made.model, heads=own),
    )


@pytest.mark.slow
def test_a_run_learns_is_exported_and_reported(tmp_path):
    """The export is compared with the Estimator before it is published."""
    made = make(train_steps=80)
    verbs.train(made, str(tmp_path))
    metrics = verbs.evaluate(made, str(tmp_path))
    assert metrics["survival/concordance"] > 0.6
    assert metrics["value/positive_auc"] > 0.6
    assert metrics["tweedie/r2"] > 0
    assert metrics["quantiles/coverage/0.1"] < metrics["quantiles/coverage/0.9"]
    assert list((tmp_path / "export" / "best").iterdir())
    page = tmp_path / "report.html"
    assert report.write(str(page), report.describe_run(made, str(tmp_path), 20)) > 1000
