"""Lists the parts that a gin file can build, with their settings.

python -m launch.parts                       # a line for each part
python -m launch.parts MMoE Softmax          # their settings, defaults and meanings
python -m launch.parts --markdown networks   # a page of all parts of a package, as in docs/
"""

import argparse
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import mtl
from mtl import checks

# Made by code, and by no gin file.
_NO_PARTS = (
    "mtl.data.frames",
    "mtl.drafting",
    "mtl.explaining",
    "mtl.reports",
    "mtl.scoring",
    "mtl.serving.rows",
    "mtl.serving.versions",
    "mtl.distribution.tf_config",
    "mtl.auxiliary.base",
    "mtl.auxiliary.emitted",
    "mtl.auxiliary.perturbations",
    "mtl.auxiliary.moved_inputs",
    "mtl.features.column",
    "mtl.features.statistics",
    "mtl.heads.base",
    "mtl.heads.classes",
    "mtl.heads.dense",
    "mtl.model.passes",
    "mtl.model.settings",
    "mtl.optimization.finite",
    "mtl.variables.row_names",
    "mtl.variables.sharding",
    "mtl.transfer.plan",
)


class Setting(NamedTuple):
    """A setting of a part: its default as gin writes it, and what its docstring says of it."""

    name: str
    default: str
    meaning: str


def find_parts() -> Iterator[type]:
    """Yield all parts: public, frozen dataclasses that take keywords alone."""
    for info in pkgutil.walk_packages(mtl.__path__, "mtl."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            is_own = isinstance(value, type) and value.__module__ == info.name
            if is_own and not name.startswith("_") and _is_part(value):
                yield value


def _is_part(kind: type) -> bool:
    if not dataclasses.is_dataclass(kind) or inspect.isabstract(kind):
        return False
    if f"{kind.__module__}.".startswith(tuple(f"{name}." for name in _NO_PARTS)):
        return False
    is_frozen = vars(kind)["__dataclass_params__"].frozen
    return is_frozen and all(field.kw_only for field in dataclasses.fields(kind))


def gin_name(kind: type) -> str:
    """Return the name that gin files bind, such as `networks.MMoE` or `gates.Softmax`."""
    package, _, module = kind.__module__.rpartition(".")
    # Those that a package lends its name to, such as `networks.MMoE`, are in its `__all__`.
    exported = getattr(importlib.import_module(package), "__all__", ())
    where = package.rpartition(".")[2] if kind.__name__ in exported else module
    return f"{where}.{kind.__name__}"


def list_settings(kind: type) -> list[Setting]:
    """Return the settings of a part, in the order of its fields."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        meanings |= _read_attributes(base.__doc__ or "")
    return [
        Setting(field.name, _write_default(field), meanings.get(field.name, ""))
        for field in dataclasses.fields(kind)
        if field.init
    ]


def _read_attributes(docstring: str) -> dict[str, str]:
    """Return {name: text} of the section "Attributes:" of a docstring."""
    _, _, section = inspect.cleandoc(docstring).partition("\nAttributes:\n")
    found = re.findall(r"^ +(\w+(?:, \w+)*): (.*(?:\n {3,}\S.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in found for name in names.split(", ")}


def _write_default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"@{gin_name(type(value))}()"
    return repr(value)


def describe_part(kind: type) -> str:
    """Return a part's name, its docstring without settings, and a line for each setting."""
    told = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[0].strip()
    lines = [gin_name(kind), "", told, ""]
    for setting in list_settings(kind):
        lines.append(f"  {setting.name} = {setting.default}")
        lines += [f"      {setting.meaning}"] if setting.meaning else []
    return "\n".join(lines)


def write_page(package: str) -> str:
    """Return a Markdown page of all parts of a package, with a table of settings for each."""
    lines = [f"# The parts of `mtl.{package}`", ""]
    lines += [f"`python -m launch.parts --markdown {package}` writes this page;"]
    lines += ["`python -m launch.parts NAME` says all there is about a part.", ""]
    for kind in sorted(find_parts(), key=gin_name):
        if not f"{kind.__module__}.".startswith(f"mtl.{package}."):
            continue
        first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        is_equation = " = " in first and "`" not in first
        lines += [f"## {gin_name(kind)}", "", f"`{first}`" if is_equation else _escape(first), ""]
        directions = getattr(kind, "directions", None)
        if isinstance(directions, Mapping):
            told = (f"`{name}` {'higher' if up else 'lower'}" for name, up in directions.items())
            lines += [f"Metrics, with what is better: {', '.join(told)}.", ""]
        settings = list_settings(kind)
        lines += ["| setting | default | meaning |", "| -- | -- | -- |"] if settings else []
        for name, default, meaning in settings:
            short = meaning.partition(". ")[0].rstrip(".")  # A cell is no paragraph.
            lines.append(f"| `{name}` | `{default}` | {_escape(short)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _escape(text: str) -> str:
    """Keep Markdown from reading signs outside of code."""
    return re.sub(r"([|*_<])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", text)


def choose_parts(names: Sequence[str]) -> list[type]:
    """Return the parts of these names, with or without their module.

    Raises:
      UserError: there is no such part.
    """
    known: dict[str, list[type]] = {}
    for kind in find_parts():
        for name in (kind.__name__, gin_name(kind)):
            known.setdefault(name, []).append(kind)
    chosen = []
    for name in names:
        fix = checks.nearest(name, known)
        checks.require(name in known, "The name", "be that of a part", name, fix)
        chosen += known[name]
    return chosen


def main() -> int:
    """Print what the arguments ask for; 2 where there is no such part."""
    parser = argparse.ArgumentParser(prog="python -m launch.parts", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", help="parts, such as MMoE or gates.Softmax")
    parser.add_argument("--markdown", metavar="PACKAGE", help="write a page of all its parts")
    arguments = parser.parse_args()
    try:
        if arguments.markdown:
            print(write_page(arguments.markdown), end="")
        elif arguments.names:
            print("\n\n".join(map(describe_part, choose_parts(arguments.names))))
        else:
            for kind in sorted(find_parts(), key=gin_name):
                print(f"{gin_name(kind):<36} {(kind.__doc__ or '').strip().splitlines()[0]}")
    except checks.UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
