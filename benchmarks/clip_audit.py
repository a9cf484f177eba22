"""Measures how well the clip audit finds flipped labels, and whether clipping reduces their effect.

The benchmark flips a share of the training labels of UCI Adult and of MNIST. From MNIST's official
test file, 8,000 images serve for training and 2,000 for the test. Each score of the clip audit is
rated by the area under the ROC curve for flipped samples, and by the precision among the N samples
with the highest scores, where N is the number of flipped samples. Then networks train for three
times as many steps at a constant rate, which is enough to memorise wrong labels. The table shows
the test accuracy without clipping, with a clipped gradient of the batch, with clipped gradients of
examples, and without the samples that have the largest mean norms in the audit. The number of
dropped samples is the number of flipped samples, or 5% of all samples if no label is flipped. The
last row of the table is the accuracy of the audited run, which has fewer steps and a decaying rate.

    python -m benchmarks.clip_audit --data mnist,adult --seeds 2
"""

import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags
from sklearn import metrics

from benchmarks import noisy_labels, rows
from mtl import checks, experiment, verbs
from mtl.balancing import example_clipping
from mtl.files import atomic
from mtl.optimization import adaptive_clipping, clipping, optimizers, update
from mtl.tools import clip_audit
from mtl.tools.clip_audit import checkpoint_audit, statistics, tables, visits
from mtl.tools.drawing import figures, line_charts, matrices

# Tests import several benchmarks into one process, so another module may have defined the flag.
_DATA = flags.DEFINE_list("data", ["mnist", "adult"], "mnist, adult.", allow_override=True)
_SEEDS = flags.DEFINE_integer("seeds", 2, "Runs of each case.", 1, allow_override=True)

SCORES = {
    "mean gradient norm": "norm/mean/all",
    "median gradient norm": "norm/median/all",
    "mean norm, first 3 visits": "norm/mean/first",
    "share of visits above the threshold": "share_above",
    "EL2N, mean": "el2n/{task}/all",
    "loss, mean": "loss/{task}/all",
    "blame, mean": "blame",
    "membership of clipped batches": "share_in_clipped_batches",
}
AT_START = "gradient norm at initialisation"
METHODS = ("none", "batch clip", "per-example clip", "audit and drop")
_NEEDLESS = 0.05
OPTIMIZERS = {
    "Momentum": optimizers.Momentum(learning_rate=0.02),
    "Adam": optimizers.Adam(learning_rate=0.002),
}
CLIPPINGS = {
    "none": None,
    **{
        f"batches above the {percentile}th percentile": adaptive_clipping.AutoClip(
            percentile=float(percentile)
        )
        for percentile in (90, 50, 10)
    },
}
_EPOCH_STEPS = 80


def trained(settings: experiment.Experiment, model_dir: str) -> float:
    """Train an experiment, and return the accuracy on the test split."""
    results, _ = verbs.train(settings, model_dir)
    return float(results[f"{settings.model.tasks[0]}/accuracy"])


def audited(name: str, share: float, seed: int) -> dict[str, Any]:
    """Run an audit; return ratings of all scores, the accuracy of the run and median norms."""
    folder = _folder(name, share, seed)

    def measure() -> dict[str, Any]:
        data = noisy_labels.DATA[name]
        settings, is_wrong = noisy_labels.noisy(data.make(seed), data.field, share)
        settings = dataclasses.replace(settings, clip_audit=clip_audit.ClipAudit())
        model_dir = os.path.join(folder, "run")
        accuracy = trained(settings, model_dir)
        directory = os.path.join(model_dir, "clip_audit", "training")
        record = visits.read(directory)
        samples = statistics.of_samples(*record, settings.clip_audit.first_visits)
        scores = {name: samples[column.format(task=data.task)] for name, column in SCORES.items()}
        truth = is_wrong[samples["id"]]
        ratings = {name: judged(values, truth) for name, values in scores.items()}
        ratings[AT_START] = _at_start(settings, model_dir, is_wrong)
        shutil.copy(os.path.join(directory, "samples.parquet"), folder)
        shutil.rmtree(model_dir)
        medians = [float(np.median(of["norm"])) for of in record]
        return {"scores": ratings, "accuracy": accuracy, "medians": medians}

    return rows.load_or_measure(os.path.join(folder, "audited.json"), measure)


