"""Compares all networks of `gin_configs/networks` at equal size, on one data set.

    python -m benchmarks.networks --data census_income --data_dir data/census_income --seeds 3
    python -m benchmarks.networks --data adult --data_dir data/adult --networks mmoe,ple
    python -m benchmarks.networks --data related_tasks --correlations 0,0.5,0.9,1 --seeds 3

A factor scales the widths of all layers except towers, until a network has about `--parameters`
parameters, without columns and heads. If a network misses this number by more than a sixth, such as
full cross layers of many inputs, it keeps the widths of its gin file; the table shows its size.
Runs train like `launch.train`. The validation split only chooses the checkpoint with the lowest
loss. The table shows the test split: the mean over the seeds, and the mean difference from the
baseline with the same seed, with its standard error. On census records, the baseline is
`single_task`. On related tasks, where experts have the sizes of the MMoE paper, the baseline is the
shared bottom.

Results are stored in `--out`, so a second call continues, or prints the table again. The time of a
step does not include reading and encoding: each step trains on the same encoded batch.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from benchmarks import balancing_speed, rows
from mtl import checks, features, verbs
from mtl.configs import config
from mtl.files import atomic
from mtl.optimization import optimizers, update
from mtl.runs import fitting
from mtl.tools.drawing import bar_charts, figures, line_charts

tf1 = tf.compat.v1

FOLDER = pathlib.Path(__file__).parent.parent / "gin_configs" / "networks"
# {name of a network that does not fit the columns of the data sets: reason}
LEFT_OUT = {
    "shared_bottom_convnet": "takes images",
    "shared_bottom_resnet": "takes images",
    "shared_bottom_unet": "makes maps",
    "single_task_unet": "makes maps",
    "mtan_of_maps": "makes maps",
    "packnet": "adds tasks to a run",
    "piggyback": "adds tasks to a run",
    "stem": "needs tables for each task",
    "pepnet": "needs a domain",
    "star": "needs a domain",
    "wide_and_deep": "needs columns for its wide part",
}
# {class of a part: its settings that are widths}; in all other parts, only "layers" is a width.
WIDTHS = {
    "Convnet": ("filters", "layers"),
    "FTTransformer": ("dimension",),
    "MaskNet": ("blocks",),
    "ResNet": ("filters",),
}
_TRIALS, _CLOSE, _FAR = 12, 0.01, 1 / 6
# Layers keep at least this number of units, unless the gin file has fewer: narrower layers do not
# learn.
_NARROWEST = 8
_TIMED_STEPS, _ROUNDS = 20, 5

Result = Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Two tasks on a data set.

    Attributes:
      gin_file: the experiment.
      params: bindings after the gin file.
      macro: the macro of the gin file for the folder of the data; "" if the data set has no files.
      metric: the metric of every task.
      parameters: the number of parameters of a network, without columns and heads.
      baseline: the network for differences.
    """

    gin_file: str
    params: Sequence[str]
    macro: str = ""
    metric: str = "auc"
    parameters: int
    baseline: str = "single_task"


