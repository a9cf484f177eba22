"""Lists all settings of all parts that a run builds, with the values and their origins.

print(run_settings.describe_run(["train.gin"], ["Run.seed = 2"]))
"""

import dataclasses
import importlib
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mtl import checks, deferred
from mtl.configs import config, gin_files, gin_usage, trust

with deferred.imports():
    from mtl import experiment

_DEFAULT = "default"
_COLUMN = 60

_Row = tuple[str, str, str]
"""A setting, its value, and the origin of the value, such as a line of a gin file."""


def describe_run(
    files: Sequence[str],
    params: Sequence[str] = (),
    model_dir: str = "",
    trusted: trust.Trusted = trust.EVERYTHING,
    names: Sequence[str] = (),
) -> str:
    """Return a line for each setting of a run, in the order in which parts are built.

    Args:
      files: gin files; if empty, the config.gin in `model_dir`.
      params: bindings such as "Run.seed = 2", which override the files.
      model_dir: the folder of the run.
      trusted: the packages that may be imported.
      names: the names of parts to show, with or without module and scope; () shows all parts.

    Raises:
      UserError: a file has a mistake, or the run builds no part with one of the names.
    """
    files_read = list(files) or [config.saved_in(model_dir)]
    config.load(files_read, params, trusted)
    bindings = gin_files.read(files_read, params, trusted)
    folder = (
        (model_dir, "--model_dir") if model_dir else (config.name_model_dir(files_read), _DEFAULT)
    )
    lines = [] if names else [_write_line("--model_dir", *folder), ""]
    blocks = dict(_list_blocks(bindings))
    for title in _choose_titles(names, blocks) if names else blocks:
        lines += [
            _write_line(f"{title}.{setting}", value, origin)
            for setting, value, origin in blocks[title]
        ]
        lines += [""] if blocks[title] else []
    return "\n".join(lines).rstrip()


def gin_name(kind: Any) -> str:
    """Return the name that gin files bind, such as `networks.MMoE` or `gates.Softmax`.

    Args:
      kind: a class or function, whose package is imported.
    """
    package, _, module = kind.__module__.rpartition(".")
    # The `__all__` of a package lists classes that are named by the package, such as
    # `networks.MMoE`.
    exported = getattr(importlib.import_module(package), "__all__", ()) if package else ()
    where = package.rpartition(".")[2] if kind.__name__ in exported else module
    return f"{where}.{kind.__name__}"


def write_default(kind: Any, parameter: inspect.Parameter) -> str:
    """Return the default of a setting in gin's notation; "required" if there is none.

    Args:
      kind: the class or function that has the setting.
      parameter: the parameter for this setting in the signature of `kind`.
    """
    value = _find_default(kind, parameter)
    return "required" if value is inspect.Parameter.empty else _write_value(value, {})


def _find_default(kind: Any, parameter: inspect.Parameter) -> Any:
    """Return the default of a setting; call its default factory if it has one."""
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
    return parameter.default


def _list_blocks(
    bindings: Sequence[gin_files.Binding],
) -> Iterator[tuple[str, list[_Row]]]:
    """Yield (part, rows of its settings) for each part; default values of settings come last."""
    macros = {binding.name: binding for binding in bindings if not binding.parameter}
    defaults: list[tuple[str, Any]] = []
    titles: dict[str, list[_Row]] = {}
    for built in gin_usage.list_built(bindings, experiment.Experiment):
        title = f"{built.scope}/{built.selector}" if built.scope else built.selector
        titles[title], parts = _list_rows(built, macros)
        defaults += [(f"{title}.{name}", part) for name, part in parts]
        yield title, titles[title]
    # If the default of a setting is a part, the part may contain other parts, which are listed
    # after it.
    while defaults:
        owner, part = defaults.pop(0)
        title = gin_name(type(part))
        rows, parts = _list_default_rows(part)
        defaults += [(f"{title}.{name}", inner) for name, inner in parts]
        # Two default parts of the same class with different settings need different titles.
        title += f" (of {owner})" if titles.get(title, rows) != rows else ""
        titles[title] = rows
        yield title, rows


