"""Counts of texts against collections.Counter; bounds beyond the table."""

import collections

import numpy as np
import pyarrow as pa
import pytest

from mtl.tools.statistics import hashing, texts


def _gather(values, step=500, **limits):
    made = texts.Texts(**limits)
    for start in range(0, len(values), step):
        made.add(pa.array(values[start : start + step]))
    return made


def test_counts_are_exact():
    draw = np.random.default_rng(0)
    values = [f"w{n}" * (n % 3) for n in draw.zipf(1.5, 5000) % 800] + ["é", "日本"]
    found, true = _gather(values), collections.Counter(values)
    assert found.is_exact and found.lost == 0 and found.count == len(values)
    assert found.count_distinct() == len(true)
    counted = zip(*found.read_counts(), strict=True)
    assert {value.as_py().decode(): count for value, count in counted} == true
    assert found.list_frequent(1) == [
        (true.most_common(1)[0][0].encode(), true.most_common(1)[0][1])
    ]
    lengths = [len(value.encode()) for value in values]
    assert (found.bytes, found.shortest, found.longest) == (
        sum(lengths),
        min(lengths),
        max(lengths),
    )


@pytest.mark.parametrize("limits", [{"most": 1000}, {"most_bytes": 20_000}])
def test_beyond_the_table_the_bound_holds(limits, monkeypatch):
    monkeypatch.setattr(texts, "_WAITING", 200)
    draw = np.random.default_rng(0)
    values = [f"word{n}" for n in draw.zipf(1.3, 30_000) % 20_000]
    values += ["often"] * 2000
    draw.shuffle(values)
    found, true = _gather(values, **limits), collections.Counter(values)
    kept = {value.decode(): count for value, count in found.list_frequent(10**6)}
    assert not found.is_exact and 0 < found.lost < 500
    for value, count in true.items():
        assert count - found.lost <= kept.get(value, 0) <= count
    assert abs(found.count_distinct() / len(true) - 1) < 5 * hashing.ERROR
    assert found.count == len(values)


def test_a_long_text_counts_as_one(monkeypatch):
    found = _gather(["x" * 100_000, "a", "a"], most_bytes=1000)
    assert found.count == 3 and found.longest == 100_000
    assert dict(found.list_frequent(9)).get(b"a", 0) + found.lost >= 2
    assert found.count_distinct() == 2


def test_hashes_depend_on_the_text_alone():
    words = ["", "a", "b", "ab", "ba", "aa", "\0", "\0\0", "é"]
    first = hashing.hash_texts(pa.array(words))
    assert len(set(first.tolist())) == len(words)
    moved = hashing.hash_texts(pa.array(["xyz", *words[::-1]], pa.large_string())[1:])
    assert (moved[::-1] == first).all()
    many = hashing.hash_texts(pa.array([str(n) for n in range(100_000)]))
    assert len(np.unique(many)) == 100_000
    share = (many < np.uint64(2**62)).mean()
    assert abs(share - 0.25) < 0.01
