"""Explains a broken step: op, cause, inputs, tasks, rows, and variables that grew before the step.

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

# The smallest growth factor in one step with which the report lists a variable.
_GREW = 10.0
_MOST_VARIABLES = 5
# Ops that read variables. If a read value is not finite, the update of the previous step wrote the
# broken value.
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
# The largest number of float16.
_HALF = 65504.0


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A training step that was run again, with all its tensors.

    Attributes:
      step: the global step at which the training step starts.
      dump: the tensors of the training step.
      before: the tensors of the previous training step; None if only one step was run again.
      graph: the TensorFlow graph of the training step.
      losses: {task: the name of the tensor with its loss}.
      fields: {field: the name of its tensor in the batch}.
      batch_size: the number of rows in a batch.
      slices: the number of micro-batches in a batch.
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
      tensor: the name of the tensor.
      kind: the type of the entries, such as float32.
      shape: the shape of the tensor.
      least: the smallest finite entry; None if no entry is finite.
      greatest: the largest finite entry; None if no entry is finite.
      zeros: the number of entries that are 0.
      bad: the number of entries that are NaN or infinite.
      greatest_before: the largest absolute value of the finite entries one step earlier; None if it
        is unknown.
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
        """The smallest finite entry; 0 if no entry is finite."""
        return self.least or 0.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """An op that broke a training step, and the likely cause.

    Attributes:
      root: the op that broke the step, with its broken output.
      origin: the code that created the op, and the scope of the model that the op belongs to.
      cause: the cause in a few words.
      inputs: summaries of the op's inputs.
      outputs: summaries of the op's outputs.
      tasks: the tasks whose losses depend on the op.
      rows: the rows of the batch that led to the broken output.
      fields: the fields in which the rows that led to the broken output have odd values.
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
        """The scope of the op, or of the variable that the op reads; "" outside of the model."""
        return self.origin.part


@dataclasses.dataclass(frozen=True)
class Growth:
    """A variable whose largest absolute value grew in the last update.

    Attributes:
      variable: the name of the variable.
      before: the largest absolute value of the variable before the update.
      now: the largest absolute value of the variable after the update.
    """

    variable: str
    before: float
    now: float


@dataclasses.dataclass(frozen=True)
class Report:
    """The report on a training step that was run again.

    Attributes:
      replayed: the training step that was run again.
      findings: the ops that broke the step, in the order in which they ran; empty if no op broke
        the step.
      growth: the variables that affect a loss and grew tenfold or more in the previous update,
        sorted by their largest absolute value after that update, the largest first.
      writers: {variable: pairs of (op that wrote the variable in the previous step, summaries of
        the op's inputs)}, for variables that were not finite when the step started.
    """

    replayed: Replayed
    findings: Sequence[Finding]
    growth: Sequence[Growth]
    writers: Mapping[str, Sequence[tuple[str, Sequence[Summary]]]]


def examine_step(replayed: Replayed) -> Report:
    """Find the ops that broke a training step, and explain every op.

    Args:
      replayed: the training step that was run again.

    Returns:
      The report; its `findings` are empty if no op broke the step.
    """
    broken = roots_lib.find_roots(replayed.dump, replayed.before, replayed.losses)
    findings = [_examine_root(replayed, root) for root in broken]
    writers = {
        variable: _list_writers(replayed.before, variable)
        for variable in dict.fromkeys(filter(None, (_find_variable(f.root.node) for f in findings)))
        if replayed.before is not None
    }
    return Report(replayed, findings, _list_growth(replayed) if findings else (), writers)


