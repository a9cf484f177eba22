"""Measures auxiliary losses: with few labels, under attack, for small networks, and their cost.

    python -m benchmarks.auxiliary --part labels --seeds 3        # 20, 50 and 100 labelled digits
    python -m benchmarks.auxiliary --row 'VAT 0.5, weight 3' --counts 50 --first_seed 3 --seeds 6
    python -m benchmarks.auxiliary --part robustness --seeds 3    # accuracy under attack
    python -m benchmarks.auxiliary --part distillation --seeds 3  # into a tenth of the parameters
    python -m benchmarks.auxiliary --part cost --rounds 15        # seconds of a step, as ratios
    python -m benchmarks.auxiliary --write data/digits --labels 50

All parts train `gin_configs/experiments/digits_few.gin` on a CSV of the digits of scikit-learn,
8 x 8 pixels in [0, 1]: 1,077 rows for training, 360 for validation and 360 for the test. The seed
determines the split, the rows with labels and the first weights. Rows of a table are paired by
seed. Differences have standard errors. Results are stored in --output, and are not measured again.
"""

import functools
import os
import pathlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sklearn.datasets
import tensorflow as tf
from absl import flags

from benchmarks import balancing_speed, rows
from mtl import checks, verbs
from mtl.configs import config

_PART = flags.DEFINE_enum(
    "part", "labels", ["labels", "robustness", "distillation", "cost"], "The part to measure."
)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Runs of each row.", allow_override=True)
_FIRST_SEED = flags.DEFINE_integer("first_seed", 0, "The seed of the first run of each row.")
_ROWS = flags.DEFINE_multi_string(
    "row", [], "A row of the part labels. Repeatable; all by default."
)
_COUNTS = flags.DEFINE_list("counts", ["20", "50", "100"], "Numbers of labels in the part labels.")
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Rounds of timing.", allow_override=True)
_WRITE = flags.DEFINE_string("write", None, "Only write the data of seed 0 to this folder.")
_LABELS = flags.DEFINE_integer("labels", 50, "The number of labelled training rows for --write.")

_FOLDER = pathlib.Path(__file__).parent.parent / "gin_configs"
_FILE = _FOLDER / "experiments" / "digits_few.gin"
_VAT = "auxiliary.VirtualAdversarial"
# {row: (files of gin_configs/auxiliary, further bindings)}.
LABELS_ROWS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "labels alone": ((), ()),
    "VAT 0.5": (("virtual_adversarial",), (f"{_VAT}.epsilon = 0.5",)),
    "VAT 0.5, weight 3": (
        ("virtual_adversarial",),
        (f"{_VAT}.epsilon = 0.5", f"{_VAT}.weight = 3.0"),
    ),
    "VAT 1": (("virtual_adversarial",), ()),
    "VAT 2": (("virtual_adversarial",), (f"{_VAT}.epsilon = 2.0",)),
    "pi-model": (("pi_model",), ()),
    "mean teacher": (("mean_teacher",), ()),
    "pseudo-labels": (("pseudo_labels",), ()),
    "entropy 0.1": (("entropy",), ()),
    "contrastive": (("contrastive",), ()),
    "supervised contrastive": (("supervised_contrastive",), ()),
}
# Like Madry et al., train only on perturbed inputs: the losses of plain inputs have the weight 0.
_ALONE = 'weighting.Fixed.weights = {"digit": 0.0, "parity": 0.0, "adversarial": 1.0}'
ROBUSTNESS_ROWS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "plain": ((), ()),
    "FGSM": (("fgsm",), ()),
    "PGD-7": (("pgd",), ()),
    "PGD-7 alone": (("pgd", "../balancing/fixed"), (_ALONE,)),
    "TRADES 6": (("trades",), ()),
}
COST_ROWS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "plain": ((), ()),
    "input noise": (("input_noise",), ()),
    "FGM": (("fgm",), ()),
    "FGSM": (("fgsm",), ()),
    "PGD-7": (("pgd",), ()),
    "TRADES": (("trades",), ()),
    "FreeLB-3": (("free_lb",), ()),
    "VAT": (("virtual_adversarial",), ()),
    "pi-model": (("pi_model",), ()),
    "mean teacher": (("mean_teacher",), ()),
    "pseudo-labels": (("pseudo_labels",), ()),
    "entropy": (("entropy",), ()),
    "contrastive": (("contrastive",), ()),
    "supervised contrastive": (("supervised_contrastive",), ()),
}
_SMALL = "networks.MLP.layers = [32, 16]"


