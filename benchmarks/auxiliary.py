"""What auxiliary losses do for few labels, under attack and for small networks, and what they cost.

    python -m benchmarks.auxiliary --part labels --seeds 3        # 20, 50 and 100 labelled digits
    python -m benchmarks.auxiliary --row 'VAT 0.5, weight 3' --counts 50 --first_seed 3 --seeds 6
    python -m benchmarks.auxiliary --part robustness --seeds 3    # accuracy under attack
    python -m benchmarks.auxiliary --part distillation --seeds 3  # into a tenth of the parameters
    python -m benchmarks.auxiliary --part cost --rounds 15        # seconds of a step, as ratios
    python -m benchmarks.auxiliary --write data/digits --labels 50

All train `gin_configs/experiments/digits_few.gin` on a CSV of the digits of scikit-learn, 8 x 8
pixels in [0, 1]: 1,077 rows to train on, 360 to choose settings by, 360 to test. Rows are paired
by seed: of the split, of the labels that are kept and of the first weights. Differences come with
their standard errors. Results lie in --output; those that are there are not measured again.
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
    "part", "labels", ["labels", "robustness", "distillation", "cost"], "What is measured."
)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Runs of each row.", allow_override=True)
_FIRST_SEED = flags.DEFINE_integer("first_seed", 0, "The seed of the first run of each row.")
_ROWS = flags.DEFINE_multi_string(
    "row", [], "A row of the part labels. Repeatable; all by default."
)
_COUNTS = flags.DEFINE_list("counts", ["20", "50", "100"], "Labels that rows of labels are for.")
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Rounds of timing.", allow_override=True)
_WRITE = flags.DEFINE_string("write", None, "Write the files of seed 0 to this folder, and end.")
_LABELS = flags.DEFINE_integer("labels", 50, "How many training rows of --write have labels.")

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
# Madry et al. train on perturbed inputs alone.
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
    """Write three CSV files; all but so many training rows, as many a class, lose their labels."""
    images, digits = sklearn.datasets.load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    order = random.permutation(len(digits))
    parts = {"train": order[:1077], "validation": order[1077:1437], "test": order[1437:]}
    kept = set(parts["train"])
    if labelled is not None:
        of_class = [[i for i in parts["train"] if digits[i] == c] for c in range(10)]
        kept = {i for rows_of in of_class for i in rows_of[: labelled // 10]}
    os.makedirs(folder, exist_ok=True)
    for name, indices in parts.items():
        with open(os.path.join(folder, f"{name}.csv"), "w") as file:
            file.write("pixels,digit,parity\n")
            for i in indices:
                pixels = "|".join(f"{value:g}" for value in images[i] / 16)
                has_label = name != "train" or i in kept
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
    """Train one row; return the experiment and the folder of its data."""
    files, params = row
    folder = os.path.join(model_dir, "data")
    write_digits(folder, labelled, seed)
    made = load(files, params, folder, seed)
    verbs.train(made, os.path.join(model_dir, "run"))
    return made, os.path.join(model_dir, "run")


def measure_labels(name: str, labelled: int, seed: int) -> dict[str, float]:
    """Return accuracies of the digit in percent, on both splits, with so many labels."""
    with tempfile.TemporaryDirectory() as folder:
        made, model_dir = train(LABELS_ROWS[name], labelled, seed, folder)
        return {
            split: 100 * float(verbs.evaluate(made, model_dir, split)["digit/accuracy"])
            for split in ("validation", "test")
        }


def measure_robustness(name: str, seed: int) -> dict[str, float]:
    """Return test accuracies of the digit in percent: plain, and under attacks of epsilon 0.15."""
    files, params = ROBUSTNESS_ROWS[name]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        params = [*params, "Run.train_steps = 1500", "Run.checkpoint_steps = 1500"]
        _, model_dir = train((files, params), None, seed, folder)
        for steps in (20, 100):
            attack = "attack/auxiliary.Adversarial"
            count = [f"{attack}.steps = {steps}", f'{attack}.heads = ["digit"]']
            made = load([*files, "attack"], [*params, *count], os.path.join(folder, "data"), seed)
            metrics = verbs.evaluate(made, model_dir, "test", is_attacked=True)
            found[f"PGD-{steps}"] = 100 * float(metrics["digit/accuracy"])
        metrics = verbs.evaluate(made, model_dir, "test")
        return {"clean": 100 * float(metrics["digit/accuracy"]), **found}


def measure_distillation(seed: int, labelled: int = 100) -> dict[str, float]:
    """Return test accuracies of a teacher, of a small network alone, and with the teacher.

    The small network is taught by the teacher's predictions, or hinted by its hidden layer. The
    teacher has all labels. The small networks have few; their other rows have none.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        made, model_dir = train(((), ()), None, seed, os.path.join(folder, "teacher"))
        found["teacher"] = verbs.evaluate(made, model_dir, "test")["digit/accuracy"]
        (version,) = pathlib.Path(model_dir, "export", "latest").iterdir()
        for name, labels in (("all labels", None), (f"{labelled} labels", labelled)):
            params = (_SMALL, f'teacher = "{version}"')
            taught, hinted = (("distillation",), params), (("feature_distillation",), params)
            for kind, row in (("alone", ((), (_SMALL,))), ("taught", taught), ("hinted", hinted)):
                where = os.path.join(folder, f"{kind}-{labels}")
                made, model_dir = train(row, labels, seed, where)
                accuracy = verbs.evaluate(made, model_dir, "test")["digit/accuracy"]
                found[f"{kind}, {name}"] = accuracy
    return {name: 100 * float(value) for name, value in found.items()}


