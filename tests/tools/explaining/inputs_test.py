"""The fields of a history are permuted together; each column is traced back to its fields."""

import numpy as np
import pytest

from mtl import checks, features, histories, spec
from mtl.tools.explaining import inputs
from tests.tools.explaining import conftest

EXPERIMENT = conftest.make()
COLUMNS = EXPERIMENT.model.columns


def names(found):
    return [one.name for one in found]


def test_lists_of_one_history_go_together_and_what_no_column_reads_is_left_out():
    found = inputs.list_inputs(conftest.SPEC, COLUMNS, [])
    assert names(found) == ["a", "b", "noise", "number", "word", "items + times"]
    assert found[-1].fields == ("items", "times")


def test_what_a_head_alone_reads_is_an_input():
    found = inputs.list_inputs(conftest.SPEC, COLUMNS, ["unread"])
    assert names(found)[-1] == "unread"


def test_histories_that_share_a_list_are_one_input_and_a_cross_of_single_values_is_none():
    lists, singles = dict.fromkeys("xyzl", ("int64", (None,))), dict.fromkeys("pq", "string")
    own = spec.Spec(features={**lists, **singles}, labels={"label": "int64"})

    def history(name, fields):
        part = features.Identity(names=fields, size=5, dimension=2, prefix=f"item_{name}")
        return features.History(name=name, events=[part], encoder=histories.Pooling())

    crossed = features.Crossed(crosses=[["p", "q"], ["l", "x"]], dimension=2)
    columns = [history("one", ["y", "z"]), history("two", ["x", "y"]), crossed]
    assert names(inputs.list_inputs(own, columns, [])) == ["x + y + z", "l", "p", "q"]


def test_fields_are_chosen_and_groups_come_beside_them():
    found = inputs.list_inputs(conftest.SPEC, COLUMNS, [])
    chosen = inputs.choose_inputs(found, ["word", "times"], [["a", "items"]])
    assert names(chosen) == ["word", "items + times", "a + items + times"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((["nois"], [], []), "--fields must be one of .* Did you mean 'noise'"),
        (([], [["a", "unread"]], []), "--group must be one of"),
        (([], [["a"]], []), "--group must hold several fields"),
        (([], [["a", "a"]], []), "--group must"),
        (([], [], ["unread"]), "--dependence must be one of"),
    ],
)
def test_names_of_flags_are_checked(names, message):
    with pytest.raises(checks.UserError, match=message):
        inputs.check_names(["a", "noise"], *names)


def test_a_column_is_made_of_the_fields_of_what_it_reads_too():
    target = features.Identity(names=["number"], size=3, dimension=2)
    clicks = features.History(
        name="clicks",
        events=[features.Identity(names=["items"], size=3, dimension=2, prefix="item")],
        encoder=histories.TargetAttention(),
        target=["identity_number"],
    )
    found = inputs.fields_of_columns([target, clicks, *COLUMNS[:2]])
    assert found["clicks"] == ("items", "number")
    assert found["numeric_a"] == ("a",) and found["categorical_word"] == ("word",)


def test_whole_numbers_are_in_an_order_only_where_a_column_reads_numbers():
    ids = [features.Identity(names=["number"], size=3)]
    assert inputs.is_number(conftest.SPEC, COLUMNS, "number")
    assert not inputs.is_number(conftest.SPEC, ids, "number")
    buckets = features.Bucketized(names=["number"], boundaries=[1.5])
    assert inputs.is_number(conftest.SPEC, [*ids, buckets], "number")
    assert not inputs.is_number(conftest.SPEC, COLUMNS, "word")


@pytest.mark.medium
def test_rows_are_told_in_few_letters(held):
    told = inputs.read_row(held.take([0]).features, 0)
    assert told["word"] in ("red", "green", "blue") and told["items"].startswith("[")
    assert inputs.tell_value(np.zeros([8, 8, 1])) == "[0, 0, 0, 0, ...] (8 × 8 × 1)"
    assert inputs.tell_value(b"") == "(empty)" and inputs.tell_value(np.float32(0.1)) == "0.1"
    assert inputs.tell_value(np.float32([np.nan, 2])) == "[(missing), 2]"
    assert inputs.tell_value(np.int64(-(2**63))) == "(missing)" != inputs.tell_value(np.int64(-1))
