"""The record of a failure, and where rows lie in their split."""

import json
import shlex

import numpy as np
import pytest
import tensorflow as tf

from mtl import checks, distribution
from mtl.distribution import settings, tf_config
from mtl.optimization import finite
from mtl.runs import failures, places
from tests import tiny

MESSAGE = "Losses and gradients must be finite, got NaN or infinity at step 12 in 3 of them: loss."


def fail(model_dir, error, kept, *place):
    keeping = failures.keep_failure(str(model_dir), kept, *place)
    with pytest.raises(type(error)) as told, keeping:
        raise error
    return str(told.value)


def test_a_failure_is_kept_and_its_command_told(tmp_path):
    kept = []
    said = fail(tmp_path, checks.UserError(MESSAGE), lambda: kept.append(True))
    command = f"python -m launch.debug --model_dir {tmp_path} --step 12"
    assert said == f"{MESSAGE} To see the op and the rows: {command}"
    assert kept and failures.read_step(str(tmp_path)) == 12
    # The next start ends with another error.
    assert fail(tmp_path, checks.UserError("no"), lambda: kept.append(True)) == "no"
    assert len(kept) == 1 and failures.read_step(str(tmp_path)) is None


def test_a_record_that_is_to_blame_is_told_alone_and_the_step_is_kept(tmp_path):
    error = checks.UserError("train.csv line 3: field 'x' must be finite, got inf.")
    error.__cause__ = tf.errors.InvalidArgumentError(None, None, MESSAGE)
    said = fail(tmp_path, error, lambda: pytest.fail("its folder is taken back"))
    assert said == str(error) and failures.read_step(str(tmp_path)) == 12


def test_the_step_is_read_from_what_the_assertion_says():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = tf.constant([np.nan], tf.float64)
        checked = finite.Checked({"sign": values[0]}, values, [tf.Variable(1.0)])
        assertion = checked.assertion(tf.constant(1234567, tf.int64))
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            session.run(assertion)
    assert finite.find_step(error.value.message) == 1234567
    assert finite.find_step("no") is None


def test_the_command_can_be_pasted_into_a_shell(tmp_path):
    folder = tmp_path / "my runs"
    folder.mkdir()
    command = fail(folder, checks.UserError(MESSAGE), lambda: None).partition("rows: ")[2]
    expected = ["python", "-m", "launch.debug", "--model_dir", str(folder), "--step", "12"]
    assert shlex.split(command) == expected
    several = settings.Place(distribution.MIRRORED, ("/gpu:0", "/gpu:1"))
    command = fail(folder, checks.UserError(MESSAGE), lambda: None, several).partition("rows: ")[2]
    assert shlex.split(command) == [*expected, "--gin_param", "Distribution.strategy = 'none'"]


def test_no_command_is_told_where_a_step_is_not_replayed(tmp_path):
    cluster = tf_config.Cluster(jobs={"chief": ["a:1"], "worker": ["b:1"]}, job="chief", index=0)
    place = settings.Place(distribution.WORKERS, ("/cpu:0",), cluster)
    assert fail(tmp_path, checks.UserError(MESSAGE), lambda: None, place) == MESSAGE
    assert failures.read_step(str(tmp_path)) == 12


@pytest.mark.parametrize("text", ["", "[]", "{", '{"step": "x"}', '{"step": null}'])
def test_a_damaged_record_is_one_line(text, tmp_path):
    (tmp_path / failures.FILE).write_text(text)
    with pytest.raises(checks.UserError, match="must hold the step at which the run failed"):
        failures.read_step(str(tmp_path))


def test_a_row_is_found_by_its_values():
    data = tiny.make().data
    columns = tiny.SPLITS["train"]
    rows = [
        {"row": row, **{name: json_value(own[number]) for name, own in columns.items()}}
        for row, number in ((3, 40), (5, 7))
    ]
    assert places.find_places(data, rows) == {3: "train row 40", 5: "train row 7"}
    rows[0]["x"] = ["nan", 0.0, 0.0]
    rows[1]["size"] = "no number"
    assert places.find_places(data, rows) == {}
    assert places.find_places(data, rows[:1], secs=-1.0) == places.find_places(data, []) == {}


def test_a_row_without_all_fields_has_no_place():
    """If a field is left out, such as a list, the other fields may match many records."""
    data, columns = tiny.make().data, tiny.SPLITS["train"]
    row = {"row": 3, **{name: json_value(own[40]) for name, own in columns.items()}}
    assert places.find_places(data, [row]) == {3: "train row 40"}
    assert places.find_places(data, [{"row": 3}]) == {}
    assert places.find_places(data, [{"row": 3, "sign": row["sign"]}]) == {}
    del row["x"]
    assert places.find_places(data, [row]) == {}


def json_value(value):
    if isinstance(value, bytes):
        return value.decode()
    return json.loads(json.dumps(np.asarray(value).tolist()))
