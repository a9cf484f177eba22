"""Imports that wait for a first use."""

import sys

import pytest

from mtl import deferred


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """A package with a module, which are in no process yet."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / "odd" / "inner.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "odd"]:
        del sys.modules[name]


@pytest.mark.usefixtures("odd")
def test_a_module_is_imported_at_its_first_use():
    with deferred.imports():
        import odd as package
        from odd import inner
    assert "odd" not in sys.modules
    assert inner.VALUE == 2 and package.VALUE == 1
    assert {"odd", "odd.inner"} <= sys.modules.keys()
    with pytest.raises(AttributeError, match="VALEU"):
        _ = inner.VALEU


def test_what_is_missing_shows_at_the_first_use():
    with deferred.imports():
        from odd import nowhere
    with pytest.raises(ModuleNotFoundError, match="odd"):
        _ = nowhere.VALUE


def test_a_dotted_name_is_refused():
    with pytest.raises(ImportError, match="from"), deferred.imports():
        import odd.inner  # noqa: F401
    import json  # As ever, behind the block.

    assert json.loads("1") == 1
