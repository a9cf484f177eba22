"""The files that start a server; what can be parsed is parsed by the server's own messages."""

import json
import re
import subprocess

import pytest
from google.protobuf import text_format

from mtl import checks, serving
from mtl.serving import deployment
from mtl.tools import scoring


@pytest.fixture
def folder(tmp_path):
    for number in (3, 7):
        (tmp_path / str(number)).mkdir()
    return tmp_path


def config(folder):
    messages = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    text = (folder / "deploy" / "models.config").read_text()
    (model,) = text_format.Parse(text, messages.ModelServerConfig()).model_config_list.config
    assert (model.name, model.base_path) == ("ads", "/models/ads")
    return list(model.model_version_policy.specific.versions), dict(model.version_labels)


def set_stable(folder, old, new):
    path = folder / "deploy" / "models.config"
    text = path.read_text()
    assert f'key: "stable" value: {old} ' in text
    path.write_text(text.replace(f'key: "stable" value: {old} ', f'key: "stable" value: {new} '))


def test_a_folder_serves_a_model_of_one_name(folder):
    deployment.require_name(str(folder), "ads")
    deployment.write(str(folder), "ads")
    deployment.require_name(str(folder), "ads")
    models = folder / "deploy" / "models.config"  # A user may serve another model beside it.
    models.write_text(f'  config {{\n    name: "other"\n  }}\n{models.read_text()}')
    deployment.require_name(str(folder), "ads")
    message = "Serving.model_name must be the name of the model in .*/models.config, 'other', got"
    with pytest.raises(checks.UserError, match=message):
        deployment.require_name(str(folder), "shop")


def test_a_new_version_is_the_canary_until_someone_calls_it_stable(folder):
    deployment.write(str(folder), "ads")
    assert config(folder) == ([7], {"stable": 7, "canary": 7})
    (folder / "9").mkdir()
    deployment.write(str(folder), "ads")
    assert config(folder) == ([7, 9], {"stable": 7, "canary": 9})
    set_stable(folder, 7, 9)
    assert deployment.stable(str(folder)) == 9
    set_stable(folder, 9, 3)
    (folder / "11").mkdir()
    deployment.write(str(folder), "ads")
    assert config(folder) == ([3, 11], {"stable": 3, "canary": 11})
    (folder / "3").rmdir()
    deployment.write(str(folder), "ads")
    assert config(folder) == ([11], {"stable": 11, "canary": 11})


def test_what_was_edited_stays(folder):
    deployment.write(str(folder), "ads")
    path = folder / "deploy" / "batching_parameters.txt"
    path.write_text("max_batch_size { value: 8 }\n")
    deployment.write(str(folder), "ads")
    assert path.read_text() == "max_batch_size { value: 8 }\n"
    assert not list((folder / "deploy").glob("*.partial"))


def test_a_request_of_the_client_may_be_larger_than_a_run_of_the_model(folder):
    """TensorFlow Serving refuses it unless it is told to split."""
    deployment.write(str(folder), "ads")
    text = (folder / "deploy" / "batching_parameters.txt").read_text()
    sizes = {name: int(value) for name, value in re.findall(r"(\w+_size) \{ value: (\d+) \}", text)}
    assert "enable_large_batch_splitting { value: true }" in text
    rows = max(scoring.Reader(spec=None).batch_size, serving.Serving().warm_up_rows)
    assert sizes["max_execution_batch_size"] <= rows <= sizes["max_batch_size"]


def test_the_script_starts_docker_on_this_folder(folder, tmp_path):
    script = deployment.write(str(folder), "ads")
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    docker.chmod(0o755)
    done = subprocess.run(
        ["sh", script, "--gpus", "all"],
        env={"PATH": f"{docker.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.splitlines()
    assert said[0] == "run" and f"{folder}:/models/ads:ro" in said
    image = said.index("tensorflow/serving")
    assert said[image - 2 : image] == ["--gpus", "all"]
    named = [flag.partition("=")[2] for flag in said[image + 1 :] if "=/models/ads/" in flag]
    assert len(named) == 3
    assert all((folder / path.removeprefix("/models/ads/")).is_file() for path in named)


@pytest.mark.parametrize(
    ("name", "expected"), [("1abc", "model-1abc"), ("Income.", "income"), ("a" * 70, "a" * 63)]
)
def test_kubernetes_takes_the_name_of_the_service(folder, name, expected):
    deployment.write(str(folder), name)
    text = (folder / "deploy" / "kubernetes.yaml").read_text()
    assert text.count(f"  name: {expected}\n") == 2


def test_the_manifest_is_two_objects_with_one_name(folder):
    yaml = pytest.importorskip("yaml")
    deployment.write(str(folder), "My_ads")
    text = (folder / "deploy" / "kubernetes.yaml").read_text()
    server, service = yaml.safe_load_all(text)
    assert [server["kind"], service["kind"]] == ["Deployment", "Service"]
    assert service["spec"]["selector"] == server["spec"]["template"]["metadata"]["labels"]
    (container,) = server["spec"]["template"]["spec"]["containers"]
    assert "--model_config_file=/models/My_ads/deploy/models.config" in container["args"]
    assert server["metadata"]["name"] == "my-ads"
    assert "{" not in json.dumps(container["args"])