def write_digits(folder: str, labelled: int | None, seed: int) -> None:
    """Write three CSV files of digits.

    Args:
      folder: the folder of the files.
      labelled: the number of training rows with labels, equally many for each class; None labels
        all rows.
      seed: the seed of the split and of the labelled rows.
    """
    images, digits = sklearn.datasets.load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    order = random.permutation(len(digits))
    parts = {"train": order[:1077], "validation": order[1077:1437], "test": order[1437:]}
    labelled_rows = set(parts["train"])
    if labelled is not None:
        of_class = [[i for i in parts["train"] if digits[i] == c] for c in range(10)]
        labelled_rows = {i for rows_of in of_class for i in rows_of[: labelled // 10]}
    os.makedirs(folder, exist_ok=True)
    for name, indices in parts.items():
        with open(os.path.join(folder, f"{name}.csv"), "w") as file:
            file.write("pixels,digit,parity\n")
            for i in indices:
                pixels = "|".join(f"{value:g}" for value in images[i] / 16)
                has_label = name != "train" or i in labelled_rows
                label = f"{digits[i]},{digits[i] % 2}" if has_label else ","
                file.write(f"{pixels},{label}\n")


def load(files: Sequence[str], params: Sequence[str], folder: str, seed: int) -> Any:
    """Return the experiment of some files of `gin_configs/auxiliary` and bindings."""
    paths = [str(_FILE), *(str(_FOLDER / "auxiliary" / f"{file}.gin") for file in files)]
    head = [f'digits_dir = "{folder}"', f"Run.seed = {seed}"]
    return config.load(paths, [*head, *params])


def train(
    row: tuple[Sequence[str], Sequence[str]], labelled: int | None, seed: int, model_dir: str
) -> tuple[Any, str]:
    """Train the experiment of a row of the table; return the experiment and the run's folder."""
    files, params = row
    folder = os.path.join(model_dir, "data")
    write_digits(folder, labelled, seed)
    settings = load(files, params, folder, seed)
    verbs.train(settings, os.path.join(model_dir, "run"))
    return settings, os.path.join(model_dir, "run")


def measure_labels(name: str, labelled: int, seed: int) -> dict[str, float]:
    """Return accuracies of the digit in percent, on validation and test split, with few labels."""
    with tempfile.TemporaryDirectory() as folder:
        settings, model_dir = train(LABELS_ROWS[name], labelled, seed, folder)
        return {
            split: 100 * float(verbs.evaluate(settings, model_dir, split)["digit/accuracy"])
            for split in ("validation", "test")
        }


def measure_robustness(name: str, seed: int) -> dict[str, float]:
    """Return test accuracies of the digit in percent, without and under attack (epsilon 0.15)."""
    files, params = ROBUSTNESS_ROWS[name]
    accuracies = {}
    with tempfile.TemporaryDirectory() as folder:
        params = [*params, "Run.train_steps = 1500", "Run.checkpoint_steps = 1500"]
        _, model_dir = train((files, params), None, seed, folder)
        for steps in (20, 100):
            attack = "attack/auxiliary.Adversarial"
            count = [f"{attack}.steps = {steps}", f'{attack}.heads = ["digit"]']
            settings = load(
                [*files, "attack"], [*params, *count], os.path.join(folder, "data"), seed
            )
            metrics = verbs.evaluate(settings, model_dir, "test", is_attacked=True)
            accuracies[f"PGD-{steps}"] = 100 * float(metrics["digit/accuracy"])
        metrics = verbs.evaluate(settings, model_dir, "test")
        return {"clean": 100 * float(metrics["digit/accuracy"]), **accuracies}


def measure_distillation(seed: int, labelled: int = 100) -> dict[str, float]:
    """Return test accuracies of a teacher, and of small networks without and with the teacher.

    The teacher trains with all labels, the small networks with all labels or with few labels. A
    small network learns the teacher's predictions, or the teacher's hidden layer.
    """
    accuracies = {}
    with tempfile.TemporaryDirectory() as folder:
        settings, model_dir = train(((), ()), None, seed, os.path.join(folder, "teacher"))
        accuracies["teacher"] = verbs.evaluate(settings, model_dir, "test")["digit/accuracy"]
        (version,) = pathlib.Path(model_dir, "export", "latest").iterdir()
        for name, labels in (("all labels", None), (f"{labelled} labels", labelled)):
            params = (_SMALL, f'teacher = "{version}"')
            taught, hinted = (("distillation",), params), (("feature_distillation",), params)
            for kind, row in (("alone", ((), (_SMALL,))), ("taught", taught), ("hinted", hinted)):
                where = os.path.join(folder, f"{kind}-{labels}")
                settings, model_dir = train(row, labels, seed, where)
                accuracy = verbs.evaluate(settings, model_dir, "test")["digit/accuracy"]
                accuracies[f"{kind}, {name}"] = accuracy
    return {name: 100 * float(value) for name, value in accuracies.items()}


def measure_cost(rounds: int) -> dict[str, list[float]]:
    """Time the rows of the table in turns, and return {row: seconds of a step in each round}."""
    random = np.random.default_rng(0)
    inputs = {"pixels": random.random([256, 64]).astype(np.float32)}
    labels = {"digit": random.integers(0, 10, 256), "parity": random.integers(0, 2, 256)}
    with tempfile.TemporaryDirectory() as folder:
        write_digits(folder, 100, 0)
        steps = {
            name: balancing_speed.Steps(
                load(files, params, folder, 0).model.fill_schedules(500),
                lambda: tf.data.Dataset.from_tensors((inputs, labels)).cache().repeat(),
            )
            for name, (files, params) in COST_ROWS.items()
        }
    return rows.take_turns(steps, rounds, 50)


def describe(values: Sequence[float], plain: Sequence[float] | None = None) -> str:
    """Return a mean as text, with the mean paired difference and its standard error."""
    mean = f"{statistics.mean(values):.1f}"
    if plain is None or values is plain or len(values) < 2:
        return mean
    return f"{mean} ({rows.describe_difference(values, plain, digits=1)})"


def _collect(
    name: str, measure: Any, keys: Mapping[str, Sequence[Any]]
) -> dict[str, list[dict[str, float]]]:
    """Measure results that are not stored yet, and return {row: results by seed}."""
    results: dict[str, list[dict[str, float]]] = {row: [] for row in keys}
    for seed in range(_FIRST_SEED.value, _FIRST_SEED.value + _SEEDS.value):
        for row, arguments in keys.items():
            path = os.path.join(rows.output("auxiliary"), f"{name}, {row}, seed {seed}.json")
            result = rows.load_or_measure(path, functools.partial(measure, *arguments, seed))
            summary = ", ".join(f"{key} {value:.1f}" for key, value in result.items())
            print(f"seed {seed}, {row}: {summary}", flush=True)
            results[row].append(result)
    return results


def show_labels() -> str:
    """Return a table of the test accuracies with few labels."""
    counts = [int(count) for count in _COUNTS.value]
    for row in _ROWS.value:
        checks.one_of("--row", row, LABELS_ROWS)
    names = [row for row in LABELS_ROWS if row in ("labels alone", *(_ROWS.value or LABELS_ROWS))]
    keys = {f"{row}, {n}": (row, n) for n in counts for row in names}
    results = _collect("labels", measure_labels, keys)
    lines = []
    for row in names:
        cells = [row]
        for n in counts:
            accuracies, plain = (
                [result["test"] for result in results[f"{name}, {n}"]]
                for name in (row, "labels alone")
            )
            cells.append(describe(accuracies, None if row == "labels alone" else plain))
        validation = [result["validation"] for n in counts for result in results[f"{row}, {n}"]]
        lines.append([*cells, describe(validation)])
    return rows.markdown(["loss", *(f"{n} labels" for n in counts), "validation"], lines)


def show_robustness() -> str:
    """Return a table of the test accuracies under attack."""
    keys = {row: (row,) for row in ROBUSTNESS_ROWS}
    results_of_rows = _collect("robustness", measure_robustness, keys)
    names = ("clean", "PGD-20", "PGD-100")
    lines = [
        [row, *(describe([result[name] for result in results]) for name in names)]
        for row, results in results_of_rows.items()
    ]
    return rows.markdown(["trained", *names], lines)


def show_distillation() -> str:
    """Return a table of the test accuracies of small networks."""
    results = _collect("distillation", measure_distillation, {"all": ()})["all"]
    lines = []
    for name in results[0]:
        accuracies = [result[name] for result in results]
        kind, _, labels = name.partition(", ")
        alone = [result.get(f"alone, {labels}", 0.0) for result in results]
        is_paired = kind in ("taught", "hinted")
        lines.append([name, describe(accuracies, alone if is_paired else None)])
    return rows.markdown(["network", "accuracy"], lines)


def show_cost() -> str:
    """Return a table of ratios to a plain step: median and range over the rounds."""
    seconds_of_rows = measure_cost(_ROUNDS.value)
    lines = []
    for name, seconds in seconds_of_rows.items():
        ratios = [
            value / plain for value, plain in zip(seconds, seconds_of_rows["plain"], strict=True)
        ]
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append([name, f"{statistics.median(ratios):.2f}", span])
    return rows.markdown(["loss", "plain steps", "range"], lines)


def main() -> None:
    """Measure a part, and print its table."""
    if _WRITE.value:
        write_digits(_WRITE.value, _LABELS.value, 0)
        return
    show = {
        "labels": show_labels,
        "robustness": show_robustness,
        "distillation": show_distillation,
        "cost": show_cost,
    }
    print(show[_PART.value]())


if __name__ == "__main__":
    rows.run(main)
