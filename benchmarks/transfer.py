"""Measures the AUC of income on UCI Adult with 1% of the labels, with and without other tasks.

With other tasks, a network first trains on the other tasks, and then on income. The runs are the
stages of `gin_configs/experiments/adult_transfer`, for several seeds. The seed determines the
labelled people, and every stage starts from the previous stage with the same seed. Differences, in
points, compare with the same network from scratch with the same seed, and have standard errors.
Stored results are not measured again.

    python -m benchmarks.transfer --seeds 8
    python -m benchmarks.transfer --tune       # compares settings on validation rows
"""

import itertools
import logging
import pathlib
import shutil
import zlib
from collections.abc import Sequence

import numpy as np
import tqdm
from absl import flags

from benchmarks import rows
from launch import stages

_SEEDS = flags.DEFINE_integer("seeds", 8, "The number of seeds.", allow_override=True)
_TUNE = flags.DEFINE_bool("tune", False, "Compares settings on validation rows, with other seeds.")

FOLDER = pathlib.Path(__file__).parents[1] / "gin_configs" / "experiments" / "adult_transfer"
STAGES = ("scratch", "scratch_linear", "frozen", "unfrozen")
BASELINE = "scratch"
# This run uses statistics of the inputs of all rows, like runs after other tasks. A linear model
# cannot learn more from inputs without labels.
KNOWN = "scratch_linear, all inputs known"

_TUNING_SEEDS = (101, 102)
_ON_VALIDATION = ('pipeline.Pipeline.eval_split = "validation"',)
_FACTORS = (0.01, 0.03, 0.1)


def _rates(*values: float) -> list[tuple[str, ...]]:
    return [(f"LazyAdam.learning_rate = {value}",) for value in values]


def _l2(pattern: str) -> list[tuple[str, ...]]:
    return [(f'regularization.Regularization.l2 = {{"{pattern}": {f}}}',) for f in _FACTORS]


# Runs without and with transfer try equally many combinations. The last stage is not tuned.
GRIDS = {
    "scratch": [_rates(0.001, 0.003), _l2("kernel$")],
    "scratch_linear": [_rates(0.01, 0.03), _l2("kernel$")],
    "frozen": [
        [(), ("trunk/networks.MLP.dropout = 0.0",)],
        _rates(0.003, 0.01),
        _l2("^head/income/logits/kernel$"),
    ],
}


def train(
    stage: str, seed: int, folder: pathlib.Path, run: str | None = None, params: Sequence[str] = ()
) -> dict[str, float]:
    """Return the metrics of a stage; train it in `folder / run` unless they are stored.

    Args:
      stage: the name of a gin file of the stages.
      seed: the seed of the labelled people and of the run.
      folder: the folder of the stages of this seed.
      run: the name of the run's folder; the stage by default.
      params: further gin bindings.
    """
    file, model_dir = str(FOLDER / f"{stage}.gin"), str(folder / (run or stage))
    settings = [f'adult_dir = "{rows.data_dir("adult")}"']
    settings += [f"experiment.Run.seed = {seed}", f"subset.Subset.seed = {seed}", *params]
    settings += stages.places(file, {name: str(folder / name) for name in ("pretrain", "frozen")})

    def measure() -> dict[str, float]:
        metrics, _ = stages.Stage(file, tuple(settings), model_dir).train()
        return {name: float(value) for name, value in metrics.items()}

    return rows.load_or_measure(f"{model_dir}.json", measure)


def compared(seed: int, root: pathlib.Path) -> dict[str, float]:
    """Return {row of the table: test AUC in percent} of a seed."""
    folder = root / f"seed_{seed}"
    train("pretrain", seed, folder)
    results = {stage: train(stage, seed, folder) for stage in STAGES}
    statistics = folder / "known" / "statistics"
    shutil.copytree(folder / "pretrain" / "statistics", statistics, dirs_exist_ok=True)
    results[KNOWN] = train("scratch_linear", seed, folder, "known")
    return {name: 100 * metrics["income/auc"] for name, metrics in results.items()}


def table(results: Sequence[dict[str, float]]) -> str:
    """Return the Markdown table of {row: AUC} of several seeds."""
    lines = []
    for name in results[0]:
        values = np.array([aucs[name] for aucs in results])
        points = values - [aucs[BASELINE] for aucs in results]
        error = points.std(ddof=1) / np.sqrt(len(points))
        difference = "" if name == BASELINE else f"{points.mean():+.1f} ± {error:.1f}"
        lines.append([name, f"{values.mean():.1f}", difference, str((points > 0).sum())])
    return rows.markdown(["1% of the labels", "test AUC", "points", "seeds ahead"], lines)


def tuned(stage: str, root: pathlib.Path) -> str:
    """Return the table of validation AUCs of all combinations of a stage's grid, the best first."""
    lines = []
    for choice in itertools.product(*GRIDS[stage]):
        params = [*itertools.chain(*choice)]
        run = f"{stage}_{zlib.crc32(repr(params).encode()):08x}"
        aucs = []
        for seed in _TUNING_SEEDS:
            folder = root / f"tuning_{seed}"
            train("pretrain", seed, folder)
            aucs.append(train(stage, seed, folder, run, [*_ON_VALIDATION, *params])["income/auc"])
        lines.append([f"{100 * np.mean(aucs):.2f}", "; ".join(params)])
    return rows.markdown(["validation AUC", stage], sorted(lines, reverse=True))


def main() -> None:
    """Print the table of stages, or the tables of the tuning."""
    logging.getLogger("mtl").setLevel(logging.WARNING)
    root = pathlib.Path(rows.output("transfer"))
    if _TUNE.value:
        for stage in GRIDS:
            print(tuned(stage, root), end="\n\n", flush=True)
        return
    seeds = tqdm.trange(1, _SEEDS.value + 1, unit="seed")
    print(table([compared(seed, root) for seed in seeds]))


if __name__ == "__main__":
    rows.run(main)
