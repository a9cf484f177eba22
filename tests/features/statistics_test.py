import json

import numpy as np
import pytest

from mtl import checks, features
from mtl.features import accumulators, statistics

VOCABULARY = "vocabulary_job.txt"


@pytest.fixture(name="directory")
def _directory(tmp_path):
    """Statistics of a vocabulary and of moments."""
    words = accumulators.Vocabulary(reads={"job": np.asarray}, min_count=1, max_size=None)
    words.update([b"cook", b"clerk", b"cook", "a\u2028b".encode()])
    ages = accumulators.Moments(source="age", read=np.asarray)
    ages.update([[1.0], [3.0]])
    statistics.save_statistics({"job": words, "age": ages}, str(tmp_path / "statistics"))
    return tmp_path / "statistics"


def _strip(directory):
    """As an earlier version wrote them."""
    path = directory / "statistics.json"
    entries = json.loads(path.read_text())
    del entries["checksum"], entries["job"]["checksum"]
    path.write_text(json.dumps(entries))


@pytest.mark.parametrize("file", [VOCABULARY, "statistics.json"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"\0" * len(data),
        lambda data: data.replace(b"cook", b"coob").replace(b"2.0", b"3.0"),
        lambda data: b"",
        lambda data: data.replace(b"\n", b"\n\n"),
        lambda data: data + b"more\n",
    ],
)
def test_damage_is_refused(directory, file, damage):
    path = directory / file
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    if file == "statistics.json" and json_of(path) == json_of_bytes(whole):
        return  # White space means nothing there.
    with pytest.raises(
        checks.UserError, match=f"{file} is damaged: .*Copy the file back, or start again"
    ):
        features.load_statistics(str(directory))


def json_of(path):
    return json_of_bytes(path.read_bytes())


def json_of_bytes(data):
    try:
        return json.loads(data)
    except ValueError:
        return data


def test_a_vocabulary_that_is_gone(directory):
    (directory / VOCABULARY).unlink()
    with pytest.raises(checks.UserError, match=f"{VOCABULARY} is gone. Copy the file back"):
        features.load_statistics(str(directory))


def test_statistics_of_an_earlier_version_are_taken_and_sealed(directory):
    entries = features.load_statistics(str(directory)).entries
    _strip(directory)
    found = features.load_statistics(str(directory))
    assert found.for_column("age") == entries["age"] and found.for_column("job")["size"] == 3
    features.seal_statistics(str(directory))
    assert features.load_statistics(str(directory)).entries == entries
    path = directory / VOCABULARY
    path.write_bytes(path.read_bytes().replace(b"cook", b"coob"))
    with pytest.raises(checks.UserError, match="is damaged"):
        features.load_statistics(str(directory))


def test_a_vocabulary_of_an_earlier_version_has_its_length_at_least(directory):
    _strip(directory)
    (directory / VOCABULARY).write_text("cook\n")
    with pytest.raises(checks.UserError, match="is damaged: it holds 1 of 3 categories"):
        features.load_statistics(str(directory))


def test_nothing_fitted_is_nothing(tmp_path):
    features.seal_statistics(str(tmp_path))
    assert features.load_statistics(str(tmp_path)).entries == {}
    assert list(tmp_path.iterdir()) == []


def test_statistics_that_are_gone_are_named(directory):
    (directory / "statistics.json").unlink()
    with pytest.raises(checks.UserError, match="/statistics.json is missing: it was lost, or"):
        features.load_statistics(str(directory)).for_column("age")
