"""The defaults of all parts equal the list, so gin files that omit settings keep their meaning.

python -m tests.configs.defaults_test     # lists them anew

If a default changes on purpose, the metadata `{"earlier": ...}` of its field keeps the earlier one
for runs that were trained with it; see `mtl/configs/earlier_defaults.py`.
"""

import dataclasses
import json
import pathlib

from launch import parts

_LIST = pathlib.Path(__file__).with_name("defaults.json")


def _list_defaults():
    """Return {part: {setting: its default}} of all settings that have one."""
    return {
        _name(kind): {field.name: _show(default) for field, default in _list_fields(kind)}
        for kind in sorted(
            parts.find_parts(), key=lambda kind: (kind.__qualname__, kind.__module__)
        )
    }


def _name(kind):
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("mtl.")


def _list_fields(kind):
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            yield field, field.default
        elif field.default_factory is not dataclasses.MISSING:
            yield field, field.default_factory()


def _show(value):
    return getattr(value, "__qualname__", None) or repr(value)


def test_no_default_changes_unseen():
    listed, found = json.loads(_LIST.read_text()), _list_defaults()
    assert found.keys() == listed.keys()
    for part, defaults in found.items():
        assert defaults == listed[part], part


if __name__ == "__main__":
    text = json.dumps(_list_defaults(), indent=1, ensure_ascii=False)
    _LIST.write_text(text + "\n")
