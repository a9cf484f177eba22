"""Runs side by side: marks, seeds, order, and tables for narrow terminals."""

import csv
import dataclasses
import math

import pytest

from mtl import checkpoints, checks, heads
from mtl.heads import softmax
from mtl.tools.reports import comparison, comparison_page, comparison_text, page
from tests import tiny
from tests.tools.reports import runs


def _found(values, metric="sign/auc"):
    """A comparison of {name: (seed, other settings, value)}."""
    return comparison.compare(
        {
            name: runs.make(f"runs/{name}", {metric: value}, tiny.make(seed=seed, **others))
            for name, (seed, others, value) in values.items()
        }
    )


SEEDS = {
    "a": (1, {}, 0.80),
    "b": (2, {}, 0.70),
    "c": (3, {}, 0.90),
    "d": (1, {"micro_batches": 2}, 0.82),
    "e": (2, {"micro_batches": 2}, 0.71),
    "f": (3, {"micro_batches": 2}, 0.96),
}


def test_differences_are_paired_by_seed():
    (pair,) = _found(SEEDS).pairs
    differences = [0.02, 0.01, 0.06]
    mean = sum(differences) / 3
    error = math.sqrt(sum((d - mean) ** 2 for d in differences) / 2 / 3)
    assert pair.first == ("a", "b", "c") and pair.second == ("d", "e", "f")
    assert pair.difference == pytest.approx(mean) and pair.error == pytest.approx(error)


def test_groups_have_a_mean_and_a_standard_error():
    first, second = _found(SEEDS).groups
    assert first.runs == ("a", "b", "c") and first.mean == pytest.approx(0.8)
    assert first.error == pytest.approx(0.1 / math.sqrt(3))
    assert second.mean == pytest.approx((0.82 + 0.71 + 0.96) / 3)


def test_seeds_that_only_one_group_has_are_no_pairs():
    values = {**SEEDS, "d": (7, {"micro_batches": 2}, 0.82), "e": (8, {"micro_batches": 2}, 0.8)}
    assert not _found(values).pairs


def test_a_second_run_of_a_seed_counts_once_and_is_named():
    found = _found({**SEEDS, "again": (3, {}, 0.90)})
    first, _ = found.groups
    assert first.runs == ("a", "b", "c") and first.error == pytest.approx(0.1 / math.sqrt(3))
    assert found.pairs == _found(SEEDS).pairs
    line = "again has the same settings and seed as c: means contain only c."
    assert line in comparison_text.describe(found, 80)
    assert line in page.render(comparison_page.describe(found))


def test_two_runs_of_one_seed_are_no_group():
    found = _found({"a": (1, {}, 0.8), "b": (1, {}, 0.8)})
    assert not found.groups and found.repeats == {"b": "a"}


def test_undefined_runs_and_left_out_seeds_are_named():
    found = _found({**SEEDS, "c": (3, {}, math.nan), "g": (9, {}, 0.9)})
    first, second = found.groups
    assert first.runs == ("a", "b", "g") and first.left_out == ("c",) and not second.left_out
    assert first.mean == pytest.approx(0.8)
    (pair,) = found.pairs
    assert pair.left_out == (3, 9) and pair.difference == pytest.approx(0.015)
    shown = page.render(comparison_page.describe(found)), comparison_text.describe(found, 200)
    for text in shown:
        assert "a, b, g; c undefined" in text and "; without seeds 3, 9" in text


def test_a_group_without_values_says_so():
    found = _found({"a": (1, {}, 0.5), "b": (2, {}, math.nan), "c": (3, {}, math.nan)})
    (group,) = found.groups
    assert group.runs == ("a",) and math.isnan(group.error)
    assert "a; b, c undefined" in comparison_text.describe(found, 200)


def test_tiny_and_huge_values_keep_their_digits():
    metric = "size/rmse"
    values = {"a": (1, {}, 2e-6), "b": (2, {}, 4e-6), "c": (3, {}, 6e-6)}
    assert "4.0e-06 ± 1.2e-06" in comparison_text.describe(_found(values, metric), 200)
    others = {name: (seed, {"micro_batches": 2}, v / 2) for name, (seed, _, v) in values.items()}
    others = {f"{name}{name}": one for name, one in others.items()}
    text = comparison_text.describe(_found({**values, **others}, metric), 200)
    assert "-2.0e-06 ± 5.8e-07" in text


