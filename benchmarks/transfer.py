"""AUC on UCI Adult of income from 1% of its labels: from scratch, and after other tasks.

The stages of `gin_configs/experiments/adult_transfer`, for several seeds. A seed draws the people
who are labelled, and every stage starts from the one before of its own seed. Differences are to
the same network from scratch, of the same seed, in points, with their standard errors. What is done
is not repeated.

    python -m benchmarks.transfer --seeds 8
    python -m benchmarks.transfer --tune       # by validation people: how the settings were chosen
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

_SEEDS = flags.DEFINE_integer("seeds", 8, "Draws of the labelled people.", allow_override=True)
_TUNE = flags.DEFINE_bool("tune", False, "Compares settings on validation people, by other seeds.")

FOLDER = pathlib.Path(__file__).parents[1] / "gin_configs" / "experiments" / "adult_transfer"
STAGES = ("scratch", "scratch_linear", "frozen", "unfrozen")
BASELINE = "scratch"
# With the statistics of everybody's inputs, as after other tasks: all there is without labels.
KNOWN = "scratch_linear, all inputs known"

_TUNING_SEEDS = (101, 102)
_ON_VALIDATION = ('pipeline.Pipeline.eval_split = "validation"',)
_FACTORS = (0.01, 0.03, 0.1)


def _rates(*values: float) -> list[tuple[str, ...]]:
    return [(f"LazyAdam.learning_rate = {value}",) for value in values]


def _l2(pattern: str) -> list[tuple[str, ...]]:
    return [(f'regularization.Regularization.l2 = {{"{pattern}": {f}}}',) for f in _FACTORS]


# As many combinations without transfer as with it; the last stage is as it was first written.
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
    """Return the metrics of a stage, trained in `folder / run` if it has not been yet."""
    file, model_dir = str(FOLDER / f"{stage}.gin"), str(folder / (run or stage))
    settings = [f'adult_dir = "{rows.data_dir("adult")}"']
    settings += [f"experiment.Run.seed = {seed}", f"subset.Subset.seed = {seed}", *params]
    settings += stages.places(file, {name: str(folder / name) for name in ("pretrain", "frozen")})

    def measure() -> dict[str, float]:
        metrics, _ = stages.Stage(file, tuple(settings), model_dir).train()
        return {name: float(value) for name, value in metrics.items()}

    return rows.kept(f"{model_dir}.json", measure)


def compared(seed: int, root: pathlib.Path) -> dict[str, float]:
    """{row: test AUC in percent} of one seed."""
    folder = root / f"seed_{seed}"
    train("pretrain", seed, folder)
    found = {stage: train(stage, seed, folder) for stage in STAGES}
    known = folder / "known"
    shutil.copytree(folder / "pretrain" / "statistics", known / "statistics", dirs_exist_ok=True)
    found[KNOWN] = train("scratch_linear", seed, folder, "known")
    return {name: 100 * metrics["income/auc"] for name, metrics in found.items()}


def table(results: Sequence[dict[str, float]]) -> str:
    """[{row: AUC}] -> a Markdown table."""
    lines = []
    for name in results[0]:
        values = np.array([found[name] for found in results])
        points = values - [found[BASELINE] for found in results]
        error = points.std(ddof=1) / np.sqrt(len(points))
        difference = "" if name == BASELINE else f"{points.mean():+.1f} ± {error:.1f}"
        lines.append([name, f"{values.mean():.1f}", difference, str((points > 0).sum())])
    return rows.markdown(["1% of the labels", "test AUC", "points", "seeds ahead"], lines)


def tuned(stage: str, root: pathlib.Path) -> str:
    """Return the validation AUC of every combination of a stage's grid, the best first."""
    lines = []
    for choice in itertools.product(*GRIDS[stage]):
        params = [*itertools.chain(*choice)]
        run = f"{stage}_{zlib.crc32(repr(params).encode()):08x}"
        found = []
        for seed in _TUNING_SEEDS:
            folder = root / f"tuning_{seed}"
            train("pretrain", seed, folder)
            found.append(train(stage, seed, folder, run, [*_ON_VALIDATION, *params])["income/auc"])
        lines.append([f"{100 * np.mean(found):.2f}", "; ".join(params)])
    return rows.markdown(["validation AUC", stage], sorted(lines, reverse=True))


def main() -> None:
    """Print the table, or those of the tuning."""
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
