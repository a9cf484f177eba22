"""Holds every pair of features, or triples drawn by a seed, against the claims of all runs.

python -m tests.pairs --output pairs.jsonl              # goes on where it was stopped
python -m tests.pairs --output pairs.jsonl --shard 3/16 --only mixup
python -m tests.pairs --output triples.jsonl --triples 40
"""

import argparse
import itertools
import json
import logging
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time


def main() -> None:
    """Parse flags, and check what the output does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="a file of JSON lines, gone on with")
    parser.add_argument("--shard", default="0/1", help="which part of the combinations, as 3/16")
    parser.add_argument("--only", action="append", help="features, one of which is in each")
    parser.add_argument("--singles", action="store_true", help="check each feature alone")
    parser.add_argument("--triples", type=int, help="check so many triples in place of pairs")
    parser.add_argument("--skip", action="append", default=[], help="a claim, such as replicas")
    parser.add_argument("--seed", type=int, default=1, help="of the order, and of triples")
    parser.add_argument("--secs", type=float, default=1e9, help="stop after so many seconds")
    check_all(parser.parse_args())


def check_all(options: argparse.Namespace) -> None:
    """Check combinations one by one, with a line of progress for each."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf  # After its log is turned off.

    from tests import pairs

    # Before anything uses TensorFlow: two replicas need two devices.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    logging.disable(logging.WARNING)
    output = pathlib.Path(options.output)
    lines = output.read_text().splitlines() if output.exists() else []
    done = {tuple(json.loads(line)["features"]) for line in lines}
    left = [names for names in list_combinations(pairs, options) if names not in done]
    started = time.monotonic()
    for number, names in enumerate(left, 1):
        if time.monotonic() - started > options.secs:
            break
        folder = pathlib.Path(tempfile.mkdtemp())
        before = time.monotonic()
        try:
            found = pairs.check([pairs.BY_NAME[name] for name in names], folder, options.skip)
            line = {"features": names, "refused": found.refused, "failed": found.failed}
        except pairs.ClashError as error:
            line = {"features": names, "clash": str(error)}
        finally:
            shutil.rmtree(folder)
        line["skipped"] = options.skip
        line["secs"] = round(time.monotonic() - before, 1)
        with output.open("a") as file:
            file.write(json.dumps(line) + "\n")
        told = "; ".join([*line.get("failed", ()), *line.get("refused", {}).values()])
        print(
            f"{number} of {len(left)}: {' + '.join(names)}: {told[:150] or 'ok'}", file=sys.stderr
        )


def list_combinations(pairs, options: argparse.Namespace) -> list[tuple[str, ...]]:
    """List the combinations of a shard, in an order that a seed names."""
    names = [feature.name for feature in pairs.FEATURES]
    drawn = random.Random(options.seed)
    if options.singles:
        found = [(name,) for name in names]
    elif options.triples:
        found = [tuple(sorted(drawn.sample(names, 3))) for _ in range(options.triples)]
    else:
        found = list(itertools.combinations(names, 2))
        drawn.shuffle(found)
    if options.only:
        found = [combined for combined in found if set(combined) & set(options.only)]
    shard, shards = map(int, options.shard.split("/"))
    return found[shard::shards]


if __name__ == "__main__":
    main()
