"""One row per optimizer; the conformance tests take it from there."""

import dataclasses
from collections.abc import Callable
from typing import Any

from mtl.optimization import optimizers, schedules
from tests.optimization import references

RATE = schedules.Exponential(value=0.05, decay_rate=0.5, decay_steps=4, warmup_steps=3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """An optimizer and its promised behaviour.

    Attributes:
      name: the name of the test.
      optimizer: under test, with the learning rate `RATE`.
      reference: one step of it, in NumPy.
      slots: the names of its state per variable.
      sparse_rows: True if rows that were not looked up stay as they are.
      of_dense: `reference` for variables with a dense gradient; None if it is the same.
    """

    name: str
    optimizer: Any
    reference: Callable
    slots: tuple[str, ...] = ()
    sparse_rows: bool = True
    of_dense: Callable | None = None

    def __post_init__(self):
        if self.of_dense is None:
            object.__setattr__(self, "of_dense", self.reference)


ADAM_SLOTS = ("Adam", "Adam_1")
RMS_SLOTS = ("RMSProp", "RMSProp_1")

ROWS = (
    Row(name="SGD", optimizer=optimizers.SGD(learning_rate=RATE), reference=references.sgd),
    Row(
        name="Momentum",
        optimizer=optimizers.Momentum(learning_rate=RATE),
        reference=references.momentum(nesterov=False),
        slots=("Momentum",),
    ),
    Row(
        name="Nesterov",
        optimizer=optimizers.Momentum(learning_rate=RATE, nesterov=True),
        reference=references.momentum(nesterov=True),
        slots=("Momentum",),
    ),
    Row(
        name="Adagrad",
        optimizer=optimizers.Adagrad(learning_rate=RATE),
        reference=references.adagrad,
        slots=("Adagrad",),
    ),
    Row(
        name="RowWiseAdagrad",
        optimizer=optimizers.RowWiseAdagrad(learning_rate=RATE),
        reference=references.row_wise_adagrad,
        slots=("RowWiseAdagrad",),
        of_dense=references.adagrad,
    ),
    Row(
        name="FTRL",
        optimizer=optimizers.FTRL(learning_rate=RATE, l1=0.3, l2=0.1),
        reference=references.ftrl(l1=0.3, l2=0.1),
        slots=("Ftrl", "Ftrl_1"),
    ),
    Row(
        name="RMSProp",
        optimizer=optimizers.RMSProp(learning_rate=RATE, momentum=0.5),
        reference=references.rms_prop(centered=False, momentum=0.5),
        slots=RMS_SLOTS,
    ),
    Row(
        name="RMSPropCentered",
        optimizer=optimizers.RMSProp(learning_rate=RATE, centered=True),
        reference=references.rms_prop(centered=True, momentum=0.0),
        slots=(*RMS_SLOTS, "RMSProp_2"),
    ),
    Row(
        name="Adam",
        optimizer=optimizers.Adam(learning_rate=RATE),
        reference=references.adam(),
        slots=ADAM_SLOTS,
        sparse_rows=False,
    ),
    Row(
        name="LazyAdam",
        optimizer=optimizers.LazyAdam(learning_rate=RATE),
        reference=references.adam(),
        slots=ADAM_SLOTS,
    ),
    Row(
        name="AdamW",
        optimizer=optimizers.AdamW(learning_rate=RATE, weight_decay=0.2),
        reference=references.adam(weight_decay=0.2),
        slots=ADAM_SLOTS,
    ),
)
