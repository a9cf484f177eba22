"""Outlines of `mtl` hold what the modules hold, and refuse what they refuse, in the same words."""

import dataclasses
import functools
import importlib
import inspect
import pathlib
import pkgutil

import pytest

import mtl
from launch import parts
from mtl import checks
from mtl.configs import config, gin_files, gin_names, outlines, trust
from tests.launch import mistakes_test, toy

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Mistakes whose files are read with the gin file.
FILES = ("binary gin file", "gin file without an experiment", "include takes a binding back")
EXPERIMENTS = sorted((ROOT / "gin_configs" / "experiments").rglob("*.gin"))


@pytest.mark.slow
def test_every_module_of_mtl_has_its_classes_and_their_settings():
    modules, parts_seen = outlines.Outlines(), 0
    for info in pkgutil.walk_packages(mtl.__path__, "mtl."):
        if f"{info.name}.".startswith(("mtl.compat.", "mtl.configs.")):
            continue
        module, outline = importlib.import_module(info.name), modules.load(info.name)
        has_parts = not parts._has_no_parts(info.name)
        names = gin_names.IMPORTED.list_classes(module)
        listed = modules.list_classes(outline)
        # The tests put functions of their own in the place of some.
        own = [n for n in listed if not getattr(module, n).__module__.startswith("tests.")]
        assert own == names, info.name
        for name in names:
            real = getattr(module, name)
            is_part = inspect.isclass(real) and real.__module__ == info.name
            try:
                found = modules.get(outline, name)
            except gin_names.UnclearError:
                assert not has_parts or not (is_part and parts._is_part(real)), name
                continue
            assert found.__module__ == real.__module__ and found.__qualname__ == real.__qualname__
            assert gin_names.parameters(found) == gin_names.parameters(real), f"{info.name}.{name}"
            assert dataclasses.is_dataclass(real)
            parts_seen += is_part
    assert parts_seen > 300


@pytest.fixture(scope="module")
def modules():
    """Outlines that several files are read with, as they are slow to make."""
    return outlines.Outlines()


def bindings(modules, files, params=()):
    """What the files bind, or the line that refuses them."""
    try:
        used = config.find_bindings(files, params, trust.EVERYTHING, modules)[1]
    except checks.UserError as error:
        return str(error)
    return [
        (str(binding.place), gin_files.write_bindings(binding.imports, [binding]))
        for binding in used
    ]


@pytest.mark.medium
@pytest.mark.parametrize("path", EXPERIMENTS[::6], ids=lambda path: path.stem)
def test_shipped_experiments_are_read_alike(path, modules):
    params = ["Run.train_steps = 5"]
    real = bindings(gin_names.IMPORTED, [str(path)], params)
    assert isinstance(real, list)
    assert bindings(modules, [str(path)], params) == real
    # All checks of its parts are done without TensorFlow.
    assert dataclasses.is_dataclass(config.build_outline(modules, [str(path)], params))


def given(mistake, flag):
    """The values of a flag that is repeatable."""
    pairs = zip(mistake.args, mistake.args[1:], strict=False)
    return [value for name, value in pairs if name == flag]


def refusal(build, *args):
    """The line that refuses what is built; "" where nothing does."""
    try:
        build(*args)
    except checks.UserError as error:
        return str(error)
    return ""


@pytest.mark.medium
def test_mistakes_are_told_in_the_same_words(modules, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toy.write(tmp_path)
    told = set()
    for mistake in mistakes_test.MISTAKES:
        if not given(mistake, "--gin_file"):
            continue
        text = functools.reduce(lambda text, pair: text.replace(*pair), mistake.gin, toy.GIN)
        (tmp_path / "toy.gin").write_text(text)
        if mistake.name in FILES:
            mistake.change(tmp_path)
        files, params = given(mistake, "--gin_file"), given(mistake, "--gin_param")
        try:
            found = refusal(config.build_outline, modules, files, params)
        except gin_names.UnclearError:
            continue
        assert found == refusal(config.load, files, params), mistake.name
        told |= {mistake.name} if found else set()
    assert told >= {"syntax", "missing include", "param with an unknown setting", "scope"}
    assert len(told) >= 43


def test_code_of_a_user_is_left_to_python(modules, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(gin_names.UnclearError):
        modules.load("odd")
    with pytest.raises(ModuleNotFoundError) as raised:
        modules.load("od.heads")
    assert raised.value.name == "od"
