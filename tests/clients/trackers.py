"""The real clients of MLflow and of Weights & Biases: train, go on, evaluate, and read it back.

    python -m tests.clients.trackers mlflow
    python -m tests.clients.trackers wandb --env .clients/wandb

It builds an environment with the extra of that name where there is none, trains the embedded
digits there in one process, goes on in a second, evaluates in a third, and prints what the client
has recorded. MLflow writes into a database file, wandb into the run's folder; no server is needed.
"""

import argparse
import importlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from tests.clients import environments

_GIN = environments.ROOT / "gin_configs" / "experiments" / "digits_shared_bottom.gin"
_CLASS = {"mlflow": "MLflow", "wandb": "WandB"}
_STEPS = (200, 300)
_EXPORT_MB = 50
_BLOCK, _WHOLE, _LAST = 32768, 1, 4


def _launch(python: str, folder: str, verb: str, *arguments: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(environments.ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [python, "-m", f"launch.{verb}", *arguments]
    # MLflow writes its files into `cwd` by default.
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    for line in done.stderr.splitlines():
        if "racker" in line:
            print(f"  {verb}: {line}")


def _train(python: str, package: str, folder: str, run: str) -> None:
    """Train to one step and then to a later one, evaluate the training split, write a report."""
    gin = os.path.join(folder, "tracked.gin")
    own = f"tracking.{_CLASS[package]}"
    lines = [
        "from __gin__ import dynamic_registration",
        "from mtl import experiment",
        "from mtl import tracking",
        f'include "{_GIN}"',
        f"experiment.Experiment.trackers = [@{own}()]",
        f"{own}.export_limit_mb = {_EXPORT_MB}",
        f'{own}.mode = "offline"'
        if package == "wandb"
        else f'{own}.tracking_uri = "sqlite:///{folder}/mlflow.db"',
    ]
    pathlib.Path(gin).write_text("\n".join(lines) + "\n")
    for last in _STEPS:
        settings = (f"Run.train_steps = {last}", "Run.checkpoint_steps = 100")
        params = [text for one in settings for text in ("--gin_param", one)]
        _launch(python, folder, "train", "--gin_file", gin, *params, "--model_dir", run)
    _launch(python, folder, "evaluate", "--model_dir", run, "--split", "train")
    _launch(python, folder, "report", "--model_dir", run, "--rows", "0")


def _read_mlflow(folder: str) -> dict:
    """Return MLflow's record of the only run."""
    mlflow = importlib.import_module("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("mtl").experiment_id
    (run,) = client.search_runs([experiment])
    steps = {
        name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }

    def files(path=None):
        for one in client.list_artifacts(run.info.run_id, path):
            yield from files(one.path) if one.is_dir else [one.path]

    return {
        "version": mlflow.__version__,
        "state": run.info.status.lower(),
        "parameters": dict(run.data.params),
        "changed": {name: v for name, v in run.data.tags.items() if name.startswith("changed/")},
        "metrics": steps,
        "files": sorted(files()),
    }


def _read_log(content: bytes) -> Iterator[bytes]:
    """Yield the records of a log of wandb: a head of 7 bytes, then LevelDB's log format."""
    at, record = 7, b""
    while at + 7 <= len(content):
        if _BLOCK - at % _BLOCK < 7:  # Too little is left in the block for a record's head.
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (_WHOLE, _LAST):
            yield record
            record = b""


def _read_wandb(run: str) -> dict:
    """Return wandb's records for its server, from all processes of the run."""
    wandb = importlib.import_module("wandb")
    records = importlib.import_module("wandb.proto.wandb_internal_pb2")
    folders = sorted(pathlib.Path(run, "wandb").glob("offline-run-*"))
    ids, parameters, metrics, files, state = set(), {}, {}, set(), ""
    for folder in folders:
        (path,) = folder.glob("*.wandb")
        ids.add(folder.name.rpartition("-")[2])
        for data in _read_log(path.read_bytes()):
            record = records.Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                row = {i.key or ".".join(i.nested_key): i.value_json for i in record.history.item}
                step = json.loads(row["global_step"])
                for name, value in row.items():
                    if "/" in name:
                        metrics.setdefault(name, []).append((step, json.loads(value)))
            elif kind == "config":
                items = record.config.update
                parameters |= {i.key or i.nested_key[0]: json.loads(i.value_json) for i in items}
            elif kind == "summary":
                own = [i for i in record.summary.update if i.key == "state"]
                state = json.loads(own[-1].value_json) if own else state
            elif kind == "files":
                files |= {one.path for one in record.files.files}
            elif kind == "artifact":
                files |= {f"{record.artifact.name}/"}
    assert len(ids) == 1, ids
    names = {"version": wandb.__version__, "state": state, "changed": {}}
    return {**names, "parameters": parameters, "metrics": metrics, "files": sorted(files)}


def _check(found: dict, package: str) -> None:
    """Fail unless the recorded steps, parameters and files match the training."""
    steps = [step for step, _ in found["metrics"]["train/loss"]]
    assert steps == [100, 200, 300], steps
    evaluated = [step for step, _ in found["metrics"]["eval/digit/accuracy"]]
    assert evaluated == [100, 200, 300], evaluated
    of_train = [step for step, _ in found["metrics"]["eval_train/digit/accuracy"]]
    assert of_train == [300], of_train
    assert found["state"] == "finished", found["state"]
    values = found["parameters"]
    last = (
        values["run.train_steps"] if package == "wandb" else next(iter(found["changed"].values()))
    )
    assert last == "300", last
    assert "config.gin" in found["files"] and "report.html" in found["files"], found["files"]
    is_export = "saved_model.pb" if package == "mlflow" else "export-best"
    assert any(is_export in name for name in found["files"]), found["files"]


def main() -> None:
    """Build the environment, train in it, and read back what was recorded."""
    parser = environments.make_parser(__doc__, "PACKAGE")
    parser.set_defaults(env=None)
    parser.add_argument("package", choices=_CLASS)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        run = os.path.join(options.read, "run")
        of_mlflow = options.package == "mlflow"
        print(json.dumps(_read_mlflow(options.read) if of_mlflow else _read_wandb(run)))
        return
    env = options.env or environments.find_folder(options.package)
    python = environments.build(env, extras=options.package)
    with tempfile.TemporaryDirectory() as folder:
        _train(python, options.package, folder, os.path.join(folder, "run"))
        read = [python, "-m", "tests.clients.trackers", options.package, "--read", folder]
        text = subprocess.run(
            read, cwd=environments.ROOT, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        found = json.loads(text.splitlines()[-1])
    _check(found, options.package)
    version, state = found["version"], found["state"]
    print(f"{options.package} {version}: {state}, {len(found['parameters'])} parameters")
    for name in ("train/loss", "eval/digit/accuracy", "eval_train/digit/accuracy"):
        print(f"  {name:<28}", ", ".join(f"{v:.4g} at {s}" for s, v in found["metrics"][name]))
    print(f"  {len(found['metrics'])} metrics; files: {', '.join(found['files'][:8])}")


if __name__ == "__main__":
    sys.exit(main())