def _folder(name: str, share: float, seed: int) -> str:
    return os.path.join(rows.output("clip_audit"), f"{name}_{100 * share:.0f}_seed_{seed}")


def _at_start(
    made: experiment.Experiment, model_dir: str, is_wrong: np.ndarray
) -> tuple[float, float]:
    """Return how well the gradient norms at initialisation find flipped samples."""
    directory = os.path.join(model_dir, "at_start")
    first = os.path.join(model_dir, "model.ckpt-0")
    settings = (made.data, made.model, made.run, model_dir, made.clip_audit)
    checkpoint_audit.audit_checkpoints(*settings, [first], directory)
    columns, _ = visits.read(directory)
    return judged(columns["norm"], is_wrong[columns["id"]])


def judged(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Rate how well scores find flipped samples.

    Args:
      scores: a score for each sample [N].
      truth: True for flipped samples [N].

    Returns:
      The area under the ROC curve, and the precision among the N highest scores, where N is the
      number of flipped samples; zeros for N = 0.
    """
    count = int(truth.sum())
    if not count:
        return 0.0, 0.0
    scores = np.nan_to_num(scores)
    return float(metrics.roc_auc_score(truth, scores)), float(
        truth[np.argsort(-scores)[:count]].mean()
    )


def accuracy(name: str, method: str, share: float, seed: int) -> float:
    """Return the accuracy on the test split after training by a method."""

    def measure() -> float:
        data = noisy_labels.DATA[name]
        medians = audited(name, share, seed)["medians"]
        settings, _ = noisy_labels.noisy(data.long(data.make(seed)), data.field, share)
        changed = _changed(settings, name, method, share, seed, medians)
        folder = os.path.join(_folder(name, share, seed), "run")
        result = trained(changed, folder)
        shutil.rmtree(folder)
        return result

    path = os.path.join(_folder(name, share, seed), method.replace(" ", "_") + ".json")
    return rows.load_or_measure(path, measure)


def _changed(
    settings: experiment.Experiment,
    name: str,
    method: str,
    share: float,
    seed: int,
    medians: Sequence[float],
) -> experiment.Experiment:
    """Return the experiment of a method, which clips at the median norm of examples or batches."""
    of_examples, of_batches = medians
    if method == "audit and drop":
        return noisy_labels.without(settings, table(name, share, seed)["id"], share or _NEEDLESS)
    update_, surgery = settings.model.update, settings.model.surgery
    if method == "batch clip":
        clip = clipping.GlobalNorm(max_norm=of_batches)
        update_ = dataclasses.replace(update_, clipping=clip)
    if method == "per-example clip":
        surgery = example_clipping.ExampleClipping(max_norm=of_examples)
    changed = dataclasses.replace(settings.model, update=update_, surgery=surgery)
    return dataclasses.replace(settings, model=changed)


def table(name: str, share: float, seed: int) -> Mapping[str, np.ndarray]:
    """Return the audit's table of samples, the largest mean norm first."""
    return tables.read_parquet(os.path.join(_folder(name, share, seed), "samples.parquet"))


def scores_table(name: str, seeds: Sequence[int]) -> str:
    """Return a table of scores: mean AUC and precision for each share of flipped labels."""
    shares = noisy_labels.DATA[name].found_at
    header = [name]
    for share in shares:
        header += [f"AUROC, {share:.0%} flipped", "precision"]
    lines = []
    for score in (*SCORES, AT_START):
        line = [score]
        for share in shares:
            pairs = [audited(name, share, seed)["scores"][score] for seed in seeds]
            line += [f"{value:.3f}" for value in np.mean(pairs, axis=0)]
        lines.append(line)
    if len(seeds) > 1:
        agreed = [
            f"{statistics.agreement(*(table(name, s, seed) for seed in seeds[:2])):.3f}"
            for s in shares
        ]
        lines.append(["rank agreement of two seeds", *(x for a in agreed for x in (a, ""))])
    return rows.markdown(header, lines)


def accuracy_table(name: str, seeds: Sequence[int]) -> str:
    """Return a table of methods: test accuracy in % for each share, with its standard error."""
    shares = noisy_labels.DATA[name].trained_at
    lines = []
    for method in METHODS:
        line = [method]
        for share in shares:
            accuracies = 100 * np.array([accuracy(name, method, share, seed) for seed in seeds])
            line.append(_mean_and_error(accuracies))
        lines.append(line)
    lines.append(["of the audited run", *(_audited_accuracy(name, s, seeds) for s in shares)])
    return rows.markdown([f"{name}, test accuracy", *(f"{s:.0%} flipped" for s in shares)], lines)


def _audited_accuracy(name: str, share: float, seeds: Sequence[int]) -> str:
    """Return the accuracy of runs that are a third as long, with a rate that decays."""
    accuracies = [audited(name, share, seed)["accuracy"] for seed in seeds]
    return _mean_and_error(100 * np.array(accuracies))


def after_an_epoch(name: str, optimizer: str, clip: str, seed: int) -> float:
    """Return the test accuracy after the first 80 steps, without flipped labels."""

    def measure() -> float:
        settings = noisy_labels.DATA[name].make(seed)
        new_update = update.Update(optimizer=OPTIMIZERS[optimizer], clipping=CLIPPINGS[clip])
        changed = dataclasses.replace(settings.model, update=new_update)
        run = dataclasses.replace(settings.run, train_steps=_EPOCH_STEPS)
        with tempfile.TemporaryDirectory() as folder:
            return trained(dataclasses.replace(settings, model=changed, run=run), folder)

    file = re.sub(r"\W+", "_", f"{name} {optimizer} {clip} {seed}") + ".json"
    return rows.load_or_measure(os.path.join(rows.output("clip_audit"), "epoch", file), measure)


def convergence_table(name: str, seeds: Sequence[int]) -> str:
    """Return a table: test accuracy in percent after an epoch, by clipping and optimizer."""
    lines = []
    for clip in CLIPPINGS:
        accuracies = [
            100 * np.array([after_an_epoch(name, optimizer, clip, seed) for seed in seeds])
            for optimizer in OPTIMIZERS
        ]
        lines.append([clip, *map(_mean_and_error, accuracies)])
    return rows.markdown([f"{name}, test accuracy after an epoch", *OPTIMIZERS], lines)


def _mean_and_error(values: np.ndarray) -> str:
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{values.mean():.1f} ± {error:.1f}"


def plot(names: Sequence[str], seeds: Sequence[int]) -> str:
    """Draw a panel with the AUC of all scores at the last share, and a panel of accuracies."""
    scores = [*SCORES, AT_START]
    areas, curves = [], {}
    for name in names:
        share = noisy_labels.DATA[name].found_at[-1]
        runs = [audited(name, share, seed)["scores"] for seed in seeds]
        areas.append([float(np.mean([run[score][0] for run in runs])) for score in scores])
        shares = noisy_labels.DATA[name].trained_at
        for method in METHODS if shares else ():
            means = [np.mean([accuracy(name, method, s, seed) for seed in seeds]) for s in shares]
            curves[f"{name}, {method}"] = [
                (share, 100 * float(mean)) for share, mean in zip(shares, means, strict=True)
            ]
    return draw(names, dict(zip(scores, np.transpose(areas).tolist(), strict=True)), curves)


def draw(
    names: Sequence[str],
    areas: Mapping[str, Sequence[float]],
    curves: Mapping[str, Sequence[tuple[float, float]]],
) -> str:
    """Draw {score: area for each data set} and {method: [(share, accuracy)]} as SVG."""
    title = "AUROC for flipped samples (0.5: chance)"
    panels = [matrices.draw(title, list(areas), names, list(areas.values()), "score", "data")]
    if curves:
        title = "test accuracy by the share of labels flipped"
        panels.append(
            line_charts.draw(title, curves, "share of labels flipped", "test accuracy, %")
        )
    return figures.lay_out("Clip audit and flipped labels", panels)


def main() -> None:
    """Measure results that are not stored yet, print the tables and write the plot."""
    seeds = range(1, _SEEDS.value + 1)
    for name in _DATA.value:
        checks.one_of("--data", name, noisy_labels.DATA)
        print(f"\n{scores_table(name, seeds)}", flush=True)
        if noisy_labels.DATA[name].trained_at:
            print(f"\n{accuracy_table(name, seeds)}", flush=True)
            print(f"\n{convergence_table(name, seeds)}", flush=True)
    path = os.path.join(rows.output("clip_audit"), "clip_audit.svg")
    atomic.write(path, plot(_DATA.value, seeds))
    print(f"\n{path}")


if __name__ == "__main__":
    rows.run(main)
