"""The names of tasks are valid scopes, and no two tasks share a name."""

import numpy as np
import pytest

from mtl.tools.drafting import tasks


def name(*columns):
    """The names of tasks of these columns."""
    made = [
        tasks.Task(
            label=column,
            name=tasks._scope(column),
            dtype="int64",
            head="Binary",
            settings={},
            why="",
            hints=(),
            target=np.zeros(1),
            metric="auc",
        )
        for column in columns
    ]
    return [one.name for one in tasks.tell_apart(made)]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["клик", "минуты", "цена"], ["task", "task_2", "task_3"]),
        (["clicked", "минуты"], ["clicked", "task"]),
        (["größe", "café"], ["groe", "cafe"]),
        (["a b", "a_b", "a-b"], ["a_b_2", "a_b", "a_b_3"]),
        (["a b", "a_b", "a_b_2"], ["a_b_3", "a_b", "a_b_2"]),
        (["_a", "a_", "a"], ["a_2", "a_", "a"]),
        (["raw", "lean", "raw!"], ["task_raw", "task_lean", "task_raw_2"]),
        (["2024", "7"], ["task_2024", "task_7"]),
    ],
)
def test_each_task_has_a_name_of_its_own(columns, names):
    assert name(*columns) == names
