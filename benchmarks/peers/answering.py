"""What every side of `benchmarks.clients_speed` shares: it trains one case a line of JSON.

A case holds the settings of `benchmarks.clients_speed.build_case`. The answer is a line,
`{"secs": seconds of all epochs but the first}`, or `{"why": what the side lacks or fails with}`;
the probabilities of the test rows, [N, T], are written to `case["predictions"]`.

A side imports this module first, since libraries print what they like to the standard output, which
from here on is for answers alone.
"""

import json
import sys
from collections.abc import Callable

import numpy as np

_answers, sys.stdout = sys.stdout, sys.stderr


def answer_cases(train: Callable[[dict], tuple[float, np.ndarray]]) -> None:
    """Answer until the input ends; `train` returns the seconds and the probabilities."""
    for line in sys.stdin:
        case = json.loads(line)
        try:
            secs, probabilities = train(case)
            np.save(case["predictions"], probabilities)
            answer = {"secs": secs}
        except Exception as error:  # A peer may fail in any way; the table says so.
            answer = {"why": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=_answers, flush=True)


def load_arrays(case: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of the case: train ids [N, F], train labels [N, T], and the same of test."""
    with np.load(case["arrays"]) as arrays:
        return tuple(arrays[name] for name in ("train_x", "train_y", "test_x", "test_y"))
