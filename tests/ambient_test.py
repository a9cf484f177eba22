"""Ambient values: they nest, end with their block, and are all on docs/ambient.md."""

import pathlib
import re
import threading

import pytest

from mtl import ambient

ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_values_nest_and_end_with_their_block():
    value = ambient.Ambient("value", default=0)
    with value.set(1) as given:
        assert (given, value.get()) == (1, 1)
        with value.set(2):
            assert value.get() == 2
        assert value.get() == 1
    assert value.get() == 0


def test_a_value_ends_with_an_error():
    value = ambient.Ambient("value", default=0)
    with pytest.raises(KeyError), value.set(1):
        raise KeyError
    assert value.get() == 0


def test_every_thread_has_values_of_its_own():
    value, seen = ambient.Ambient("value", default=0), []
    with value.set(1):
        thread = threading.Thread(target=lambda: seen.append(value.get()))
        thread.start()
        thread.join()
    assert seen == [0]


def test_there_is_one_mechanism_and_the_page_names_all_of_it():
    page = (ROOT / "docs" / "ambient.md").read_text()
    names = []
    for path in sorted((ROOT / "mtl").rglob("*.py")):
        text = path.read_text()
        if path.name != "ambient.py":
            assert "contextvars" not in text, path
            found = re.findall(r'ambient\.Ambient\(\s*"([^"]+)"', text)
            assert not found or str(path.relative_to(ROOT)) in page, path
            names += found
    assert len(names) == 12
    assert [name for name in names if f"`{name}`" not in page] == []
