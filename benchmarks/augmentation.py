"""Compares the test accuracy on MNIST with few labels, with and without each augmentation.

    python -m benchmarks.augmentation --seeds 3

Each seed trains `gin_configs/experiments/mnist_few.gin` on about 500 random digits, and tests the
last checkpoint on 5,000 other digits. Differences compare with training without augmentation, for
the same network, digits and first weights. Differences are in percentage points, with standard
errors. Results are stored in --output, and stored results are not measured again. The folder
MTL_DATA_DIR must contain `mnist/t10k-*-ubyte.gz`.
"""

import functools
import itertools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence

from absl import flags

from benchmarks import rows
from mtl import checks, verbs
from mtl.configs import config

_SEEDS = flags.DEFINE_integer(
    "seeds", 3, "Runs of each row, paired by their seed.", allow_override=True
)
_ROWS = flags.DEFINE_list("augmentations", [], "Names of rows without commas. (default: all)")

_FOLDER = pathlib.Path(__file__).parent.parent / "gin_configs"
_FILE = _FOLDER / "experiments" / "mnist_few.gin"
_BASELINE = "none"
_NO_NORM = "networks.Convnet.batch_norm = False"
_LIST = "features.Image.augmentations = "
# {row: (files of gin_configs/augmentation, further bindings)}. Several files add up their
# augmentations.
ROWS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    _BASELINE: ((), ()),
    "crop by 2": (("crop",), ("augmentations.Crop.padding = 2",)),
    "crop by 4": (("crop",), ()),
    "cutout of 8": (("cutout",), ()),
    "crop and cutout": (
        ("crop", "cutout"),
        (f"{_LIST}[@augmentations.Crop(), @augmentations.Cutout()]",),
    ),
    "flip": (("crop",), (f"{_LIST}[@augmentations.Flip()]",)),
    "brightness and contrast 0.4": (
        ("flip_crop_color",),
        (
            f"{_LIST}[@augmentations.ColorJitter()]",
            "augmentations.ColorJitter.brightness = 0.4",
            "augmentations.ColorJitter.contrast = 0.4",
            "augmentations.ColorJitter.saturation = 0.0",
            "augmentations.ColorJitter.hue = 0.0",
        ),
    ),
    "mixup 0.2": (("mixup",), ()),
    "mixup 1": (("mixup",), ("mixing.Mixup.alpha = 1.0",)),
    "cutmix": (("cutmix",), ()),
    "crop and mixup": (("crop", "mixup"), ()),
    "crop and cutmix": (("crop", "cutmix"), ()),
    "none, no batch norm": ((), (_NO_NORM,)),
    "crop by 2, no batch norm": (("crop",), ("augmentations.Crop.padding = 2", _NO_NORM)),
    "mixup 0.2, no batch norm": (("mixup",), (_NO_NORM,)),
    "cutmix, no batch norm": (("cutmix",), (_NO_NORM,)),
}


def measure(name: str, seed: int) -> dict[str, float]:
    """Train the experiment for a row of the table.

    Args:
      name: the row.
      seed: the seed of the digits and of the run.

    Returns:
      The accuracy on the test split in percent, and the seconds of the training.
    """
    files, params = ROWS[name]
    paths = [str(_FILE), *(str(_FOLDER / "augmentation" / f"{file}.gin") for file in files)]
    folder = rows.data_dir("mnist")
    common = [f'mnist_dir = "{folder}"', f"Run.seed = {seed}", f"subset.Subset.seed = {seed}"]
    settings, started = config.load(paths, [*common, *params]), time.perf_counter()
    with tempfile.TemporaryDirectory() as model_dir:
        metrics, _ = verbs.train(settings, model_dir)
    accuracy = 100 * float(metrics["digit/accuracy"])
    return {"accuracy": accuracy, "seconds": time.perf_counter() - started}


def find_baseline(name: str) -> str:
    """Return the name of the row that trains the same network without augmentation."""
    return _BASELINE + name.partition(",")[1] + name.partition(",")[2]


def build_table(results: dict[str, list[float]]) -> str:
    """Return a Markdown table of {row: accuracies by seed}."""
    lines = []
    for name, accuracies in results.items():
        plain = results[find_baseline(name)]
        differences = [value - base for value, base in zip(accuracies, plain, strict=True)]
        error = (
            statistics.stdev(differences) / len(differences) ** 0.5
            if len(differences) > 1
            else float("nan")
        )
        points = "" if accuracies is plain else f"{statistics.mean(differences):+.1f} ± {error:.1f}"
        lines.append([name, f"{statistics.mean(accuracies):.1f}", points])
    return rows.markdown(["augmentation", "accuracy", "points"], lines)


def main() -> None:
    """Measure results that are not stored yet, and print the table."""
    row_names = {name.replace(",", ""): name for name in ROWS}
    for name in _ROWS.value:
        checks.one_of("--augmentations", name, row_names)
    checks.at_least("--seeds", _SEEDS.value, 1)
    selected = {row_names[name] for name in _ROWS.value or row_names}
    names = [name for name in ROWS if name in selected | set(map(find_baseline, selected))]
    results: dict[str, list[float]] = {name: [] for name in names}
    for seed, name in itertools.product(range(1, _SEEDS.value + 1), names):
        path = os.path.join(rows.output("augmentation"), f"{name}, seed {seed}.json")
        result = rows.load_or_measure(path, functools.partial(measure, name, seed))
        results[name].append(result["accuracy"])
        summary = f"{result['accuracy']:.1f}% ({result['seconds']:.0f} s)"
        print(f"seed {seed}, {name}: {summary}", flush=True)
    print(build_table(results))


if __name__ == "__main__":
    rows.run(main)
