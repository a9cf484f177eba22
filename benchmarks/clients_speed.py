"""Compares examples per second and test AUC of MMoE and PLE with DeepCTR, LibMTL and EasyRec.

All libraries train on the same rows with the same tables, layers, batches, epochs and learning rate
of Adam. Each library runs in a separate process on the same cores. The libraries take turns, with
the seed of the round. A ratio compares the speeds of a round. The first epoch, in which graphs are
built and traced, is not timed. The test AUC comes from the last weights.

    python -m benchmarks.clients_speed --envs peers --data_dir data/adult --rounds 3

The command creates environments for the peers under --envs, with `python -m venv` and pip. EasyRec
is not on a package index: --easyrec is a checkout of github.com/alibaba/EasyRec. The command copies
the checkout, and compiles the protocol buffers of the copy again. Without --easyrec, EasyRec is
left out.

The data sets are UCI Adult, with 12 columns hashed to 1,000 ids each, and simulated rows in the
layout of EasyRec's sample for Taobao: 17 columns, two towers of 256-192-128-64. Ids are hashed
once, when the rows are written, so all libraries look up the same rows in tables of the same size.

MMoE has 4 experts. PLE has 2 levels, with 2 shared experts and 2 experts of each task. CGC is PLE
with one level: LibMTL supports two levels only for ResNets. Embedding tables start from the same
distribution, because their initial values affect the AUC. The libraries differ in the initial
values of layers, in the biases of gates, and in how they read rows, which the table shows. DeepCTR
draws the initial values of all experts with one seed, so all experts start from the same values,
and so do all towers. An MMoE whose experts stay equal has only one expert in effect. `mtl` trains
twice: with Adam, like all libraries, and with `LazyAdam`, which no other library has. Adam updates
every row of a table at every step, and LazyAdam only looked-up rows. `mtl` reads rows like the
library that it is compared with: arrays in memory for DeepCTR and LibMTL, CSV for EasyRec.
"""

import argparse
import contextlib
import csv
import dataclasses
import gzip
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
from sklearn import metrics

from benchmarks import rows

ROOT = pathlib.Path(__file__).parents[1]
TENSORFLOW = "tensorflow==2.21.0"

# The columns of the files; "-" becomes "_" in the names of the tables.
ADULT = ("age", "workclass", "fnlwgt", "education", "education-num", "marital-status")
ADULT += ("occupation", "relationship", "race", "sex", "capital-gain", "capital-loss")
ADULT += ("hours-per-week", "native-country", "income")
# Columns that are not features: labels, and the census weight of a person.
NO_INPUTS = ("fnlwgt", "marital-status", "income")

