"""Keeps old defaults of settings for runs that were trained before the defaults changed.

bindings += earlier_defaults.fill_in(used, files, model_dir)

If the default of a setting has changed, the dataclass field has the metadata {"earlier": the old
default}. Every config.gin that is saved after the change names the setting, so a config.gin without
the setting comes from an earlier version of mtl.
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
    """Return bindings for settings that files omit although the default has changed.

    Each returned binding sets the default with which the run was trained.

    Args:
      used: the bindings that an experiment uses.
      files: the gin files that contain the bindings in `used`.
      model_dir: the folder of the run, or None.
    """
    added: dict[tuple[str, type, str], gin_files.Binding] = {}
    bound_keys = {binding.key for binding in used}
    for binding in used:
        for field in _list_fields(binding.target):
            # A binding without a scope applies in every scope.
            keys = {(scope, binding.target, field.name) for scope in ("", binding.scope)}
            if keys & bound_keys:
                continue
            is_earlier = _is_earlier(binding.target, field, files, model_dir)
            added[binding.scope, binding.target, field.name] = dataclasses.replace(
                binding,
                parameter=field.name,
                value=field.metadata["earlier"] if is_earlier else field.default,
                uses=(),
            )
    return list(added.values())


def _list_fields(target: Any) -> Iterator[dataclasses.Field]:
    if isinstance(target, type) and dataclasses.is_dataclass(target):
        yield from (field for field in dataclasses.fields(target) if "earlier" in field.metadata)


def _is_earlier(
    target: type, field: dataclasses.Field, files: Sequence[str], model_dir: str | None
) -> bool:
    """Return True if a saved config.gin shows that its run was trained with the old default.

    If the run was trained with the old default, its config.gin omits the setting, or sets it to the
    old default, because this version of mtl has written the old default into the file.
    """
    for file in _list_saved(files, model_dir):
        text = storage.read(file).decode(errors="replace")
        # Ignore files that do not build `target`, because they tell nothing about its default.
        has_part = re.search(rf"\b{target.__name__}\.\w+ *=", text)
        match = re.search(rf"\b{target.__name__}\.{field.name} *= *(.*)", text)
        if has_part and (match is None or match[1].strip() == repr(field.metadata["earlier"])):
            return True
    return False


def _list_saved(files: Sequence[str], model_dir: str | None) -> list[str]:
    """Return the paths of saved config.gin files: among `files`, and in the folder of the run."""
    saved_files = [file for file in files if os.path.basename(file) == _FILE]
    file = os.path.join(model_dir, _FILE) if model_dir else ""
    is_new = file and file not in saved_files and storage.exists(file)
    return [*saved_files, file] if is_new else saved_files
