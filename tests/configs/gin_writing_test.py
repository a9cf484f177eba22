import dataclasses
import importlib
import math
import sys

import pytest

from mtl import checks, experiment, features, networks, spec, types
from mtl.configs import config, gin_writing
from mtl.data import csv, pipeline
from tests import tiny


def _read_again(text, path):
    path.write_text(text)
    with config.isolated():
        return config.load([str(path)])


def _make(**settings):
    made = tiny.make()
    source = csv.Csv(files={"train": "a.csv", "test": ("b.csv", "c.csv")}, missing=("", "?"))
    data = pipeline.Pipeline(source=source, spec=tiny.SPEC, batch_size=16)
    return dataclasses.replace(made, data=data, **settings)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["adult_shared_bottom", "digits_keras", "scenes_unet"])
def test_what_a_gin_file_builds_is_written_and_read_again(name, tmp_path):
    with config.isolated():
        made = config.load([f"gin_configs/experiments/{name}.gin"])
    text = gin_writing.write(made)
    again = _read_again(text, tmp_path / "config.gin")
    assert gin_writing.write(again) == text
    # gin wraps a function each time.
    assert again == made or name == "digits_keras"


def test_an_experiment_of_python_is_read_as_an_equal_one(tmp_path):
    made = _make()
    assert _read_again(gin_writing.write(made), tmp_path / "config.gin") == made


def test_parts_of_one_class_have_scopes_and_equal_parts_share_one():
    trunk = networks.MLP(layers=[8], dropout=0.2, batch_norm=True)
    network = networks.SharedBottom(trunk=trunk, tower=trunk)
    text = gin_writing.write(tiny.make(network=network).model)
    assert "networks.SharedBottom.trunk = @networks.MLP()\n" in text
    assert "networks.SharedBottom.tower = @networks.MLP()\n" in text
    assert text.count("networks.MLP.layers") == 1
    text = gin_writing.write(tiny.make().model)
    assert "networks.SharedBottom.trunk = @trunk/networks.MLP()\n" in text
    assert "tower/networks.MLP.layers = [4]\n" in text
    assert "from mtl.balancing import surgery" not in text  # It is at its default.


def test_parts_of_one_setting_have_numbered_scopes(tmp_path):
    made = _make()
    columns = [features.Numeric(names=[name], prefix=name) for name in ("x", "y", "z")]
    made = dataclasses.replace(made, model=dataclasses.replace(made.model, columns=columns))
    text = gin_writing.write(made)
    for scope in ("columns", "columns_2", "columns_3"):
        assert f"@{scope}/features.Numeric()" in text
    assert _read_again(text, tmp_path / "config.gin") == made


def test_only_what_is_not_at_its_default_is_written():
    run = experiment.Run(train_steps=5, seed=1, check_numerics=True)
    lines = gin_writing.write(run).splitlines()
    assert [line for line in lines if "Run." in line] == [
        "experiment.Run.train_steps = 5",
        "experiment.Run.check_numerics = True",
    ]


def test_a_missing_number_is_written_as_gin_files_do(tmp_path):
    fields = {"x": ("float32", (3,)), "word": "string"}
    own = spec.Spec(
        features=fields,
        labels=tiny.SPEC.labels,
        defaults={"word": ""},
        type_defaults={"float32": math.nan},
    )
    made = _make()
    made = dataclasses.replace(made, data=dataclasses.replace(made.data, spec=own))
    again = _read_again(gin_writing.write(made), tmp_path / "config.gin")
    assert math.isnan(again.data.spec.fields["x"].default)


def test_modules_of_one_name_are_told_apart(tmp_path, monkeypatch):
    code = (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Part:\n    of: object = 1\n"
    )
    for package in ("writing_one", "writing_two"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "parts.py").write_text(code)
    (tmp_path / "parts.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    modules = ("writing_one.parts", "writing_two.parts", "parts")
    one, two, top = map(importlib.import_module, modules)
    text = gin_writing.write(Values([two.Part(of="a"), one.Part(of=name_of), top.Part(of=2)]))
    assert text.splitlines()[1:] == [
        "from tests.configs import gin_writing_test",
        "from writing_one import parts as parts_2",
        "from writing_two import parts",
        "import parts as parts_3",
        "",
        "gin_writing_test.Values.value = [@parts.Part(), @parts_2.Part(), @parts_3.Part()]",
        "",
        "parts.Part.of = 'a'",
        "",
        "parts_2.Part.of = @gin_writing_test.name_of",
        "",
        "parts_3.Part.of = 2",
        "",
    ]


def name_of():
    """A function that a gin file can name."""


def test_what_no_gin_file_can_name_is_refused():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Halves(types.Weighting):
        reads_losses = False

        def __call__(self, losses, step):
            return {task: 0.5 * loss for task, loss in losses.items()}

    model = dataclasses.replace(tiny.make().model, weighting=Halves())
    with pytest.raises(checks.UserError) as error:
        gin_writing.write(model)
    assert str(error.value).startswith("MultiTaskModel.weighting must be a class or function that")
    assert "Halves'. Define the code in a module that can be imported" in str(error.value)
    for value in (lambda: None, object(), b"bytes", math.inf):
        with pytest.raises(checks.UserError, match="Values.value must"):
            gin_writing.write(Values(value))


@dataclasses.dataclass(frozen=True)
class Values:
    """A part whose setting may be anything."""

    value: object
