import numpy as np
import pytest

from benchmarks import dense as benchmark
from mtl.configs import config


@pytest.mark.parametrize("row", benchmark.ROWS, ids=" ".join)
def test_the_rows_of_the_benchmark_are_what_they_say(row):
    network, balancing = row
    made = config.load(benchmark.list_files(network, balancing), []).model
    kinds = {"a network a task": "SingleTask", "one network": "SharedBottom", "MTAN": "MTAN"}
    assert type(made.network).__name__ == kinds[network]
    assert made.adds_losses == (balancing != "cagrad")
    assert made.reads_losses == (balancing != "equal")
    assert all(head.is_dense for head in made.heads)


def test_gains_are_relative_and_point_up():
    base = {f"{t}/{m}": 0.5 for t, own in benchmark.METRICS.items() for m in own}
    better = {
        f"{t}/{m}": 0.6 if higher else 0.4
        for t, own in benchmark.METRICS.items()
        for m, higher in own.items()
    }
    assert benchmark.compute_gain(base, base) == 0
    np.testing.assert_allclose(benchmark.compute_gain(better, base), 20)
    results = {row: [base, better] for row in benchmark.ROWS}
    results[benchmark.ROWS[1]] = [better, better]
    lines = benchmark.build_table(results).splitlines()
    assert lines[2].split("|")[-2].strip() == ""
    assert lines[3].split("|")[-2].strip() == "+10.0 ± 10.0"
