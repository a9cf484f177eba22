"""The parts of docs/own_code.md, saved and run as they are printed."""

import contextlib
import csv
import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, features, verbs
from mtl.configs import config
from mtl.features import column
from tests import pages, tiny


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The current folder, with the package and the gin file of the page."""
    folder = tmp_path_factory.mktemp("winds")
    (folder / "my_parts.py").write_text(pages.join_blocks("own_code.md", "python"))
    (folder / "winds.gin").write_text(pages.read_block("own_code.md", "gin"))
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        here.syspath_prepend(folder)
        yield folder


@pytest.mark.slow
def test_the_page_trains_shows_and_serves():
    made = config.load(["winds.gin"])
    metrics, steps = verbs.train(made, "run")
    assert steps == 200
    assert metrics["later/degrees_off"] < 20 and metrics["power/mae"] < 1
    cost = metrics["later/degrees_off"] / 10 + metrics["power/mae"]
    assert metrics["penalty"] == pytest.approx(cost)
    with open("losses.csv") as file:
        seen = [int(step) for step, _ in csv.reader(file)]
    assert seen == list(range(1, 201))  # The hook has seen every step.
    histograms = {
        (event.step, value.tag)
        for event in tiny.events("run")
        for value in event.summary.value
        if value.HasField("histo")
    }
    own = {"network/scale/later", "network/scale/power"}
    assert histograms == {(step, tag) for step in (50, 100, 150, 200) for tag in own}
    expected = list(verbs.predict(made, "run"))
    given = [values for _, values in made.data.source.scan("test", made.data.spec)]
    spec = made.data.spec
    rows = [spec.serialize({name: row[name] for name in spec.features}) for row in given]
    served = tiny.served("run")(examples=tf.constant(rows))
    for name in ("later/degrees", "power/value"):
        wanted = np.array([row[name] for row in expected])
        np.testing.assert_allclose(served[name], wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.medium
def test_the_extension_of_its_page_shows_shares(tmp_path, monkeypatch):
    (tmp_path / "zero_gradients.py").write_text(pages.read_block("extensions.md", "python"))
    (tmp_path / "zero.gin").write_text(pages.read_block("extensions.md", "gin"))
    monkeypatch.syspath_prepend(tmp_path)
    steps = ["Run.train_steps = 20", "Run.checkpoint_steps = 20", "Run.summary_steps = 10"]
    made = config.load([str(tmp_path / "zero.gin")], steps)
    tiny.train(made, tmp_path / "run")
    shown = {
        (event.step, value.tag): value.simple_value
        for event in tiny.events(tmp_path / "run")
        for value in event.summary.value
        if value.tag.startswith("zero_gradients/")
    }
    kernels = [name for name in tiny.variables(tmp_path / "run") if name.endswith("/kernel")]
    own = {f"zero_gradients/{name}" for name in kernels if name.startswith("network/")}
    assert len(own) > 3
    assert shown.keys() == {(step, tag) for step in (10, 20) for tag in own}
    assert all(0 <= share < 1 for share in shown.values())


@pytest.mark.medium
def test_the_observer_of_its_page_keeps_scores(tmp_path, monkeypatch):
    (tmp_path / "scores.py").write_text(pages.read_blocks("extensions.md", "python")[1])
    (tmp_path / "scores.gin").write_text(pages.read_blocks("extensions.md", "gin")[1])
    monkeypatch.syspath_prepend(tmp_path)
    steps = ["Run.train_steps = 4", "Run.checkpoint_steps = 2"]
    verbs.train(config.load([str(tmp_path / "scores.gin")], steps), str(tmp_path / "run"))
    lines = (tmp_path / "run" / "scores.txt").read_text().splitlines()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told = [f"eval {row['step']} {row['digit/accuracy']:.4f}" for row in rows]
    assert lines == told and len(lines) == 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Named(column.PerField):
    """The number of each text, by a lookup table."""

    in_loop: bool
    prefix: str = "named"

    def _encode(self, features, field, output, fitted):
        with contextlib.nullcontext() if self.in_loop else tf.init_scope():
            entries = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0])
            table = tf.lookup.StaticHashTable(entries, 0.0)
        return table.lookup(features[field])[:, tf.newaxis]


@pytest.mark.medium
def test_a_lookup_table_of_a_column_is_created_outside_of_the_loop(tmp_path):
    def train(in_loop):
        columns = [_Named(names=["word"], in_loop=in_loop), features.Numeric(names=["x"])]
        made = tiny.make(train_steps=4, checkpoint_steps=4)
        made = dataclasses.replace(made, model=dataclasses.replace(made.model, columns=columns))
        return verbs.train(made, str(tmp_path / str(in_loop)))

    message = r"a lookup table must be created outside of loops, got \['features/named_.*init_scope"
    with pytest.raises(checks.UserError, match=message):
        train(in_loop=True)
    assert train(in_loop=False)[1] == 4


@pytest.mark.medium
def test_a_hook_is_checked():
    with pytest.raises(checks.UserError, match="LossLines.every_steps must be .*, got 0"):
        config.load(["winds.gin"], ["my_parts.LossLines.every_steps = 0"])
    made = config.load(["winds.gin"])
    for hook in (tf.compat.v1.train.SessionRunHook(), None):  # Neither is a part that makes hooks.
        with pytest.raises(checks.UserError, match="Experiment.hooks must be a part"):
            dataclasses.replace(made, hooks=[hook])
