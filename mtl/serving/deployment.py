"""Writes the files to start TensorFlow Serving into the folder of an export's versions.

deployment.write("models/income", "income")
# models/income/deploy/models.config, batching_parameters.txt, monitoring.config,
# docker_run.sh and kubernetes.yaml
"""

from __future__ import annotations

import os
import re

from mtl import checks
from mtl.deferred import tf
from mtl.files import atomic
from mtl.serving import versions

FOLDER = "deploy"
_MODELS = "models.config"
_STABLE = re.compile(r'key: "stable"\s+value: (\d+)')
_NAME = re.compile(r'^ *name: "([^"]+)"', re.MULTILINE)

_MODELS_CONFIG = """\
# The served versions, and the labels that clients use. The server reads this file again every
# {poll} seconds. To roll a version out, set stable to the version of canary. To roll back, set
# stable to the old version. An export sets canary to the new version, and does not change stable.
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
    model_version_policy {{
      specific {{
{served}
      }}
    }}
    version_labels {{ key: "stable" value: {stable} }}
    version_labels {{ key: "canary" value: {canary} }}
  }}
}}
"""

_BATCHING = """\
# Requests that arrive within a millisecond go through the network as one batch of at most
# max_execution_batch_size rows. A larger request, up to max_batch_size rows, is split.
max_batch_size { value: 8192 }
max_execution_batch_size { value: 256 }
enable_large_batch_splitting { value: true }
batch_timeout_micros { value: 1000 }
max_enqueued_batches { value: 1000 }
num_batch_threads { value: 4 }
pad_variable_length_inputs: true
"""

_MONITORING = """\
prometheus_config { enable: true path: "/monitoring/prometheus/metrics" }
"""

_POLL_SECS = 60
_FLAGS = (
    "--model_config_file=/models/{name}/deploy/models.config",
    f"--model_config_file_poll_wait_seconds={_POLL_SECS}",
    "--allow_version_labels_for_unavailable_models=true",
    "--enable_batching=true",
    "--batching_parameters_file=/models/{name}/deploy/batching_parameters.txt",
    "--monitoring_config_file=/models/{name}/deploy/monitoring.config",
)

_DOCKER = """\
#!/bin/sh
# Serves the versions in the folder above this one: gRPC on port 8500, REST on port 8501.
versions=$(cd "$(dirname "$0")/.." && pwd)
exec docker run --rm -p 8500:8500 -p 8501:8501 \\
  -v "$versions:/models/{name}:ro" "$@" tensorflow/serving \\
  {flags}
"""

_KUBERNETES = """\
# The volume claim "models" must hold this model's folder as /{name}. Apply this file with
# kubectl apply -f
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {dns}
  labels: {{app: {dns}}}
spec:
  replicas: 2
  selector:
    matchLabels: {{app: {dns}}}
  template:
    metadata:
      labels: {{app: {dns}}}
      annotations:
        prometheus.io/scrape: "true"
        prometheus.io/port: "8501"
        prometheus.io/path: /monitoring/prometheus/metrics
    spec:
      containers:
      - name: serving
        image: tensorflow/serving
        args:
{args}
        ports:
        - {{name: grpc, containerPort: 8500}}
        - {{name: rest, containerPort: 8501}}
        readinessProbe:
          httpGet: {{path: /v1/models/{name}/labels/stable, port: rest}}
          periodSeconds: 5
        livenessProbe:
          tcpSocket: {{port: grpc}}
          initialDelaySeconds: 60
        resources:
          requests: {{cpu: "1", memory: 1Gi}}
        volumeMounts:
        - {{name: models, mountPath: /models, readOnly: true}}
      volumes:
      - name: models
        persistentVolumeClaim: {{claimName: models, readOnly: true}}
---
apiVersion: v1
kind: Service
metadata:
  name: {dns}
spec:
  selector: {{app: {dns}}}
  ports:
  - {{name: grpc, port: 8500}}
  - {{name: rest, port: 8501}}
"""


def stable(folder: str) -> int | None:
    """Return the version with the label stable in models.config.

    Args:
      folder: the folder of the versions.

    Returns:
      The number of the version with the label stable; None if models.config, the label or the
      version is missing.
    """
    match = _STABLE.search(_read_models(folder))
    return int(match[1]) if match and int(match[1]) in versions.list_versions(folder) else None


def require_name(folder: str, name: str) -> None:
    """Fail if the files for a server in `folder/deploy` serve a model of another name.

    Args:
      folder: the folder of the versions.
      name: the name of the model for clients.

    Raises:
      UserError: models.config has another name.
    """
    names, deploy = _NAME.findall(_read_models(folder)), os.path.join(folder, FOLDER)
    if names and name not in names:
        rule = f"be the name of the model in {os.path.join(deploy, _MODELS)}, {names[0]!r}"
        fix = f"Choose another folder, or delete {deploy} to rename the model."
        checks.fail("Serving.model_name", rule, name, fix)


def _read_models(folder: str) -> str:
    """Return the text of models.config; "" if it does not exist."""
    path = os.path.join(folder, FOLDER, _MODELS)
    if not tf.io.gfile.exists(path):
        return ""
    with tf.io.gfile.GFile(path) as file:
        return file.read()


def write(folder: str, name: str) -> str:
    """Write models.config to `folder/deploy`, and the other files for a server if they are missing.

    Args:
      folder: the folder of the versions, with at least one version.
      name: the name of the model for clients.

    Returns:
      The path of the script that starts a server.
    """
    deploy = os.path.join(folder, FOLDER)
    tf.io.gfile.makedirs(deploy)
    atomic.write(os.path.join(deploy, _MODELS), _models_config(folder, name))
    flags = [flag.format(name=name) for flag in _FLAGS]
    args = "\n".join(f"        - {flag}" for flag in flags)
    # Names in Kubernetes consist of lower-case letters, digits and "-", and start with a letter.
    dns = re.sub(r"[^a-z0-9-]", "-", name.lower())
    dns = (dns if dns[0].isalpha() else f"model-{dns}")[:63].strip("-")
    texts = {
        "batching_parameters.txt": _BATCHING,
        "monitoring.config": _MONITORING,
        "docker_run.sh": _DOCKER.format(name=name, flags=" \\\n  ".join(flags)),
        "kubernetes.yaml": _KUBERNETES.format(name=name, dns=dns, args=args),
    }
    for file, text in texts.items():
        path = os.path.join(deploy, file)
        if not tf.io.gfile.exists(path):
            atomic.write(path, text)
    return os.path.join(deploy, "docker_run.sh")


def _models_config(folder: str, name: str) -> str:
    canary = versions.list_versions(folder)[-1]
    # The first export gets the labels stable and canary; later exports move only canary.
    stable_version = stable(folder) or canary
    numbers = sorted({stable_version, canary})
    served = "\n".join(f"        versions: {number}" for number in numbers)
    return _MODELS_CONFIG.format(
        name=name, poll=_POLL_SECS, served=served, stable=stable_version, canary=canary
    )
