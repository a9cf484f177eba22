"""Half of the rows in unknown categories are told in evaluation, prediction and at a resumption."""

from unittest import mock

import numpy as np
import pytest

from mtl import verbs
from mtl.monitoring import doubts
from mtl.runs import unknown_values
from tests import tiny

OTHERS = np.where(np.arange(96) % 2, tiny.SPLITS["train"]["word"], b"teal")


def rows(count):
    return {**{n: v[:count] for n, v in tiny.SPLITS["train"].items()}, "word": OTHERS[:count]}


def lines(caplog):
    found = [r.getMessage() for r in caplog.records if "does not know" in r.getMessage()]
    caplog.clear()
    return [line.removeprefix("Warning: ") for line in found]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run without unknown values, whose held-out rows have some later."""
    folder = str(tmp_path_factory.mktemp("run"))
    with tiny.without_exports():
        verbs.train(tiny.make(train_steps=4), folder)
    changed = {"train": rows(96), "test": rows(48)}
    return folder, tiny.make(splits=changed, train_steps=6)


HALF = "The model does not know 50.0% of the values of field 'word' "


@pytest.mark.medium
def test_a_run_that_knows_all_says_nothing(run):
    assert not [line for line in doubts.read_all_doubts(run[0]) if "does not know" in line]


@pytest.mark.medium
def test_evaluations_and_predictions_tell_once(run, caplog):
    folder, made = run
    verbs.evaluate(made, folder)
    (told,) = lines(caplog)
    assert told.startswith(f"{HALF}of split 'test', 24 of 48")
    list(verbs.predict(made, folder))
    (told,) = lines(caplog)
    assert told.startswith(f"{HALF}that are predicted, 24 of 48")


@pytest.mark.medium
def test_rows_of_files_are_counted_beside_the_model(run, caplog):
    folder, made = run
    examples = [
        made.data.spec.serialize({"x": x, "word": word})
        for x, word in zip(rows(48)["x"], rows(48)["word"], strict=True)
    ]
    with (
        verbs.open_scorer(made, folder) as model,
        verbs.count_unknown(made, folder, model) as counted,
    ):
        assert (counted.identity, counted.digest) == (model.identity, model.digest)
        for part in (examples[:20], examples[20:]):
            np.testing.assert_array_equal(
                counted(part)["sign/probability"], model(part)["sign/probability"]
            )
        assert not lines(caplog)
    (told,) = lines(caplog)
    assert told.startswith(f"{HALF}in the input, 24 of 48")


def test_a_model_in_python_tells_of_each_call_and_of_each_field_once():
    told, model = [], mock.Mock(identity="", digest="")
    shares = {b"known": [[20, 0], [20, 0]], b"word": [[20, 10], [20, 0]], b"tag": [[9, 9], [9, 9]]}

    def count(rows):
        return np.array(shares[rows[0]])

    counted = unknown_values.Counted(model, ["word", "tag"], count, told.extend)
    numbers = []
    for row in [b"known"] * 20 + [b"word"] * 2 + [b"tag"] * 4:
        assert counted([row]) is model.return_value
        counted.tell_new()
        numbers.append(len(told))
    # The first call with a new word tells. The values of tags are few until the third call.
    assert numbers == [0] * 20 + [1, 1] + [1, 1, 2, 2]
    assert "field 'word' in the input, 10 of 20" in told[0]
    assert "field 'tag' in the input, 27 of 27" in told[1]


@pytest.mark.medium
def test_a_run_that_goes_on_tells_of_both_splits(run, caplog):
    folder, made = run
    with tiny.without_exports():
        verbs.train(made, folder)
    training, held_out = lines(caplog)
    assert training.startswith(f"{HALF}in the first rows of split 'train', 48 of 96")
    assert held_out.startswith(f"{HALF}of split 'test', 24 of 48")
    assert len([line for line in doubts.read_all_doubts(folder) if "does not know" in line]) == 2
