"""Predictions from object stores and to them: whole files, each once, and never over an input."""

import pathlib

import pytest

from mtl import checks
from mtl.files import remote
from mtl.tools import scoring
from tests import tiny
from tests.files import object_servers
from tests.tools.scoring.shards_test import Sums


@pytest.fixture(name="bucket", scope="module", params=["s3", "gs"])
def _bucket(request):
    with pytest.MonkeyPatch.context() as patch, object_servers.serve(request.param, patch):
        yield f"{request.param}://bucket"


def _run(inputs, output, model):
    guard = scoring.Protection(files=["elsewhere.csv"], anywhere=True)
    reader = scoring.Reader(spec=tiny.SPEC, keep=["id"], batch_size=7)
    plan = scoring.plan_shards(reader.find(inputs), output, "auto", guard)
    return scoring.score_shards(plan, reader, model, concurrency=2)


def _read(path):
    return pathlib.Path(remote.copy_here(path)).read_bytes()


@pytest.mark.medium
def test_a_folder_in_a_bucket_holds_each_file_once(bucket, trained, tmp_path):
    expected = {}
    for name, rows in (("a é.csv", 3), ("b.jsonl", 5)):
        local = trained.write(tmp_path / name, rows)
        remote.write(f"{bucket}/in/{name}", pathlib.Path(local).read_bytes())
        out = f"{name.partition('.')[0]}.csv"
        _run([local], f"{tmp_path}/out/{out}", Sums())
        expected[out] = (tmp_path / "out" / out).read_bytes()
    first, again = Sums(), Sums()
    assert _run([f"{bucket}/in/*"], f"{bucket}/out/", first) == (8, 0)
    names = remote.list_names(f"{bucket}/out/")
    assert names == sorted([*expected, "scoring.json"])
    assert {name: _read(f"{bucket}/out/{name}") for name in expected} == expected
    assert _run([f"{bucket}/in/*"], f"{bucket}/out", again) == (0, 2) and again.rows == 0
    remote.write(
        f"{bucket}/in/b.jsonl", pathlib.Path(trained.write(tmp_path / "c.jsonl", 2)).read_bytes()
    )
    assert _run([f"{bucket}/in/*"], f"{bucket}/out/", Sums()) == (2, 1)
    assert _read(f"{bucket}/out/b.csv") != expected["b.csv"]


@pytest.mark.medium
@pytest.mark.parametrize("ending", ["parquet", "tfrecord"])
def test_a_file_in_a_bucket_is_the_file_of_this_machine(ending, bucket, trained, tmp_path):
    path = trained.write(tmp_path / "in.csv", 9)
    _run([path], f"{tmp_path}/out.{ending}", Sums())
    _run([path], f"{bucket}/single.{ending}", Sums())
    assert _read(f"{bucket}/single.{ending}") == (tmp_path / f"out.{ending}").read_bytes()


@pytest.mark.medium
def test_an_input_in_a_bucket_is_never_overwritten(bucket):
    with pytest.raises(checks.UserError, match="--output must not be an input"):
        scoring.Protection(files=[f"{bucket}/x/*.csv"], anywhere=True).check(f"{bucket}/x/a.csv")
    with pytest.raises(checks.UserError, match="--output must lie in a place that exists"):
        scoring.Protection(anywhere=True).check(f"{bucket.replace('//bucket', '//absent')}/a.csv")
    with pytest.raises(
        checks.UserError, match="--report must be .* file system|--report must be a"
    ):
        scoring.Protection(where="--report").check("s3://bucket/a.html")


@pytest.mark.medium
def test_a_path_of_this_machine_may_start_with_file(trained, tmp_path):
    path = trained.write(tmp_path / "in.csv", 4)
    assert _run([f"file://{path}"], f"file://{tmp_path}/out.jsonl", Sums()) == (4, 0)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4
