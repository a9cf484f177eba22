"""Shows that memory and the number of open files do not grow in a run with many evaluations.

A separate process trains a small model, with an evaluation and an export every 100 steps. After
each tenth of the run, the command prints the resident memory and open files of that process.

    python -m benchmarks.long_run --evaluations 200
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import tempfile
import time

from absl import app, flags

from benchmarks import overhead
from mtl import verbs

_EVALUATIONS = flags.DEFINE_integer("evaluations", 200, "Evaluations, one every 100 steps.")
_EVERY = 100


def _train(model_dir: str, evaluations: int) -> None:
    settings = overhead.an_experiment(16, 100, evaluations * _EVERY)
    run = dataclasses.replace(settings.run, checkpoint_steps=_EVERY)
    verbs.train(dataclasses.replace(settings, run=run), model_dir)


def _evaluated(model_dir: pathlib.Path) -> int:
    """Return the number of finished evaluations."""
    record = model_dir / "best" / "best.json"
    return json.loads(record.read_text())["last_step"] // _EVERY if record.exists() else 0


def _megabytes(process: int) -> float:
    pages = int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(_) -> None:
    """Print a line for each tenth of the run."""
    count = _EVALUATIONS.value
    print(f"{'evaluations':>12} {'steps':>8} {'resident MB':>12} {'open files':>11} {'secs':>7}")
    with tempfile.TemporaryDirectory() as folder:
        started, context = time.perf_counter(), multiprocessing.get_context("spawn")
        process = context.Process(target=_train, args=(folder, count))
        process.start()
        due = [count * tenth // 10 for tenth in range(1, 10)]
        while due and process.is_alive():
            time.sleep(0.05)
            count_done = _evaluated(pathlib.Path(folder))
            if count_done >= due[0]:
                due.pop(0)
                files = len(os.listdir(f"/proc/{process.pid}/fd"))
                row = f"{count_done:>12} {count_done * _EVERY:>8}"
                row += f" {_megabytes(process.pid):>12.0f} {files:>11}"
                print(f"{row} {time.perf_counter() - started:>7.0f}", flush=True)
        process.join()


if __name__ == "__main__":
    app.run(main)
