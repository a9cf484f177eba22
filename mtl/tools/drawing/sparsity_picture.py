"""Draws how sparse a network became while it trained: `sparsity.svg` of a run.

panels = sparsity_picture.draw_panels(curves)

Three panels have a line for each pruned variable, over the steps. With `TaskSaliency`, a fourth
panel shows how far the tasks agree. The summary of the run tells how many weights are cut.
"""

from mtl.monitoring import event_files
from mtl.tools.drawing import figures, line_charts

FILE, TITLE = "sparsity.svg", "Sparsity of the network"
_PREFIX = "pruning/"
# The title of each kind of scalar, and the name of its axis.
_KINDS = {
    "sparsity": ("share of weights that are cut", "share of weights"),
    "dead_units": ("share of units that nothing feeds", "share of units"),
    "churn": ("share of weights whose mask the last cut changed", "share of weights"),
    "task_overlap": ("overlap of the tasks' choices at the last cut", "overlap"),
}


def draw_panels(curves: event_files.Curves) -> list[figures.Figure]:
    """Draw the sparsity among these scalars; empty if nothing is pruned."""
    found = group(curves).items()
    return [line_charts.draw_curves(_KINDS[k][0], own, _KINDS[k][1]) for k, own in found]


def group(curves: event_files.Curves) -> dict[str, event_files.Curves]:
    """Return {kind: {variable: {step: value}}} among the scalars of a run."""
    found: dict[str, event_files.Curves] = {}
    for tag, points in curves.items():
        variable, _, kind = tag.removeprefix(_PREFIX).rpartition("/")
        if tag.startswith(_PREFIX) and kind in _KINDS and points:
            # A legend needs neither the scope of the network nor the name of a kernel.
            name = variable.removeprefix("network/").removesuffix("/kernel")
            found.setdefault(kind, {})[name] = points
    return {kind: found[kind] for kind in _KINDS if kind in found}
