r"""Serves the exports of a run on this machine, for trials and small loads.

python -m launch.serve --model_dir runs/adult
python -m launch.serve --export models/adult --version 1795231775 --rest_port 0
python -m launch.serve --model_dir runs/adult --host 0.0.0.0 --token_file token.txt \
    --tls_cert cert.pem --tls_key key.pem
"""

from __future__ import annotations

import asyncio

from absl import flags

from launch import app
from mtl import checks, deferred
from mtl.tools.serve import settings

with deferred.imports():
    from mtl.tools.serve import access, finding, server, startup

_DEFAULTS = settings.Settings()

EXPORT = flags.DEFINE_string(
    "export",
    None,
    "latest, best or manual in MODEL_DIR/export, or a folder of numbered versions. (default: the "
    "newest version of all three)",
)
MODEL_NAME = flags.DEFINE_string(
    "model_name", None, "The model's name for clients. (default: Serving.model_name)"
)
VERSION = flags.DEFINE_integer(
    "version", None, "The only version to serve. (default: the newest, including later exports)"
)
HOST = flags.DEFINE_string(
    "host",
    _DEFAULTS.host,
    "The address to listen on; set --token_file or --allow_anyone if other machines can reach it.",
)
REST_PORT = flags.DEFINE_integer(
    "rest_port", _DEFAULTS.rest_port, "The port of REST and KServe's protocol; 0 for a free port."
)
GRPC_PORT = flags.DEFINE_integer(
    "grpc_port", _DEFAULTS.grpc_port, "The port of gRPC; 0 for a free port."
)
TOKEN_FILE = flags.DEFINE_string(
    "token_file", None, "A file with the bearer token of clients; you may replace it at any time."
)
ALLOW_ANYONE = flags.DEFINE_boolean("allow_anyone", False, "Serve other machines without a token.")
TLS_CERT = flags.DEFINE_string("tls_cert", None, "A PEM file of the server's certificate.")
TLS_KEY = flags.DEFINE_string(
    "tls_key", None, "A PEM file of the certificate's key, without a password."
)
POLL_SECS = flags.DEFINE_float(
    "poll_secs", _DEFAULTS.poll_secs, "The time between two searches for new versions, in seconds."
)
KEEP_VERSIONS = flags.DEFINE_integer(
    "keep_versions",
    _DEFAULTS.keep_versions,
    "The number of versions in memory. Clients may ask for an earlier version by its number.",
)
BATCHING = flags.DEFINE_boolean("batching", True, "Join requests that arrive at the same time.")
MAX_BATCH_SIZE = flags.DEFINE_integer(
    "max_batch_size",
    _DEFAULTS.max_batch_size,
    "The largest number of rows of joined requests. A larger request runs alone.",
)
BATCH_TIMEOUT = flags.DEFINE_integer(
    "batch_timeout_micros",
    _DEFAULTS.batch_timeout_micros,
    "The longest time that a request waits for others, in microseconds. A single request does not "
    "wait.",
)
THREADS = flags.DEFINE_integer(
    "threads", 0, "How many batches may run at once. (default: one for every two processors)"
)
MAX_QUEUE_ROWS = flags.DEFINE_integer(
    "max_queue_rows", _DEFAULTS.max_queue_rows, "How many rows may wait or run; more are refused."
)
MAX_BODY_BYTES = flags.DEFINE_integer(
    "max_body_bytes", _DEFAULTS.max_body_bytes, "The largest request, in bytes."
)
MAX_ROWS = flags.DEFINE_integer("max_rows", _DEFAULTS.max_rows, "How many rows a request may have.")
TIMEOUT_SECS = flags.DEFINE_float(
    "timeout_secs",
    _DEFAULTS.timeout_secs,
    "The longest time for a prediction, and for a client to send or read, in seconds.",
)
DRAIN_SECS = flags.DEFINE_float(
    "drain_secs", _DEFAULTS.drain_secs, "The longest time for requests after Ctrl-C, in seconds."
)
REQUEST_LOG = flags.DEFINE_string(
    "request_log",
    None,
    "A folder for Parquet files of rows and predictions. (default: nothing is logged)",
)
LOG_SHARE = flags.DEFINE_float(
    "request_log_share", _DEFAULTS.request_log_share, "The share of requests to log, up to 1."
)
LOG_WITHOUT = flags.DEFINE_list(
    "request_log_without",
    [],
    "Features, predictions and tasks to leave out of the log, with commas between them.",
)
LOG_BYTES = flags.DEFINE_integer(
    "request_log_bytes",
    _DEFAULTS.request_log_bytes,
    "The largest size of the log in bytes; the oldest files are deleted.",
)


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    # Refuse shared flags that have no effect in this command.
    for flag in (app.GIN_FILE, app.GIN_PARAM):
        rule = "be left out, as an export needs no gin file"
        checks.require(not flag.value, f"--{flag.name}", rule, flag.value)
    server_settings = _read_settings()
    settings.require_packages()
    ports = {"rest_port": server_settings.rest_port, "grpc_port": server_settings.grpc_port}
    # Check the ports first, because loading a model takes seconds.
    settings.require_free(server_settings.host, ports)
    access.check_files(server_settings)
    exports = finding.Exports.of_run(app.MODEL_DIR.value, EXPORT.value)
    name, versions = server.open_versions(MODEL_NAME.value, exports, server_settings)

    def tell(running: server.Running) -> None:
        # Print the ports when the server runs. If the flag of a port is 0, the operating system
        # chooses the port only when the server starts.
        print(startup.describe(running), flush=True)

    asyncio.run(server.serve(name, versions, server_settings, tell))


def _read_settings() -> settings.Settings:
    """Return the values of the flags as settings."""
    return settings.Settings(
        host=HOST.value,
        rest_port=REST_PORT.value,
        grpc_port=GRPC_PORT.value,
        version=VERSION.value,
        poll_secs=POLL_SECS.value,
        keep_versions=KEEP_VERSIONS.value,
        batching=BATCHING.value,
        max_batch_size=MAX_BATCH_SIZE.value,
        batch_timeout_micros=BATCH_TIMEOUT.value,
        threads=THREADS.value,
        max_queue_rows=MAX_QUEUE_ROWS.value,
        max_body_bytes=MAX_BODY_BYTES.value,
        max_rows=MAX_ROWS.value,
        timeout_secs=TIMEOUT_SECS.value,
        drain_secs=DRAIN_SECS.value,
        token_file=TOKEN_FILE.value,
        tls_cert=TLS_CERT.value,
        tls_key=TLS_KEY.value,
        allow_anyone=ALLOW_ANYONE.value,
        request_log=REQUEST_LOG.value,
        request_log_share=LOG_SHARE.value,
        request_log_without=LOG_WITHOUT.value,
        request_log_bytes=LOG_BYTES.value,
    )


if __name__ == "__main__":
    app.run(main)
