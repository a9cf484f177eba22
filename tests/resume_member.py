"""Trains in forks of one process that has imported TensorFlow, so that a test can kill them.

Each input line holds a model_dir and, optionally, the largest size of a file in bytes and the
number of steps. The answers are the process id of the training, and then its exit code.
"""

import dataclasses
import logging
import os
import resource
import sys
import traceback

from mtl import checkpoints, checks, features, verbs
from mtl.balancing import methods, surgery
from mtl.balancing import weighting as weighting_lib
from mtl.data import sampling
from tests import quick_graphs, tiny

STEPS = 20


def make(sampler=None, train_steps=STEPS):
    """With all that a run keeps between steps: buffers, draws, averages, slots, balancing, best."""
    made = tiny.make(
        train_steps=train_steps,
        checkpoint_steps=10,
        keep_checkpoints=2,
        summary_steps=2,
        steps_per_call=7,
        best=checkpoints.Best(patience=50),
        columns=[
            features.Numeric(names=["x"]),
            features.Hashed(names=["word"], num_buckets=100_000, dimension=16),
        ],
    )
    weighting = weighting_lib.DynamicWeightAverage(period_steps=3)
    part = surgery.Combine(method=methods.PCGrad())
    return dataclasses.replace(
        made,
        model=dataclasses.replace(
            made.model, heads=made.model.heads[:2], weighting=weighting, surgery=part
        ),
        data=dataclasses.replace(made.data, shuffle_buffer=40, sampler=sampler),
    )


SAMPLED = sampling.Power(label="kind")


def main() -> None:
    quick_graphs.spare_collector()
    quick_graphs.leave_out()
    logger = logging.getLogger("mtl")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    for line in sys.stdin:
        model_dir, *limit = line.split()
        child = os.fork()
        if not child:
            os._exit(_train(model_dir, *map(int, limit)))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _train(
    model_dir: str, max_bytes: int = resource.RLIM_INFINITY, train_steps: int = STEPS
) -> int:
    """Train, and return an exit code; no file exceeds `max_bytes`, as on a full disk."""
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))
        sys.dont_write_bytecode = True  # Bytecode that the limit cuts would end later imports.
        verbs.train(make(SAMPLED if "sampled" in model_dir else None, train_steps), model_dir)
    except SystemExit as error:
        return error.code
    except checks.UserError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