SMALL = ("age_level", "pvalue_level", "shopping_level", "occupation", "new_user_class_level", "pid")
LARGE = ("user_id", "adgroup_id", "campaign_id", "customer", "brand", "tag_category", "tag_brand")
TAOBAO = {
    **dict.fromkeys(LARGE, 100_000),
    "cate_id": 10_000,
    "cms_segid": 100,
    "cms_group_id": 100,
    "price": 50,
    **dict.fromkeys(SMALL, 10),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Columns, tasks and sizes of layers that all libraries use.

    Attributes:
      tables: {field: rows of its table}.
      tasks: the binary labels.
      width: the width of each table.
      expert: units of the layers of an expert, at every level.
      tower: units of the layers of a tower, before the logit.
      initial_stddev: the standard deviation of the truncated normal initial values of tables.
    """

    tables: Mapping[str, int]
    tasks: Sequence[str]
    width: int
    expert: Sequence[int]
    tower: Sequence[int]
    initial_stddev: float = 0.01


LAYOUTS = {
    "adult": Layout(
        tables={name.replace("-", "_"): 1000 for name in ADULT if name not in NO_INPUTS},
        tasks=("income", "never_married"),
        width=8,
        expert=(128, 64),
        tower=(64, 32),
    ),
    "taobao": Layout(
        tables=TAOBAO,
        tasks=("click", "buy"),
        width=16,
        expert=(256, 192, 128, 64),
        tower=(256, 192, 128, 64),
    ),
}

NETWORKS = {
    "MMoE": {"network": "MMoE", "num_experts": 4},
    "CGC": {"network": "PLE", "levels": 1, "num_specific": 2, "num_shared": 2},
    "PLE": {"network": "PLE", "levels": 2, "num_specific": 2, "num_shared": 2},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """A library to measure: another library, or `mtl`.

    Attributes:
      script: the name of the library's file in benchmarks/peers.
      installs: the arguments of each `pip install` for the library's environment.
      networks: the names of `NETWORKS` that the library has.
      input: how `mtl` reads rows for the comparison with this library: "arrays" or "CSV".
      reads: how the library reads rows, in words.
      variables: environment variables of the process.
    """

    script: str
    installs: Sequence[Sequence[str]] = ()
    networks: Sequence[str] = tuple(NETWORKS)
    input: str = "arrays"
    reads: str
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


DEEPCTR = (
    (TENSORFLOW, "tf_keras==2.21.0", "requests"),
    ("--no-deps", "deepctr==0.9.4"),
)
PEERS = {
    "DeepCTR": Side(
        script="run_deepctr.py",
        installs=DEEPCTR,
        reads="arrays, Keras 3's fit",
        networks=["MMoE", "PLE"],
        variables={"TF_USE_LEGACY_KERAS": "0"},
    ),
    "DeepCTR-Keras2": Side(
        script="run_deepctr.py",
        installs=DEEPCTR,
        reads="arrays, tf_keras' fit",
        networks=["MMoE", "PLE"],
        variables={"TF_USE_LEGACY_KERAS": "1"},
    ),
    "LibMTL": Side(
        script="run_libmtl.py",
        installs=(("{torch}", "numpy"), ("--no-deps", "LibMTL==1.1.5")),
        reads="tensors, batches cut by index",
        networks=["MMoE", "CGC"],
    ),
    "EasyRec": Side(
        script="run_easyrec.py",
        installs=(
            (TENSORFLOW, "tensorflow-estimator==2.15.0", "tf_keras==2.21.0"),
            ("tensorflow-probability==0.25.0", "grpcio-tools", "absl-py", "six"),
            ("future", "pandas", "psutil", "scikit-learn", "PyYAML"),
        ),
        reads="CSV, tf.data",
        networks=["MMoE", "PLE"],
        input="CSV",
    ),
}


class Process:
    """The process of a library, which trains one case after the other."""

    def __init__(self, python: str, side: Side, log: pathlib.Path, paths: Sequence[str] = ()):
        self._log = log
        with log.open("w") as errors:
            self._process = self._start(python, side, errors, paths)

    def _start(self, python: str, side: Side, errors: IO[str], paths: Sequence[str]):
        return subprocess.Popen(
            [python, str(ROOT / "benchmarks" / "peers" / side.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": os.pathsep.join(paths),
                **side.variables,
            },
            text=True,
        )

    def train(self, case: Mapping[str, Any]) -> dict[str, Any]:
        """Train a case; return {"secs": seconds}, or {"why": reason} if it fails."""
        try:
            self._process.stdin.write(json.dumps(case) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        return json.loads(answer) if answer else {"why": f"its process ended: see {self._log}"}

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def hash_value(text: str, size: int) -> int:
    """Return the id of a value in [0, size), which is the same on every machine."""
    return zlib.crc32(text.encode()) % size


def read_adult(folder: str, layout: Layout) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return {split: (ids [N, F], labels [N, T])} of UCI Adult."""
    splits = {}
    for split, name in (("train", "adult.data.gz"), ("test", "adult.test.gz")):
        with gzip.open(os.path.join(folder, name), "rt") as file:
            lines = [line for line in file if line.strip() and not line.startswith("|")]
        people = [
            dict(zip(ADULT, row, strict=True)) for row in csv.reader(lines, skipinitialspace=True)
        ]
        names = [(field.replace("_", "-"), size) for field, size in layout.tables.items()]
        ids = [[hash_value(person[name], size) for name, size in names] for person in people]
        labels = [
            [person["income"].startswith(">"), person["marital-status"] == "Never-married"]
            for person in people
        ]
        splits[split] = (np.array(ids, np.int32), np.array(labels, np.int32))
    return splits


def draw_taobao(count: int, layout: Layout) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return {split: (ids [N, F], labels [N, T])} of simulated rows.

    Few ids of a column are frequent. Each id has a number for each task, and the logit of a task is
    the sum of the numbers of a row's ids. Part of each number is the same for all tasks. Clicks are
    more frequent than purchases.

    Args:
      count: the rows of the training split; the test split has a quarter as many.
      layout: the columns and tasks.
    """
    rng = np.random.default_rng(0)
    total = count + count // 4
    ids = np.empty((total, len(layout.tables)), np.int32)
    logits = np.zeros((total, len(layout.tasks)))
    for index, size in enumerate(layout.tables.values()):
        ids[:, index] = size * rng.uniform(size=total) ** 4
        shared, separate = rng.normal(size=(size, 1)), rng.normal(size=(size, len(layout.tasks)))
        logits += (0.4 * shared + 0.3 * separate)[ids[:, index]]
    chances = 1 / (1 + np.exp(-(logits - np.arange(1, len(layout.tasks) + 1))))
    labels = (rng.uniform(size=chances.shape) < chances).astype(np.int32)
    return {"train": (ids[:count], labels[:count]), "test": (ids[count:], labels[count:])}


def write_rows(
    splits: Mapping[str, tuple[np.ndarray, np.ndarray]], layout: Layout, folder: str
) -> dict[str, Any]:
    """Write the rows as arrays and as CSV; return the entries of a case for these files."""
    arrays = os.path.join(folder, "rows.npz")
    np.savez(
        arrays,
        **{f"{split}_x": ids for split, (ids, _) in splits.items()},
        **{f"{split}_y": labels for split, (_, labels) in splits.items()},
    )
    texts = {}
    header = ",".join((*layout.tasks, *layout.tables))
    for split, (ids, labels) in splits.items():
        texts[split] = os.path.join(folder, f"{split}.csv")
        both = np.hstack([labels, ids])
        np.savetxt(texts[split], both, "%d", delimiter=",", header=header, comments="")
    return {"arrays": arrays, "csv": texts, "train_rows": len(splits["train"][0])}


def cut_to_batches(splits: Mapping[str, tuple], batch_size: int, most: int | None) -> dict:
    """Drop training rows, so that an epoch has only full batches in every library."""
    ids, labels = splits["train"]
    count = min(len(ids), most or len(ids)) // batch_size * batch_size
    if not count:
        raise SystemExit(f"Error: {len(ids)} rows with --rows {most} do not fill a batch.")
    return {**splits, "train": (ids[:count], labels[:count])}


def build_case(
    layout: Layout, network: str, written: Mapping[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the settings of a case for every library, without seed and file of predictions."""
    return {
        **dataclasses.asdict(layout),
        **NETWORKS[network],
        **written,
        "batch_size": options.batch_size,
        "epochs": options.epochs,
        "rate": options.learning_rate,
        "threads": options.threads,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a training: examples per second and the test AUC of each task, or a failure."""

    speed: float = float("nan")
    aucs: tuple[float, ...] = ()
    why: str = ""


def train_side(
    train: Callable[[dict], dict], case: dict[str, Any], labels: np.ndarray, folder: str
) -> Result:
    """Train with one library once, and test its predictions."""
    predictions = os.path.join(folder, "predictions.npy")
    answer = train({**case, "predictions": predictions})
    if "why" in answer:
        return Result(why=answer["why"])
    probabilities = np.load(predictions)
    if not np.all(np.isfinite(probabilities)):
        return Result(why="its probabilities are not finite")
    examples = case["train_rows"] * (case["epochs"] - 1)
    aucs = (metrics.roc_auc_score(*pair) for pair in zip(labels.T, probabilities.T, strict=True))
    return Result(speed=examples / answer["secs"], aucs=tuple(aucs))


def find_failure(results: Sequence[Result]) -> str:
    """Return the reason why a training failed; "" if the training did not fail."""
    return next((result.why for result in results if result.why), "")


def take_turns(
    sides: Mapping[Any, Callable[[dict], Result]], rounds: int
) -> dict[Any, list[Result]]:
    """Return {library: results of all rounds}; a library that fails has no further rounds."""
    results: dict[Any, list[Result]] = {name: [] for name in sides}
    for seed in range(1, rounds + 1):
        for name, train in sides.items():
            if not find_failure(results[name]):
                results[name].append(train({"seed": seed}))
                print(describe_turn(name, seed, rounds, results[name][-1]), file=sys.stderr)
    return results


def describe_turn(name: Any, turn: int, rounds: int, result: Result) -> str:
    """Return a line of progress."""
    side = name if name in PEERS else f"mtl, {', '.join(name)}"
    return f"round {turn} of {rounds}, {side}: {result.why or f'{result.speed:,.0f} examples/s'}"


def format_speed(results: Sequence[Result]) -> str:
    """Return the median of examples per second."""
    return f"{statistics.median(result.speed for result in results):,.0f}"


def describe_ours(ours: Sequence[Result], theirs: Sequence[Result]) -> list[str]:
    """Return examples per second, their ratio to another library's, and the AUC of `mtl`."""
    if why := find_failure(ours):
        return [why, "-", "-"]
    return [format_speed(ours), format_ratio(ours, theirs), format_aucs(ours)]


def format_aucs(results: Sequence[Result]) -> str:
    """Return the mean AUC of each task."""
    means = np.mean([result.aucs for result in results], axis=0)
    return " / ".join(f"{mean:.4f}" for mean in means)


def format_ratio(ours: Sequence[Result], theirs: Sequence[Result]) -> str:
    """Return the speed of `mtl` divided by another library's: median and range over rounds."""
    ratios = [our.speed / their.speed for our, their in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


HEADER = ["network", "peer", "it reads", "its ex/s", "its AUC"]
HEADER += ["our ex/s", "ours / its (range)", "our AUC"]
HEADER += ["LazyAdam, ex/s", "ours / its (range)", "our AUC"]
OPTIMIZERS = ("Adam", "LazyAdam")


def build_lines(network: str, results: Mapping[Any, list[Result]]) -> list[list[str]]:
    """Return the row of the table for each library.

    Args:
      network: the name of the network.
      results: {library, or (input, optimizer) for `mtl`: results of all rounds}.
    """
    lines = []
    for name, theirs in results.items():
        if name not in PEERS:
            continue
        line = [network, name, PEERS[name].reads]
        if why := find_failure(theirs):
            lines.append([*line, why, *["-"] * (len(HEADER) - len(line) - 1)])
            continue
        line += [format_speed(theirs), format_aucs(theirs)]
        for optimizer in OPTIMIZERS:
            line += describe_ours(results[PEERS[name].input, optimizer], theirs)
        lines.append(line)
    return lines


def make_environment(folder: pathlib.Path, installs: Sequence[Sequence[str]]) -> str:
    """Create a virtual environment with packages, unless it exists; return its Python."""
    python, record = folder / "bin" / "python", folder / "installed.json"
    content = json.dumps(installs)
    if not (record.exists() and record.read_text() == content):
        print(f"Making {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for arguments in installs:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *arguments], check=True)
        record.write_text(content)
    return str(python)


def prepare_easyrec(checkout: pathlib.Path, folder: pathlib.Path, python: str) -> str:
    """Copy EasyRec with protocol buffers that are compiled for this runtime; return the folder."""
    source = folder / "source"
    if not source.exists():
        started = folder / "source.started"
        shutil.rmtree(started, ignore_errors=True)
        shutil.copytree(checkout / "easy_rec", started / "easy_rec")
        paths = (started / "easy_rec" / "python" / "protos").glob("*.proto")
        protos = [str(path.relative_to(started)) for path in paths]
        command = [python, "-m", "grpc_tools.protoc", "--proto_path=.", "--python_out=.", *protos]
        subprocess.run(command, cwd=started, check=True)
        started.rename(source)
    return str(source)


@contextlib.contextmanager
def open_sides(options: argparse.Namespace) -> Iterator[dict[str, Process]]:
    """Start a process for each library; "ours" is `mtl`."""
    envs = pathlib.Path(options.envs).resolve()
    envs.mkdir(parents=True, exist_ok=True)
    ours = Side(script="run_mtl.py", reads="")
    opened = {"ours": Process(sys.executable, ours, envs / "mtl.log", [str(ROOT)])}
    try:
        for name in options.peers:
            side, paths = PEERS[name], []
            folder = envs / side.script.removeprefix("run_").removesuffix(".py")
            if name == "EasyRec" and not options.easyrec:
                print("EasyRec is left out: set --easyrec to a checkout of its source.")
                continue
            try:
                python = make_environment(folder, name_packages(side, options.torch))
                if name == "EasyRec":
                    checkout = pathlib.Path(options.easyrec).resolve()
                    paths = [str(ROOT), prepare_easyrec(checkout, folder, python)]
            except (subprocess.CalledProcessError, OSError) as error:
                print(f"{name} is left out: {error}")
                continue
            opened[name] = Process(python, side, envs / f"{name}.log", paths)
        yield opened
    finally:
        for process in opened.values():
            process.close()


def name_packages(side: Side, torch: str) -> list[list[str]]:
    """Return the arguments of each `pip install`, with the package of PyTorch."""
    return [[word.format(torch=torch) for word in words] for words in side.installs]


def compare(
    layout: str, network: str, processes: Mapping[str, Process], written: dict, folder: str, options
) -> list[list[str]]:
    """Train a network with all libraries in turns; return the rows of the table."""
    case = build_case(LAYOUTS[layout], network, written, options)
    with np.load(written["arrays"]) as arrays:
        labels = arrays["test_y"]
    names = [name for name in processes if name != "ours" and network in PEERS[name].networks]
    sides: dict[Any, Callable[[dict], Result]] = {}

    def add(name: Any, process: Process, **more) -> None:
        sides[name] = lambda seed: train_side(
            process.train, {**case, **more, **seed}, labels, folder
        )

    for input_format in dict.fromkeys(PEERS[name].input for name in names):
        for optimizer in OPTIMIZERS:
            add(
                (input_format, optimizer),
                processes["ours"],
                input=input_format,
                optimizer=optimizer,
            )
    for name in names:
        add(name, processes[name])
    print(f"{layout}, {network}:", file=sys.stderr)
    return build_lines(network, take_turns(sides, options.rounds))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--envs", required=True, help="the folder of the peers' environments")
    parser.add_argument("--data_dir", help="the folder of adult.data.gz and adult.test.gz")
    parser.add_argument("--easyrec", help="a checkout of EasyRec's source")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=3, help="trainings with each library")
    parser.add_argument("--epochs", type=int, default=5, help="epochs; the first is not timed")
    parser.add_argument("--rows", type=int, help="limit of training rows; 200,000 are simulated")
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of each library")
    parser.add_argument("--torch", default="torch", help="the package of PyTorch for pip")
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command's flags."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.epochs < 2:
        parser.error("argument --epochs: must be at least 2: the first is not timed")
    if "adult" in options.layouts and not options.data_dir:
        parser.error("argument --data_dir: is required for the layout adult")
    return options


def main() -> None:
    """Print a table for each layout."""
    options = parse()
    # Set the cores before a process starts, because the process inherits them.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    with open_sides(options) as processes, tempfile.TemporaryDirectory() as folder:
        for name in options.layouts:
            layout = LAYOUTS[name]
            if name == "adult":
                splits = read_adult(options.data_dir, layout)
            else:
                splits = draw_taobao(options.rows or 200_000, layout)
            splits = cut_to_batches(splits, options.batch_size, options.rows)
            written = write_rows(splits, layout, folder)
            print(
                f"\n{name}: {written['train_rows']:,} rows, {len(splits['test'][0]):,} to test, "
                f"batches of {options.batch_size}, {options.epochs} epochs, "
                f"{options.threads} threads; AUC of {' / '.join(layout.tasks)}\n",
                flush=True,
            )
            lines = []
            for network in options.networks:
                lines += compare(name, network, processes, written, folder, options)
            print(rows.markdown(HEADER, lines), flush=True)


if __name__ == "__main__":
    main()
