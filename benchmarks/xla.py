"""Compares the step times of networks with and without XLA.

Steps run as in training, many in a session call, with Adam, and with two binary tasks or with
sixteen under a surgery. Each network runs with and without `Precision.xla`, for each number of
threads. The runs with and without XLA are timed in turns. A ratio compares two times of a round,
and the table shows medians and ranges. The last column of the table shows how much longer the first
step takes with XLA, which compiles in this step.

    python -m benchmarks.xla --rounds 5
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

from benchmarks import balancing_speed, networks_speed, rows
from mtl import heads, model, networks
from mtl.balancing import surgery as surgery_lib
from mtl.balancing.methods import descent
from mtl.layers import precision
from mtl.optimization import optimizers, update

INPUTS, IMAGE = 128, (32, 32, 3)


def mlp(*layers: int) -> networks.SharedBottom:
    """Return a shared bottom of dense layers."""
    return networks.SharedBottom(trunk=networks.MLP(layers=list(layers)))


def build_cases() -> dict[str, tuple]:
    """Return {name: (network, batch size, tasks, surgery)}."""
    tabular, plain = networks_speed.build_networks(), surgery_lib.Sum()
    convnet = networks.SharedBottom(trunk=balancing_speed.TRUNKS["convnet"])
    surgery = surgery_lib.Combine(method=descent.MGDA())
    cases = {
        "MLP, 3 layers of 64, batch 64": (mlp(64, 64, 64), 64, 2, plain),
        "MLP, 3 layers of 64, batch 1,024": (mlp(64, 64, 64), 1024, 2, plain),
        "MLP, 3 layers of 512, batch 64": (mlp(512, 512, 512), 64, 2, plain),
        "MLP, 3 layers of 512, batch 1,024": (mlp(512, 512, 512), 1024, 2, plain),
        "MLP, layer norm, 3 layers of 256, batch 512": (
            networks.SharedBottom(trunk=networks.MLP(layers=[256] * 3, layer_norm=True)),
            512,
            2,
            plain,
        ),
    }
    for name in ("MMoE, 8 experts", "PLE, 2 levels", "DCN-v2", "FT-Transformer"):
        cases[f"{name}, batch 512"] = (tabular[name], 512, 2, plain)
    cases["convnet, batch 64"] = (convnet, 64, 2, plain)
    cases["MGDA of 16 tasks, 6 layers of 512, batch 64"] = (mlp(*[512] * 6), 64, 16, surgery)
    return cases


def build_steps(case: tuple, threads: int, xla: bool) -> balancing_speed.Steps:
    """Return training steps of a case."""
    network, size, num_tasks, surgery = case
    trunk, rng = getattr(network, "trunk", None), np.random.default_rng(0)
    shape = IMAGE if isinstance(trunk, networks.Convnet) else (INPUTS,)
    is_cut = isinstance(trunk, networks.FTTransformer)
    tasks = [f"task_{index}" for index in range(num_tasks)]
    features = {"x": rng.normal(size=[size, *shape]).astype(np.float32)}
    batch = (features, {task: rng.integers(0, 2, size) for task in tasks})
    made = model.MultiTaskModel(
        columns=[networks_speed.Cut() if is_cut else balancing_speed.Given()],
        network=network,
        heads=[heads.Binary(name=task) for task in tasks],
        update=update.Update(optimizer=optimizers.Adam()),
        surgery=surgery,
    )
    return balancing_speed.Steps(
        made,
        lambda: tf.data.Dataset.from_tensors(batch).cache().repeat(),
        threads,
        precision.Precision(xla=xla),
    )


def measure(case: tuple, threads: int, rounds: int, secs: float) -> list[str]:
    """Time a case with a number of threads, and return the cells of its table row."""
    sides, first_secs = {}, {}
    for xla in (False, True):
        started = time.perf_counter()
        sides[xla] = build_steps(case, threads, xla)
        sides[xla](1)
        first_secs[xla] = time.perf_counter() - started
        sides[xla](5)
    steps = max(5, round(secs / sides[False](5)))
    pairs = [(sides[False](steps), sides[True](steps)) for _ in range(rounds)]
    for side in sides.values():
        side.close()
    ratios = [compiled / plain for plain, compiled in pairs]
    plain, compiled = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    compile_secs = first_secs[True] - first_secs[False]
    return [f"{plain:.2f}", f"{compiled:.2f}", spread, f"{compile_secs:+.1f}"]


def main() -> None:
    """Time all networks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--secs", type=float, default=1.0, help="approximate seconds of a timing")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    lines = []
    for name, case in build_cases().items():
        for threads in args.threads:
            row = [name, f"{threads}", *measure(case, threads, args.rounds, args.secs)]
            print(" | ".join(row), flush=True)
            lines.append(row)
    header = [
        "network",
        "threads",
        "ms a step",
        "with XLA",
        "ratio (least to most)",
        "first step, s",
    ]
    print(rows.markdown(header, lines))


if __name__ == "__main__":
    main()
