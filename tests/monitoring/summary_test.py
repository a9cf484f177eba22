import shlex

import numpy as np
import pytest

from mtl.monitoring import summary
from mtl.transfer import checkpoint


def test_metrics_table_keeps_tasks_apart():
    metrics = {"global_step": 9, "b/rmse": 1.0, "loss": 0.123456, "a/recall/x": 0.5, "a/auc": 1}
    metrics["a/few"] = float("nan")
    assert summary.metrics_table(metrics).splitlines() == [
        "  a",
        "    auc                  1.0000      few                  n/a         "
        "recall/x             0.5000",
        "  b",
        "    rmse                 1.0000",
        "  all tasks",
        "    loss                 0.1235",
    ]


def test_one_loss_of_all_tasks_is_shown():
    """The mean over batches, which Estimator adds, has another value if the last one is smaller."""
    table = summary.metrics_table({"global_step": 9, "loss": 0.25, "average_loss": 0.5, "a/auc": 1})
    assert "average_loss         0.5000" in table and "0.2500" not in table


def test_an_evaluation_is_one_line_that_marks_the_best():
    metrics = {"global_step": 9, "a/auc": 0.87654321, "b/rmse": float("nan"), "loss": 1234.5678}
    shown = ["a/auc", "b/rmse"]
    expected = "step 9 evaluated: a/auc 0.87654 (best so far), b/rmse n/a"
    assert summary.describe_evaluation(metrics, shown, "a/auc", True) == expected
    expected = "step 9 evaluated: a/auc 0.87654, b/rmse n/a, loss 1234.6 (best so far)"
    assert summary.describe_evaluation(metrics, shown, "loss", True) == expected
    assert (
        summary.describe_evaluation(metrics, [], "loss", False) == "step 9 evaluated: loss 1234.6"
    )


def test_metrics_that_warn_are_shown_where_they_are_above_zero():
    metrics = {"a/auc": 0.5, "a/auc_error_bound": 0.0, "a/nan_predictions": 0.0}
    metrics["b/auc_error_bound"], metrics["b/nan_predictions"] = 8e-07, 12.0
    metrics["c/auc_error_bound"] = float("nan")  # As the area itself.
    assert summary.metrics_table(metrics).splitlines() == [
        "  a",
        "    auc                  0.5000",
        "  b",
        "    auc_error_bound      8.0e-07     nan_predictions      12.0000",
    ]


@pytest.mark.parametrize(
    "value,shown",
    [
        (0.0, "0.0000"),
        (2e-6, "2.0e-06"),
        (0.00005, "0.0001"),
        (-999.9999, "-999.9999"),
        (-12345.678, "-12345.6780"),
        (-123456.78, "-1.2346e+05"),
        (99_999.99999, "1.0000e+05"),
        (-1.2345e99, "-1.2345e+99"),
        (float("nan"), "n/a"),
        (float("inf"), "∞"),
        (float("-inf"), "-∞"),
    ],
)
def test_numbers_are_short_and_keep_their_size(value, shown):
    assert summary.shorten(value) == shown


def test_columns_of_huge_numbers_stay_apart():
    (_, line) = summary.metrics_table({"a/b": 1.5e200, "a/c": -123456.7}).splitlines()
    assert line.split() == ["b", "1.5000e+200", "c", "-1.2346e+05"]


def test_the_summary_names_what_is_there(tmp_path):
    for version in ("latest/9", "latest/10", "latest/temp-11", "best/8"):
        (tmp_path / "export" / version).mkdir(parents=True)
    text = summary.of_training(str(tmp_path), {"loss": 1.0, "global_step": 7}, 5, "shop")
    assert "Trained 5 steps, up to step 7." in text
    assert f"  export           {tmp_path}/export/latest/10\n" in text
    assert "best" not in text  # That export is of a run before this one.
    assert "latest:/models/shop -e MODEL_NAME=shop tensorflow/serving" in text
    assert f"python -m launch.predict --model_dir {tmp_path} --checkpoint latest" in text
    checkpoint.write_checkpoint(
        {"global_step": np.int64(7)}, str(tmp_path / "best" / "model.ckpt-7")
    )
    text = summary.of_training(str(tmp_path), {"loss": 1.0, "global_step": 7}, 5, "shop")
    assert f"  best export      {tmp_path}/export/best/8\n" in text
    assert "best:/models/shop -e MODEL_NAME=shop tensorflow/serving" in text
    assert f"python -m launch.predict --model_dir {tmp_path} --checkpoint best" in text


def test_commands_of_a_folder_with_spaces_can_be_pasted(tmp_path):
    folder = tmp_path / "my runs"
    (folder / "export" / "latest" / "9").mkdir(parents=True)
    text = summary.of_training(str(folder), {"loss": 1.0, "global_step": 7}, 5, "shop")
    commands = [shlex.split(line) for line in text.partition("Next:\n")[2].splitlines()]
    assert all(str(folder) in command for command in commands[:5])
    assert f"{folder}/export/latest:/models/shop" in commands[5]
