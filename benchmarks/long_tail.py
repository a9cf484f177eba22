"""Measures the accuracy on long-tailed MNIST of every recipe in `gin_configs/experiments/mnist_lt`.

Differences compare with joint training with the same seed, in percentage points, with standard
errors. Runs are stored under --root, and finished runs are not repeated.

    python -m benchmarks.long_tail --mnist_dir data/mnist --seeds 5
"""

import logging
import pathlib
import re
import tempfile

import numpy as np
import tqdm
from absl import app, flags

from launch import stages
from mtl import checks

_MNIST_DIR = flags.DEFINE_string("mnist_dir", "data/mnist", "The folder of t10k-*-ubyte.gz.")
_SEEDS = flags.DEFINE_integer(
    "seeds",
    5,
    "Runs of each recipe, paired by their seed.",
    allow_override=True,  # Tests import several benchmarks into one process.
)
_ROOT = flags.DEFINE_string("root", None, "The folder of the runs. (default: a temporary folder)")
_RECIPES = flags.DEFINE_list("recipes", [], "Some of the recipes. (default: all)")

FOLDER = pathlib.Path(__file__).parents[1] / "gin_configs" / "experiments" / "mnist_lt"
BASELINE = "joint"
# This file is not a recipe: recipes include it.
SHARED = "retrained"
# {further row: (recipe, another setting)}
VARIANTS = {
    "tau_norm, tau = 1": ("tau_norm", "refit.TauNormalized.taus = [1.0]"),
    "crt, averages adapt": ("crt", 'freezing.Freezing.batch_norm = "adapt"'),
}
METRICS = ("accuracy", "many_shot_accuracy", "medium_shot_accuracy", "few_shot_accuracy")


def recipes() -> dict[str, tuple[str, ...]]:
    """Return {row: (gin file, further bindings)}, with joint training first."""
    files = {path.stem: (path.stem,) for path in sorted(FOLDER.glob("*.gin"))}
    del files[SHARED]
    return {BASELINE: files.pop(BASELINE), **files, **VARIANTS}


def choose_recipes(names: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the baseline and the recipes with these names."""
    all_recipes = recipes()
    for name in names:
        checks.one_of("--recipes", name, all_recipes)
    return {
        name: row for name, row in all_recipes.items() if not names or name in [BASELINE, *names]
    }


def accuracies(name: str, row: tuple[str, ...], seed: int, root: pathlib.Path) -> list[float]:
    """Train a recipe with a seed, and return its METRICS in percent."""
    stem, *params = row
    params += [f'mnist_dir = "{_MNIST_DIR.value}"', f"experiment.Run.seed = {seed}"]
    file, folder = str(FOLDER / f"{stem}.gin"), root / f"seed_{seed}"
    params += stages.places(file, {BASELINE: str(folder / BASELINE)})
    model_dir = str(folder / re.sub(r"\W+", "_", name))
    metrics, _ = stages.Stage(file, tuple(params), model_dir).train()
    return [100 * float(metrics[f"digit/{metric}"]) for metric in METRICS]


def table(results: dict[str, np.ndarray]) -> str:
    """Return a Markdown table of {recipe: accuracies [seeds, METRICS]}."""
    heads = ["recipe", "overall", "points", "many", "medium", "few"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, accuracies_of_recipe in results.items():
        difference = accuracies_of_recipe - results[BASELINE]
        mean, error = (
            difference.mean(0),
            difference.std(0, ddof=1) / np.sqrt(len(accuracies_of_recipe)),
        )
        points = [f"{m:+.1f} ± {e:.1f}" for m, e in zip(mean, error, strict=True)]
        if name == BASELINE:
            points = ["", *(f"{value:.1f}" for value in accuracies_of_recipe.mean(0)[1:])]
        lines.append(
            "| " + " | ".join([name, f"{accuracies_of_recipe[:, 0].mean():.1f}", *points]) + " |"
        )
    return "\n".join(lines)


def main(_) -> None:
    """Print the table."""
    logging.getLogger("mtl").setLevel(logging.WARNING)
    rows = choose_recipes(_RECIPES.value)
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(_ROOT.value or scratch)
        results = {name: [] for name in rows}
        runs = [(seed, name) for seed in range(1, _SEEDS.value + 1) for name in rows]
        for seed, name in tqdm.tqdm(runs, unit="run"):
            results[name].append(accuracies(name, rows[name], seed, root))
            tqdm.tqdm.write(f"seed {seed}, {name}: {np.round(results[name][-1], 1)}")
    print(
        table(
            {name: np.array(accuracies_of_seeds) for name, accuracies_of_seeds in results.items()}
        )
    )


if __name__ == "__main__":
    app.run(main)
