"""--trusted_packages: nothing else is imported or built, and a refusal names file and line."""

import json
import os
import sys

import pytest
import tensorflow as tf

from launch import parts
from mtl import checks, experiment
from mtl.configs import config, gin_files, trust
from mtl.data import subset, tfds
from mtl.serving import loaded
from tests.conformance import settings
from tests.launch import toy

tf1 = tf.compat.v1
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
        ("import mtl_evil\n", "line 2: module 'mtl_evil' is not in --trusted_packages"),
        ("import trust_ours_evil\n", "line 2: module 'trust_ours_evil' is not in"),
        ("import trust_ours\nimport os\n", "line 3: module 'os' is not in"),
        ("from os import path\n", "line 2: module 'os.path' is not in"),
        ("import subprocess as heads\n", "line 2: module 'subprocess' is not in"),
        ("from mtl import heads\nx = @heads.base.tf.io.gfile.rmtree\n", "line 3: module '"),
        (
            "from mtl import experiment\nx = @experiment.dataclasses.make_dataclass()\n",
            "line 3: module 'data",
        ),
        ("import trust_ours\nx = @trust_ours.os.system\n", "line 3: module 'os' is not in"),
        (
            "import trust_ours\ntrust_ours.os.system.command = 'x'\n",
            "line 3: module 'os' is not in",
        ),
        ("from mtl import heads\nx = @heads.Binary.__subclasses__()\n", "line 3: module 'heads.B"),
        ("from mtl import heads\nx = @heads.__loader__.exec_module\n", "line 3: module '_frozen"),
        (
            "from mtl.checkpoints import run_directory\nx = @run_directory.claim_run()\n",
            "line 3: 'run_directory.claim_run' is not a part of mtl",
        ),
        (
            "from mtl.tools.tracking import records\nx = @records.Record()\n",
            "line 3: 'records.Record' is not a part of mtl",
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
    with pytest.raises(checks.UserError, match=r"inner.gin line 3: module 'mtl_evil' is not in"):
        read(f'include "{tmp_path}/inner.gin"\n')


def test_allows_parts_of_mtl_and_of_the_packages(read):
    text = "from mtl import heads\nimport trust_ours\nx = [@heads.Binary(), @trust_ours.make()]\n"
    assert len(read(text, ["trust_ours"])) == 1
    assert read("import trust_ours\nx = @trust_ours.os.system\n", None)


@pytest.mark.parametrize(
    "name",
    ["mtl_evil.Builder", "os.path.Builder", "huggingface:x/y", "mnist/data_dir=theirs", "mnist"],
)
def test_refuses_a_builder_that_a_setting_names(name):
    made = _data_with(tfds.Tfds(name=name))
    trust.EVERYTHING.check_built(made)
    with pytest.raises(checks.UserError, match=rf"Tfds.name must name a module of .*'{name}'"):
        trust.Trusted([]).check_built(made)


@pytest.mark.parametrize("name", ["mnist", "glue/cola:1.0.0", "mtl.datasets.adult.builder.Adult"])
def test_allows_builders_of_the_packages_and_own_ones(name):
    trust.Trusted(["tensorflow_datasets"]).check_built(_data_with(tfds.Tfds(name=name)))


def _data_with(source):
    """A pipeline of a source, within others."""
    cut = subset.Subset(source=source, share=0.5)
    kind = next(kind for kind in parts.find_parts() if kind.__name__ == "Pipeline")
    return kind(**settings.required(kind) | {"source": cut})


@pytest.fixture
def stolen(tmp_path, monkeypatch):
    """Write a data set whose files name classes of a module; its import leaves a trace."""
    monkeypatch.syspath_prepend(str(tmp_path))
    trace = f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
    (tmp_path / "trust_stolen.py").write_text(trace)
    folder = tmp_path / "sets" / "stolen" / "1.0.0"
    folder.mkdir(parents=True)
    told = {"name": "stolen", "version": "1.0.0", "fileFormat": "tfrecord"}
    (folder / "dataset_info.json").write_text(json.dumps({**told, "moduleName": "trust_stolen"}))
    (folder / "features.json").write_text(json.dumps({"pythonClassName": "trust_stolen.X"}))
    return tmp_path


@pytest.mark.medium
@pytest.mark.parametrize("name", ["stolen", "stolen:1.0.0", "stolen/data_dir={}"])
def test_refuses_a_folder_whose_files_name_classes(name, stolen):
    folder = str(stolen / "sets")
    is_set = "{}" not in name
    source = tfds.Tfds(name=name.format(folder), data_dir=folder if is_set else None)
    trusted = trust.Trusted(["tensorflow_datasets"])
    where = "data_dir must be left out with --trusted_packages, as it may run code and write"
    with pytest.raises(checks.UserError, match=where if is_set else "name must name a module of"):
        trusted.check_built(_data_with(source))
    assert not (stolen / "imported").exists()
    with pytest.raises(checks.UserError, match="Tfds.name must .* It cannot be opened"):
        source.records("train")
    assert (stolen / "imported").exists()
    sys.modules.pop("trust_stolen")


def test_a_setting_is_allowed_by_its_name():
    made = _data_with(tfds.Tfds(name="mtl.datasets.adult.builder.Adult", data_dir="theirs"))
    trust.Trusted([], ["Tfds.data_dir"]).check_built(made)
    with pytest.raises(checks.UserError, match="add --trusted_settings=Tfds.data_dir"):
        trust.Trusted([], ["Distillation.teacher"]).check_built(made)


@pytest.mark.parametrize(
    ("packages", "named", "says"),
    [
        (None, ["Tfds.data_dir"], "--trusted_settings must come with --trusted_packages"),
        ([], ["Tfds.datadir"], "refuses, got 'Tfds.datadir'. Did you mean 'Tfds.data_dir'"),
        ([], ["Tfds.name"], "--trusted_settings must name settings that --trusted_packages ref"),
    ],
)
def test_names_of_settings_are_checked(packages, named, says):
    with pytest.raises(checks.UserError, match=says):
        trust.Trusted(packages, named)


def test_the_shipped_experiment_needs_no_other_package():
    made = config.load(["gin_configs/experiments/digits_shared_bottom.gin"], (), trust.Trusted([]))
    assert isinstance(made, experiment.Experiment)


@pytest.fixture
def teacher(tmp_path):
    """A SavedModel whose op writes a file, in its folder."""
    with tf.Graph().as_default(), tf1.Session() as session:
        given = tf1.placeholder(tf.string, [None], name="given")
        with tf.control_dependencies([tf.io.write_file(str(tmp_path / "written"), "theirs")]):
            made = tf.identity(given)
        tf1.saved_model.simple_save(session, str(tmp_path / "1"), {"x": given}, {"y": made})
    return tmp_path


def test_a_graph_of_a_stranger_is_refused_in_file_and_line(teacher, tmp_path):
    toy.write(tmp_path)
    file = tmp_path / "toy.gin"
    file.write_text(
        toy.GIN
        + "from mtl import auxiliary\nmodel.MultiTaskModel.auxiliary_losses = [@auxiliary.Distill"
        f"ation()]\nauxiliary.Distillation.teacher = {str(teacher)!r}\n"
    )
    line = len(file.read_text().splitlines())
    says = f"toy.gin line {line}: Distillation.teacher must be left out with --trusted_packages"
    with pytest.raises(checks.UserError, match=says):
        config.load([str(file)], (), trust.Trusted([]))
    assert not (teacher / "written").exists()
    made = config.load([str(file)], (), trust.Trusted([], ["Distillation.teacher"]))
    assert made.model.auxiliary_losses[0].teacher == str(teacher)
    # The trusted graph does run its op, which writes the file.
    model = loaded.open_export(str(teacher / "1"))
    model.session.run(model.signatures["serving_default"].outputs["y"].name, {"given:0": ["x"]})
    assert (teacher / "written").exists()
