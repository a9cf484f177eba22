"""The numbers of the pruning benchmark agree with a computation by hand."""

import numpy as np
import pytest

from benchmarks import pruning as benchmark
from mtl.variables import pruned

RANDOM = np.random.default_rng(0)
LAYERS = {"network/trunk/hidden_0": (5, 4), "network/trunk/hidden_1": (4, 3)}
LAYERS["head/digit/logits"] = (3, 2)


def test_accuracy_and_sparsity_are_those_of_masked_kernels():
    values, x, masks = {}, RANDOM.normal(size=[50, 5]), []
    for layer, shape in LAYERS.items():
        mask = (RANDOM.random(shape) < 0.5).astype(np.float32)
        masks.append(mask)
        values[f"{layer}/kernel"] = RANDOM.normal(size=shape)
        values[f"{layer}/bias"] = RANDOM.normal(size=shape[1])
        values[pruned.mask_name(f"{layer}/kernel")] = mask
    hidden = np.maximum(x, 0)  # Pixels are not negative.
    for index, (layer, mask) in enumerate(zip(LAYERS, masks, strict=True)):
        hidden = hidden @ (values[f"{layer}/kernel"] * mask) + values[f"{layer}/bias"]
        hidden = hidden if index == 2 else np.maximum(hidden, 0)
    digits = RANDOM.integers(0, 2, 50)
    found = benchmark.score(values, x, digits)
    assert found["accuracy"] == pytest.approx(100 * (hidden.argmax(1) == digits).mean())
    zeros = sum((mask == 0).sum() for mask in masks)
    assert found["sparsity"] == pytest.approx(zeros / sum(mask.size for mask in masks))


@pytest.mark.parametrize("way", benchmark.WAYS)
def test_every_way_is_a_part(way):
    (part,) = benchmark.prune(way, 0.95)
    assert part.final_sparsity == 0.95 and part.cuts_heads
    assert benchmark.prune(way, 0) == []


def test_a_cell_of_one_seed_has_no_error():
    assert benchmark.cell([0.5, 0.7], digits=3) == "0.600 ± 0.100"
    assert benchmark.cell([0.5], digits=3) == "0.500"
