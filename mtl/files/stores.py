"""Connects to object stores and other remote file systems, by the scheme of a path.

store = stores.connect("s3://bucket/data/a.csv")
store.system.get_file_info(store.name_inside("s3://bucket/data/a.csv"))
stores.ask("s3://bucket/data/a.csv", request)        # a UserError if it fails or takes too long

pyarrow has clients for s3, gs, abfs and hdfs; the optional package fsspec has clients for other
schemes. Credentials come from the environment, never from a path.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import functools
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from mtl import checks

_Result = TypeVar("_Result")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
# The time limit of a request, because the clients of some schemes would wait for minutes.
PATIENCE_SECS = 30.0
# The time limits of the clients are shorter than the limit of a request, so that the more specific
# errors of the clients come first. The clients try each request twice.
_CONNECT_SECS, _REPLY_SECS, _RETRY_SECS = 5, 8, 10
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
_LOCAL = "file"
# Schemes of fsspec that mean local files, or files inside of archives.
_WRAPPERS = {"local", "data", "dir", "zip", "tar", "libarchive", "reference", "generic", "dask"}
# If a path names this user, the client sends no credentials, which suits public buckets.
_ANONYMOUS = "anonymous"
_AZURE = "AZURE_STORAGE_CONNECTION_STRING"
_FIXES = {
    "s3": "Credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
    "gs": "Credentials: GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login.",
    "abfs": f"Credentials: {_AZURE}, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
    "hdfs": "hdfs:// needs a Hadoop client: JAVA_HOME, HADOOP_HOME and CLASSPATH.",
}
# Words in the errors of clients about missing or wrong credentials.
_REFUSED = re.compile(r"(?i)access.?denied|forbidden|credential|token|unauth|\b40[13]\b|AccessKey")
_READ_FROM = ("AWS_", "AZURE_", "CLOUD", "GOOGLE_", "HADOOP_", "HOME", "JAVA_", "STORAGE_")


class Store(NamedTuple):
    """A remote file system, and the prefix of the paths on this file system.

    Attributes:
      system: a pyarrow.fs.FileSystem.
      prefix: the prefix of paths, such as "s3://bucket/".
      root: the prefix that replaces `prefix` in the names inside of the file system, such as
        "bucket/".
    """

    system: Any
    prefix: str
    root: str

    def name_inside(self, path: str) -> str:
        """Return the name of a path inside of the file system.

        Args:
          path: a path that starts with `prefix`, such as "s3://bucket/data/a.csv".

        Returns:
          A name that starts with `root`, such as "bucket/data/a.csv".
        """
        return self.root + path[len(self.prefix) :]

    def name_outside(self, name: str) -> str:
        """Return the path, with its scheme, of a file that the file system lists under a name.

        Args:
          name: a name such as "bucket/data/a.csv" or "/bucket/data/a.csv".

        Returns:
          A path that starts with `prefix`, such as "s3://bucket/data/a.csv".
        """
        # A file system may return "/bucket/a" for "bucket/a".
        return self.prefix + name.lstrip("/")[len(self.root.lstrip("/")) :]


def find_scheme(path: str) -> str | None:
    """Return the scheme of a path; None for a local path or file://.

    Returns:
      A name such as "s3". Aliases of a scheme, such as "s3a" for "s3", are replaced.
    """
    match = _SCHEME.match(path)
    scheme = match and match.group(1)
    return None if scheme == _LOCAL else scheme and _ALIASES.get(scheme, scheme)


def connect(path: str) -> Store:
    """Return the file system of a path with a scheme, mostly without sending a request.

    Raises:
      UserError: the scheme is unknown, or its client or settings are missing.
    """
    scheme = find_scheme(path)
    written, _, rest = path.partition("://")
    authority, slash, inner = rest.partition("/")
    if scheme not in _OPENERS and not _is_bridged(str(scheme), path):
        others = "" if importlib.util.find_spec("fsspec") else " The package fsspec adds others."
        beginnings = ", ".join(f"{name}://" for name in _OPENERS)
        fix = f"{checks.nearest(written.lower(), _OPENERS)}{others}".strip()
        checks.fail(path, f"be a local path, or start with {beginnings} or file://", written, fix)
    has_place = bool(authority or scheme == "hdfs") and bool(slash and inner)
    checks.require(has_place, path, f"be {written}://BUCKET/PATH", path)
    password = authority.partition("@")[0].partition(":")[1] if "@" in authority else ""
    fix = "Set credentials in the environment: docs/data.md lists the variables."
    checks.require(not password, f"a {written}:// path", "hold no password", "one", fix)
    return _open(written, authority, _read_environment())


def _read_environment() -> tuple[tuple[str, str], ...]:
    """Return the environment variables that clients read; a change requires a new connection."""
    return tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(_READ_FROM)))


@functools.lru_cache(maxsize=64)
def _open(written: str, authority: str, environment: tuple[tuple[str, str], ...]) -> Store:
    prefix = f"{written}://{authority}/"
    scheme = _ALIASES.get(written, written)
    opener = _OPENERS.get(scheme, functools.partial(_open_bridge, prefix))
    system, root = ask(prefix, functools.partial(opener, authority, dict(environment)))
    return Store(system, prefix, root)


def ask(path: str, request: Callable[[], _Result]) -> _Result:
    """Run a request about a path within a time limit, and return the result.

    Raises:
      FileNotFoundError: the file does not exist.
      UserError: the request failed, or took longer than `PATIENCE_SECS`; the message gives the
        cause.
    """
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(request())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return future.result(PATIENCE_SECS)
    except (checks.UserError, FileNotFoundError):
        raise
    except concurrent.futures.TimeoutError as error:
        # From Python 3.11 on, a client's own timeout also raises TimeoutError.
        is_over = not future.done()
        problem = f"no answer within {PATIENCE_SECS:g} seconds" if is_over else explain(error)
    except Exception as error:  # The clients of fsspec may raise any error.
        problem = explain(error)
    scheme = str(find_scheme(path))
    is_refused = scheme == "hdfs" or _REFUSED.search(problem)
    fix = f" {_FIXES[scheme]}" if is_refused and scheme in _FIXES else ""
    raise checks.UserError(f"{path} cannot be reached: {problem}.{fix}")


def explain(error: Exception) -> str:
    """Return the reason of a client's error in one short line.

    Returns:
      A text without a period at the end, cut after 300 characters; the name of the error's class if
      the error has no text.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    google = re.search(r"Status\((.*?) error_info=", text)
    text = (google.group(1) if google else text.partition(" dlopen(")[0]).rstrip(".")
    return text if len(text) <= 300 else f"{text[:300]}..."


