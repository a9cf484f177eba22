"""Draws the gates of a network with experts, from scalars of TensorBoard, in `gates.svg`.

panels = gates_picture.draw_panels(curves)

Each gate has a panel with the mean weight of every expert over the steps. Further panels have a
line for each gate: the entropy of its weights, and the similarity and dead units of its experts.
"""

from mtl.monitoring import event_files
from mtl.tools.drawing import figures, line_charts

FILE, TITLE = "gates.svg", "Gates of the network"
_PREFIX = "gate/"
# {kind of scalar: (title of its figure, name of the vertical axis)}
_KINDS = {
    "entropy": ("entropy of the gates (1: all experts equal, 0: one expert)", "entropy"),
    "similarity": ("similarity of experts", "mean cosine"),
    "dead_units": ("share of units that are 0 for all of 128 examples", "share of units"),
}


def draw_panels(curves: event_files.Curves) -> list[figures.Figure]:
    """Draw the weights and other scalars of gates.

    Returns:
      A figure for each gate, and then a figure for each other kind of scalar; [] without gates.
    """
    weights, others = group(curves)
    if not weights:
        return []
    return [*(draw_gate(*item) for item in weights.items()), *draw_kinds(others)]


def draw_gate(gate: str, experts: event_files.Curves) -> figures.Figure:
    """Draw the mean weight of each expert of a gate over the steps.

    Args:
      gate: the name of the gate.
      experts: {expert: {step: mean weight}}.
    """
    return line_charts.draw_curves(f"mean weights, {gate}", experts, "mean weight")


def draw_kinds(others: dict[str, event_files.Curves]) -> list[figures.Figure]:
    """Draw a figure for each kind of scalar.

    Args:
      others: {kind of scalar, such as "entropy": {gate: {step: value}}}.
    """
    return [
        line_charts.draw_curves(_KINDS[kind][0], curves, _KINDS[kind][1])
        for kind, curves in others.items()
    ]


def group(
    curves: event_files.Curves,
) -> tuple[dict[str, event_files.Curves], dict[str, event_files.Curves]]:
    """Group the scalars of a run that are about gates.

    Args:
      curves: the scalars of the run, of which `gate/<gate>/<expert or kind>` are used.

    Returns:
      {gate: {expert: {step: mean weight}}}, and {kind: {gate: {step: value}}} with the kinds
      "entropy", "similarity" and "dead_units".
    """
    weights: dict[str, event_files.Curves] = {}
    others: dict[str, event_files.Curves] = {}
    for tag, points in curves.items():
        if tag.startswith(_PREFIX) and points:
            # The name of a gate may contain slashes, so the last part is the expert or the kind.
            gate, _, name = tag.removeprefix(_PREFIX).rpartition("/")
            groups, key = (others, (name, gate)) if name in _KINDS else (weights, (gate, name))
            groups.setdefault(key[0], {})[key[1]] = points
    return weights, {kind: others[kind] for kind in _KINDS if kind in others}
