"""Keeps the earlier defaults of settings for runs that were trained with them.

bindings += earlier_defaults.fill_in(used, files, model_dir)

The field of such a setting has the metadata {"earlier": the earlier default}. Every saved
config.gin names the setting, so a file without it comes from an earlier version.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from mtl.configs import gin_files
from mtl.files import storage

_FILE = "config.gin"


def fill_in(
    used: Sequence[gin_files.Binding], files: Sequence[str], model_dir: str | None
) -> list[gin_files.Binding]:
    """Return bindings of such settings that the files omit, with the values their run trained with.

    Args:
      used: the bindings of an experiment.
      files: the files of these bindings.
      model_dir: the folder of the run, if it is known.
    """
    found: dict[tuple[str, type, str], gin_files.Binding] = {}
    named = {binding.key for binding in used}
    for binding in used:
        for field in _list_fields(binding.target):
            # A binding without a scope holds in every scope.
            keys = {(scope, binding.target, field.name) for scope in ("", binding.scope)}
            if keys & named:
                continue
            is_earlier = _is_earlier(binding.target, field, files, model_dir)
            found[binding.scope, binding.target, field.name] = dataclasses.replace(
                binding,
                parameter=field.name,
                value=field.metadata["earlier"] if is_earlier else field.default,
                uses=(),
            )
    return list(found.values())


def _list_fields(target: Any) -> Iterator[dataclasses.Field]:
    if isinstance(target, type) and dataclasses.is_dataclass(target):
        yield from (field for field in dataclasses.fields(target) if "earlier" in field.metadata)


def _is_earlier(
    target: type, field: dataclasses.Field, files: Sequence[str], model_dir: str | None
) -> bool:
    """Return whether the run, or a saved file of another run, uses the earlier default.

    Its file then omits the setting, or names that default after the run went on in this version.
    """
    for file in _list_saved(files, model_dir):
        text = storage.read(file).decode(errors="replace")
        # A file that does not build this part says nothing about its default.
        has_part = re.search(rf"\b{target.__name__}\.\w+ *=", text)
        found = re.search(rf"\b{target.__name__}\.{field.name} *= *(.*)", text)
        if has_part and (found is None or found[1].strip() == repr(field.metadata["earlier"])):
            return True
    return False


def _list_saved(files: Sequence[str], model_dir: str | None) -> list[str]:
    """Return the saved files among a run's files, and the saved file in its folder."""
    saved = [file for file in files if os.path.basename(file) == _FILE]
    own = os.path.join(model_dir, _FILE) if model_dir else ""
    is_further = own and own not in saved and storage.exists(own)
    return [*saved, own] if is_further else saved