def read_rows(replayed: Replayed, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Return rows of a step's batch, each as {field: value} with values for JSON.

    Args:
      replayed: the training step that was run again.
      numbers: the indices of the rows in the batch, from 0.
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
    """Return a summary of a tensor's values; None if the values are not floats.

    Args:
      dump: the tensors of the training step.
      before: the tensors of the previous step; None if they are unknown.
      tensor: the name of the tensor, with its slot.
    """
    values = dump.read_numbers(tensor)
    if not values:
        return None
    # An op in a loop computes a value in each iteration. The summary covers the values of all
    # iterations of a loop.
    flat = np.concatenate([np.ravel(value) for value in values]).astype(np.float64)
    finite = flat[np.isfinite(flat)]
    values_before = before.read_numbers(tensor) if before else ()
    return Summary(
        tensor,
        dump.find_type(tensor),
        values[0].shape,
        float(finite.min()) if finite.size else None,
        float(finite.max()) if finite.size else None,
        int((flat == 0).sum()),
        int(flat.size - finite.size),
        _find_greatest(values_before),
    )


def _examine_root(replayed: Replayed, root: roots_lib.Root) -> Finding:
    dump, before = replayed.dump, replayed.before
    origin = origin_lib.find_origin(replayed.graph, root.node.name)
    variable = _find_variable(root.node)
    # The read of a variable may lie outside of the model's scopes: use the scope of the variable.
    if variable and not origin.part:
        part = origin_lib.find_part(f"{variable}/")
        origin = dataclasses.replace(origin, part=part)
    inputs = [s for t in root.node.inputs if (s := summarize_tensor(dump, before, t))]
    outputs = [
        s for t in dump.list_outputs(root.node.name) if (s := summarize_tensor(dump, before, t))
    ]
    rows = rows_lib.find_rows(dump, root, replayed.batch_size, replayed.slices)
    # A loss depends on the forward op, not on the op that computes a gradient.
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
    """Return the likely cause of a broken output in a few words.

    Args:
      kind: the type of the op, such as Log.
      dump: the tensors of the training step.
      root: the op that broke the step, with its broken output.
      inputs: summaries of the op's float inputs, in their order.
      variable: the variable that the op reads; "" for other ops.
      fields: {field: the name of its tensor in the batch}.
    """
    if variable:
        return f"the update of the step before made {variable!r} NaN or infinite"
    if kind == "IteratorGetNext":
        field_names = [field for field, tensor in fields.items() if tensor == root.output]
        return f"the data have a value that is not finite in field {', '.join(field_names)!r}"
    # All inputs are finite, so the cause follows from the type of the op and its inputs.
    output_values = dump.read_numbers(root.output)
    if not inputs or not output_values:
        return "the op has no float inputs, but its output is NaN or infinite"
    values = np.concatenate(output_values, axis=None)
    has_nan, has_infinity = bool(np.isnan(values).any()), bool(np.isinf(values).any())
    return (
        # Try special explanations before general explanations; the last explanation fits every op.
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
    """Explain a power that is not finite: a negative power of 0, or a root of a negative number."""
    if kind != "Pow":
        return ""
    base, power = inputs[0], inputs[-1]
    if base.zeros and power.lowest < 0:
        return "0 to a power below 0"
    return "a root of a number below 0" if base.lowest < 0 and has_nan else ""


def _explain_argument(kind: str, inputs: Sequence[Summary]) -> str:
    """Explain a function that is undefined or infinite at its input; "" for other causes."""
    # Xlogy(x, y) = x log(y), so the second input is the argument of the logarithm.
    argument = inputs[-1 if kind in _BY_SECOND else 0]
    if kind == "Log1p":
        # Log1p(x) = log(1 + x) has its pole at -1.
        kind, lowest, has_zero = "Log", argument.lowest + 1, argument.lowest == -1
    else:
        lowest, has_zero = argument.lowest, argument.zeros > 0
    if has_zero and kind in _AT_ZERO:
        return _AT_ZERO[kind]
    return _BELOW_ZERO.get(kind, "") if lowest < 0 else ""


def _explain_size(kind: str, inputs: Sequence[Summary], has_infinity: bool, dtype: str) -> str:
    """Explain a result that is not finite although the function is defined at the inputs."""
    largest = f"its largest input is {max(_find_size(summary) for summary in inputs):.3g}"
    if not has_infinity:
        return f"NaN from finite numbers: {largest}"
    if kind in _POLES:
        return f"infinity from finite numbers: {largest}"
    if kind in _GROWS:
        return f"overflow of the exponential of {inputs[0].greatest:.4g}"
    if dtype == "float16":
        return f"overflow of float16, whose largest number is {_HALF:,.0f}"
    return f"overflow of {dtype}: {largest}"


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
# Functions with poles: they are infinite at some numbers of ordinary size.
_POLES = ("Atanh", "Digamma", "Erfinv", "Lgamma", "Ndtri", "Polygamma", "Xlog1py", "Zeta")
_GROWS = ("Exp", "Expm1")


def _find_variable(node: step_dump.Node) -> str:
    """Return the name of the variable that an op reads; "" for other ops."""
    is_read = node.kind in _READS and node.inputs
    return step_dump.name_node(node.inputs[0]) if is_read else ""


def _list_writers(before: step_dump.StepDump, variable: str) -> list[tuple[str, list[Summary]]]:
    return [
        (node.kind, [s for t in node.inputs if (s := summarize_tensor(before, None, t))])
        for node in roots_lib.find_writers(before, variable)
    ]


def _list_growth(replayed: Replayed) -> list[Growth]:
    """Return the variables that grew and affect a loss; the largest variable comes first."""
    if replayed.before is None:
        return []
    dump, before = replayed.dump, replayed.before
    # The slots of an optimizer may grow without harm; no loss depends on them.
    leading = (dump.list_leaders(step_dump.name_node(t)) for t in replayed.losses.values())
    growths = (_find_growth(dump, before, tensor) for tensor in set[str]().union(*leading))
    growth_of = {growth.variable: growth for growth in growths if growth}
    return sorted(growth_of.values(), key=lambda growth: -growth.now)[:_MOST_VARIABLES]


def _find_growth(
    dump: step_dump.StepDump, before: step_dump.StepDump, tensor: str
) -> Growth | None:
    """Return by how much the variable behind a tensor grew in a step; None if it did not grow."""
    node = dump.nodes.get(step_dump.name_node(tensor))
    name = _find_variable(node) if node else ""
    if not name:
        return None
    past, now = (_find_greatest(step.read_numbers(tensor)) for step in (before, dump))
    # A variable that starts at 0, such as a bias, always grows by a large factor. A variable
    # therefore counts as grown only if its value exceeds 1 now, and exceeds `_GREW` times the
    # earlier value, which counts as at least 1e-6.
    if past is None or now is None or now <= max(_GREW * max(past, 1e-6), 1):
        return None
    return Growth(name, past, now)


def _find_greatest(values: Sequence[np.ndarray]) -> float | None:
    sizes = [np.abs(value[np.isfinite(value)].astype(np.float64)) for value in values]
    return max((float(size.max()) for size in sizes if size.size), default=None)


def _find_size(summary: Summary) -> float:
    return max(abs(summary.least or 0), abs(summary.greatest or 0))


def _as_json(value: Any) -> Any:
    """Convert a value for JSON; numbers that are not finite become texts."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray):
        return [_as_json(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    # JSON has neither NaN nor infinity, so write these numbers as texts.
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
