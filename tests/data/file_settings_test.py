"""An export describes how the files of its run write rows."""

import types

from mtl.data import arrow, csv, file_settings, image_files

MARKS = csv.Csv(files={"train": "a.csv"}, data_dir="data", missing=("", "?"), rename={"a": "A"})


def test_only_changed_settings_are_described():
    assert file_settings.describe(MARKS) == [{"csv": {"missing": ["", "?"], "rename": {"a": "A"}}}]
    table = arrow.Arrow(files={"train": "a.parquet"}, window=10, sheet="rows", cells=MARKS)
    [entry] = file_settings.describe(image_files.ImageFiles(source=table, fields=["photo"]))
    assert entry["arrow"]["sheet"] == "rows" and entry["arrow"].keys() == {"sheet", "cells"}


def test_other_sources_have_no_description():
    assert file_settings.describe(types.SimpleNamespace(source=object())) == []
    assert file_settings.describe(csv.Csv(files={"train": "a.csv"})) == []
    assert file_settings.list_inner(file_settings.restore([])) == []


def test_files_without_a_header_have_the_columns_of_the_run():
    plain = csv.Csv(files={"train": "a.csv"}, columns=("age", "job"), delimiter="\t", comment="#")
    [restored] = file_settings.list_inner(file_settings.restore(file_settings.describe(plain)))
    assert restored.names == ["age", "job"]
    assert (restored.delimiter, restored.comment) == ("\t", "#")