_ONCE = ["Run.summary_steps = 1000000", "Serving.check_rows = 0", "Serving.warm_up_rows = 1"]
DATA = {
    "adult": Data(
        gin_file="gin_configs/experiments/adult_balancing.gin",
        params=[
            "Pipeline.train_split = 'train[:80%]'",
            "Pipeline.eval_split = 'train[80%:]'",
            "Pipeline.batch_size = 512",
            # A larger shuffle buffer would make each checkpoint larger, because checkpoints store
            # the buffer.
            "Pipeline.shuffle_buffer = 5000",
            "Run.train_steps = 408",
            "Run.checkpoint_steps = 102",
            "Best.metric = 'average_loss'",
            "Best.higher_is_better = False",
        ],
        macro="adult_dir",
        parameters=30_000,
    ),
    "census_income": Data(
        gin_file="gin_configs/experiments/census_income.gin",
        params=[
            # The gin file sets dropout of a trunk, but networks of experts have no trunk.
            "MLP.dropout = 0.3",
            "Pipeline.shuffle_buffer = 10000",
            "Run.train_steps = 936",
            "Run.checkpoint_steps = 234",
        ],
        macro="census_income_dir",
        parameters=80_000,
    ),
    "related_tasks": Data(
        gin_file="gin_configs/experiments/related_tasks.gin",
        params=["Run.checkpoint_steps = 750"],
        metric="rmse",
        # As in the MMoE paper, there are 8 experts of 16 units on 256 inputs, and 2 towers of 8
        # units.
        parameters=33_024,
        baseline="shared_bottom_mlp",
    ),
}
# These sizes come from section 3.3 of the MMoE paper.
_RELATED = {
    "shared_bottom_mlp": ["trunk/MLP.layers = [113]", "tower/MLP.layers = [8]"],
    "omoe": ["expert/MLP.layers = [16]", "tower/MLP.layers = [8]"],
    "mmoe": ["expert/MLP.layers = [16]", "tower/MLP.layers = [8]"],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """A column that passes encoded columns on.

    Attributes:
      names: the names of the encoded columns.
    """

    names: Sequence[str]

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        return {name: (name,) for name in self.names}

    def accumulators(self):
        return {}

    def __call__(self, given, fitted):
        del fitted
        return dict(given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Compares networks on a data set, and stores results in a folder.

    Attributes:
      name: the data set.
      data_dir: the folder of its files; "" if it has no files.
      out: the folder of results.
      parameters: the number of parameters of each network.
    """

    name: str
    data_dir: str
    out: str
    parameters: int

    @property
    def data(self) -> Data:
        """The settings of the data set."""
        return DATA[self.name]

    def load(self, network: str, seed: int, params: Sequence[str] = ()) -> Any:
        """Return the experiment of the data set with the gin file of a network."""
        bindings = [f"{self.data.macro} = {self.data_dir!r}"] if self.data.macro else []
        if self.data.macro:
            bindings.append(f"Tfds.data_dir = {os.path.join(self.out, 'datasets')!r}")
        bindings += [*_ONCE, f"Run.seed = {seed}", *self.data.params]
        if self.name == "related_tasks":
            bindings += [*_RELATED[network], f"RelatedTasks.seed = {seed}"]
        files = [self.data.gin_file, str(FOLDER / f"{network}.gin")]
        return config.load(files, [*bindings, *params])

    @functools.cached_property
    def input_widths(self) -> dict[str, int]:
        """{encoded column: its width}."""

        def measure() -> dict[str, int]:
            made = self.load(self.data.baseline, 1)
            with tempfile.TemporaryDirectory() as folder:
                fitting.fit_statistics(made.data, made.model, None, folder)
                fitted = fitting.load_statistics(folder)
                with tf.Graph().as_default():
                    batches = made.data.one_pass(made.data.train_split)
                    fields, _ = tf1.data.make_one_shot_iterator(batches).get_next()
                    encoded = features.encode_columns(made.model.columns, fields, fitted)
                    return {name: int(column.shape[1]) for name, column in encoded.items()}

        return rows.load_or_measure(os.path.join(self.out, self.name, "input_widths.json"), measure)

    def count_parameters(self, model: Any) -> int:
        """Return the number of trainable parameters of a model's network."""
        # Encode the inputs in eager mode, before the graph is opened, to read their widths.
        widths = self.input_widths
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            inputs = {name: tf.zeros([8, width]) for name, width in widths.items()}
            with tf1.variable_scope("network"):
                model.network(inputs, model.tasks, True)
            return sum(int(np.prod(variable.shape)) for variable in tf1.trainable_variables())

    def fit_width(self, network: str) -> dict[str, float]:
        """Find the factor of the widths; return {"factor": number, "parameters": count}."""

        def measure() -> dict[str, float]:
            made = self.load(network, 1)
            model = made.model.fill_schedules(made.run.train_steps)
            low, high, tried = 1 / 16, 16.0, {}
            for _ in range(_TRIALS):
                factor = (low * high) ** 0.5
                scaled = dataclasses.replace(model, network=scale_widths(model.network, factor))
                tried[factor] = self.count_parameters(scaled)
                off = tried[factor] / self.parameters - 1
                low, high = (factor, high) if off < 0 else (low, factor)
                if abs(off) < _CLOSE:
                    break
            best = min(tried, key=lambda factor: abs(tried[factor] - self.parameters))
            if abs(tried[best] / self.parameters - 1) > _FAR:
                best, tried = 1.0, {1.0: self.count_parameters(model)}
            return {"factor": best, "parameters": tried[best]}

        return rows.load_or_measure(self._path(network, "width"), measure)

    def time_steps(self, network: str) -> float:
        """Return the milliseconds of a training step: the median of several rounds."""

        def measure() -> float:
            made = self.sized(network, 1)
            random, size = np.random.default_rng(0), made.data.batch_size
            inputs = {
                name: random.normal(size=[size, width]).astype(np.float32)
                for name, width in self.input_widths.items()
            }
            labels = {
                head.field: np.full([size], positive(head), object)
                if hasattr(head, "positive")
                else random.normal(size=[size]).astype(np.float32)
                for head in made.model.heads
            }
            adam = update.Update(optimizer=optimizers.Adam())
            column = Encoded(names=tuple(inputs))
            model = made.model.fill_schedules(made.run.train_steps)
            steps = balancing_speed.Steps(
                dataclasses.replace(model, columns=[column], update=adam),
                lambda: tf.data.Dataset.from_tensors((inputs, labels)).cache().repeat(),
            )
            steps(_TIMED_STEPS)
            found = statistics.median(steps(_TIMED_STEPS) for _ in range(_ROUNDS))
            steps.close()
            return 1000 * found

        return rows.load_or_measure(self._path(network, "ms_per_step"), measure)

    def sized(self, network: str, seed: int, params: Sequence[str] = ()) -> Any:
        """Return the experiment with scaled widths of the network."""
        plain = self.load(network, seed, params)
        factor = self.fit_width(network)["factor"]
        scaled = scale_widths(plain.model.network, factor)
        return dataclasses.replace(plain, model=dataclasses.replace(plain.model, network=scaled))

    def result_path(self, network: str, seed: int, params: Sequence[str] = ()) -> str:
        """Return the file of the result of a run."""
        words = "".join(f" {param.partition('.')[2].replace(' = ', ' ')}" for param in params)
        return self._path(network, f"seed {seed}{words}".replace(" ", "_"))

    def run(self, network: str, seed: int, params: Sequence[str] = ()) -> Result:
        """Return the result of a run, measured or stored.

        Returns:
          {task: test metric of the checkpoint that is best on validation data}, with "seconds" of
          the training and the "step" of that checkpoint.
        """

        def measure() -> dict[str, float]:
            experiment = self.sized(network, seed, params)
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as model_dir:
                verbs.train(experiment, model_dir)
                metrics = verbs.evaluate(experiment, model_dir, "test", "best")
            tasks = experiment.model.tasks
            scores = {task: float(metrics[f"{task}/{self.data.metric}"]) for task in tasks}
            seconds = time.perf_counter() - started
            return {**scores, "seconds": seconds, "step": int(metrics["global_step"])}

        return rows.load_or_measure(self.result_path(network, seed, params), measure)

    def _path(self, *parts: str) -> str:
        return os.path.join(self.out, self.name, f"{self.parameters}", *parts) + ".json"


def positive(head: Any) -> str:
    """Return the positive label of a binary head."""
    return head.positive[0]


def scale_widths(part: Any, factor: float, multiple: int = 2) -> Any:
    """Return a network with all widths times a factor, as multiples of `multiple`.

    If a part has heads of attention, or of FinalMLP, its widths are multiples of the number of
    heads. Towers keep their widths, because a task does not learn with a tower of two units.
    """
    if isinstance(part, (list, tuple)):
        return [scale_widths(item, factor, multiple) for item in part]
    if not dataclasses.is_dataclass(part):
        return part
    widths = WIDTHS.get(type(part).__name__, ("layers",))
    multiple = max(multiple, getattr(part, "num_heads", multiple))
    changed = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.name == "tower":
            continue
        if field.name in widths:
            sizes = [value] if isinstance(value, int) else value
            targets = [max(size * factor, min(size, _NARROWEST)) for size in sizes]
            scaled = [multiple * max(1, round(size / multiple)) for size in targets]
            changed[field.name] = scaled[0] if isinstance(value, int) else scaled
        elif dataclasses.is_dataclass(value) or isinstance(value, (list, tuple)):
            changed[field.name] = scale_widths(value, factor, multiple)
    return dataclasses.replace(part, **changed)


def find_networks(names: Sequence[str] = ()) -> list[str]:
    """Return the networks to compare: `names`, or all files that are not in `LEFT_OUT`."""
    file_names = sorted(path.stem for path in FOLDER.glob("*.gin"))
    for name in names:
        checks.one_of("--networks", name, file_names)
        reason = LEFT_OUT.get(name, "")
        rule = "name networks that fit these columns"
        checks.require(not reason, "--networks", rule, name, reason)
    return list(names) or [name for name in file_names if name not in LEFT_OUT]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values and its standard error, which is NaN for a single value."""
    spread = statistics.stdev(values) if len(values) > 1 else float("nan")
    return statistics.mean(values), spread / len(values) ** 0.5


def differences(
    runs: Sequence[Result], baseline: Sequence[Result], tasks: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Return {task, or "mean" over the tasks: (mean paired difference, its standard error)}."""
    pairs = [
        [run[task] - base[task] for task in tasks] for run, base in zip(runs, baseline, strict=True)
    ]
    changes = {
        task: mean_and_error(values)
        for task, values in zip(tasks, np.transpose(pairs).tolist(), strict=True)
    }
    return {**changes, "mean": mean_and_error([statistics.mean(pair) for pair in pairs])}


def tasks_of(run: Result) -> list[str]:
    """Return the names of the tasks."""
    return [name for name in run if name not in ("seconds", "step")]


def table(
    results: Mapping[str, Sequence[Result]], baselines: Mapping[str, str], metric: str
) -> list[list[str]]:
    """Return the table: a header, and a line for each network with metrics and differences."""
    tasks = tasks_of(next(iter(results.values()))[0])
    header = [""]
    for task in [*tasks, "mean"]:
        header += [f"{task} {metric}", "difference"]
    lines = [header]
    for row, runs in results.items():
        changes = differences(runs, results[baselines[row]], tasks)
        line = [row]
        for task in [*tasks, "mean"]:
            of_runs = [statistics.mean(run[t] for t in tasks) for run in runs]
            values = of_runs if task == "mean" else [run[task] for run in runs]
            change, error = changes[task]
            is_baseline = row == baselines[row]
            cell = "" if is_baseline else f"{change:+.4f} ± {error:.4f}".replace(" ± nan", "")
            line += [f"{statistics.mean(values):.4f}", cell]
        lines.append(line)
    return lines


def plot_networks(results: Mapping[str, Sequence[Result]], baseline: str, metric: str) -> str:
    """Draw a panel for each task and for the mean: differences with standard errors."""
    tasks = tasks_of(results[baseline][0])
    changes = {
        row: differences(runs, results[baseline], tasks)
        for row, runs in results.items()
        if row != baseline
    }
    order = sorted(changes, key=lambda row: -changes[row]["mean"][0])
    return draw(
        {
            f"{task}, {metric}": {row: changes[row][task] for row in order}
            for task in [*tasks, "mean"]
        },
        f"difference to {baseline}, with standard errors",
    )


def draw(differences_of_panels: Mapping[str, Mapping[str, tuple[float, float]]], axis: str) -> str:
    """Draw {title: {network: (difference, standard error)}} as SVG."""
    panels = []
    for title, changes in differences_of_panels.items():
        bars = [bar_charts.Bar(row, x, x - e, x + e) for row, (x, e) in changes.items()]
        # `near` keeps one bad network from shrinking the bars of all other networks.
        typical = max(3 * np.median([abs(bar.value) for bar in bars]), 1e-9)
        near = 10.0 ** round(np.log10(typical))
        panels.append(bar_charts.draw(title, bars, axis, near=near))
    return figures.lay_out("Networks side by side", panels)


def plot_correlations(
    results: Mapping[tuple[str, float], Sequence[Result]], baseline: str, metric: str
) -> str:
    """Draw the difference of each network from the baseline over the correlation, with errors."""
    lines, behind = {}, []
    for network in dict.fromkeys(name for name, _ in results if name != baseline):
        places = sorted(place for name, place in results if name == network)
        changes = []
        for place in places:
            runs = results[network, place]
            tasks = tasks_of(runs[0])
            changes.append(differences(runs, results[baseline, place], tasks)["mean"])
        means, errors = np.array(changes).T
        lines[network] = list(zip(places, means, strict=True))
        behind += [list(zip(places, means + sign * errors, strict=True)) for sign in (-1, 1)]
    across, up = "correlation of the tasks' weights", f"mean {metric}, difference to {baseline}"
    figure = line_charts.draw("tasks that are related", lines, across, up, behind=behind)
    note = "Thin lines are one standard error away."
    return figures.lay_out("Networks side by side", [figure._replace(note=note)])


def run_all(comparison: Comparison, jobs: Sequence[tuple[str, int, Sequence[str]]]) -> list[Result]:
    """Measure results that are not stored yet, and print a line of progress for each run."""
    missing = sum(not os.path.exists(comparison.result_path(*job)) for job in jobs)
    print(f"{len(jobs)} runs, {missing} of them to do", flush=True)
    results, count, started = [], 0, time.perf_counter()
    for network, seed, params in jobs:
        is_new = not os.path.exists(comparison.result_path(network, seed, params))
        results.append(comparison.run(network, seed, params))
        if is_new:
            count += 1
            minutes = (time.perf_counter() - started) / count * (missing - count) / 60
            scores = ", ".join(f"{task} {results[-1][task]:.4f}" for task in tasks_of(results[-1]))
            name = " ".join([network, *params, f"seed {seed}"])
            spent = f"{results[-1]['seconds']:.0f} s, best step {results[-1]['step']}"
            print(
                f"{count}/{missing} {name}: {scores} ({spent}); {minutes:.0f} min left", flush=True
            )
    return results


def compare_networks(comparison: Comparison, networks: Sequence[str], seeds: range) -> str:
    """Run the networks on census records, write the plot and return the table."""
    baseline, metric = comparison.data.baseline, comparison.data.metric
    networks = list(dict.fromkeys([baseline, *networks]))
    for network in networks:  # Fail before the first run if a network cannot be scaled.
        comparison.fit_width(network)
    # Run all networks for a seed before the next seed, so that an interrupted call has whole pairs.
    jobs = [(network, seed, ()) for seed in seeds for network in networks]
    results: dict[str, list[Result]] = {network: [] for network in networks}
    for (network, *_), result in zip(jobs, run_all(comparison, jobs), strict=True):
        results[network].append(result)
    header, *lines = table(results, dict.fromkeys(results, baseline), metric)
    for line in lines:
        parameters = comparison.fit_width(line[0])["parameters"]
        line += [f"{parameters:,}", f"{comparison.time_steps(line[0]):.2f}"]
    if len(results) > 1:
        picture = plot_networks(results, baseline, metric)
        atomic.write(os.path.join(comparison.out, f"{comparison.name}.svg"), picture)
    return rows.markdown([*header, "parameters", "ms a step"], lines)


def compare_correlations(
    comparison: Comparison, networks: Sequence[str], correlations: Sequence[float], seeds: range
) -> str:
    """Run the networks on related tasks, write the plot and return the table."""
    baseline, metric = comparison.data.baseline, comparison.data.metric
    networks = list(dict.fromkeys([baseline, *networks]))
    for network in networks:
        checks.one_of("--networks", network, _RELATED)
    jobs = [
        (network, seed, (f"RelatedTasks.correlation = {correlation}",))
        for seed in seeds
        for correlation in correlations
        for network in networks
    ]
    places = [(network, place) for _ in seeds for place in correlations for network in networks]
    results: dict[tuple[str, float], list[Result]] = {}
    for place, result in zip(places, run_all(comparison, jobs), strict=True):
        results.setdefault(place, []).append(result)
    names = {place: f"{place[0]}, {place[1]:g}" for place in results}
    header, *lines = table(
        {names[place]: runs for place, runs in results.items()},
        {names[place]: names[baseline, place[1]] for place in results},
        metric,
    )
    for (network, _), line in zip(results, lines, strict=True):
        parameters = comparison.fit_width(network)["parameters"]
        line += [f"{parameters:,}", f"{comparison.time_steps(network):.2f}"]
    if len(networks) > 1:
        picture = plot_correlations(results, baseline, metric)
        atomic.write(os.path.join(comparison.out, f"{comparison.name}.svg"), picture)
    header[0] = "network, correlation"
    return rows.markdown([*header, "parameters", "ms a step"], lines)


def parse_arguments() -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=DATA, default="census_income")
    parser.add_argument("--data_dir", default="", help="the folder of the data set's files")
    parser.add_argument("--networks", default="", help="names of gin files; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    correlations = "correlations of related_tasks"
    parser.add_argument("--correlations", default="0,0.5,0.9,1", help=correlations)
    parser.add_argument("--parameters", type=int, help="the parameters of each network")
    parser.add_argument("--out", default="runs/networks", help="the folder of results")
    return parser.parse_args()


def main() -> None:
    """Measure results that are not stored yet, print the table, and write table and plot."""
    args = parse_arguments()
    logging.set_verbosity(logging.ERROR)
    data, out = DATA[args.data], os.path.abspath(args.out)
    if data.macro:
        fix = "Set the folder of the data set's files."
        checks.require(
            os.path.isdir(args.data_dir), "--data_dir", "be a folder", args.data_dir, fix
        )
    checks.at_least("--seeds", args.seeds, 1)
    comparison = Comparison(
        name=args.data,
        data_dir=os.path.abspath(args.data_dir),
        out=out,
        parameters=args.parameters or data.parameters,
    )
    names = [name for name in args.networks.split(",") if name]
    seeds = range(1, args.seeds + 1)
    if args.data == "related_tasks":
        correlations = [float(value) for value in args.correlations.split(",")]
        lines = compare_correlations(comparison, names or list(_RELATED), correlations, seeds)
    else:
        lines = compare_networks(comparison, find_networks(names), seeds)
    text = f"{args.data}, {args.seeds} seeds\n\n{lines}\n"
    with open(os.path.join(out, f"{args.data}.md"), "w") as file:
        file.write(text)
    print(f"\n{text}\n{os.path.join(out, args.data)}.md and .svg")


if __name__ == "__main__":
    rows.guard(main)
