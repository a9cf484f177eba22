"""The lines that a server prints when it listens: addresses, a request to try, how to stop.

print(startup.describe(running))
"""

from __future__ import annotations

import json
import shlex

from mtl.tools.serve import examples, http_server, server, settings

# A longer request would fill the screen.
_LONGEST = 1000


def describe(running: server.Running) -> str:
    """Return the lines that tell what is served and how to ask for a prediction."""
    made, name = running.engine.settings, running.engine.name
    host = _name_host(made.host)
    scheme = "https" if made.tls_cert else "http"
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
    if made.request_log:
        lines.insert(5, f"  log       rows and predictions go to {made.request_log}")
    if not made.is_loopback and not made.token_file:
        lines.insert(
            1, "  Warning   anyone who reaches this machine can ask: --allow_anyone is set."
        )
    if made.token_file and not made.tls_cert and not made.is_loopback:
        lines.insert(1, "  Warning   the token crosses the network in clear text: set --tls_cert.")
    return "\n".join(lines)


def _name_host(host: str) -> str:
    """Return the host for an address that a client on this machine can use."""
    named = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
    # A server listens on all addresses at 0.0.0.0, but a client has to name one.
    return named.get(host, f"[{host}]" if ":" in host else host)


def write_curl(running: server.Running, root: str) -> str:
    """Return a command that asks for the prediction of a real row."""
    made, name = running.engine.settings, running.engine.name
    curl = f"curl -s{_write_access(made)}"
    url = f"{root}/v1/models/{name}:predict"
    text = json.dumps(examples.make_rest(running.model), ensure_ascii=False)
    if len(text) <= _LONGEST:
        return f"{curl} {url} -d {shlex.quote(text)}"
    return f"{curl} {root}{http_server.EXAMPLE} | {curl} {url} -d @-"


def _write_access(made: settings.Settings) -> str:
    token = ""
    if made.token_file:
        path = shlex.quote(made.token_file)
        token = f' -H "Authorization: Bearer $(cat {path})"'
    # The certificate may name another host, and be signed by itself.
    return f"{token} --cacert {shlex.quote(made.tls_cert)}" if made.tls_cert else token
