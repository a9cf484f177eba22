"""Writes the lines that a server prints at its start: its addresses, and a command to try it.

print(startup.describe(running))
"""

from __future__ import annotations

import json
import shlex

from mtl.tools.serve import examples, http_server, server, settings

# The largest number of characters of an example request. A request of more characters would fill
# the screen.
_LONGEST = 1000


def describe(running: server.Running) -> str:
    """Return lines with the model, the addresses, and a command that gets a prediction."""
    config, name = running.engine.settings, running.engine.name
    host = _name_host(config.host)
    scheme = "https" if config.tls_cert else "http"
    root = f"{scheme}://{host}:{running.rest_port}"
    lines = [
        f"Serving {name!r}, version {running.model.number}: {running.model.directory}",
        f"  REST      {root}/v1/models/{name}:predict",
        f"  KServe    {root}/v2/models/{name}/infer",
        f"  gRPC      {host}:{running.grpc_port}",
        f"  metrics   {root}{http_server.METRICS}",
        "Try it:",
        f"  {write_curl(running, root)}",
        "Stop it with Ctrl-C.",
    ]
    if config.request_log:
        lines.insert(5, f"  log       rows and predictions go to {config.request_log}")
    if not config.is_loopback and not config.token_file:
        lines.insert(
            1, "  Warning   anyone on the network can send requests: --allow_anyone is set."
        )
    if config.token_file and not config.tls_cert and not config.is_loopback:
        lines.insert(1, "  Warning   the token crosses the network in clear text: set --tls_cert.")
    return "\n".join(lines)


def _name_host(host: str) -> str:
    """Return the host that a client on this machine can use in URLs."""
    hosts = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    # A server can listen on 0.0.0.0, which means all its addresses, but a client needs a single
    # address.
    return hosts.get(host, f"[{host}]" if ":" in host else host)


def write_curl(running: server.Running, root: str) -> str:
    """Return a shell command that gets the prediction for an example row.

    Args:
      running: the running server.
      root: the URL of the server, such as "http://127.0.0.1:8501".
    """
    config, name = running.engine.settings, running.engine.name
    curl = f"curl -s{_write_access(config)}"
    url = f"{root}/v1/models/{name}:predict"
    text = json.dumps(examples.make_rest(running.model), ensure_ascii=False)
    if len(text) <= _LONGEST:
        return f"{curl} {url} -d {shlex.quote(text)}"
    return f"{curl} {root}{http_server.EXAMPLE} | {curl} {url} -d @-"


def _write_access(config: settings.Settings) -> str:
    token = ""
    if config.token_file:
        path = shlex.quote(config.token_file)
        token = f' -H "Authorization: Bearer $(cat {path})"'
    # The certificate of the server may be self-signed, so curl has to trust its file.
    return f"{token} --cacert {shlex.quote(config.tls_cert)}" if config.tls_cert else token
