"""Measures the step time with and without `Run.check_numerics`.

The setting checks the output of every op. A run with the setting and a run without the setting
train on the digits in turns. The table shows the least time of a step over all rounds.

    python -m benchmarks.numerics                            # a minute on two cores
"""

import argparse
import functools

import tensorflow as tf

from benchmarks import tensorboard


def main() -> None:
    """Time both runs, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=400, help="number of steps of each run in a round"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    switches = {tensorboard.OFF: False, "check_numerics": True}
    builds = {
        name: functools.partial(tensorboard.make, None, check_numerics=is_on)
        for name, is_on in switches.items()
    }
    secs = tensorboard.time_steps(builds, arguments.steps, arguments.rounds, 100)
    tensorboard.report("A step", secs)


if __name__ == "__main__":
    main()
