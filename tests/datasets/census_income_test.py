import gzip
import types

import numpy as np
import pytest

from mtl import checks, spec
from mtl.data import pipeline, tfds
from mtl.datasets.census_income import builder

NAME = "mtl.datasets.census_income.builder.CensusIncome"
SPEC = spec.Spec(
    features={"age": "int64", "occupation-code": "string", "instance-weight": "float32"},
    labels={"income": "string", "marital-status": "string"},
)


def line(number, **settings):
    """A row whose age is its number."""
    values = dict.fromkeys(builder.COLUMNS, "Not in universe")
    values |= dict.fromkeys(builder.NUMBERS, "0")
    values |= {"age": str(number), "occupation-code": "12", "instance-weight": "1032.25"}
    values |= {"marital-status": "Never married", "income": "- 50000.", **settings}
    return ", ".join(values.values()) + "\n"


def write(folder, part, rows, **settings):
    text = "".join(line(number, **settings) for number in rows)
    (folder / f"census-income.{part}.gz").write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def ten_rows(monkeypatch):
    monkeypatch.setattr(builder, "ROWS", dict.fromkeys(builder.ROWS, 10))


def read(manual_dir, data_dir, split, spec_=SPEC):
    source = tfds.Tfds(name=NAME, manual_dir=str(manual_dir), data_dir=str(data_dir))
    data = pipeline.Pipeline(source=source, spec=spec_, batch_size=4096)
    batches = list(data.dataset(split, training=False, seed=0).as_numpy_iterator())
    merged = [{**features, **labels} for features, labels in batches]
    return {name: np.concatenate([batch[name] for batch in merged]) for name in merged[0]}


@pytest.mark.medium
def test_one_file_is_cut_three_to_one_to_one(tmp_path, ten_rows):
    write(tmp_path, "test", range(10))
    for split, rows in (
        ("train", [0, 1, 2, 5, 6, 7]),
        ("validation", [3, 8]),
        ("test", [4, 9]),
    ):
        assert read(tmp_path, tmp_path / "data", split)["age"].tolist() == rows


@pytest.mark.medium
def test_two_files_keep_their_splits(tmp_path, ten_rows):
    write(tmp_path, "data", range(10))
    text = "".join(line(number, income="50000+.") for number in range(50, 60))
    (tmp_path / "census-income.test").write_text(text + "\n")
    for split, rows in (
        ("train", [0, 1, 2, 3, 5, 6, 7, 8]),
        ("validation", [4, 9]),
        ("test", list(range(50, 60))),
    ):
        values = read(tmp_path, tmp_path / "data", split)
        assert values["age"].tolist() == rows
        income = b"50000+" if split == "test" else b"- 50000"
        assert set(values["income"]) == {income}
        assert set(values["marital-status"]) == {b"Never married"}
        assert set(values["occupation-code"]) == {b"12"}
        assert set(values["instance-weight"]) == {1032.25}


def test_39_inputs_remain():
    assert len(builder.COLUMNS) == len(set(builder.COLUMNS)) == 42
    others = {builder.WEIGHT, "income", "marital-status"}
    assert len(set(builder.COLUMNS) - others) == 39
    assert set(builder.NUMBERS) < set(builder.COLUMNS)
    places = {name: 1 + builder.COLUMNS.index(name) for name in others}
    assert places == {"marital-status": 8, "instance-weight": 25, "income": 42}


@pytest.mark.medium
def test_mistakes_are_one_line(tmp_path, ten_rows):
    def fails(message):
        with pytest.raises(checks.UserError, match=message) as caught:
            read(tmp_path, tmp_path / "data", "train")
        assert "\n" not in str(caught.value)

    (tmp_path / "other").write_text("")
    fails("holds neither census-income.data nor census-income.test, .* For Tfds.manual_dir: ")
    write(tmp_path, "test", range(9))
    fails(r"census-income.test.gz must have 10 rows, got 9")
    for settings, message in (
        ({"age": "old"}, "row 1 age must be a whole number, got 'old'"),
        ({"instance-weight": ""}, "row 1 instance-weight must be a number, got ''"),
        ({"income": "50000"}, r"row 1 must end in '- 50000.' or '50000\+.', got '50000'"),
        ({"race": "a, b"}, "row 1 must have 42 values, got 43"),
    ):
        write(tmp_path, "test", range(10), **settings)
        fails(f"census-income.test.gz {message}")
    write(tmp_path, "test", range(10))
    path = tmp_path / "census-income.test.gz"
    path.write_bytes(path.read_bytes()[:-20])
    fails("census-income.test.gz cannot be read to its end: ")


@pytest.mark.medium
def test_the_real_file(real_data, tmp_path):
    """The rows are counted before tensorflow-datasets prepares them, which takes minutes."""
    folder = real_data / "census_income"
    if not folder.is_dir():
        pytest.skip(f"no UCI Census-Income in {folder}")
    made = builder.CensusIncome(data_dir=str(tmp_path))
    counts = {}
    for split, examples in made._split_generators(types.SimpleNamespace(manual_dir=folder)).items():
        counts[split] = [0, 0, 0, 0]
        for _, row in examples:
            never, rich = row["marital-status"] == "Never married", row["income"] == "50000+"
            for place, value in enumerate((1, rich, never, row["age"])):
                counts[split][place] += value
    if (folder / "census-income.data.gz").exists():
        assert [row[0] for row in counts.values()] == [159619, 39904, 99762]
    else:  # Counted with gzip and awk.
        assert counts == {
            "train": [59858, 3724, 25883, 2067869],
            "validation": [19952, 1210, 8611, 693958],
            "test": [19952, 1252, 8649, 692791],
        }
