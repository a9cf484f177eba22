"""Explains a broken step: op, cause, inputs, tasks, rows, and variables that grew before it.

report = findings.examine_step(replayed)
report.findings[0].cause            # "the logarithm of 0, at 3 of 64 entries"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl.deferred import tf
from mtl.tools.debugging import origin as origin_lib
from mtl.tools.debugging import roots as roots_lib
from mtl.tools.debugging import rows as rows_lib
from mtl.tools.debugging import step_dump

# A variable is reported if it grew by this factor in one step.
_GREW = 10.0
_MOST_VARIABLES = 5
# At such an op the value was broken before the step: the update of the previous step wrote it.
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
# The greatest number of float16.
_HALF = 65504.0


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A step that was run again.

    Attributes:
      step: the global step at its start.
      dump: its tensors.
      before: the tensors of the previous step; None if the run has no checkpoint of it.
      graph: the graph that ran.
      losses: {task: the tensor of its loss}.
      fields: {field: the tensor of the batch that holds it}.
      batch_size: rows of a batch.
      slices: the number of micro-batches.
    """

    step: int
    dump: step_dump.StepDump
    before: step_dump.StepDump | None
    graph: tf.Graph
    losses: Mapping[str, str]
    fields: Mapping[str, str]
    batch_size: int
    slices: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """A summary of the values of a tensor.

    Attributes:
      tensor: its name.
      kind: its type, such as float32.
      shape: its shape.
      least: the least finite entry; None without a finite entry.
      greatest: the greatest finite entry; None without a finite entry.
      zeros: how many entries are 0.
      bad: how many entries are NaN or infinite.
      greatest_before: the greatest absolute finite entry one step earlier; None if unknown.
    """

    tensor: str
    kind: str
    shape: tuple[int, ...]
    least: float | None
    greatest: float | None
    zeros: int
    bad: int
    greatest_before: float | None

    @property
    def lowest(self) -> float:
        """The least finite entry; 0 without a finite entry."""
        return self.least or 0.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """One root of a broken step.

    Attributes:
      root: the op.
      origin: the code and the part of the model that made it.
      cause: the cause in a few words.
      inputs: summaries of its inputs.
      outputs: summaries of its outputs.
      tasks: the tasks whose loss depends on it.
      rows: the rows of the batch that broke it.
      fields: the fields with odd values in these rows.
    """

    root: roots_lib.Root
    origin: origin_lib.Origin
    cause: str
    inputs: Sequence[Summary]
    outputs: Sequence[Summary]
    tasks: Sequence[str]
    rows: rows_lib.Rows
    fields: Sequence[str]

    @property
    def part(self) -> str:
        """The scope of the model with this op, or with the variable that it reads."""
        return self.origin.part


@dataclasses.dataclass(frozen=True)
class Growth:
    """A variable that grew in the previous update: its greatest absolute values then and now."""

    variable: str
    before: float
    now: float


@dataclasses.dataclass(frozen=True)
class Report:
    """The report on a step.

    Attributes:
      replayed: the step.
      findings: its roots, in the order in which they ran; empty if the step is not broken.
      growth: the variables that grew tenfold or more in the previous update, the largest first.
      writers: {variable: (the op that wrote it in the previous step, summaries of its inputs)} of
        variables that were not finite at the start of the step.
    """

    replayed: Replayed
    findings: Sequence[Finding]
    growth: Sequence[Growth]
    writers: Mapping[str, Sequence[tuple[str, Sequence[Summary]]]]


def examine_step(replayed: Replayed) -> Report:
    """Find the roots of a step, and explain each."""
    found = roots_lib.find_roots(replayed.dump, replayed.before, replayed.losses)
    findings = [_examine_root(replayed, root) for root in found]
    writers = {
        variable: _list_writers(replayed.before, variable)
        for variable in dict.fromkeys(filter(None, (_find_variable(f.root.node) for f in findings)))
        if replayed.before is not None
    }
    return Report(replayed, findings, _list_growth(replayed) if findings else (), writers)


