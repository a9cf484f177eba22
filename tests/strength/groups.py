"""The groups of rooms that defects are drawn from, as many from each."""

import pathlib
import random
from collections.abc import Mapping

from tests.strength import defects

GROUPS = {
    "step": ("mtl/step/", "mtl/model/"),
    "balancing": ("mtl/balancing/",),
    "heads and metrics": ("mtl/heads/",),
    "networks": ("mtl/networks/", "mtl/layers/"),
    "features": ("mtl/features/", "mtl/histories/"),
    "data": ("mtl/data/", "mtl/datasets/", "mtl/spec/", "mtl/times.py", "mtl/checks/"),
    "optimization": ("mtl/optimization/",),
    "losses without a head": ("mtl/auxiliary/", "mtl/example_gradients/", "mtl/mixing.py"),
    "variables and pruning": ("mtl/variables/", "mtl/sparsity/"),
    "resume": ("mtl/checkpoints/", "mtl/distribution/", "mtl/files/"),
    "transfer": ("mtl/transfer/", "mtl/model_fns/"),
    "export": ("mtl/serving/", "mtl/compat/", "mtl/tf_internals/"),
    "runs": ("mtl/runs/", "mtl/monitoring/", "mtl/verbs.py"),
    "tools": ("mtl/tools/",),
    "scoring": ("mtl/tools/scoring/",),
    "gin files and commands": ("mtl/configs/", "mtl/fitting.py", "mtl/from_python.py", "launch/"),
}


def draw(
    root: pathlib.Path,
    seed: int,
    count: int,
    of: Mapping[str, tuple[str, ...]] = GROUPS,
) -> list[tuple[str, str, defects.Defect]]:
    """Draw (group, file, defect), `count` for each group: first the kind of defect, then its place.

    Rare kinds, such as a wrong axis, are thus drawn as often as the kinds that fit every line.
    """
    drawn = []
    for group, prefixes in of.items():
        random_of = random.Random(f"{seed} {group}")
        by_kind: dict[str, list[tuple[str, defects.Defect]]] = {}
        found = 0
        for path in sorted(root.glob("mtl/**/*.py")) + sorted(root.glob("launch/**/*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith(prefixes):
                for defect in defects.find(path.read_text()):
                    by_kind.setdefault(defect.kind, []).append((name, defect))
        while found < count:
            places = by_kind[random_of.choice(sorted(by_kind))]
            name, defect = places.pop(random_of.randrange(len(places)))
            by_kind = {kind: left for kind, left in by_kind.items() if left}
            if defects.is_python(defect.plant((root / name).read_text())):
                drawn.append((group, name, defect))
                found += 1
    return drawn
