"""Transfer on UCI Adult: nothing leaks, both sides choose alike, stages do what they say."""

import gzip
import itertools

import numpy as np
import pytest

from benchmarks import transfer
from launch import stages
from mtl.configs import config
from tests import tiny


def _load(stage, *params):
    return config.load([str(transfer.FOLDER / f"{stage}.gin")], params)


@pytest.mark.medium
def test_what_a_stage_predicts_is_no_input_of_any():
    made = {stage: _load(stage) for stage in ("pretrain", *transfer.STAGES)}
    labels = {head.field for stage in made.values() for head in stage.model.heads}
    assert labels == {"education", "marital-status", "hours-per-week", "income"}
    # These tell education and marital status in other words.
    labels |= {"education-num", "relationship"}
    for stage in made.values():
        fields = itertools.chain(*(column.names for column in stage.model.columns))
        assert not labels & {*fields, *stage.data.spec.features}
        assert stage.data.source.held_out == {"validation": 0.2}
        assert stage.data.eval_split == "test"
    shares = [stage.data.source.share for stage in made.values()]
    assert shares == [0.8, 0.01, 0.01, 0.01, 0.01]


@pytest.mark.medium
def test_each_side_chooses_among_as_many_settings():
    sizes = {name: len(list(itertools.product(*grid))) for name, grid in transfer.GRIDS.items()}
    assert sizes["scratch"] + sizes["scratch_linear"] == sizes["frozen"]
    for stage, grid in transfer.GRIDS.items():
        for choice in itertools.product(*grid):
            _load(stage, *itertools.chain(*choice))


def test_differences_are_paired_and_have_standard_errors():
    name = transfer.BASELINE
    results = [{name: 80.0, "frozen": 81.0}, {name: 90.0, "frozen": 93.0}]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in transfer.table(results).splitlines()
    ]
    assert lines[2] == [name, "85.0", "", "0"]
    assert lines[3] == ["frozen", "87.0", "+2.0 ± 1.0", "2"]


@pytest.mark.slow
@pytest.mark.thorough
def test_the_stages_on_adult(real_data, tmp_path):
    names = ("pretrain", "frozen", "unfrozen")
    for name in ("adult.data.gz", "adult.test.gz"):
        with gzip.open(real_data / "adult" / name) as full, gzip.open(tmp_path / name, "w") as few:
            few.writelines(itertools.islice(full, 2000))
    params = [f'adult_dir = "{tmp_path}"', "Run.train_steps = 10", "Subset.share = 0.5"]
    files = [str(transfer.FOLDER / f"{name}.gin") for name in names]
    for _ in stages.run(stages.plan(files, params, str(tmp_path))):
        pass
    pretrained, frozen, unfrozen = (tiny.variables(tmp_path / name) for name in names)
    network = [name for name in pretrained if name.startswith(("network/", "features/"))]
    network = [name for name in network if "Adam" not in name]
    assert len(network) > 5
    for name in network:
        np.testing.assert_array_equal(frozen[name], pretrained[name], err_msg=name)
        assert (unfrozen[name] != frozen[name]).any()
    start = tiny.variables(tmp_path / "unfrozen", 0)
    for name in [*network, "head/income/logits/kernel", "head/income/logits/bias"]:
        np.testing.assert_array_equal(start[name], frozen[name], err_msg=name)
    assert "head/income/logits/kernel" not in pretrained