def read_rows(replayed: Replayed, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Return these rows of the batch, {field: value} with values for JSON.

    Args:
      replayed: the step.
      numbers: the numbers of the rows in the batch, from 0.
    """
    columns = {field: replayed.dump.read_any(t) for field, t in replayed.fields.items()}
    return [
        {
            "row": number,
            **{
                field: _as_json(values[number])
                for field, values in columns.items()
                if values is not None and values.ndim and number < len(values)
            },
        }
        for number in numbers
    ]


def summarize_tensor(
    dump: step_dump.StepDump, before: step_dump.StepDump | None, tensor: str
) -> Summary | None:
    """Return a summary of a tensor's values; None if these are not floats.

    Args:
      dump: the step.
      before: the previous step; None if it is unknown.
      tensor: the name of the tensor, with its slot.
    """
    values = dump.read_numbers(tensor)
    if not values:
        return None
    # An op in a loop has a value for each iteration. The summary covers all of them.
    flat = np.concatenate([np.ravel(value) for value in values]).astype(np.float64)
    finite = flat[np.isfinite(flat)]
    earlier = before.read_numbers(tensor) if before else ()
    return Summary(
        tensor,
        dump.find_type(tensor),
        values[0].shape,
        float(finite.min()) if finite.size else None,
        float(finite.max()) if finite.size else None,
        int((flat == 0).sum()),
        int(flat.size - finite.size),
        _find_greatest(earlier),
    )


def _examine_root(replayed: Replayed, root: roots_lib.Root) -> Finding:
    dump, before = replayed.dump, replayed.before
    origin = origin_lib.find_origin(replayed.graph, root.node.name)
    variable = _find_variable(root.node)
    # The op that reads a variable may lie outside of the model's scopes, unlike the variable.
    if variable and not origin.part:
        part = origin_lib.find_part(f"{variable}/")
        origin = dataclasses.replace(origin, part=part)
    inputs = [s for t in root.node.inputs if (s := summarize_tensor(dump, before, t))]
    outputs = [
        s for t in dump.list_outputs(root.node.name) if (s := summarize_tensor(dump, before, t))
    ]
    rows = rows_lib.find_rows(dump, root, replayed.batch_size, replayed.slices)
    # A loss does not depend on the op of a gradient, but on its forward op.
    nodes = [root.node.name, *([origin.forward] if origin.forward else [])]
    return Finding(
        root=root,
        origin=origin,
        cause=explain(root.node.kind, dump, root, inputs, variable, replayed.fields),
        inputs=inputs,
        outputs=outputs,
        tasks=roots_lib.list_tasks(dump, [n for n in nodes if n in dump.nodes], replayed.losses),
        rows=rows,
        fields=rows_lib.find_fields(dump, root, rows.numbers, replayed.fields),
    )


def explain(
    kind: str,
    dump: step_dump.StepDump,
    root: roots_lib.Root,
    inputs: Sequence[Summary],
    variable: str,
    fields: Mapping[str, str],
) -> str:
    """Return the cause of a broken op in a few words.

    Args:
      kind: the type of the op, such as Log.
      dump: the step.
      root: the op with its broken output.
      inputs: summaries of the inputs with floats, in their order.
      variable: the variable that the op reads; "" for other ops.
      fields: {field: the tensor of the batch that holds it}.
    """
    if variable:
        return f"the update of the step before left {variable!r} not finite"
    if kind == "IteratorGetNext":
        named = [field for field, tensor in fields.items() if tensor == root.output]
        return f"the data hold a value that is not finite in field {', '.join(named)!r}"
    # From here on the inputs are finite: the kind of the op and its inputs tell the cause.
    made = dump.read_numbers(root.output)
    if not inputs or not made:
        return "it made what is not finite of nothing"
    values = np.concatenate(made, axis=None)
    has_nan, has_infinity = bool(np.isnan(values).any()), bool(np.isinf(values).any())
    return (
        # From the narrowest explanation to the widest: the last one fits every op.
        _explain_division(kind, inputs, has_nan)
        or _explain_power(kind, inputs, has_nan)
        or _explain_argument(kind, inputs)
        or _explain_size(kind, inputs, has_infinity, dump.find_type(root.output))
    )


def _explain_division(kind: str, inputs: Sequence[Summary], has_nan: bool) -> str:
    if kind not in _DIVIDES or not inputs[-1].zeros:
        return ""
    return "0 divided by 0" if has_nan else "a division by 0"


def _explain_power(kind: str, inputs: Sequence[Summary], has_nan: bool) -> str:
    """Say what is wrong with a power: a negative power of 0, or a root of a negative number."""
    if kind != "Pow":
        return ""
    base, power = inputs[0], inputs[-1]
    if base.zeros and power.lowest < 0:
        return "0 to a power below 0"
    return "a root of a number below 0" if base.lowest < 0 and has_nan else ""


def _explain_argument(kind: str, inputs: Sequence[Summary]) -> str:
    """Say at which argument a function is undefined or infinite; "" if it is neither."""
    # Xlogy(x, y) = x log(y): y is the argument of the logarithm.
    judged = inputs[-1 if kind in _BY_SECOND else 0]
    if kind == "Log1p":
        # Log1p(x) = log(1 + x) has its pole at -1.
        kind, lowest, has_zero = "Log", judged.lowest + 1, judged.lowest == -1
    else:
        lowest, has_zero = judged.lowest, judged.zeros > 0
    if has_zero and kind in _AT_ZERO:
        return _AT_ZERO[kind]
    return _BELOW_ZERO.get(kind, "") if lowest < 0 else ""


def _explain_size(kind: str, inputs: Sequence[Summary], has_infinity: bool, made_as: str) -> str:
    """Explain a result that is not finite for finite inputs at which the op is defined."""
    largest = f"its largest input is {max(_find_size(summary) for summary in inputs):.3g}"
    if not has_infinity:
        return f"NaN made of finite numbers: {largest}"
    if kind in _POLES:
        return f"infinity made of finite numbers: {largest}"
    if kind in _GROWS:
        return f"overflow of the exponential of {inputs[0].greatest:.4g}"
    if made_as == "float16":
        return f"overflow of float16, whose greatest number is {_HALF:,.0f}"
    return f"overflow of {made_as}: {largest}"


_DIVIDES = ("RealDiv", "Div", "TruncateDiv", "Xdivy")
_AT_ZERO = {
    "Log": "the logarithm of 0",
    "Reciprocal": "the reciprocal of 0",
    "Inv": "the reciprocal of 0",
    "Rsqrt": "the reciprocal square root of 0",
    "SqrtGrad": "the gradient of the square root at 0",
    "Xlogy": "the logarithm of 0",
}
_BELOW_ZERO = {
    "Log": "the logarithm of a number below 0",
    "Xlogy": "the logarithm of a number below 0",
    "Sqrt": "the square root of a number below 0",
    "Rsqrt": "the square root of a number below 0",
}
_BY_SECOND = ("Xlogy",)
# Functions that are infinite at some small numbers.
_POLES = ("Atanh", "Digamma", "Erfinv", "Lgamma", "Ndtri", "Polygamma", "Xlog1py", "Zeta")
_GROWS = ("Exp", "Expm1")


def _find_variable(node: step_dump.Node) -> str:
    """Return the variable that an op reads; "" for other ops."""
    is_read = node.kind in _READS and node.inputs
    return step_dump.name_node(node.inputs[0]) if is_read else ""


def _list_writers(before: step_dump.StepDump, variable: str) -> list[tuple[str, list[Summary]]]:
    return [
        (node.kind, [s for t in node.inputs if (s := summarize_tensor(before, None, t))])
        for node in roots_lib.find_writers(before, variable)
    ]


def _list_growth(replayed: Replayed) -> list[Growth]:
    """Return the variables behind a loss that grew, the largest first."""
    if replayed.before is None:
        return []
    dump, before = replayed.dump, replayed.before
    # Not the optimizer's slots: these lead to no loss, and may grow without harm.
    leading = (dump.list_leaders(step_dump.name_node(t)) for t in replayed.losses.values())
    grown = (_find_growth(dump, before, tensor) for tensor in set[str]().union(*leading))
    found = {growth.variable: growth for growth in grown if growth}
    return sorted(found.values(), key=lambda growth: -growth.now)[:_MOST_VARIABLES]


def _find_growth(
    dump: step_dump.StepDump, before: step_dump.StepDump, tensor: str
) -> Growth | None:
    """Return the growth of the variable that a tensor holds; None without a growing variable."""
    node = dump.nodes.get(step_dump.name_node(tensor))
    name = _find_variable(node) if node else ""
    if not name:
        return None
    then, now = (_find_greatest(one.read_numbers(tensor)) for one in (before, dump))
    # Variables that start at 0, such as biases, always grow by a large factor. So the value before
    # counts as 1e-6 at least, and the value now must exceed 1.
    if then is None or now is None or now <= max(_GREW * max(then, 1e-6), 1):
        return None
    return Growth(name, then, now)


def _find_greatest(values: Sequence[np.ndarray]) -> float | None:
    sizes = [np.abs(value[np.isfinite(value)].astype(np.float64)) for value in values]
    return max((float(size.max()) for size in sizes if size.size), default=None)


def _find_size(summary: Summary) -> float:
    return max(abs(summary.least or 0), abs(summary.greatest or 0))


def _as_json(value: Any) -> Any:
    """Return a value for JSON; numbers that are not finite become text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray):
        return [_as_json(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    # JSON has neither NaN nor infinity.
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
