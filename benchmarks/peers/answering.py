"""Reads cases and writes answers for benchmarks of other libraries, as lines of JSON.

A case of `benchmarks.clients_speed` holds the settings of its `build_case`. The answer is `{"secs":
seconds of all epochs but the first}`, or `{"why": the reason why the library cannot train the
case}`. The probabilities of the test rows, [N, T], are written to `case["predictions"]`.

Each run_*.py file imports this module before all others. After the import, the standard output
carries only answers, and prints of libraries go to the standard error.
"""

import json
import sys
from collections.abc import Callable

import numpy as np

_answers, sys.stdout = sys.stdout, sys.stderr


def answer_cases(train: Callable[[dict], tuple[float, np.ndarray]]) -> None:
    """Answer all cases of standard input; `train` returns the seconds and the probabilities."""

    def answer(case: dict) -> dict[str, float]:
        secs, probabilities = train(case)
        np.save(case["predictions"], probabilities)
        return {"secs": secs}

    answer_lines(answer)


def answer_lines(answer: Callable[[dict], dict]) -> None:
    """Answer each line of standard input; a library that fails answers {"why": reason}."""
    for line in sys.stdin:
        try:
            result = answer(json.loads(line))
        except Exception as error:  # A library may fail in any way; the table shows the reason.
            result = {"why": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=_answers, flush=True)


def load_arrays(case: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training ids [N, F] and labels [N, T], and test ids [M, F] and labels [M, T]."""
    with np.load(case["arrays"]) as arrays:
        return tuple(arrays[name] for name in ("train_x", "train_y", "test_x", "test_y"))
