"""The matrix plans its rows and reads results; `make test-matrix` runs the rows."""

import sys

from mtl import versions
from tests import matrix

REPORT = """<testsuites><testsuite tests="9" failures="{failures}" errors="1" skipped="2"/>
</testsuites>"""


def test_one_python_each_covers_every_tensorflow_and_every_python():
    rows = matrix.rows(list(versions.PYTHONS), every_python=False)
    assert [row.tensorflow for row in rows] == list(versions.PYTHONS)
    assert {row.python for row in rows} == {"3.10", "3.11", "3.12", "3.13"}
    assert all(row.python in versions.PYTHONS[row.tensorflow] for row in rows)
    # A matrix with a single version reuses the environment of the full matrix.
    assert matrix.rows(["2.17"], every_python=False) == [rows[2]]


def test_all_pairs():
    rows = matrix.rows(list(versions.PYTHONS), every_python=True)
    assert len(rows) == sum(map(len, versions.PYTHONS.values()))


def test_shards_hold_each_row_once():
    rows = matrix.rows(list(versions.PYTHONS), every_python=False)
    dealt = [matrix.deal(rows, shard, 4) for shard in range(1, 5)]
    assert sorted(row.name for shard in dealt for row in shard) == sorted(row.name for row in rows)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_a_row_takes_the_newest_patch_release():
    row = matrix.Row(tensorflow="2.15", python="3.10")
    assert row.name == "tf2.15-py3.10"
    assert row.requirements == ["tensorflow~=2.15.0", "-c", str(matrix.OLD_PROTOBUF)]
    assert matrix.OLD_PROTOBUF.exists()
    newest = matrix.Row(tensorflow="2.21", python="3.13")
    assert newest.requirements == ["tensorflow~=2.21.0"]


def test_interpreter():
    assert matrix.interpreter("2.0") is None
    here = "{}.{}".format(*sys.version_info)
    found = matrix.interpreter(here)
    assert found is None or matrix._is_python(found, here)


def test_outcome(tmp_path):
    report = tmp_path / "report.xml"
    assert matrix.outcome(report) == "FAILED to run"
    report.write_text(REPORT.format(failures=3))
    assert matrix.outcome(report) == "3 passed, 4 FAILED, 2 skipped"
    report.write_text('<testsuite tests="4" failures="0" errors="0" skipped="0"/>')
    assert matrix.outcome(report) == "4 passed"
    report.write_text('<testsuite tests="0" failures="0" errors="0" skipped="0"/>')
    assert matrix.outcome(report) == "FAILED: no test ran"


def test_versions():
    assert versions.is_supported("2.21.1")
    assert not versions.is_supported("2.22.0")
    assert versions.pythons("2.99") == ()
    assert versions.described() == "2.15 to 2.21"
