import os

import pytest

from benchmarks import networks as benchmark
from mtl import checks, networks

RUNS = {
    "single_task": [{"a": 0.5, "b": 0.8, "seconds": 9, "step": 3}, {"a": 0.7, "b": 0.6}],
    "mmoe": [{"a": 0.6, "b": 0.8, "seconds": 9, "step": 3}, {"a": 0.7, "b": 0.5}],
}


def test_networks_are_the_files_of_the_folder():
    found = benchmark.find_networks()
    assert {"single_task", "shared_bottom_mlp", "mmoe", "ple"} <= set(found)
    assert not set(found) & set(benchmark.LEFT_OUT)
    assert benchmark.find_networks(["ple", "mmoe"]) == ["ple", "mmoe"]
    with pytest.raises(checks.UserError, match="--networks must be one of .*mean 'mmoe'"):
        benchmark.find_networks(["mmeo"])
    with pytest.raises(checks.UserError, match="got 'shared_bottom_convnet'. takes images"):
        benchmark.find_networks(["shared_bottom_convnet"])


def test_all_widths_of_a_network_but_those_of_towers_get_one_factor():
    expert, tower = networks.MLP(layers=[64, 32]), networks.MLP(layers=[3])
    scaled = benchmark.scale_widths(networks.MMoE(expert=expert, tower=tower), 0.5)
    assert scaled.expert.layers == [32, 16]
    assert scaled.tower == tower
    assert scaled.num_experts == networks.MMoE(expert=expert).num_experts
    stages = networks.CrossStitch(stages=[expert, tower])
    assert [s.layers for s in benchmark.scale_widths(stages, 2).stages] == [[128, 64], [6]]


def test_widths_stay_wide_enough_and_divide_by_heads():
    scaled = benchmark.scale_widths(networks.MLP(layers=[128, 16, 4]), 0.01)
    assert scaled.layers == [8, 8, 4]
    streams = [networks.MLP(layers=[64]), networks.MLP(layers=[50])]
    scaled = benchmark.scale_widths(networks.FinalMLP(streams=streams, num_heads=4), 0.9)
    assert [stream.layers for stream in scaled.streams] == [[56], [44]]


def test_differences_are_paired_by_seed():
    found = benchmark.differences(RUNS["mmoe"], RUNS["single_task"], ["a", "b"])
    assert found["a"] == pytest.approx((0.05, 0.05))
    assert found["b"] == pytest.approx((-0.05, 0.05))
    assert found["mean"] == pytest.approx((0.0, 0.05))


def test_the_table_leaves_out_what_one_seed_cannot_tell():
    baselines = dict.fromkeys(RUNS, "single_task")
    header, single, mmoe = benchmark.table(RUNS, baselines, "auc")
    names = ["a auc", "difference", "b auc", "difference", "mean auc", "difference"]
    assert header == ["", *names]
    assert single == ["single_task", "0.6000", "", "0.7000", "", "0.6500", ""]
    assert mmoe[:3] == ["mmoe", "0.6500", "+0.0500 ± 0.0500"]
    of_one = {name: runs[:1] for name, runs in RUNS.items()}
    assert benchmark.table(of_one, baselines, "auc")[2][2] == "+0.1000"


def test_plots_have_a_panel_for_each_task_and_a_line_for_each_network():
    drawn = benchmark.plot_networks(RUNS, "single_task", "auc")
    assert all(f">{title}</text>" in drawn for title in ("a, auc", "b, auc", "mean, auc"))
    by_place = {(name, place): runs for name, runs in RUNS.items() for place in (0.0, 1.0)}
    drawn = benchmark.plot_correlations(by_place, "single_task", "rmse")
    assert ">mmoe</text>" in drawn and ">single_task</text>" not in drawn
    assert drawn.count('class="line thin"') == 2


@pytest.mark.medium
def test_networks_are_made_as_large_as_they_should_be(tmp_path):
    made = benchmark.Comparison(
        name="related_tasks", data_dir="", out=str(tmp_path), parameters=5000
    )
    (tmp_path / "related_tasks").mkdir()
    (tmp_path / "related_tasks" / "input_widths.json").write_text('{"numeric_x": 40}')
    for network in ("shared_bottom_mlp", "mmoe"):
        found = made.fit_width(network)
        sized = made.sized(network, seed=2)
        assert made.count_parameters(sized.model) == found["parameters"]
        assert abs(found["parameters"] / 5000 - 1) < 0.15
        assert sized.run.seed == sized.data.source.seed == 2


@pytest.mark.medium
def test_a_network_that_cannot_be_made_so_small_stays_as_it_is(tmp_path):
    made = benchmark.Comparison(name="adult", data_dir="x", out=str(tmp_path), parameters=5000)
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "input_widths.json").write_text('{"numeric_x": 100}')
    found = made.fit_width("dcn_v2")
    assert found["factor"] == 1 and found["parameters"] > 2 * 100 * 100
    assert made.sized("dcn_v2", seed=1).model.network == made.load("dcn_v2", seed=1).model.network


@pytest.mark.medium
def test_adult_is_cut_so_that_the_test_file_chooses_nothing(tmp_path):
    made = benchmark.Comparison(name="adult", data_dir="x", out=str(tmp_path), parameters=9)
    experiment = made.load("mmoe", seed=3)
    assert experiment.run.seed == 3
    assert experiment.data.train_split == "train[:80%]"
    assert experiment.data.eval_split == "train[80%:]"
    assert experiment.data.source.manual_dir == "x"
    assert experiment.best.metric == "average_loss"


@pytest.mark.medium
def test_steps_of_a_network_with_a_schedule_are_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "_TIMED_STEPS", 1)
    monkeypatch.setattr(benchmark, "_ROUNDS", 1)
    made = benchmark.Comparison(name="adult", data_dir="x", out=str(tmp_path), parameters=9)
    (tmp_path / "adult" / "9" / "ltb").mkdir(parents=True)
    (tmp_path / "adult" / "input_widths.json").write_text('{"numeric_x": 10}')
    (tmp_path / "adult" / "9" / "ltb" / "width.json").write_text('{"factor": 0.1}')
    assert made.time_steps("ltb") > 0


def test_each_correlation_has_results_of_its_own(tmp_path):
    made = benchmark.Comparison(name="related_tasks", data_dir="", out=str(tmp_path), parameters=9)
    params = [f"RelatedTasks.correlation = {value}" for value in (0.0, 0.5, 1.0)]
    names = [os.path.basename(made.result_path("mmoe", 1, [param])) for param in params]
    assert names == [f"seed_1_correlation_{value}.json" for value in ("0.0", "0.5", "1.0")]
