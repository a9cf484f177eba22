import pytest

from benchmarks import augmentation as benchmark
from mtl.configs import config


@pytest.mark.parametrize("name", benchmark.ROWS)
def test_every_row_differs_from_its_baseline_in_what_it_names(name):
    files, params = benchmark.ROWS[name]
    leaves = [str(benchmark._FOLDER / "augmentation" / f"{file}.gin") for file in files]
    base = benchmark.find_baseline(name)
    made = config.load([str(benchmark._FILE), *leaves], list(params)).model
    plain = config.load([str(benchmark._FILE)], list(benchmark.ROWS[base][1])).model
    is_changed = bool(made.columns[0].augmentations or made.mixing)
    assert is_changed == (name != base)
    assert made.network == plain.network


def test_differences_are_paired_with_the_same_network():
    results = {
        "none": [90.0, 92.0],
        "crop by 2": [91.0, 95.0],
        "none, no batch norm": [80.0, 80.0],
        "mixup 0.2, no batch norm": [81.0, 81.0],
    }
    lines = benchmark.build_table(results).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [points for _, _, points in cells] == ["", "+2.0 ± 1.0", "", "+1.0 ± 0.0"]
