"""Splits of a run: gaps before defaults replace them, labels of tasks, unknown values."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from mtl import checks, features, heads, spec
from mtl.data import arrow, csv, json_lines
from mtl.tools.statistics import drift, facts, runs
from tests import tiny

_SPEC = spec.Spec(
    features={
        "age": "float32",
        "count": "int64",
        "word": "string",
        "plain": "string",
        "tags": ("string", (None,)),
        "pair": ("float32", (2,)),
        "flag": "bool",
    },
    labels={"sign": "int64", "kind": "int64", "size": "float32"},
    defaults={"age": 0.0, "count": 7, "word": "none", "pair": -1.0, "flag": False},
)
_ROWS = [
    "1.5,7,red,x,a|b,1|2,true,1,2,0.5",
    ",,,,,,,,,",
    "0,1,none,x,a,3|4,false,0,-1,1.5",
    "nan,2,red,y,b||c,5|6,,1,0,",
]
_KNOWN = [features.Categorical(names=["word"], dimension=2)]


def _write(path, rows):
    header = [*_SPEC.features, *_SPEC.labels]
    path.write_text("\n".join([",".join(header), *rows]) + "\n")
    return str(path)


def _make(source, columns=None):
    made = tiny.make(columns=columns or _KNOWN)
    data = dataclasses.replace(made.data, source=source, spec=_SPEC, batch_size=3)
    return dataclasses.replace(made, data=data)


@pytest.mark.medium
def test_gaps_are_told_from_defaults(tmp_path):
    paths = {
        "train": _write(tmp_path / "a.csv", _ROWS),
        "test": _write(tmp_path / "b.csv", _ROWS[:1]),
    }
    train, test = runs.describe_splits(_make(csv.Csv(files=paths)), str(tmp_path / "run"))
    found = train.columns
    assert {name: (c.type_name, c.missing, c.distinct) for name, c in found.items()} == {
        "age": ("float", 2, 2),
        "count": ("int", 1, 3),
        "word": ("text", 1, 2),
        "plain": ("text", 0, 3),  # An empty text is a value of a field without a default.
        "tags": ("list of text", 1, 3),
        "pair": ("list of float", 1, 6),
        "flag": ("bool", 0, 2),  # No value of a bool can stand for a gap.
        "sign": ("int", 1, 2),
        "kind": ("int", 2, 2),
        "size": ("float", 2, 2),
    }
    assert dict(found["word"].list_frequent()) == {"red": 2, "none": 1}
    assert found["tags"].texts.count == 5 and found["pair"].numbers.mean == 3.5
    assert any("bool and uint8: flag" in note for note in train.notes)
    assert any("Unknown values are not counted" in note for note in train.notes)
    assert train.tasks["sign"].labelled == 3 and train.tasks["sign"].counts == {"0": 1, "1": 2}
    assert train.tasks["size"].mean == 1.0 and train.tasks["kind"].labelled == 2
    assert (test.rows, train.rows) == (1, 4)


@pytest.mark.medium
@pytest.mark.parametrize("names", [[], ["topics"]])
def test_marks_of_missing_lists_are_no_values(names, tmp_path):
    lines = ['{"x": 1, "topics": ["a", "b"]}', '{"x": 2, "topics": null}', '{"x": 3, "topics": []}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    made = _make(json_lines.JsonLines(files={"train": str(tmp_path / "a.jsonl")}))
    its_spec = spec.Spec(features={"x": "float32"}, labels={"topics": ("string", (None,))})
    data = dataclasses.replace(made.data, spec=its_spec)
    tasks = [heads.MultiLabel(name=name, classes=["a", "b"]) for name in names]
    model = dataclasses.replace(made.model, heads=tasks) if tasks else made.model
    made = dataclasses.replace(made, data=data, model=model)
    (found,) = runs.describe_splits(made, "none", ["train"])
    column = found.columns["topics"]
    assert (column.missing, dict(column.list_frequent())) == (2, {"a": 1, "b": 1})
    assert {name: task.labelled for name, task in found.tasks.items()} == dict.fromkeys(names, 2)


@pytest.mark.medium
def test_sources_agree(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"age": 1.5, "count": 7, "word": "red", "plain": "x", "tags": ["a", "b"], '
        '"pair": [1, 2], "flag": true, "sign": 1, "kind": 2, "size": 0.5}\n{"plain": ""}\n'
    )
    table = pa.table({
        "age": [1.5, None], "count": [7, None], "word": ["red", None], "plain": ["x", ""],
        "tags": [["a", "b"], None], "pair": [[1.0, 2.0], None], "flag": [True, None],
        "sign": [1, None], "kind": [2, None], "size": [0.5, None],
    })  # fmt: skip
    parquet.write_table(table, tmp_path / "a.parquet")
    sources = {
        csv.Csv: _write(tmp_path / "a.csv", _ROWS[:2]),
        json_lines.JsonLines: str(path),
        arrow.Arrow: str(tmp_path / "a.parquet"),
    }
    seen = []
    for kind, name in sources.items():
        (found,) = runs.describe_splits(_make(kind(files={"train": name})), "none", ["train"])
        seen.append(
            {n: (c.type_name, c.missing, c.list_frequent()) for n, c in found.columns.items()}
        )
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.slow
def test_new_rows_lie_beside_the_training_split(tmp_path):
    draw = np.random.default_rng(0)

    def make_rows(count, words, shift=0.0, labels=True):
        numbers = draw.normal(size=count) + shift
        chosen = draw.choice(words, count)
        end = ",1,2,0.5" if labels else ",,,"
        return [f"{n:.4f},1,{w},x,a,1|2,true{end}" for n, w in zip(numbers, chosen, strict=True)]

    words = ["red", "green", "blue"]
    train = _write(tmp_path / "train.csv", make_rows(600, words))
    made = _make(csv.Csv(files={"train": train, "test": train}))
    model_dir = str(tmp_path / "run")
    tiny.train(made, model_dir)
    new = _write(tmp_path / "new.csv", make_rows(200, ["red", "green", "odd"], 1.0))
    before, after = runs.describe_input(made, model_dir, [new])
    assert before.rows == 600 and after.rows == 200 and len(before.notes) == 1
    assert before.columns["word"].unknown == 0.0
    odd = dict(after.columns["word"].list_frequent())["odd"]
    assert math.isclose(after.columns["word"].unknown, odd / 200)
    failures = drift.compare(before, after).list_failures(0.1)
    assert any(line.startswith("'word'") and "unknown 0." in line for line in failures)
    assert any(line.startswith("'age': KS 0.") for line in failures) and len(failures) == 2
    # Labels may be absent, and the file of the training split may have changed.
    lines = (tmp_path / "new.csv").read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(line.rsplit(",", 2)[0] for line in lines) + "\n")
    _write(tmp_path / "train.csv", make_rows(500, words))
    before, after = runs.describe_input(made, model_dir, [str(tmp_path / "few.csv")])
    assert "kind" not in before.columns and list(before.columns) == list(after.columns)
    assert list(after.tasks) == ["sign"] and list(before.tasks) == ["sign", "kind", "size"]
    assert any("has changed since the last training" in note for note in before.notes)
    assert any("left out: kind, size" in note for note in before.notes)
    with pytest.raises(checks.UserError, match="--leave_out must be one of .*got 'agee'. Did you"):
        runs.describe_splits(made, model_dir, left_out=["agee"])
    (tmp_path / "bad.csv").write_text("\n".join([lines[0], lines[1].replace("x", "")[:-4] + ",z"]))
    with pytest.raises(checks.UserError, match=r"bad.csv line 2"):
        runs.describe_input(made, model_dir, [str(tmp_path / "bad.csv")])


def _column(values, share):
    from mtl.tools.statistics import columns

    text = columns.Text(columns.Limits())
    text.add(pa.array(values))
    return dataclasses.replace(text.finish("x"), unknown=share)


def _describe(values, share):
    column = _column(values, share)
    return facts.Dataset(name="", rows=column.rows, columns={"x": column})


@pytest.mark.parametrize("least", [1, 2, 3])
def test_rare_values_of_the_training_split_are_no_drift(least):
    """A vocabulary of values that come `least` times knows more of its rows than of new ones."""
    draw = np.random.default_rng(0)
    old, new = (draw.zipf(1.3, size).astype(str) for size in (5000, 1000))
    values, counts = np.unique(old, return_counts=True)
    known = values[counts >= least]
    shares = [1 - np.isin(one, known).mean() for one in (old, new)]
    assert shares[1] > shares[0]
    before = _describe(old, shares[0])
    assert not drift.compare(before, _describe(new, shares[1])).list_failures(0.0)
    worse = drift.compare(before, _describe(new, shares[1] + 0.3)).differences[0].unknown
    assert worse.exceeds(0.1)
