"""Gin files and runs that name modules where they lay before are read as they were."""

import gin
import pytest

from mtl import checks
from mtl.configs import config, gin_names, old_names, trust
from mtl.data import tfds
from mtl.datasets import click_stream


def _names(statement):
    names = gin_names.Names(trust.EVERYTHING)
    (parsed,) = gin.config_parser.ConfigParser(f"{statement}\n", gin.config_parser.ParserDelegate)
    names.add(parsed)
    return names


@pytest.mark.parametrize("module", old_names.MODULES)
def test_every_class_is_found_under_its_old_name(module):
    package, _, base = module.rpartition(".")
    current = gin_names.import_module(old_names.MODULES[module])
    short, whole = _names(f"from {package} import {base}"), _names(f"import {module}")
    classes = gin_names.list_classes(current)
    assert classes
    for name in classes:
        found = short.resolve(short.full(f"{base}.{name}"))
        assert found is whole.resolve(whole.full(f"{module}.{name}")) is getattr(current, name)


@pytest.mark.parametrize("part", old_names.REMOVED)
def test_a_removed_part_is_one_clear_line(part):
    module, _, name = part.rpartition(".")
    package, _, base = module.rpartition(".")
    assert not hasattr(gin_names.import_module(module), name)
    told = f"{name} was removed after version 0.2.0. Take "
    for names, selector in (
        (_names(f"from {package} import {base}"), f"{base}.{name}"),
        (_names(f"import {module}"), part),
    ):
        for find in (names.known, names.full):
            with pytest.raises(checks.UserError, match=told):
                find(selector)


def test_a_class_of_a_user_may_have_the_name_of_a_removed_part():
    assert old_names.find_removal("HeatMap", ["shop.heads"]) is None


@pytest.mark.medium
def test_old_names_in_a_file_and_a_parameter(tmp_path):
    path = tmp_path / "old.gin"
    path.write_text(
        "from __gin__ import dynamic_registration\n"
        "from mtl.data import pipeline\n"
        "import mtl.data.click_stream\n"
        'include "gin_configs/experiments/click_stream.gin"\n'
        "pipeline.Pipeline.source = @mtl.data.click_stream.ClickStream()\n"
        "mtl.data.click_stream.ClickStream.shown = 7\n"
    )
    made = config.load([str(path)], ["mtl.data.click_stream.ClickStream.items = 80"])
    assert isinstance(made.data.source, click_stream.ClickStream)
    assert (made.data.source.shown, made.data.source.items) == (7, 80)
    assert "from mtl.datasets import click_stream" in config.text()


def test_a_builder_is_found_under_its_old_name():
    before, now = (f"mtl.{place}.digits.builder.Digits" for place in ("data", "datasets"))
    assert tfds.Tfds(name=before)._builder_class() is tfds.Tfds(name=now)._builder_class()
