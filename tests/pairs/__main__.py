"""Holds every pair of features, or triples drawn by a seed, against the claims of all runs.

python -m tests.pairs --output tests/pairs/checked.jsonl   # goes on where it was stopped
python -m tests.pairs --output tests/pairs/checked.jsonl --only mixup
python -m tests.pairs --output triples.jsonl --triples 40

One run has several features, and so it checks a claim for many pairs at once; if the claim does not
hold, features are left out one by one until it does. Processes that share an output share the work.
"""

import argparse
import json
import logging
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any


def main() -> None:
    """Parse flags, and check what the output does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="a file of JSON lines, gone on with")
    parser.add_argument("--only", action="append", help="features, one of which is in each pair")
    parser.add_argument("--singles", action="store_true", help="check each feature alone")
    parser.add_argument("--triples", type=int, help="check so many triples in place of pairs")
    parser.add_argument("--together", type=int, default=5, help="the most features of one run")
    parser.add_argument("--skip", action="append", default=[], help="a claim, such as replicas")
    parser.add_argument("--seed", type=int, default=1, help="of the order, and of triples")
    parser.add_argument("--secs", type=float, default=1e9, help="stop after so many seconds")
    check_all(parser.parse_args())


def check_all(options: argparse.Namespace) -> None:
    """Check combinations one by one, with a line of progress for each."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import mtl.compat  # noqa: F401  Before TensorFlow, whose log is turned off by now.

    # isort: split
    import tensorflow as tf

    from mtl.heads import together
    from mtl.variables import stacks
    from tests import graph_optimizer, op_stacks, pairs, quick_graphs
    from tests.pairs import coverage

    quick_graphs.leave_out()
    graph_optimizer.leave_out()
    op_stacks.turn_on(False)
    quick_graphs.spare_collector()
    # "64 equal tasks" are 16 here, stacked as 64 are: 64 took half an hour beside slow features.
    stacks.FROM = together.FROM

    # Before anything uses TensorFlow: two replicas need two devices.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    logging.disable(logging.WARNING)
    output = pathlib.Path(options.output)
    drawn = random.Random(options.seed)
    is_listed = options.singles or options.triples
    listed = _list_combinations(pairs, options, drawn) if is_listed else iter(())
    ended = time.monotonic() + options.secs
    while time.monotonic() < ended:
        lines = output.read_text().splitlines() if output.exists() else []
        found = [json.loads(line) for line in lines]
        if is_listed:
            done = {tuple(line["features"]) for line in found}
            names = next((names for names in listed if names not in done), None)
            skipped, left = options.skip, "?"
        else:
            open_pairs = coverage.list_open(pairs.FEATURES, found, options.skip, options.only or ())
            names, skipped = coverage.choose(open_pairs, found, options.together, drawn)
            left = str(len(open_pairs))
        if not names:
            break
        line = _check(pairs, names, skipped)
        with output.open("a") as file:
            for each in _find_cause(pairs, line):
                file.write(json.dumps(each) + "\n")
        told = "; ".join([*line.get("failed", ()), *line.get("refused", {}).values()])
        what = line.get("clash") or told[:150] or "ok"
        print(f"{left} pairs left: {' + '.join(names)}: {what}", file=sys.stderr)


def _check(pairs, names: tuple[str, ...], skipped: list[str]) -> dict[str, object]:
    """Check one combination; return its line of the output."""
    folder, before = pathlib.Path(tempfile.mkdtemp()), time.monotonic()
    line: dict[str, object] = {"features": names, "skipped": skipped}
    try:
        found = pairs.check([pairs.BY_NAME[name] for name in names], folder, skipped)
        line |= {"refused": found.refused, "failed": found.failed}
    except pairs.ClashError as error:
        line["clash"] = str(error)
    finally:
        shutil.rmtree(folder)
    return line | {"secs": round(time.monotonic() - before, 1)}


def _find_cause(pairs, line: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line with the features that it fails by, and the line of these if they were run.

    They are as few as can be: without any of them the claim holds.
    """
    broken = {**line.get("refused", {}), **line.get("failed", {})}
    if not broken or len(line["features"]) < 3:
        return [line]
    claim = "trains" if "trains" in broken else next(iter(broken))
    others = [each for each in pairs.CLAIMS if each != claim]
    cause, found = list(line["features"]), []
    for name in line["features"]:
        fewer = tuple(one for one in cause if one != name)
        if fewer:
            again = _check(pairs, fewer, others)
            if claim in {**again.get("refused", {}), **again.get("failed", {})}:
                cause, found = list(fewer), [again]
    return [line | {"cause": cause}, *found]


def _list_combinations(
    pairs, options: argparse.Namespace, drawn: random.Random
) -> Iterator[tuple[str, ...]]:
    """List the features one by one, or triples of them that a seed draws."""
    names = [feature.name for feature in pairs.FEATURES]
    if options.singles:
        listed = [(name,) for name in names]
    else:
        listed = [tuple(sorted(drawn.sample(names, 3))) for _ in range(options.triples)]
    return iter([one for one in listed if not options.only or set(one) & set(options.only)])


if __name__ == "__main__":
    main()