def test_a_metric_takes_its_direction_from_best_where_no_head_has_one():
    metric, made = "sign/label_mean", {}
    for name, seed, value in (("a", 1, 0.2), ("b", 2, 0.3)):
        best = checkpoints.Best(metric=metric, higher_is_better=False)
        made[name] = runs.make(f"runs/{name}", {metric: value}, tiny.make(best=best, seed=seed))
    found = comparison.compare(made)
    assert found.best_of(metric) == ["a"] and comparison.sort_by(found, metric) == ["a", "b"]
    assert found.groups[0].metric == metric


def test_the_better_run_is_marked_by_the_direction_of_the_metric():
    values = {"a": (1, {}, 0.2), "b": (2, {}, 0.3)}
    assert _found(values, "sign/auc").best_of("sign/auc") == ["b"]
    assert _found(values, "sign/average_loss").best_of("sign/average_loss") == ["a"]
    assert _found(values, "sign/label_mean").best_of("sign/label_mean") == []
    equal = {"a": (1, {}, 0.2), "b": (2, {}, 0.2)}
    assert _found(equal).best_of("sign/auc") == []
    undefined = {"a": (1, {}, math.nan), "b": (2, {}, 0.2), "c": (3, {}, 0.1)}
    assert _found(undefined).best_of("sign/auc") == ["b"]


def test_runs_that_were_evaluated_on_different_rows_are_not_ranked():
    def compare(*rows):
        return comparison.compare(
            {
                name: runs.make(
                    f"runs/{name}",
                    {"sign/auc": value},
                    tiny.make(seed=seed),
                    **({} if fields is None else {"measured_on": {"fields": fields}}),
                )
                for name, seed, value, fields in zip(
                    "abc", (1, 2, 3), (0.2, 0.3, 0.1), rows, strict=False
                )
            }
        )

    same = {"sign int64": "48 rows, 1", "age float32": "48 rows, 2"}
    others = {**same, "job string": "48 rows, 5"}  # A run with another input.
    for rows in ((same, same), (same, others), (same, None), ({}, same)):
        found = compare(*rows)
        assert found.best_of("sign/auc") == ["b"] and comparison.describe_rows(found) == ""
    found = compare(same, {**others, "age float32": "48 rows, 3"}, same)
    assert found.best_of("sign/auc") == []
    line = comparison.describe_rows(found)
    assert line.startswith("The runs were evaluated on different rows, which differ in age: values")
    for text in (comparison_text.describe(found, 100), comparison_text.rank(found, "sign/auc", 80)):
        assert line in text and "0.3000*" not in text
    assert line in str(comparison_page._tell_seeds(found))


def _change_head(**settings):
    made = tiny.make()
    heads = [dataclasses.replace(made.model.heads[0], **settings), *made.model.heads[1:]]
    return dataclasses.replace(made, model=dataclasses.replace(made.model, heads=heads))


@pytest.mark.parametrize(
    "settings, compares", [({"focal_gamma": 2.0}, False), ({"threshold": 0.6}, True)]
)
def test_losses_of_different_definitions_are_not_ranked(settings, compares):
    names = ["average_loss", "sign/average_loss", "kind/average_loss", "sign/auc"]
    found = comparison.compare(
        {
            "plain": runs.make("runs/plain", dict.fromkeys(names, 0.6), tiny.make()),
            "focal": runs.make("runs/focal", dict.fromkeys(names, 0.2), _change_head(**settings)),
        }
    )
    assert found.best_of("kind/average_loss") == ["focal"]
    assert found.best_of("sign/auc") == ["plain"]
    is_marked = {name: found.best_of(name) == ["focal"] for name in names[:2]}
    assert is_marked == dict.fromkeys(names[:2], compares)
    line = comparison.describe_losses(found, names)
    expected = (
        "Settings of the heads of sign differ, and may change the meaning of metrics: do not "
    )
    expected += "compare average_loss, sign/average_loss."
    assert line == ("" if compares else expected)
    text = comparison_text.rank(found, "sign/average_loss", 80)
    assert ("do not compare sign/average_loss." in text) == (not compares)
    assert ("do not compare" in comparison_text.describe(found, 100)) == (not compares)
    assert line in str(comparison_page._tell_seeds(found))


