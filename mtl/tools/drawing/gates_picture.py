"""Draws the gates of a network of experts: one picture in the run's folder.

path = gates_picture.draw("runs/adult")      # runs/adult/gates.svg: open it in a browser

Each gate has a panel with the mean weight of every expert over the steps. Then come panels with a
line for each gate: the entropy of its weights, and the similarity and dead units of its experts.
"""

import os

from mtl.files import atomic
from mtl.monitoring import chart, event_files

_FILE = "gates.svg"
_PREFIX = "gate/"
TITLES = {
    "entropy": "entropy of the gates (1: all experts alike, 0: one alone)",
    "similarity": "similarity of experts (mean cosine)",
    "dead_units": "share of units that are 0 for all of 128 examples",
}


def draw(model_dir: str, scalars: event_files.Curves | None = None) -> str | None:
    """Write the picture anew and return its path; None if the run shows no gates.

    Args:
      model_dir: the folder of the run.
      scalars: the scalars of its event files; None reads them.
    """
    weights, others = read(model_dir) if scalars is None else group(scalars)
    if not weights:
        return None
    panels = [chart.draw_lines(f"mean weights, {gate}", curves) for gate, curves in weights.items()]
    panels += [chart.draw_lines(TITLES[kind], curves) for kind, curves in others.items()]
    path = os.path.join(model_dir, _FILE)
    atomic.write(path, chart.draw_page(panels))
    return path


def read(
    model_dir: str,
) -> tuple[dict[str, event_files.Curves], dict[str, event_files.Curves]]:
    """Return {gate: curves of its experts} and {kind: curves of the gates} of a run."""
    return group(event_files.read_record(model_dir).curves)


def group(
    curves: event_files.Curves,
) -> tuple[dict[str, event_files.Curves], dict[str, event_files.Curves]]:
    """Return {gate: curves of its experts} and {kind: curves of the gates} among these scalars."""
    weights: dict[str, event_files.Curves] = {}
    others: dict[str, event_files.Curves] = {}
    for tag, points in curves.items():
        if tag.startswith(_PREFIX) and points:
            gate, _, name = tag.removeprefix(_PREFIX).rpartition("/")
            chosen, key = (others, (name, gate)) if name in TITLES else (weights, (gate, name))
            chosen.setdefault(key[0], {})[key[1]] = points
    return weights, {kind: others[kind] for kind in TITLES if kind in others}