def measure_cost(rounds: int) -> dict[str, list[float]]:
    """Return seconds a step by row, one for each round; rows take turns."""
    random = np.random.default_rng(0)
    given = {"pixels": random.random([256, 64]).astype(np.float32)}
    labels = {"digit": random.integers(0, 10, 256), "parity": random.integers(0, 2, 256)}
    with tempfile.TemporaryDirectory() as folder:
        write_digits(folder, 100, 0)
        steps = {
            name: balancing_speed.Steps(
                load(files, params, folder, 0).model.fill_schedules(500),
                lambda: tf.data.Dataset.from_tensors((given, labels)).cache().repeat(),
            )
            for name, (files, params) in COST_ROWS.items()
        }
    return rows.take_turns(steps, rounds, 50)


def describe(found: Sequence[float], plain: Sequence[float] | None = None) -> str:
    """Return a mean, and the mean difference from paired values with its standard error."""
    mean = f"{statistics.mean(found):.1f}"
    if plain is None or found is plain or len(found) < 2:
        return mean
    return f"{mean} ({rows.describe_difference(found, plain, digits=1)})"


def _collect(
    name: str, measure: Any, keys: Mapping[str, Sequence[Any]]
) -> dict[str, list[dict[str, float]]]:
    """Measure what is missing, {row: results by seed}."""
    found: dict[str, list[dict[str, float]]] = {row: [] for row in keys}
    for seed in range(_FIRST_SEED.value, _FIRST_SEED.value + _SEEDS.value):
        for row, arguments in keys.items():
            path = os.path.join(rows.output("auxiliary"), f"{name}, {row}, seed {seed}.json")
            result = rows.kept(path, functools.partial(measure, *arguments, seed))
            told = ", ".join(f"{key} {value:.1f}" for key, value in result.items())
            print(f"seed {seed}, {row}: {told}", flush=True)
            found[row].append(result)
    return found


def show_labels() -> str:
    """Return a table of the test accuracies with few labels."""
    counts = [int(count) for count in _COUNTS.value]
    for row in _ROWS.value:
        checks.one_of("--row", row, LABELS_ROWS)
    names = [row for row in LABELS_ROWS if row in ("labels alone", *(_ROWS.value or LABELS_ROWS))]
    keys = {f"{row}, {n}": (row, n) for n in counts for row in names}
    found = _collect("labels", measure_labels, keys)
    lines = []
    for row in names:
        cells = [row]
        for n in counts:
            own, plain = (
                [each["test"] for each in found[f"{name}, {n}"]] for name in (row, "labels alone")
            )
            cells.append(describe(own, None if row == "labels alone" else plain))
        validation = [each["validation"] for n in counts for each in found[f"{row}, {n}"]]
        lines.append([*cells, describe(validation)])
    return rows.markdown(["loss", *(f"{n} labels" for n in counts), "validation"], lines)


def show_robustness() -> str:
    """Return a table of the test accuracies under attack."""
    keys = {row: (row,) for row in ROBUSTNESS_ROWS}
    found = _collect("robustness", measure_robustness, keys)
    names = ("clean", "PGD-20", "PGD-100")
    lines = [
        [row, *(describe([each[name] for each in results]) for name in names)]
        for row, results in found.items()
    ]
    return rows.markdown(["trained", *names], lines)


def show_distillation() -> str:
    """Return a table of the test accuracies of small networks."""
    results = _collect("distillation", measure_distillation, {"all": ()})["all"]
    lines = []
    for name in results[0]:
        own = [each[name] for each in results]
        kind, _, labels = name.partition(", ")
        alone = [each.get(f"alone, {labels}", 0.0) for each in results]
        lines.append([name, describe(own, alone if kind in ("taught", "hinted") else None)])
    return rows.markdown(["network", "accuracy"], lines)


def show_cost() -> str:
    """Return a table of ratios to a plain step: the median over rounds, and their range."""
    found = measure_cost(_ROUNDS.value)
    lines = []
    for name, seconds in found.items():
        ratios = [own / plain for own, plain in zip(seconds, found["plain"], strict=True)]
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
