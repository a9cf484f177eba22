"""Shows paths and end points of balancing methods on the toy problem of the CAGrad paper.

The toy has two versions: with the losses of the paper (B. Liu et al., 2021, arXiv:2110.14048, three
starts), and with the first loss times 0.1 (A. Navon et al., "Multi-Task Learning as a Bargaining
Game", 2022, arXiv:2202.01017, five starts). Adam runs with a learning rate of 1e-3 for up to
100,000 steps.

    python -m benchmarks.balancing_toys --methods equal,cagrad,aligned_mtl
"""

import collections
import functools
import itertools
import os

import numpy as np
import tqdm
from absl import flags

from benchmarks import rows, toy
from mtl.configs import config
from mtl.files import atomic
from mtl.tools.drawing import figures, line_charts

_TOYS = flags.DEFINE_list("toys", [], "plain, scaled; both by default.")
_STEPS = flags.DEFINE_integer("steps", 100_000, "The most steps from each start.", 1000)

TOYS = {
    "plain": (1.0, [(-8.5, 7.5), (-8.5, -5.0), (9.0, 9.0)]),
    "scaled": (0.1, [(-8.5, 7.5), (0.0, 0.0), (9.0, 9.0), (-7.5, -0.5), (9.0, -1.0)]),
}
# The file of a balancing method needs an experiment around it. The data of this experiment are not
# read.
_HOST = "gin_configs/experiments/digits_shared_bottom.gin"
# The authors of FAMO also use no decay for the toy problem: without noise, decay would stop FAMO
# too early.
_BINDINGS = {"famo": ["FAMO.decay = 0.0"]}
# A path has reached the Pareto front if the distance of its last point is below this limit.
_NEAR = 0.2


def paths(name: str, method: str) -> list[list[list[float]]]:
    """Return the path of a method from every start of a toy: a point for each 100 steps."""
    file = rows.methods()[method]
    model = config.load([_HOST, file], _BINDINGS.get(method, [])).model
    scale, starts = TOYS[name]
    return [toy.descend(model, start, scale, _STEPS.value).tolist() for start in starts]


def cell(path: list[list[float]]) -> str:
    """Return the place on the front where a path ends, or its distance, and thousands of steps."""
    distance, place = toy.nearest(path[-1])
    steps = f"{(len(path) - 1) // 10}k"
    return f"{place:.2f} ({steps})" if distance < _NEAR else f"off by {distance:.1f} ({steps})"


def summary(name: str, ways: dict[str, list[list[list[float]]]]) -> str:
    """Return a table of the end points of all methods from all starts."""
    header = ["method", *[f"from ({x:g}, {y:g})" for x, y in TOYS[name][1]]]
    return rows.markdown(header, [[m, *map(cell, ways[m])] for m in ways])


def details(name: str, ways: dict[str, list[list[list[float]]]]) -> str:
    """Return a table of end points, losses, distances to the front, and places on the front."""
    scale, starts = TOYS[name]
    lines = []
    for method, of_starts in ways.items():
        for start, path in zip(starts, of_starts, strict=True):
            values = toy.losses(np.array(path[-1], np.float32), scale)
            numbers = [*path[-1], *map(float, values.values()), *toy.nearest(path[-1])]
            lines.append([method, f"{start}", *[f"{number:.3f}" for number in numbers]])
    header = ["method", "start", "x", "y", "first loss", "second loss", "distance", "place"]
    return rows.markdown(header, lines)


def plot(name: str, ways: dict[str, list[list[list[float]]]]) -> str:
    """Draw a panel for each method: its paths, the contours of the mean loss, and the front."""
    axis = np.linspace(-11, 11, 45, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis))
    mean = sum(value.numpy() for value in toy.losses(grid, TOYS[name][0]).values()) / 2
    levels = np.linspace(mean.min(), mean.max(), 14)[1:-1]
    contours = [line for level in levels for line in trace_contours(axis, mean, level)]
    front = [tuple(map(float, point)) for point in toy.front(2)[1]]
    panels = []
    for method, of_starts in ways.items():
        lines = {f"from {tuple(path[0])}": [*map(tuple, path[::5])] for path in of_starts}
        lines = {"front": front, **lines}
        panels.append(line_charts.draw(method, lines, "x", "y", behind=contours, from_zero=False))
    return figures.lay_out("Paths of the methods over the contours of the mean loss", panels)


def trace_contours(
    axis: np.ndarray, values: np.ndarray, level: float
) -> list[list[tuple[float, float]]]:
    """Return the contour lines of values [Y, X] at a level, from triangle to triangle."""
    beside: dict[tuple, list[tuple]] = collections.defaultdict(list)
    for i, j in itertools.product(range(len(axis) - 1), repeat=2):
        for corner in ((i, j), (i + 1, j + 1)):
            triangle = sorted([corner, (i + 1, j), (i, j + 1)])
            edges = itertools.combinations(triangle, 2)
            crossed = [(a, b) for a, b in edges if (values[a] > level) != (values[b] > level)]
            if crossed:
                beside[crossed[0]].append(crossed[1])
                beside[crossed[1]].append(crossed[0])

    def place(edge: tuple) -> tuple[float, float]:
        a, b = edge
        share = (level - values[a]) / (values[b] - values[a])
        y, x = (axis[m] + share * (axis[n] - axis[m]) for m, n in zip(a, b, strict=True))
        return float(x), float(y)

    lines = []
    while beside:
        edge = min(beside, key=lambda edge: len(beside[edge]))  # Start at an open end, if any.
        is_closed = len(beside[edge]) > 1
        line = [edge]
        while following := [e for e in beside.pop(line[-1]) if e in beside]:
            line.append(following[0])
        lines.append([place(edge) for edge in line + line[:1] * is_closed])
    return lines


def main() -> None:
    """Measure results that are not stored yet, print the tables, and write plots and details."""
    methods, output = rows.methods(rows.METHODS.value), rows.output("balancing_toys")
    for name in _TOYS.value or TOYS:
        ways = {
            method: rows.load_or_measure(
                os.path.join(output, name, f"{method}.json"), functools.partial(paths, name, method)
            )
            for method in tqdm.tqdm(methods, desc=name, unit="method", leave=False)
        }
        print(f"\nThe {name} toy: place on the front, 0.5 in the middle (steps)\n")
        print(summary(name, ways))
        with open(os.path.join(output, f"{name}.md"), "w") as file:
            file.write(details(name, ways) + "\n")
        atomic.write(os.path.join(output, f"{name}.svg"), plot(name, ways))
    print(f"\nEnd points and losses: {output}/*.md; paths: {output}/*.svg")


if __name__ == "__main__":
    rows.run(main)
