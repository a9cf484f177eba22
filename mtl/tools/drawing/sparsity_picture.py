"""Draws how sparse a network became in training, from scalars of TensorBoard, in `sparsity.svg`.

panels = sparsity_picture.draw_panels(curves)

Three panels have a line for each pruned variable over the steps. With `TaskSaliency`, a fourth
panel shows how well the tasks agree on the weights to prune. The pictures do not show the number of
pruned weights, which the summary of the run prints.
"""

from mtl.monitoring import event_files
from mtl.tools.drawing import figures, line_charts

FILE, TITLE = "sparsity.svg", "Sparsity of the network"
_PREFIX = "pruning/"
# {kind of scalar: (title of its figure, name of the vertical axis)}
_KINDS = {
    "sparsity": ("share of pruned weights", "share of weights"),
    "dead_units": ("share of units without inputs", "share of units"),
    "churn": ("share of weights whose mask changed at the last cut", "share of weights"),
    "task_overlap": ("overlap of the tasks' choices at the last cut", "overlap"),
}


def draw_panels(curves: event_files.Curves) -> list[figures.Figure]:
    """Draw the scalars of pruning.

    Returns:
      A figure for each kind of scalar; [] if the run did not prune.
    """
    return [
        line_charts.draw_curves(_KINDS[kind][0], variables, _KINDS[kind][1])
        for kind, variables in group(curves).items()
    ]


def group(curves: event_files.Curves) -> dict[str, event_files.Curves]:
    """Group the scalars of a run that are about pruning.

    Args:
      curves: the scalars of the run, of which `pruning/<variable>/<kind>` are used.

    Returns:
      {kind: {variable: {step: value}}}, with short names of the variables.
    """
    groups: dict[str, event_files.Curves] = {}
    for tag, points in curves.items():
        variable, _, kind = tag.removeprefix(_PREFIX).rpartition("/")
        if tag.startswith(_PREFIX) and kind in _KINDS and points:
            # Leave out the scope "network" and the word "kernel", which nearly all names contain.
            name = variable.removeprefix("network/").removesuffix("/kernel")
            groups.setdefault(kind, {})[name] = points
    return {kind: groups[kind] for kind in _KINDS if kind in groups}
