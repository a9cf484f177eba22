"""Checks that `launch.debug` names the cause of a failed step, for eight kinds of faults.

A fault lies in a head, a network or a column. A small run trains until one row of its data makes a
step fail; a learning rate that is too high needs no such row. Then the step is replayed, and the
report must name the fault: the kind of the op, the line of code that created it, the rows, and the
field or the variable. The last case is a run without a fault.

    python -m benchmarks.debugger
    python -m benchmarks.debugger --faults log_of_zero,float16 --places head
"""

import contextlib
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

from benchmarks import rows
from mtl import checks, experiment, heads, model, networks, spec, types, verbs
from mtl.data import pipeline
from mtl.optimization import optimizers, update
from mtl.tools.debugging import findings, replay

tf1 = tf.compat.v1

STEP, BATCH, ROW = 5, 16, 11
_SPLIT_ROWS = 256


def _log_of_zero(values: tf.Tensor, probe: tf.Tensor) -> tf.Tensor:
    return values + tf.math.log(probe)


def _sqrt_gradient(values: tf.Tensor, probe: tf.Tensor) -> tf.Tensor:
    return values + tf.sqrt((tf.square(values) + 1) * probe)


def _zero_by_zero(values: tf.Tensor, probe: tf.Tensor) -> tf.Tensor:
    return values * (probe / probe)


def _exp_overflow(values: tf.Tensor, probe: tf.Tensor) -> tf.Tensor:
    return values + 1e-3 * tf.exp(probe)


def _bad_feature(values: tf.Tensor, probe: tf.Tensor) -> tf.Tensor:
    return values * tf.square(probe)


def _label_weight(values: tf.Tensor, probe: tf.Tensor) -> tf.Tensor:
    return values * probe


def _float16(values: tf.Tensor, probe: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(values + probe, tf.float16), tf.float32)


