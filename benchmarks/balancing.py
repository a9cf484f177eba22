"""Compares ways to balance two tasks, on data for which balancing matters, and on other data.

The benchmark trains an experiment with every file of `gin_configs/balancing`, like the command
below. The baselines are a separate network for each task, and weights and learning rates that are
tuned on a part of the training split:

    python -m launch.train --gin_file benchmarks/adult_balancing_scaled.gin \
        --gin_file gin_configs/balancing/cagrad.gin --gin_param 'adult_dir = "data/adult"'

The table shows metrics of the test split after the last step, and Delta-m: the mean over the tasks
of the change in percent against the separate network of the task. Standard errors are over the
seeds. Results are stored, so a second call continues, or prints the table again.

    python -m benchmarks.balancing --data adult_scaled --methods cagrad,famo --seeds 3
"""

import dataclasses
import functools
import operator
import os
import re
import statistics
import tempfile
from collections.abc import Mapping, Sequence

import tqdm
from absl import flags

from benchmarks import rows
from mtl import experiment as experiment_lib
from mtl import verbs
from mtl.configs import config
from mtl.files import atomic
from mtl.tools.drawing import bar_charts, figures

_DATA = flags.DEFINE_list("data", [], "adult, adult_scaled, multi_mnist; all by default.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "The number of seeds for each row.", 1)

SINGLE = "single task"
# Training writes no summaries, and only the last checkpoint is evaluated.
_ONCE = ["Run.checkpoint_steps = 1000000", "Run.summary_steps = 1000000"]
_VALIDATION = ["Pipeline.train_split = 'train[:80%]'", "Pipeline.eval_split = 'train[80%:]'"]

Metrics = Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Two tasks on a data set.

    Attributes:
      gin_file: the experiment.
      folder: the folder of the data set, and the macro of the gin file for its path.
      heads: {task: its head in the gin file}.
      metric: the metric of every task; higher is better.
      rate: the binding of the learning rate, and its value in the gin file.
      weights: weights of the first task relative to the second, as choices for fixed weights.
    """

    gin_file: str
    folder: tuple[str, str]
    heads: Mapping[str, str]
    metric: str
    rate: tuple[str, float]
    weights: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0)

    def experiment(
        self, files: Sequence[str], params: Sequence[str], seed: int
    ) -> experiment_lib.Experiment:
        """Return the experiment of the data set with further gin files and bindings."""
        name, macro = self.folder
        bindings = [
            f"{macro} = {rows.data_dir(name)!r}",
            f"Tfds.data_dir = {os.path.join(rows.output('balancing'), 'datasets')!r}",
            f"Run.seed = {seed}",
        ]
        return config.load([self.gin_file, *files], [*bindings, *_ONCE, *params])

    def run(self, files: Sequence[str], params: Sequence[str], seed: int) -> Metrics:
        """Train, and return {task: metric} on the evaluation split."""
        experiment = self.experiment(files, params, seed)
        with tempfile.TemporaryDirectory() as model_dir:
            metrics, _ = verbs.train(experiment, model_dir)
        tasks = experiment.model.tasks
        return {task: float(metrics[f"{task}/{self.metric}"]) for task in tasks}

    def only(self, task: str) -> list[str]:
        """Return the bindings that train a separate network for one task."""
        return [
            f"MultiTaskModel.heads = [{self.heads[task]}]",
            f"Best.metric = '{task}/{self.metric}'",
        ]

    @property
    def tuned(self) -> dict[str, tuple[list[str], dict[str, str]]]:
        """{row: (gin files, {choice: its binding})} for choices on a part of the training split."""
        first, second = self.heads
        name, value = self.rate
        weights = {
            f"{w:g}": f"Fixed.weights = {{{first!r}: {w}, {second!r}: 1.0}}" for w in self.weights
        }
        rates = {f"{value * by:g}": f"{name} = {value * by}" for by in (0.3, 1, 3)}
        return {
            "fixed, tuned weights": (["gin_configs/balancing/fixed.gin"], weights),
            "equal, tuned rate": ([], rates),
        }


_ADULT = Data(
    gin_file="gin_configs/experiments/adult_balancing.gin",
    folder=("adult", "adult_dir"),
    heads={"income": "@income/heads.Binary()", "never_married": "@never_married/heads.Binary()"},
    metric="auc",
    rate=("Adam.learning_rate", 0.001),
)
DATA = {
    "adult": _ADULT,
    "adult_scaled": dataclasses.replace(
        _ADULT,
        gin_file="benchmarks/adult_balancing_scaled.gin",
        heads={**_ADULT.heads, "income": "@scaled.ScaledBinary()"},
        weights=(1.0, 10.0, 100.0, 1000.0, 10000.0),
    ),
    "multi_mnist": Data(
        gin_file="gin_configs/experiments/multi_mnist_lenet.gin",
        folder=("mnist", "mnist_dir"),
        heads={"left": "@left/heads.MultiClass()", "right": "@right/heads.MultiClass()"},
        metric="accuracy",
        rate=("Adam.learning_rate", 0.006),
    ),
}


def output() -> str:
    """Return the folder of results and plots."""
    return rows.output("balancing")


def path(name: str, *parts: str) -> str:
    """Return the file of a result of a data set."""
    return os.path.join(output(), name, *(re.sub(r"\W+", "_", part) for part in parts)) + ".json"


def choose(name: str, row: str) -> str:
    """Return the choice for a tuned row that has the best mean metric on validation rows."""
    files, choices = DATA[name].tuned[row]

    def score(choice: str) -> float:
        params = [choices[choice], *_VALIDATION]
        file = path(name, "validation", f"{row} {choice}")
        return statistics.mean(
            rows.load_or_measure(file, lambda: DATA[name].run(files, params, 1)).values()
        )

    return max(choices, key=score)


def result(name: str, row: str, seed: int) -> Metrics:
    """Return {task: metric} for a row of the table, measured or stored."""
    data = DATA[name]

    def measure() -> Metrics:
        if row == SINGLE:
            runs = [data.run([], data.only(task), seed) for task in data.heads]
            return functools.reduce(operator.or_, runs)
        if row in data.tuned:
            files, choices = data.tuned[row]
            return data.run(files, [choices[choose(name, row)]], seed)
        return data.run([rows.methods()[row]], [], seed)

    return rows.load_or_measure(path(name, f"{row} seed {seed}"), measure)


def delta(metrics: Metrics, single: Metrics) -> float:
    """Return Delta-m in percent."""
    return 100 * statistics.mean(metrics[task] / single[task] - 1 for task in single)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values and its standard error, which is 0 for a single value."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.mean(values), spread / len(values) ** 0.5


def deltas(results: Mapping[str, Sequence[Metrics]]) -> dict[str, tuple[float, float]]:
    """Return {row: (Delta-m, its standard error)}, the best row first."""
    tasks = results[SINGLE][0]
    single = {task: statistics.mean(run[task] for run in results[SINGLE]) for task in tasks}
    changes = {
        row: mean_and_error([delta(run, single) for run in runs]) for row, runs in results.items()
    }
    return dict(sorted(changes.items(), key=lambda item: -item[1][0]))


def table(name: str, results: Mapping[str, Sequence[Metrics]]) -> str:
    """Return a table with a line for each row: the metric of every task, and Delta-m."""
    tasks = list(DATA[name].heads)
    lines = []
    for row, (change, error) in deltas(results).items():
        means = [mean_and_error([run[task] for run in results[row]]) for task in tasks]
        label = f"{row} ({choose(name, row)})" if row in DATA[name].tuned else row
        cells = [f"{mean:.4f} ± {spread:.4f}" for mean, spread in means]
        lines.append([label, *cells, f"{change:+.2f} ± {error:.2f}"])
    return rows.markdown(["", *[f"{t} {DATA[name].metric}" for t in tasks], "Delta-m, %"], lines)


def plot(results: Mapping[str, Mapping[str, Sequence[Metrics]]]) -> str:
    """Draw a panel for each data set: Delta-m of every row with its standard error."""
    return draw({name: deltas(of_rows) for name, of_rows in results.items()})


def draw(changes: Mapping[str, Mapping[str, tuple[float, float]]]) -> str:
    """Draw {data set: {row: (Delta-m, standard error)}} as SVG."""
    panels = []
    for name, of_rows in changes.items():
        bars = [
            bar_charts.Bar(row, mean, mean - error, mean + error)
            for row, (mean, error) in of_rows.items()
        ]
        # `near` keeps one bad method from shrinking the bars of all other methods.
        panels.append(bar_charts.draw(name, bars, "Delta-m, %, with standard errors", near=1.0))
    return figures.lay_out("Delta-m of every method", panels)


def main() -> None:
    """Measure results that are not stored yet, print the tables and write the plot."""
    names = _DATA.value or list(DATA)
    seeds = range(1, _SEEDS.value + 1)
    jobs = [
        (name, row, seed)
        for name in names
        for seed in seeds
        for row in (SINGLE, *DATA[name].tuned, *rows.methods(rows.METHODS.value))
    ]
    results: dict[str, dict[str, list[Metrics]]] = {name: {} for name in names}
    for name, row, seed in tqdm.tqdm(jobs, unit="row", leave=False):
        results[name].setdefault(row, []).append(result(name, row, seed))
    for name in names:
        print(f"\n{name}, {len(seeds)} seeds\n\n{table(name, results[name])}")
    atomic.write(os.path.join(output(), "balancing.svg"), plot(results))
    print(f"\n{rows.output('balancing')}/balancing.svg")


if __name__ == "__main__":
    rows.run(main)
