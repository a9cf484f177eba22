"""Files of object stores: found, copied and written whole; each mistake is one line."""

import errno
import os
import re
import socket
import time
import types
from unittest import mock

import pytest
from pyarrow import fs

from mtl import checks
from mtl.files import remote, stores
from tests.files import object_servers

# Names that a URL would write otherwise.
NAMES = ["a.csv", "b b.csv", "50%20.csv", "a:b.csv", "é ß.csv", "x[1].csv", "c+d&e=f.csv", "q?.csv"]


@pytest.fixture(name="stored", scope="module", params=["s3", "gs", "memory"])
def _stored(request):
    """A folder of a store with files of all names, and a deeper one."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "memory":
            pytest.importorskip("fsspec").filesystem("memory").mkdirs("/bucket", exist_ok=True)
            yield _fill("memory://bucket/data")
        else:
            with object_servers.serve(request.param, patch):
                yield _fill(f"{request.param}://bucket/data")


def _fill(folder):
    for name in NAMES:
        remote.write(f"{folder}/{name}", name.encode())
    remote.write(f"{folder}/deep/a.csv", b"deep")
    remote.write(f"{folder}/part.csv.gz", b"not compressed")
    return folder


def _read(path):
    with open(remote.copy_here(path), "rb") as file:
        return file.read()


@pytest.mark.medium
def test_a_file_of_any_name_is_found_and_read(stored):
    for name in NAMES:
        path = f"{stored}/{name}"
        assert remote.find("--input", path) == [path]
        assert _read(path) == name.encode()


@pytest.mark.medium
def test_globs_match_within_a_folder(stored):
    def names(pattern):
        return [path.removeprefix(f"{stored}/") for path in remote.find("W", f"{stored}/{pattern}")]

    assert names("*.csv") == sorted(NAMES)
    assert names("?.csv") == ["a.csv"]
    assert names("[ab]*.csv") == sorted(name for name in NAMES if name[0] in "ab")
    assert names("*/*.csv") == ["deep/a.csv"]
    assert names("d*/a.csv") == ["deep/a.csv"]


@pytest.mark.medium
def test_bytes_stay_as_they_are_whatever_the_ending(stored):
    assert _read(f"{stored}/part.csv.gz") == b"not compressed"
    data = os.urandom(9 << 20)  # Three chunks.
    remote.write(f"{stored}/large.bin", data)
    assert _read(f"{stored}/large.bin") == data
    assert remote.look(f"{stored}/large.bin").size == len(data)


@pytest.mark.medium
def test_an_absent_file_is_one_line_with_its_neighbour(stored):
    for path, hint in (
        ("aa.csv", "Did you mean 'a.csv'?"),
        ("none/a.csv", f"There is no {stored}/none, or it is empty."),
        ("*.txt", f"{stored}/*.txt"),
    ):
        with pytest.raises(checks.UserError, match="--input must name existing files") as told:
            remote.find("--input", f"{stored}/{path}")
        assert hint in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(checks.UserError, match="It is a folder"):
        remote.find("--input", f"{stored}/deep")
    other = stored.replace("//bucket", "//absent")
    with pytest.raises(checks.UserError, match=f"There is no {re.escape(other)}, or it is empty"):
        remote.find("--input", f"{other}/a.csv")


@pytest.mark.medium
def test_folders_and_absent_files_are_told_apart(stored):
    assert remote.exists(f"{stored}/a.csv") and not remote.exists(f"{stored}/none.csv")
    assert remote.is_folder(stored) and remote.is_folder(f"{stored}/")
    assert not remote.is_folder(f"{stored}/a.csv") and not remote.is_folder(f"{stored}/none/")
    assert {*NAMES} <= {*remote.list_names(stored)}
    assert remote.list_names(f"{stored}/none") == []


@pytest.mark.medium
def test_a_file_is_copied_once_and_again_when_it_changes(stored, monkeypatch):
    path = f"{stored}/changing.csv"
    remote.write(path, b"one")
    assert _read(path) == b"one"
    with monkeypatch.context() as patch:
        patch.setattr(stores, "connect", lambda path: pytest.fail("it asked again"))
        assert _read(path) == b"one"
    time.sleep(1.1)  # The clock of some servers has seconds.
    remote.write(path, b"two")
    remote.find("W", path)
    assert _read(path) == b"two"


@pytest.mark.medium
def test_an_output_appears_at_the_end_and_not_after_an_error(stored):
    path = f"{stored}/new/out.jsonl"
    with pytest.raises(KeyError), remote.replacing(path) as partial:
        with open(partial, "w") as file:
            file.write("half")
        raise KeyError
    assert not remote.exists(path) and not os.path.exists(partial)
    with remote.replacing(path) as partial:
        with open(partial, "w") as file:
            file.write("whole")
        assert not remote.exists(path)
    assert _read(path) == b"whole" and not os.path.exists(partial)


@pytest.mark.medium
def test_a_bucket_for_outputs_has_to_exist(stored):
    remote.require_writable("--output", f"{stored}/new/folder/out.csv")
    if not stored.startswith("memory"):  # Its folders appear with their files.
        other = stored.replace("//bucket", "//absent")
        with pytest.raises(checks.UserError, match="--output must lie in a place that exists"):
            remote.require_writable("--output", f"{other}/out.csv")


@pytest.mark.medium
def test_predictions_that_cannot_be_sent_are_kept(monkeypatch):
    with object_servers.serve("s3", monkeypatch) as server:
        with (
            pytest.raises(checks.UserError, match="not sent: it lies in ") as told,
            remote.replacing("s3://bucket/out.jsonl") as partial,
        ):
            with open(partial, "w") as file:
                file.write("whole")
            server.kill()
            server.wait(30)
        kept = str(told.value).rpartition("lies in ")[2].rstrip(".")
        with open(kept) as file:
            assert file.read() == "whole"
        os.remove(kept)
        os.rmdir(os.path.dirname(kept))


@pytest.mark.medium
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_server_that_dies_while_a_file_is_copied_is_one_line(scheme, monkeypatch):
    with object_servers.serve(scheme, monkeypatch) as server:
        path = f"{scheme}://bucket/large.csv"
        remote.write(path, os.urandom(1 << 24))
        remote.find("W", path)
        ask, asked = stores.ask, []

        def kill_at_the_third(path, request):
            asked.append(path)
            if len(asked) == 3:
                server.kill()
                server.wait(30)
            return ask(path, request)

        monkeypatch.setattr(stores, "_RETRY_SECS", 1)
        monkeypatch.setattr(stores, "PATIENCE_SECS", 5)
        monkeypatch.setattr(stores, "ask", kill_at_the_third)
        monkeypatch.setattr(remote, "_CHUNK", 1 << 16)
        before = set(os.listdir(remote._open_folder()))
        line = f"{path} (cannot be reached|must have 16777216 bytes)"
        with pytest.raises(checks.UserError, match=line) as told:
            remote.copy_here(path)
        assert len(asked) >= 3 and "\n" not in str(told.value)
        assert set(os.listdir(remote._open_folder())) == before


@pytest.mark.medium
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_server_that_never_answers_is_one_line(scheme, monkeypatch):
    stores._open.cache_clear()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        port = listener.getsockname()[1]
        for name, value in object_servers.environment(scheme, port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(stores, "_REPLY_SECS", 1)
        monkeypatch.setattr(stores, "PATIENCE_SECS", 4)
        with pytest.raises(checks.UserError, match=f"{scheme}://bucket/a.csv cannot be reached: "):
            remote.find("W", f"{scheme}://bucket/a.csv")


@pytest.mark.medium
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_server_that_is_gone_is_one_line(scheme, monkeypatch):
    stores._open.cache_clear()
    for name, value in object_servers.environment(scheme, object_servers.find_port()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stores, "_RETRY_SECS", 1)
    with pytest.raises(checks.UserError, match=f"{scheme}://bucket/a.csv cannot be reached: "):
        remote.find("W", f"{scheme}://bucket/a.csv")


def test_a_request_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(stores, "PATIENCE_SECS", 0.05)
    with pytest.raises(checks.UserError, match="x://b/a cannot be reached: no answer within 0.05"):
        stores.ask("x://b/a", lambda: time.sleep(5))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("AWS Error ACCESS_DENIED during HeadObject"), "Credentials: AWS_ACCESS_KEY_ID"),
        (OSError("no route"), "s3://b/a cannot be reached: no route."),
        (RuntimeError(""), "s3://b/a cannot be reached: RuntimeError."),
        (OSError("a\n  b" + "c" * 900), "a bccc"),
    ],
)
def test_an_error_of_a_client_is_one_short_line(error, told):
    def fail():
        raise error

    with pytest.raises(checks.UserError) as line:
        stores.ask("s3://b/a", fail)
    assert told in str(line.value) and "\n" not in str(line.value) and len(str(line.value)) < 450


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("s5://b/x", "must be a local path, or start with s3://, gs://, abfs://, hdfs:// or file"),
        ("S3://b/x", "Did you mean 's3'?"),
        ("s3://", "must be s3://BUCKET/PATH"),
        ("s3://bucket", "must be s3://BUCKET/PATH"),
        ("s3:///x", "must be s3://BUCKET/PATH"),
        ("gs://bucket/", "must be gs://BUCKET/PATH"),
        ("hdfs://name:port/x", "must be hdfs://HOST:PORT/PATH"),
        ("zip://x.csv::s3://b/x", "must be a local path, or start with"),
        ("simplecache::s3://b/x", "must be a local path, or start with"),
        ("abfs://container/x", "must name its account"),
    ],
)
def test_a_place_that_nobody_knows_is_one_line(path, told, monkeypatch):
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(checks.UserError, match=re.escape(told)):
        stores.connect(path)


def test_the_key_of_azure_belongs_to_its_account(monkeypatch):
    opened = {}
    monkeypatch.setattr(
        fs, "AzureFileSystem", lambda account, **given: opened.update({account: given})
    )
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "of others")
    connection = "AccountName=mine;AccountKey=of mine;SharedAccessSignature=token"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
    for account in ("mine", "other"):
        stores._open_abfs(f"container@{account}.dfs.core.windows.net", os.environ)
    assert opened == {
        "mine": {"account_key": "of mine", "sas_token": "token"},
        "other": {"account_key": "of others"},
    }


def test_a_password_in_a_path_is_refused_and_not_shown():
    for path in ("s3://key:s3cr3t@bucket/a", "ftp://me:s3cr3t@host/a"):
        with pytest.raises(checks.UserError, match="must hold no password") as told:
            stores.connect(path)
        assert "s3cr3t" not in str(told.value)


def test_hdfs_without_a_client_is_one_line(monkeypatch):
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR", "CLASSPATH", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(checks.UserError, match="hdfs://name/ cannot be reached: .*Hadoop client"):
        stores.connect("hdfs://name/a.csv")


def test_hdfs_keeps_the_old_file_until_the_new_one_is_whole(monkeypatch, tmp_path):
    """HDFS does not replace a file at the end of a write, as object stores do."""
    inner = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(stores, "connect", lambda _: stores.Store(inner, "hdfs://name/", "/"))
    for content in (b"first", b"second"):
        remote.write("hdfs://name/deep/a.csv", content)
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.csv"]
        assert (tmp_path / "deep" / "a.csv").read_bytes() == content
    problem = checks.UserError("hdfs://name/ does not answer")
    monkeypatch.setattr(stores, "ask", mock.Mock(side_effect=[None, mock.Mock(), problem]))
    with pytest.raises(checks.UserError, match="does not answer"):
        remote.write("hdfs://name/deep/a.csv", b"third")
    assert (tmp_path / "deep" / "a.csv").read_bytes() == b"second"


def test_a_region_that_cannot_be_looked_up_comes_from_the_environment(monkeypatch):
    fs = pytest.importorskip("pyarrow.fs")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    stores._open.cache_clear()

    def fail(bucket):
        raise OSError(f"no route to {bucket}")

    monkeypatch.setattr(fs, "resolve_s3_region", fail)
    with pytest.raises(
        checks.UserError, match="s3://bucket/ cannot be reached: no route to bucket"
    ):
        stores.connect("s3://bucket/a.csv")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert stores.connect("s3://bucket/a.csv").system.region == "eu-west-1"
    monkeypatch.setattr(fs, "resolve_s3_region", lambda bucket: f"of-{bucket}")
    stores._open.cache_clear()
    assert stores.connect("s3://anonymous@bucket/a.csv").system.region == "of-bucket"


def test_local_paths_stay_local():
    for path in ("a.csv", "/a:b/c%20.csv", "a b/é.csv", "c://", "file:///data/a.csv"):
        assert not remote.is_remote(path) or path == "c://"
    assert remote.copy_here("a:b.csv") == "a:b.csv"
    assert remote.join("data", "s3://b/a.csv") == "s3://b/a.csv"
    assert remote.join("s3://b/data", "a.csv") == "s3://b/data/a.csv"
    assert remote.join("data", "file:///x/a.csv") == "/x/a.csv"
    assert remote.join("file:///x", "a.csv") == "/x/a.csv"
    assert remote.join("data", "/x/a.csv") == "/x/a.csv"


def test_a_file_that_does_not_fit_on_the_disk_is_refused(monkeypatch):
    monkeypatch.setitem(remote._versions, "s3://b/huge", remote.Version(1 << 60, 0))
    with pytest.raises(checks.UserError, match="s3://b/huge must fit into .* Set TMPDIR"):
        remote.copy_here("s3://b/huge")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(), "s3://b/a.csv is gone: it was there a moment ago."),
        (OSError(errno.ENOSPC, "No space left"), "a.csv cannot be copied to .*: No space left."),
    ],
)
def test_a_copy_that_fails_leaves_no_part_of_it(error, told, monkeypatch):
    class Stream:
        @staticmethod
        def read(_):
            if beginnings:
                return beginnings.pop()
            raise error

    beginnings = [b"id,"]
    system = types.SimpleNamespace(open_input_stream=lambda name, compression: Stream)
    store = types.SimpleNamespace(system=system, name_inside=lambda path: "b/a.csv")
    monkeypatch.setattr(stores, "connect", lambda path: store)
    monkeypatch.setattr(stores, "ask", lambda path, request: request())
    monkeypatch.setitem(remote._versions, "s3://b/a.csv", remote.Version(9, 0))
    before = set(os.listdir(remote._open_folder()))
    with pytest.raises(checks.UserError, match=told):
        remote.copy_here("s3://b/a.csv")
    assert set(os.listdir(remote._open_folder())) == before


def test_copies_of_a_process_that_was_killed_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(remote.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(remote.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(remote, "_folders", {})
    killed, other = tmp_path / "mtl-copies-killed", tmp_path / "mtl-copies-unknown"
    for folder in (killed, other):
        folder.mkdir()
        (folder / "copy").write_text("x")
    (killed / "in_work").touch()
    mine = remote._open_folder()
    assert not killed.exists() and other.exists()
    monkeypatch.setattr(remote, "_folders", {})
    assert remote._open_folder() != mine and os.path.isdir(mine)  # Its process is alive.


def test_patterns_protect_inputs_without_a_connection():
    assert remote.fits("s3://b/in/a.csv", "s3://b/in/*.csv")
    assert remote.fits("s3://b/in/a[1].csv", "s3://b/in/a[1].csv")
    assert not remote.fits("s3://b/in/deep/a.csv", "s3://b/in/*.csv")


def test_a_timeout_of_the_client_keeps_its_cause():
    def fail():
        raise TimeoutError("the proxy gave up")

    with pytest.raises(checks.UserError, match="x://b/a cannot be reached: .*the proxy gave up"):
        stores.ask("x://b/a", fail)
