"""The files of deploy/, rendered and read back, run the right commands."""

import json
import os
import pathlib
import string
import subprocess

import pytest

from launch import app
from mtl.distribution import tf_config

DEPLOY = pathlib.Path(__file__).resolve().parents[1] / "deploy"
VALUES = {"NAME": "digits", "IMAGE": "mtl:gpu", "CLAIM": "runs", "GIN_FILE": "x.gin"}

SRUN = """#!/bin/bash
shift  # --kill-on-bad-exit=1
for SLURM_PROCID in 0 1 2 3; do
  export SLURM_PROCID
  "$@" || code=$?
done
exit ${code:-0}
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then printf '%s\\n' a b c d; else echo "$@" >> requeued; fi
"""
PYTHON = """#!/bin/bash
echo "{\\"place\\": $TF_CONFIG, \\"arguments\\": \\"$*\\"}" >> started
exit $CODE
"""


def _slurm(directory, code, **environment):
    """Runs the script with stand-ins of Slurm's commands; what was started."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("python", PYTHON)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    environment |= {"PATH": f"{directory}:{os.environ['PATH']}", "CODE": str(code)}
    environment |= {"SLURM_JOB_NODELIST": "[a-d]", "SLURM_JOB_ID": "7"}
    command = ["bash", DEPLOY / "slurm.sh", "--gin_file", "x.gin"]
    done = subprocess.run(command, cwd=directory, env={**os.environ, **environment})
    assert done.returncode == code
    return [json.loads(line) for line in (directory / "started").read_text().splitlines()]


def _places(started, monkeypatch):
    names = []
    for process in started:
        monkeypatch.setenv("TF_CONFIG", json.dumps(process["place"]))
        names.append(tf_config.read_cluster().name)
    return names


def test_slurm_gives_every_node_its_place(tmp_path, monkeypatch):
    started = _slurm(tmp_path, code=0)
    assert _places(started, monkeypatch) == ["chief-0", "worker-0", "worker-1", "worker-2"]
    assert {process["arguments"] for process in started} == {"-m launch.train --gin_file x.gin"}
    assert started[0]["place"]["cluster"]["chief"] == ["a:29500"]
    assert not (tmp_path / "requeued").exists()


def test_slurm_starts_again_what_was_stopped(tmp_path, monkeypatch):
    started = _slurm(tmp_path, code=143, SERVERS="2", PORT="5")
    assert _places(started, monkeypatch) == ["chief-0", "worker-0", "ps-0", "ps-1"]
    assert started[0]["place"]["cluster"]["ps"] == ["c:5", "d:5"]
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_slurm_leaves_a_mistake_alone(tmp_path):
    _slurm(tmp_path, code=2)
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize(("workers", "servers"), [(3, 0), (2, 2)])
def test_kubeflow_job(workers, servers):
    yaml = pytest.importorskip("yaml")
    text = (DEPLOY / "tfjob.yaml").read_text()
    values = {**VALUES, "WORKERS": workers, "SERVERS": servers, "GPUS": 1}
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    job = yaml.safe_load(string.Template("\n".join(lines)).substitute(values))
    found = job["spec"]["tfReplicaSpecs"]
    counts = {"Chief": 1, "Worker": workers, "PS": servers, "Evaluator": 1}
    assert {name: part["replicas"] for name, part in found.items()} == counts
    for part in found.values():
        assert part["restartPolicy"] == "ExitCode"  # Again from 128 on, and never after a 2.
        (container,) = part["template"]["spec"]["containers"]
        given = [argument.removeprefix("--").partition("=") for argument in container["args"]]
        assert {name for name, _, _ in given} <= set(app.flags.FLAGS)
        assert {name: value for name, _, value in given}["model_dir"] == "/runs/digits"


def test_only_the_pods_of_a_run_reach_each_other():
    yaml = pytest.importorskip("yaml")
    text = string.Template((DEPLOY / "networkpolicy.yaml").read_text()).substitute(VALUES)
    policy = yaml.safe_load(text)["spec"]
    own = {"matchLabels": {"training.kubeflow.org/job-name": "digits"}}
    assert policy["podSelector"] == own and policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": own}]}]


def test_the_image_holds_what_it_copies():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert copied and all((DEPLOY.parent / name).exists() for name in copied)
    assert 'ENTRYPOINT ["python", "-m", "launch.train"]' in lines


def _rendered(name):
    text = (DEPLOY / name).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return string.Template("\n".join(lines)).substitute(NAME="adult", URI="pvc://models/adult")


def test_servers_of_kubernetes_get_the_folder_of_versions():
    yaml = pytest.importorskip("yaml")
    service = yaml.safe_load(_rendered("kserve.yaml"))
    assert (service["kind"], service["metadata"]["name"]) == ("InferenceService", "adult")
    model = service["spec"]["predictor"]["model"]
    assert model["modelFormat"] == {"name": "tensorflow"}
    assert model["storageUri"] == "pvc://models/adult" and model["protocolVersion"] == "v1"
    made = yaml.safe_load(_rendered("seldon.yaml"))["spec"]
    assert made["protocol"] == "tensorflow"
    (predictor,) = made["predictors"]
    graph = {"name": "adult", "implementation": "TENSORFLOW_SERVER"}
    assert predictor["graph"] == {**graph, "modelUri": "pvc://models/adult"}


def test_triton_gets_fields_that_it_knows():
    text = _rendered("triton.pbtxt")
    fields = dict(line.split(": ") for line in text.splitlines())
    assert fields == {
        "name": '"adult"',
        "platform": '"tensorflow_savedmodel"',
        "max_batch_size": "0",
    }
