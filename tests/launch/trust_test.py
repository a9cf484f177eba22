"""--trusted_packages: nothing else is imported or built, and a refusal names file and line."""

import os

import pytest

from launch import config, gin_files, parts, trust
from mtl import checks, experiment
from mtl.data import tfds
from tests.conformance import settings

START = "from __gin__ import dynamic_registration\n"


@pytest.fixture
def read(tmp_path, monkeypatch):
    """read(text, packages): reads a gin file beside modules that leave a trace when imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    trace = "import os, pathlib\nfrom mtl.heads import Binary\n"
    trace += "pathlib.Path(__file__ + '.imported').touch()\ndef make(): pass\n"
    for name in ("trust_ours", "trust_ours_evil", "mtl_evil"):
        (tmp_path / f"{name}.py").write_text(trace)

    def read(text, packages=()):
        file = tmp_path / "x.gin"
        file.write_text(START + text)
        return gin_files.read([str(file)], [], trust.Trusted(packages))

    return read


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import mtl_evil\n", "line 2: module 'mtl_evil' is none of --trusted_packages"),
        ("import trust_ours_evil\n", "line 2: module 'trust_ours_evil' is none"),
        ("import trust_ours\nimport os\n", "line 3: module 'os' is none"),
        ("from os import path\n", "line 2: module 'os.path' is none"),
        ("import subprocess as heads\n", "line 2: module 'subprocess' is none"),
        ("from mtl import heads\nx = @heads.base.tf.io.gfile.rmtree\n", "line 3: module '"),
        (
            "from mtl import experiment\nx = @experiment.dataclasses.make_dataclass()\n",
            "line 3: module 'data",
        ),
        ("import trust_ours\nx = @trust_ours.os.system\n", "line 3: module 'os' is none"),
        ("import trust_ours\ntrust_ours.os.system.command = 'x'\n", "line 3: module 'os' is none"),
        ("from mtl import heads\nx = @heads.Binary.__subclasses__()\n", "line 3: module 'heads.B"),
        ("from mtl import heads\nx = @heads.__loader__.exec_module\n", "line 3: module '_frozen"),
        (
            "from mtl.checkpoints import run_directory\nx = @run_directory.claim_run()\n",
            "line 3: 'run_directory.claim_run' is no part of mtl",
        ),
    ],
)
def test_refuses_other_code_before_it_is_imported(read, tmp_path, text, says):
    with pytest.raises(checks.UserError) as error:
        read(text, ["trust_ours"])
    assert f"x.gin {says}" in str(error.value) and "\n" not in str(error.value)
    found = {name for name in os.listdir(tmp_path) if name.endswith(".imported")}
    assert found <= {"trust_ours.py.imported"}


def test_refuses_it_in_an_include(read, tmp_path):
    (tmp_path / "inner.gin").write_text(START + "\nimport mtl_evil\n")
    with pytest.raises(checks.UserError, match=r"inner.gin line 3: module 'mtl_evil' is none of"):
        read(f'include "{tmp_path}/inner.gin"\n')


def test_allows_parts_of_mtl_and_of_the_packages(read):
    text = "from mtl import heads\nimport trust_ours\nx = [@heads.Binary(), @trust_ours.make()]\n"
    assert len(read(text, ["trust_ours"])) == 1
    assert read("import trust_ours\nx = @trust_ours.os.system\n", None)


@pytest.mark.parametrize("name", ["mtl_evil.Builder", "os.path.Builder", "huggingface:x/y"])
def test_refuses_a_builder_that_a_setting_names(name):
    made = _data_with(name)
    trust.EVERYTHING.check_built(made)
    with pytest.raises(checks.UserError, match=rf"Tfds.name must name a module of .*'{name}'"):
        trust.Trusted([]).check_built(made)


@pytest.mark.parametrize("name", ["mnist", "mnist:3.0.1", "mtl.data.adult.builder.Adult"])
def test_allows_registered_builders_and_own_ones(name):
    trust.Trusted([]).check_built(_data_with(name))


def _data_with(name):
    """A pipeline within which a part names a builder."""
    kind = next(kind for kind in parts.find_parts() if kind.__name__ == "Pipeline")
    return kind(**settings.required(kind) | {"source": tfds.Tfds(name=name)})


def test_the_shipped_experiment_needs_no_other_package():
    made = config.load(["gin_configs/experiments/digits_shared_bottom.gin"], (), trust.Trusted([]))
    assert isinstance(made, experiment.Experiment)