def _nothing(values: tf.Tensor, probe: tf.Tensor) -> tf.Tensor:
    return values + 0 * probe


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault in a head, a network or a column.

    Attributes:
      change: a function of activations [B, H] and a probe [B, 1], which adds the fault. The probe
        is 1 in all rows except one.
      probe: the value of the probe in the row with the fault.
      kinds: the kinds of ops that a right report may name.
      is_of_field: True if the value of a field is wrong, so that a right report names this field.
    """

    change: Any
    probe: float
    kinds: Sequence[str]
    is_of_field: bool = False


FAULTS = {
    "log_of_zero": Fault(_log_of_zero, 0.0, ["Log"]),
    "sqrt_gradient": Fault(_sqrt_gradient, 0.0, ["SqrtGrad"]),
    "zero_by_zero": Fault(_zero_by_zero, 0.0, ["RealDiv"]),
    "exp_overflow": Fault(_exp_overflow, 200.0, ["Exp"]),
    "bad_feature": Fault(_bad_feature, 3e30, ["Square"], is_of_field=True),
    "label_weight": Fault(_label_weight, np.inf, ["IteratorGetNext"], is_of_field=True),
    "learning_rate": Fault(_nothing, 1.0, []),
    "float16": Fault(_float16, 1e6, ["Cast"]),
    "none": Fault(_nothing, 1.0, []),
}
PLACES = {"head": "head/", "network": "network/", "column": "features/"}

_FAULTS = flags.DEFINE_list("faults", list(FAULTS), ", ".join(FAULTS), allow_override=True)
_PLACES = flags.DEFINE_list("places", list(PLACES), "head, network, column.", allow_override=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays:
    """A source of arrays in memory, {field: [N, ...]}, for all splits."""

    columns: Mapping[str, np.ndarray]

    def records(self, split):
        return tf.data.Dataset.from_tensor_slices(dict(self.columns))

    def decode(self, batch, spec, with_labels):
        return {name: batch[name] for name in (spec.fields if with_labels else spec.features)}

    def scan(self, split, spec):
        # Hide values that are not finite from the source's checks, so that the debugger has to find
        # them.
        for index in range(len(self.columns["x"])):
            cells = {name: np.ravel(array[index]).tolist() for name, array in self.columns.items()}
            finite = {name: list(np.nan_to_num(cell)) for name, cell in cells.items()}
            yield (
                f"{split} row {index}",
                {name: cell if name == "x" else cell[0] for name, cell in finite.items()},
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column(types.Column):
    """A dense layer, with or without a fault; passes the probe on if the network needs it."""

    fault: str | None
    hands_on: bool

    @property
    def columns(self):
        return {"own": ("x", "probe"), **({"probe": ("probe",)} if self.hands_on else {})}

    def __call__(self, features, fitted):
        probe = tf.reshape(features["probe"], [-1, 1])
        with tf1.variable_scope("own"):
            values = _dense(features["x"], 6)
            values = FAULTS[self.fault].change(values, probe) if self.fault else values
        return {"own": values, **({"probe": probe} if self.hands_on else {})}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network(types.Network):
    """A trunk, with or without a fault after its layers."""

    fault: str | None
    inner: networks.SharedBottom

    def __call__(self, inputs, tasks, training):
        inputs = dict(inputs)
        probe = inputs.pop("probe", None)
        towers = self.inner(inputs, tasks, training)
        if self.fault is None:
            return towers
        change = FAULTS[self.fault].change
        return types.Towers({task: change(tower, probe) for task, tower in towers.items()})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head(heads.Regression):
    """A head with a fault in its loss."""

    fault: str

    def loss(self, logits, labels):
        probe = tf.reshape(labels["label_probe"], [-1, 1])
        return super().loss(FAULTS[self.fault].change(logits, probe), labels)


def _dense(inputs: tf.Tensor, units: int) -> tf.Tensor:
    kernel = tf1.get_variable("kernel", [inputs.shape[1], units])
    return inputs @ kernel


def make(fault: str, place: str, **run: Any) -> experiment.Experiment:
    """Return the experiment of a case, which fails at step `STEP`, in row `ROW` of the batch.

    Args:
      fault: the name of the fault.
      place: the place of the fault.
      **run: settings of `Run`.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(_SPLIT_ROWS, 4)).astype(np.float32)
    probe = np.ones(_SPLIT_ROWS, np.float32)
    probe[STEP * BATCH + ROW] = FAULTS[fault].probe
    plain = np.ones_like(probe)
    columns = {
        "x": x,
        "probe": plain if place == "head" else probe,
        "label_probe": probe if place == "head" else plain,
        "size": x.sum(1),
        "sign": (x[:, 0] > 0).astype(np.int64),
    }
    in_head = place == "head"
    head = Head(name="size", fault=fault) if in_head else heads.Regression(name="size")
    rates = {f"{PLACES[place]}*": 1e30} if fault == "learning_rate" else {}
    return experiment.Experiment(
        data=pipeline.Pipeline(
            source=Arrays(columns=columns),
            spec=spec.Spec(
                features={"x": ("float32", (4,)), "probe": "float32"},
                labels={"size": "float32", "sign": "int64", "label_probe": "float32"},
            ),
            batch_size=BATCH,
            shuffle_buffer=1,
        ),
        model=model.MultiTaskModel(
            columns=[
                Column(fault=fault if place == "column" else None, hands_on=place == "network")
            ],
            network=Network(
                fault=fault if place == "network" else None,
                inner=networks.SharedBottom(trunk=networks.MLP(layers=[8])),
            ),
            heads=[head, heads.Binary(name="sign")],
            update=update.Update(optimizer=optimizers.Adam(learning_rate=1e-3), rates=rates),
        ),
        run=experiment.Run(**{"train_steps": 8, "checkpoint_steps": 4, "summary_steps": 8, **run}),
    )


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a case: whether the report is right, its text, and seconds of the replay."""

    is_right: bool
    report: str
    secs: float


def run_case(fault: str, place: str, model_dir: str) -> Result:
    """Train until the fault, replay the step, and check the report."""
    settings, step = make(fault, place), STEP
    with contextlib.suppress(checks.UserError, tf.errors.OpError):
        verbs.train(settings, model_dir)
    path = os.path.join(model_dir, "failure.json")
    if os.path.exists(path):
        with open(path) as file:
            step = json.load(file)["step"]
    started = time.perf_counter()
    with replay.open_step(settings, model_dir, step) as replayed:
        report = findings.examine_step(replayed)
        secs = time.perf_counter() - started
    return Result(is_right(fault, place, report), _describe(report), secs)


def is_right(fault: str, place: str, report: findings.Report) -> bool:
    """Return True if a report names the fault."""
    planted = FAULTS[fault]
    if fault == "none":
        return not report.findings
    if not report.findings:
        return False
    finding = report.findings[0]
    if fault == "learning_rate":
        growing = [growth.variable for growth in report.growth[:1]] or [finding.part]
        return growing[0].startswith(PLACES[place])
    line = planted.change.__name__ in "".join(finding.origin.lines)
    is_named = line or finding.root.node.kind == "IteratorGetNext"
    is_row = finding.rows.numbers == (ROW,)
    field = "label_probe" if place == "head" else "probe"
    is_field = not planted.is_of_field or list(finding.fields) == [field]
    return finding.root.node.kind in planted.kinds and is_named and is_row and is_field


def _describe(report: findings.Report) -> str:
    if not report.findings:
        return "nothing"
    finding = report.findings[0]
    numbers = ", ".join(map(str, finding.rows.numbers[:3])) or "none"
    fields = ", ".join(finding.fields)
    growth_text = "".join(f"; {growth.variable} grew" for growth in report.growth[:1])
    return f"{finding.cause}; rows {numbers} {fields}{growth_text}"


def main() -> None:
    """Run the cases, and print a table."""
    lines, results = [], []
    for fault in _FAULTS.value:
        checks.one_of("--faults", fault, FAULTS)
        for place in _PLACES.value if fault != "none" else _PLACES.value[-1:]:
            checks.one_of("--places", place, PLACES)
            with tempfile.TemporaryDirectory() as folder:
                result = run_case(fault, place, os.path.join(folder, "run"))
            results.append(result)
            right = "yes" if result.is_right else "NO"
            lines.append([fault, place, right, result.report, f"{result.secs:.1f}"])
            print(" | ".join(lines[-1]), flush=True)
    header = ["fault", "place", "right", "found", "seconds"]
    print(f"\n{rows.markdown(header, lines)}")
    print(f"\n{sum(result.is_right for result in results)} of {len(results)} are right.")


if __name__ == "__main__":
    rows.run(main)
