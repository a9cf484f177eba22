"""Gin files and parameters are read as gin itself reads them."""

import contextlib
import cProfile
import importlib
import math
import pathlib
import re
import textwrap

import gin
import pytest

from mtl import checks, experiment, heads, spec
from mtl.checkpoints import settings
from mtl.configs import config, gin_files, gin_names, gin_usage, trust
from tests.launch import toy

ROOT = pathlib.Path(__file__).resolve().parents[2]
START = "from __gin__ import dynamic_registration\n"


def write(path, text):
    path.write_text(START + textwrap.dedent(text))
    return str(path)


def values(bindings):
    return {binding.name: binding.value for binding in bindings}


@pytest.mark.parametrize("path", sorted((ROOT / "gin_configs" / "experiments").glob("*.gin")))
def test_reads_shipped_experiments_as_gin_does(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    bindings = gin_files.read([str(path)], [])
    gin.clear_config()
    gin.parse_config_file(str(path))
    theirs = gin.config_str()
    gin.clear_config()
    for binding in bindings:
        gin.parse_config(gin_files.write_bindings(binding.imports, [binding]))
    ours = gin.config_str()
    gin.clear_config()
    assert ours == theirs and "heads." in ours


def test_blocks_aliases_and_values_of_every_kind(tmp_path):
    text = """
        from mtl import heads as h
        import mtl.experiment
        one = -1
        a/h.MultiClass:
          name = 'x'  'y'
          classes = ["p", ("q",), {"r": 1e-5}, None, True, %one]
        mtl.experiment.Run.seed = 3
    """
    bindings = gin_files.read([write(tmp_path / "x.gin", text)], ["Run.seed = 4"])
    assert values(bindings) == {
        "one": -1,
        "a/h.MultiClass.name": "xy",
        "a/h.MultiClass.classes": ["p", ("q",), {"r": 1e-5}, None, True, gin_files.Macro("one")],
        "mtl.experiment.Run.seed": 4,
    }
    assert [binding.place.line for binding in bindings] == [5, 7, 8, 9, 0]
    assert bindings[1].target is heads.MultiClass and bindings[3].target is experiment.Run


def test_the_end_of_a_name_is_enough_in_a_parameter_where_it_is_unambiguous(tmp_path):
    (tmp_path / "one.py").write_text("class Part:\n    def __init__(self, size=1): pass\n")
    (tmp_path / "two.py").write_text("class Part:\n    def __init__(self, size=1): pass\n")
    file = write(tmp_path / "x.gin", "import one\nimport two\nfrom mtl import heads\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with pytest.raises(checks.UserError, match="'Part' can be one.Part or two.Part: write one"):
            gin_files.read([file], ["Part.size = 2"])
        read = gin_files.read([file], ["two.Part.size = 2"])
    assert list(values(read)) == ["two.Part.size"]
    (binding,) = gin_files.read([file], ["a/Binary.name = {'k': [@b/Ordinal()]}"])
    assert gin_files.write_bindings(binding.imports, [binding]).endswith(
        "a/heads.Binary.name = {'k': [@b/heads.Ordinal()]}"
    )


PARTS = """
import dataclasses
from typing import Any

@dataclasses.dataclass
class Root:
    part: Any = None

@dataclasses.dataclass
class Part:
    size: int = 1
    inner: Any = None

@dataclasses.dataclass
class Inner:
    size: int = 1
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The module of PARTS; gin registers its classes once for all."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "parts.py").write_text(PARTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("parts")


@pytest.fixture
def used(tmp_path, parts):
    """used(gin text, *params): the bindings that a parts.Root uses, and the built Root."""

    def read(text, *params):
        bindings = gin_files.read([write(tmp_path / "x.gin", "import parts\n" + text)], params)
        used = gin_usage.used(bindings, parts.Root)
        gin.clear_config()
        for binding in used:
            gin.parse_config(gin_files.write_bindings(binding.imports, [binding]))
        return [binding.name for binding in used], gin.get_configurable(parts.Root)()

    return read


NESTED = """
parts.Root.part = @a/parts.Part()
parts.Part.inner = @parts.Inner()
a/parts.Inner.size = 3
"""


def test_a_part_inherits_the_scope_of_what_builds_it(used):
    names, root = used(NESTED)
    assert len(names) == 3 and root.part.inner.size == 3
    with pytest.raises(checks.UserError, match=r"line 7: b/parts.Inner.size is not used.*in a\."):
        used(NESTED + "b/parts.Inner.size = 4\n")


def test_what_a_later_binding_replaced_is_left_out(used):
    names, root = used(NESTED, "Root.part = None")
    assert names == ["parts.Root.part"] and root.part is None
    with pytest.raises(checks.UserError, match="line 7: c/parts.Part.size is not used"):
        used(NESTED + "c/parts.Part.size = 4\n", "Root.part = None")


def test_a_macro_lends_its_name_as_scope_as_in_gin(used):
    text = "m = @parts.Part()\nparts.Root.part = %m\nm/parts.Part.size = 2\n"
    names, root = used(text)
    assert names == ["m", "parts.Root.part", "m/parts.Part.size"] and root.part.size == 2


def test_a_binding_that_inner_scopes_hide_is_refused(used):
    with pytest.raises(checks.UserError, match="inner scopes bind it again in a"):
        used(NESTED + "a/parts.Part.size = 1\nparts.Part.size = 2\n")


def test_a_module_that_lacks_something_says_what(tmp_path, monkeypatch):
    (tmp_path / "needy.py").write_text("import no_such_thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(checks.UserError, match="x.gin line 2: importing 'needy' failed: No module"):
        gin_files.read([write(tmp_path / "x.gin", "import needy\n")], [])


def test_parameters_of_a_class_that_takes_any():
    assert gin_names.parameters(dict) is None
    assert gin_names.parameters(lambda **any_: None) is None
    assert "classes" in gin_names.parameters(heads.MultiClass)


def test_an_experiment_can_be_loaded_again_and_again():
    path = str(ROOT / "gin_configs" / "experiments" / "digits_shared_bottom.gin")
    first, second = config.load([path]), config.load([path], ["Run.train_steps = 3"])
    assert (first.run.train_steps, second.run.train_steps) == (1000, 3)
    assert first.model == config.load([path]).model


MISSING_NUMBER = """
    from mtl import spec
    spec.Spec.features = {"age": "float32", "n": "int64", "job": "string"}
    spec.Spec.labels = {}
    spec.Spec.defaults = {"age": "nan", "n": None}
    spec.Spec.type_defaults = {"int64": 0, "string": ""}
"""


def test_a_missing_number_goes_through_gin_and_back(tmp_path):
    path = write(tmp_path / "x.gin", MISSING_NUMBER)
    for text in (None, "config"):
        if text:
            path = tmp_path / "config.gin"
            path.write_text(gin.config_str())
        gin.clear_config()
        for binding in gin_files.read([str(path)], []):
            gin.parse_config(gin_files.write_bindings(binding.imports, [binding]))
        made = gin.get_configurable(spec.Spec)()
        assert math.isnan(made.fields["age"].default)
        assert made.fields["n"].is_required and made.fields["job"].default == ""
    gin.clear_config()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{'age': nan}", "'nan' must be a value. Write a default that is NaN in quotes"),
        ("{'age': float('nan')}", "'float' must be a value. Write a default that is NaN in quotes"),
        ("{'age': 1e999}", "spec.Spec.defaults must hold finite numbers, got inf."),
        ("{'age': [(0, -1e999)]}", "spec.Spec.defaults must hold finite numbers, got -inf."),
        ("{1e999: 0}", "spec.Spec.defaults must hold finite numbers, got inf."),
    ],
)
def test_numbers_that_gin_cannot_hold(tmp_path, value, message):
    path = write(tmp_path / "x.gin", MISSING_NUMBER.replace('{"age": "nan", "n": None}', value))
    with pytest.raises(checks.UserError) as error:
        gin_files.read([path], [])
    assert f"x.gin line 6: {message}" in str(error.value)


def test_infinity_in_a_macro_and_a_parameter(tmp_path):
    path = write(tmp_path / "x.gin", "from mtl import spec\nrate = 1e999\n")
    with pytest.raises(checks.UserError, match="line 3: rate must hold finite numbers, got inf"):
        gin_files.read([path], [])
    path = write(tmp_path / "x.gin", "from mtl import spec\n")
    with pytest.raises(checks.UserError, match=r"--gin_param .*: spec.Spec.defaults must hold f"):
        gin_files.read([path], ["Spec.defaults = {'a': 1e999}"])


SHIPPED = sorted((ROOT / "gin_configs" / "experiments").rglob("*.gin"))


@pytest.mark.medium
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_saved_configuration_means_what_the_files_say(path, monkeypatch, tmp_path):
    """A run goes on exactly, both with its gin files and with its saved configuration alone."""
    monkeypatch.chdir(ROOT)
    given = config.load([str(path)])
    config.save(str(tmp_path))
    (tmp_path / "earlier.gin").write_text(gin.config_str())  # Gin sorts dictionaries.
    saved = config.load([config.saved_in(str(tmp_path))])
    earlier = config.load([str(tmp_path / "earlier.gin")])
    assert _shown(saved) == _shown(given)
    assert (
        settings.canonical_text(saved)
        == settings.canonical_text(earlier)
        == settings.canonical_text(given)
    )
    assert settings.compute_digest(saved.data) == settings.compute_digest(given.data)


def _shown(experiment):
    return re.sub(" at 0x[0-9a-f]+", "", repr(experiment))


def test_a_saved_configuration_keeps_the_order_of_dictionaries(monkeypatch, tmp_path):
    """Rows are held out in this order."""
    monkeypatch.chdir(ROOT)
    path = str(ROOT / "gin_configs" / "experiments" / "mnist_lt" / "joint.gin")
    held_out = {f"split {letter} {'long' * 9}": 10 + i for i, letter in enumerate("zxayb")}
    params = [f"LongTail.held_out = {held_out}", "Pipeline.eval_split = 'test'"]
    assert list(config.load([path], params).data.source.held_out) == list(held_out)
    config.save(str(tmp_path))
    assert gin.config_str().index("split a") < gin.config_str().index("split z")
    saved = config.load([config.saved_in(str(tmp_path))]).data.source.held_out
    assert list(saved.items()) == list(held_out.items())


HEADS = "from mtl import experiment\nfrom mtl import heads\nfrom mtl import model\n"
DATA = "experiment.Experiment.data = 1\n"
MODEL = DATA + "experiment.Experiment.model = @model.MultiTaskModel()\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DATA + "experiment.Experiment.run = %a\na = %a\n", "line 7: %a contains itself"),
        (DATA + "experiment.Experiment.run = %a\na = %b\nb = [%a]\n", "line 8: %a contains itself"),
        (MODEL + "model.MultiTaskModel.update = @model.MultiTaskModel()\n", "line 7: @model.Multi"),
        (
            DATA + f"experiment.Experiment.run = {'[' * 60}{']' * 60}\n",
            "line 6: .* nest at most 30",
        ),
        (DATA + f"experiment.Experiment.run = {'[' * 5000}\n", "too many brackets"),
        (
            MODEL + "model.MultiTaskModel.heads = [@heads.Binary()]\na/heads.Binary.name = 'a'\n",
            r"line 8: .* nothing builds @a/heads.Binary\(\). It is built without a scope",
        ),
        (MODEL + "heads.Binary.name = 'a'\n", r"line 7: .* nothing builds @heads.Binary\(\)"),
        (MODEL + "network = 3\n", "Did you mean the setting MultiTaskModel.network"),
        (MODEL + "model.MultiTaskModel.network = 3\nx = %network\n", "network is a setting; a"),
        (DATA + "import heads, model\n", "a line must hold one binding, include or import"),
    ],
)
def test_mistakes_of_structure(tmp_path, text, says):
    path = write(tmp_path / "x.gin", HEADS + text)
    with pytest.raises(checks.UserError, match=rf"x\.gin .*{says}"):
        config.load([path])


def test_a_replaced_binding_may_have_contained_itself(tmp_path):
    path = write(tmp_path / "x.gin", HEADS + MODEL + "model.MultiTaskModel.heads = %a\na = [%a]\n")
    params = ["MultiTaskModel.heads = 3"]
    with pytest.raises(checks.UserError, match="MultiTaskModel"):
        config.load([path], params)


def test_includes_go_so_deep(tmp_path):
    for number in range(1200):
        (tmp_path / f"{number}.gin").write_text(f'include "{tmp_path}/{number + 1}.gin"\n')
    with pytest.raises(checks.UserError, match=r"50.gin line 1: more than 50 files include"):
        gin_files.read([str(tmp_path / "0.gin")], [])


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = (\ndef f(:\n", r"importing 'broken\d' failed \(.*broken\d.py line \d\): SyntaxError"),
        ("class Odd(BaseException): 0\nraise Odd('no')\n", r"broken\d.py line 2\): Odd: no\."),
        ("\n1 / 0\n", r"importing 'broken\d' failed \(.*broken\d.py line 2\): ZeroDivisionError"),
        ("from mtl import nothing_of_it\n", r"broken\d.py line 1\): ImportError: cannot import"),
    ],
)
def test_a_module_that_fails_at_import(tmp_path, monkeypatch, code, says):
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"broken{len(code) % 10}"
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(checks.UserError, match=rf"x\.gin line 2: .*{says}"):
        gin_files.read([write(tmp_path / "x.gin", f"import {name}\n")], [])


@pytest.mark.parametrize("separator", ["; ", "\n", ", ", " "])
def test_two_bindings_in_one_param(tmp_path, separator):
    path = write(tmp_path / "x.gin", HEADS)
    with pytest.raises(checks.UserError, match="must be one binding. Repeat --gin_param"):
        gin_files.read([path], [f"Binary.name = 'a'{separator}Binary.label = 'b'"])


def test_an_error_that_is_not_ours_names_the_part(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "careless.py").write_text("class Part:\n  def __init__(self, a):\n    iter(a)\n")
    text = "import careless\nexperiment.Experiment.run = @careless.Part()\n"
    path = write(tmp_path / "x.gin", HEADS + DATA + text + "careless.Part.a = None\n")
    with pytest.raises(
        checks.UserError, match="Part cannot be built: TypeError: 'NoneType' object"
    ):
        config.load([path])


@pytest.mark.parametrize("key", ["@parts.Part()", "[]", "{}", "None", "%m"])
def test_a_key_of_a_map_is_a_text_or_a_number(used, key):
    with pytest.raises(checks.UserError, match="keys?"):
        used(f"parts.Root.part = {{{key}: 1}}\nm = 1\n")


@pytest.mark.medium
def test_the_work_for_a_file_is_proportional_to_its_lines(tmp_path):
    def count_calls(heads):
        path = tmp_path / f"{heads}.gin"
        listed = ", ".join(f"@h{i}/heads.Binary()" for i in range(heads))
        lines = [f"model.MultiTaskModel.heads = [{listed}]"]
        for i in range(heads):
            lines += [f"name_{i} = 't{i}'", f"h{i}/heads.Binary.name = %name_{i}"]
        text, start = toy.GIN, toy.GIN.index("model.MultiTaskModel.heads")
        text = text[:start] + text[text.index("update.Update.optimizer") :]
        included = tmp_path / f"{heads}_included.gin"
        included.write_text("".join(f"other_{i} = {i}\n" for i in range(heads)))
        uses = "optimizers.Adam.learning_rate = 0.01"
        path.write_text("\n".join([text, *lines, f'include "{included}"', ""]))
        assert uses in text
        profile = cProfile.Profile()
        with profile, contextlib.suppress(checks.UserError):  # Nothing uses `other_0`.
            config.find_bindings([str(path)], [], trust.EVERYTHING)
        return sum(call.callcount for call in profile.getstats())

    count_calls(10)  # Imports.
    few, many = count_calls(200), count_calls(800)
    assert many < 5 * few