def _open_s3(authority: str, environment: Mapping[str, str]) -> tuple[Any, str]:
    from pyarrow import fs

    user, _, bucket = authority.rpartition("@")
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if endpoint is None:
        try:
            region = fs.resolve_s3_region(bucket)
        except OSError:  # A closed network may reach only servers of one region.
            if region is None:
                raise
    settings = {"endpoint_override": endpoint} if endpoint else {}
    system = fs.S3FileSystem(
        anonymous=user == _ANONYMOUS,
        region=region,
        connect_timeout=_CONNECT_SECS,
        request_timeout=_REPLY_SECS,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=2),
        **settings,
    )
    return system, f"{bucket}/"


def _open_gs(authority: str, environment: Mapping[str, str]) -> tuple[Any, str]:
    from pyarrow import fs

    user, _, bucket = authority.rpartition("@")
    names = ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST")
    emulator = next(filter(None, map(environment.get, names)), None)
    settings: dict[str, Any] = {}
    if emulator:
        kind, separator, host = emulator.rpartition("://")
        settings = {"scheme": kind if separator else "http", "endpoint_override": host}
    system = fs.GcsFileSystem(
        anonymous=user == _ANONYMOUS or bool(emulator),
        retry_time_limit=datetime.timedelta(seconds=_RETRY_SECS),
        **settings,
    )
    return system, f"{bucket}/"


def _open_abfs(authority: str, environment: Mapping[str, str]) -> tuple[Any, str]:
    from pyarrow import fs

    container, _, host = authority.rpartition("@")
    container = container or host
    pairs = (part.partition("=") for part in environment.get(_AZURE, "").split(";"))
    connection = {name: value for name, _, value in pairs}
    in_path = host.partition(".")[0] if "@" in authority else None
    account = (
        in_path or environment.get("AZURE_STORAGE_ACCOUNT_NAME") or connection.get("AccountName")
    )
    fix = f"Write abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH. {_FIXES['abfs']}"
    checks.require(bool(account), f"abfs://{authority}", "name its account", authority, fix)
    settings = {"account_key": environment.get("AZURE_STORAGE_ACCOUNT_KEY")}
    if connection.get("AccountName") == account:
        settings = {"account_key": connection.get("AccountKey")}
        token = connection.get("SharedAccessSignature")
        settings |= {"sas_token": token} if token else {}
    endpoint = _SCHEME.match(connection.get("BlobEndpoint", ""))
    if endpoint:
        kind, rest = endpoint.group(1), connection["BlobEndpoint"][endpoint.end() :]
        place = rest.partition("/")[0]
        for service in ("blob", "dfs"):
            settings |= {f"{service}_storage_authority": place, f"{service}_storage_scheme": kind}
    return fs.AzureFileSystem(account, **settings), f"{container}/"


def _open_hdfs(authority: str, environment: Mapping[str, str]) -> tuple[Any, str]:
    del environment
    from pyarrow import fs

    user, _, place = authority.rpartition("@")
    host, _, port = place.partition(":")
    is_number = not port or port.isdigit()
    checks.require(is_number, f"hdfs://{authority}", "be hdfs://HOST:PORT/PATH", authority)
    return fs.HadoopFileSystem(host or "default", int(port or 0), user=user or None), "/"


_OPENERS: Mapping[str, Callable[[str, Mapping[str, str]], tuple[Any, str]]] = {
    "s3": _open_s3,
    "gs": _open_gs,
    "abfs": _open_abfs,
    "hdfs": _open_hdfs,
}


def _is_bridged(scheme: str, path: str) -> bool:
    """Return True if fsspec is installed, and knows the scheme of a path without "::"."""
    if "::" in path or importlib.util.find_spec("fsspec") is None:
        return False
    import fsspec

    return scheme in {*fsspec.available_protocols()} - _WRAPPERS


def _open_bridge(prefix: str, authority: str, environment: Mapping[str, str]) -> tuple[Any, str]:
    del authority, environment
    import fsspec
    from pyarrow import fs

    # An ImportError names the missing package of the scheme.
    system, name = fsspec.core.url_to_fs(f"{prefix}x")
    return fs.PyFileSystem(fs.FSSpecHandler(system)), name.removesuffix("x")