def test_metrics_of_rows_with_other_weights_are_not_ranked():
    values = dict.fromkeys(["sign/auc", "kind/accuracy"], 0.6)
    found = comparison.compare(
        {
            "plain": runs.make("runs/plain", values, tiny.make()),
            "weighted": runs.make(
                "runs/weighted", dict.fromkeys(values, 0.7), _change_head(weight="label_weight")
            ),
        }
    )
    assert found.best_of("sign/auc") == [] and found.best_of("kind/accuracy") == ["weighted"]
    assert "do not compare sign/auc." in comparison_text.rank(found, "sign/auc", 80)


@pytest.mark.parametrize(
    "head, settings, metric",
    [
        (heads.MultiClass(name="kind", classes=3), {"weight": "w"}, "kind/recall/1"),
        (heads.MultiClass(name="kind", classes=3), {"classes": 4}, "kind/accuracy@size=1/2"),
        (heads.MultiLabel(name="kind", classes=3), {"empty_is_missing": True}, "kind/auc"),
        (heads.Segmentation(name="kind", classes=3), {"ignored": 0}, "kind/iou/1"),
        (
            heads.Survival(name="kind", boundaries=[1.0], event="died"),
            {"event": "sold"},
            "kind/concordance",
        ),
        (heads.MultiClass(name="kind", classes=3), {"recall_limit": 0}, "kind/recall/1"),
        (
            heads.MultiClass(name="kind", classes=3),
            {"objective": softmax.CrossEntropy(label_smoothing=0.1)},
            "kind/average_loss@size=1/2",
        ),
    ],
)
def test_metrics_of_other_rows_or_of_single_classes_are_not_ranked(head, settings, metric):
    made, values = tiny.make(), iter((0.6, 0.7))
    compared = {}
    for name, own in (("plain", {}), ("other", settings)):
        kind = dataclasses.replace(head, **own)
        model = dataclasses.replace(made.model, heads=[made.model.heads[0], kind])
        run = dataclasses.replace(made, model=model)
        compared[name] = runs.make(f"runs/{name}", {metric: next(values)}, run)
    found = comparison.compare(compared)
    assert metric in found.directions
    assert bool(found.best_of(metric)) == ("recall_limit" in settings)


def test_order_of_a_folder():
    values = {"a": (1, {}, 0.2), "b": (2, {}, math.nan), "c": (3, {}, 0.3)}
    assert comparison.sort_by(_found(values), "sign/auc") == ["c", "a"]
    found = _found(values, "sign/average_loss")
    assert comparison.sort_by(found, "sign/average_loss") == ["a", "c"]
    with pytest.raises(checks.UserError, match="Did you mean 'sign/auc'"):
        comparison.sort_by(_found(values), "sign/auk")
    with pytest.raises(checks.UserError, match="higher or lower values are better"):
        comparison.sort_by(_found(values, "sign/label_mean"), "sign/label_mean")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_the_terminal(width):
    text = comparison_text.describe(_found(SEEDS), width)
    assert "0.9600*" in text and "run.micro_batches" in text and "+0.0300 ± 0.0153" in text
    lines = [line for line in text.splitlines() if line.startswith(" ")]
    assert max(map(len, lines)) <= max(width, 60)


def test_csv_holds_all_digits(tmp_path):
    value = 0.9944444298744202
    path = tmp_path / "runs.csv"
    comparison_text.write_csv(str(path), _found({"a": (1, {}, value), "b": (2, {}, 0.5)}))
    first, _ = csv.DictReader(path.open())
    assert first["sign/auc"] == "0.9944444298744202" and first["setting: run.seed"] == "1"


def test_the_page_shows_the_better_run_in_green():
    html = page.render(comparison_page.describe(_found(SEEDS)))
    cell = '<td class="best number"><data value="0.96" title="0.96">0.9600</data></td>'
    assert cell in html


def test_runs_of_one_name_are_told_by_their_folders():
    folders = ["x/a", "y/a/", "z/b"]
    assert list(comparison_text.iterate_names(folders)) == ["x/a", "y/a/", "b"]