def _list_rows(
    built: gin_usage.Built, macros: Mapping[str, gin_files.Binding]
) -> tuple[list[_Row], list[tuple[str, Any]]]:
    """Return a row for each setting of a part, and pairs (setting, its default) of parts."""
    rows_of_bindings = {
        name: (name, _write_value(binding.value, macros), _write_origin(binding, macros))
        for name, binding in built.bindings.items()
    }
    rows, parts = dict[str, _Row](), list[tuple[str, Any]]()
    for name, parameter in inspect.signature(built.target).parameters.items():
        if name in rows_of_bindings:
            rows[name] = rows_of_bindings[name]
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            value = _find_default(built.target, parameter)
            parts += [(name, part) for part in _parts_in(value)]
            rows[name] = (name, _write_value(value, macros), _DEFAULT)
    rows |= rows_of_bindings  # Adds settings of a class with **settings.
    return list(rows.values()), parts


def _list_default_rows(part: Any) -> tuple[list[_Row], list[tuple[str, Any]]]:
    """Return the rows of a default part, and pairs (setting, part) of parts in its settings."""
    names = [field.name for field in dataclasses.fields(part) if field.init]
    values = {name: getattr(part, name) for name in names}
    rows = [(name, _write_value(value, {}), _DEFAULT) for name, value in values.items()]
    return rows, [(name, inner) for name, value in values.items() for inner in _parts_in(value)]


def _parts_in(value: Any) -> list[Any]:
    """Return the parts in a setting's value: the value itself, or entries of a list or map."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in _parts_in(item)]
    return [value] if checks.is_part(value) else []


def _choose_titles(names: Sequence[str], titles: Iterable[str]) -> list[str]:
    """Return the titles of parts that `names` name, with or without module and scope."""
    by_name: dict[str, list[str]] = {}
    for title in titles:
        # Use a set, because the three names of a part are equal if its title has no scope and no
        # module.
        for name in {title, title.rpartition("/")[2], title.rpartition(".")[2]}:
            by_name.setdefault(name, []).append(title)
    for name in names:
        fix = checks.nearest(name, by_name)
        checks.require(name in by_name, "The name", "belong to a part of this run", name, fix)
    return list(dict.fromkeys(title for name in names for title in by_name[name]))


def _write_all(values: Iterable[Any], macros: Mapping[str, gin_files.Binding]) -> str:
    return ", ".join(_write_value(value, macros) for value in values)


def _write_value(value: Any, macros: Mapping[str, gin_files.Binding]) -> str:
    """Return a value in gin's notation, in which macros are replaced by their values."""
    if isinstance(value, gin_files.Macro):
        return _write_value(macros[value.name].value, macros)
    if isinstance(value, Mapping):
        items = [f"{key!r}: {_write_value(item, macros)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{_write_all(value, macros)}]"
    if type(value) is tuple:
        return f"({_write_all(value, macros)}{',' * (len(value) == 1)})"
    if checks.is_part(value) and not isinstance(value, gin_files.Reference):
        return f"@{gin_name(type(value))}()"
    if isinstance(value, (type, types.FunctionType)):
        return f"@{gin_name(value)}"
    return repr(value)


def _write_origin(
    binding: gin_files.Binding, macros: Mapping[str, gin_files.Binding], prefix: str = ""
) -> str:
    """Return the file and line of a binding, then the files and lines of macros in its value."""
    places = [f"{prefix}{binding.place}"]
    for use in binding.uses:
        if isinstance(use, gin_files.Macro):
            places.append(_write_origin(macros[use.name], macros, f"{use!r} in "))
    return ", ".join(dict.fromkeys(places))


def _write_line(name: str, value: str, origin: str) -> str:
    return f"{f'{name} = {value}':<{_COLUMN}}  # {origin}"
