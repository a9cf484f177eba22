"""An export describes how the files of its run write values."""

import json
import types

import pytest

from mtl.data import arrow, csv, file_settings, image_files, mixture

FILES = {"train": "a.csv"}
MARKS = csv.Csv(files=FILES, data_dir="data", missing=("", "?"), missing_in={"a": ("-",)})


def test_only_changed_settings_of_texts_are_described():
    expected = [{"missing": ["", "?"], "missing_in": {"a": ["-"]}}]
    assert file_settings.describe(MARKS) == expected == json.loads(json.dumps(expected))
    table = arrow.Arrow(files={"train": "a.parquet"}, window=10, sheet="rows", cells=MARKS)
    assert file_settings.describe(image_files.ImageFiles(source=table, fields=["p"])) == expected
    both = mixture.Mixture(sources={"a": MARKS, "b": table})
    assert file_settings.describe(both) == expected


@pytest.mark.parametrize(
    "source",
    [
        types.SimpleNamespace(source=object()),
        csv.Csv(files=FILES),
        # A file for an export has a header of its own, whatever the files of the run had.
        csv.Csv(files=FILES, columns=("age", "job"), delimiter="\t", comment="#"),
    ],
    ids=["other", "defaults", "no header"],
)
def test_sources_that_read_texts_plainly_need_no_description(source):
    assert file_settings.describe(source) == [] and file_settings.restore([]) is None


def test_settings_are_restored():
    assert file_settings.restore(file_settings.describe(MARKS)).cells.missing == ["", "?"]


def test_sources_that_differ_are_told(caplog):
    both = mixture.Mixture(sources={"a": MARKS, "b": csv.Csv(files={"train": "b.csv"})})
    entries = file_settings.describe(both)
    assert len(entries) == 2 and file_settings.restore(entries) is None
    assert "in different ways; this command reads them by the defaults of csv.Csv" in caplog.text
