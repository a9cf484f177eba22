"""Lists the parts that a gin file can build, or the settings of the parts of a run.

python -m launch.parts                       # a line for each part, with its paper
python -m launch.parts MMoE Softmax          # the settings, types, defaults and meanings of parts
python -m launch.parts --package ours        # a line for each part of your package
python -m launch.parts ours.towers.Deep      # the settings of a part of your package
python -m launch.parts --gin_file train.gin --gin_param 'Run.seed = 2'    # all settings of a run
python -m launch.parts --gin_file train.gin Run LazyAdam                  # of two parts of the run
python -m launch.parts --markdown networks   # a page of all parts of a package, as in docs/
python -m launch.parts --markdown all        # a line for each part of mtl, as in docs/parts.md
"""

import argparse
import dataclasses
import importlib.util
import inspect
import itertools
import os
import pathlib
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launch.processes import endings, here
from mtl import checks
from mtl.configs import gin_names, run_settings, trust

_OWN = "mtl"
# Matches the end of a sentence, but not "..." in "t_1 < ... < t_T".
_SENTENCE_END = re.compile(r"(?<!\.)\. ")
# Modules whose dataclasses are not parts for gin files.
_NO_PARTS = (
    "mtl.configs",
    "mtl.data.coded_rows",
    "mtl.data.frames",
    "mtl.tools.attached",
    "mtl.tools.clip_audit.audit",
    "mtl.tools.tensorboard.settings",
    "mtl.tools.drafting",
    "mtl.tools.explaining",
    "mtl.tools.reports",
    "mtl.tools.statistics",
    "mtl.tools.serve",
    "mtl.tools.scoring",
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


# Matches the decorator of a dataclass that may be a part.
_PART = re.compile(r"kw_only=True|@checks\.dataclass")
# Matches the reference to a paper in a docstring.
_PAPER = re.compile(r"arXiv:\d{4}\.\d{4,5}|https://doi\.org/[^\s,;]+[^\s,;.)]")


class Setting(NamedTuple):
    """A setting of a part.

    Attributes:
      name: the name of the setting.
      kind: the type and the allowed values, such as "int, at least 1"; "" without an annotation.
      default: the default in gin's notation; "required" if there is none.
      meaning: the text in the docstring of the class; "" if the docstring does not describe it.
    """

    name: str
    kind: str
    default: str
    meaning: str


def find_parts(package: str = _OWN) -> Iterator[type]:
    """Yield all parts of a package or module.

    In mtl, a part is a public, frozen dataclass with keyword-only settings. In packages other than
    mtl, any public dataclass is a part.

    Raises:
      UserError: the package cannot be imported.
    """
    root = gin_names.import_module(package)
    for module_name in [package, *_list_modules(getattr(root, "__path__", []), package)]:
        module = gin_names.import_module(module_name)
        for name, value in vars(module).items():
            # Leave out classes that the module only imports.
            is_own = isinstance(value, type) and value.__module__ == module_name
            if is_own and not name.startswith("_") and _is_part(value):
                yield value


def _list_modules(folders: Sequence[str], package: str) -> Iterator[str]:
    """Yield the names of modules that may define parts, without importing them."""
    for info in pkgutil.iter_modules(folders, f"{package}."):
        name = info.name.rpartition(".")[2]
        if name == "__main__" or info.name in _NO_PARTS:
            continue
        # Find the file of the module by its spec, without importing the module.
        spec = info.module_finder.find_spec(info.name, None)
        if spec is not None and _may_define_parts(info.name, str(spec.origin)):
            yield info.name
        if info.ispkg:
            yield from _list_modules([os.path.join(folder, name) for folder in folders], info.name)


def _may_define_parts(module_name: str, path: str) -> bool:
    """Return False for a module of mtl without parts, which need not be imported."""
    is_own = f"{module_name}.".startswith(f"{_OWN}.")
    return not is_own or _PART.search(pathlib.Path(path).read_text()) is not None


def _is_part(kind: type) -> bool:
    if not dataclasses.is_dataclass(kind) or inspect.isabstract(kind):
        return False
    # Compare with a dot at the end, because a package "mtl_extra" does not belong to mtl.
    if not f"{kind.__module__}.".startswith(f"{_OWN}."):
        return True
    is_frozen = vars(kind)["__dataclass_params__"].frozen
    return is_frozen and all(field.kw_only for field in dataclasses.fields(kind))


def list_settings(kind: Any) -> list[Setting]:
    """Return the settings of a part, or the parameters of a function, in their order.

    Args:
      kind: the class of the part, or the function.
    """
    meanings: dict[str, str] = {}
    # Read base classes first, because a class may describe an inherited setting again.
    for base in reversed(getattr(kind, "__mro__", [kind])):
        meanings |= _read_attributes(base.__doc__ or "")
    types = checks.describe_settings(kind) if isinstance(kind, type) else {}
    settings = []
    for name, parameter in inspect.signature(kind).parameters.items():
        type_text = types.get(name) or _write_type(parameter)
        default = run_settings.write_default(kind, parameter)
        settings.append(Setting(name, type_text, default, meanings.get(name, "")))
    return settings


def _write_type(parameter: inspect.Parameter) -> str:
    """Return the type of a parameter without module names; "" without an annotation."""
    if parameter.annotation is inspect.Parameter.empty:
        return ""
    text = inspect.formatannotation(parameter.annotation).strip("'\"")
    # Shorten "collections.abc.Sequence" to "Sequence", for example.
    return re.sub(r"(?:\w+\.)+(?=\w)", "", text)


def _read_attributes(docstring: str) -> dict[str, str]:
    """Return {name: text} of the entries in the section "Attributes:" of a docstring."""
    _, _, section = inspect.cleandoc(docstring).partition("\nAttributes:\n")
    entries = re.findall(r"^ +(\w+(?:, \w+)*): (.*(?:\n {3,}\S.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def describe_part(kind: Any) -> str:
    """Describe a part: its name, its docstring without settings, and a line for each setting.

    Args:
      kind: the class of the part, or a function.
    """
    docstring = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")[0].strip()
    lines = [run_settings.gin_name(kind), "", docstring, ""]
    for setting in list_settings(kind):
        name = f"{setting.name}: {setting.kind}" if setting.kind else setting.name
        lines.append(f"  {name} = {setting.default}")
        lines += [f"      {setting.meaning}"] if setting.meaning else []
    return "\n".join(lines)


def write_page(package: str) -> str:
    """Return a Markdown page of all parts of a package, with a table of settings for each.

    Raises:
      UserError: the package does not exist, or has no parts.
    """
    prefix = f"{_OWN}.{package}."
    kinds = [kind for kind in find_parts() if f"{kind.__module__}.".startswith(prefix)]
    if not kinds:
        packages = {_find_package(kind) for kind in find_parts()}
        checks.one_of("--markdown", package, sorted(packages))
    lines = [f"# The parts of `mtl.{package}`", ""]
    lines += [f"`python -m launch.parts --markdown {package}` writes this page;"]
    lines += ["`python -m launch.parts NAME` says all there is about a part.", ""]
    for kind in sorted(kinds, key=run_settings.gin_name):
        lines += _write_section(kind)
    return "\n".join(lines).rstrip() + "\n"


def _write_section(kind: type) -> list[str]:
    """Return the lines about a part on the Markdown page of its package."""
    first = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    lines = [f"## {run_settings.gin_name(kind)}", "", _escape_markdown(first), ""]
    directions = getattr(kind, "directions", None)
    if isinstance(directions, Mapping) and directions:
        texts = (f"`{name}` {'higher' if up else 'lower'}" for name, up in directions.items())
        lines += [f"Metrics and better direction: {', '.join(texts)}.", ""]
    settings = list_settings(kind)
    lines += ["| setting | default | meaning |", "| -- | -- | -- |"] if settings else []
    for name, _, default, meaning in settings:
        short = _SENTENCE_END.split(meaning)[0].rstrip(".")  # A cell shows only the first sentence.
        lines.append(f"| `{name}` | `{default}` | {_escape_markdown(short)} |")
    return [*lines, ""]


def write_index() -> str:
    """Return a Markdown page with a line for each part of `mtl`, by package: meaning and paper."""
    lines = ["# All parts", "", "`python -m launch.parts --markdown all` writes this page;"]
    lines += ["`python -m launch.parts NAME` says all there is about a part.", ""]
    by_package = sorted(
        find_parts(), key=lambda kind: (_find_package(kind), run_settings.gin_name(kind))
    )
    for package, kinds in itertools.groupby(by_package, _find_package):
        lines += [f"## mtl.{package}", "", "| part | what it is | paper |", "| -- | -- | -- |"]
        for kind in kinds:
            docstring = kind.__doc__ or ""
            first = _escape_markdown(next(iter(docstring.strip().splitlines()), ""))
            first = re.sub(r"(?<!\\)\|", r"\|", first)  # The | of a norm would end a cell.
            paper = _PAPER.search(" ".join(docstring.split()))
            cells = [f"`{run_settings.gin_name(kind)}`", first, paper.group() if paper else ""]
            lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _find_package(kind: type) -> str:
    return kind.__module__.split(".")[1]


def _escape_markdown(text: str) -> str:
    """Escape special characters of Markdown outside of code."""
    # Write a formula as code, because a formula has many special characters.
    if " = " in text and "`" not in text:
        return f"`{text}`"
    # A character is outside of code if an even number of backquotes follows.
    return re.sub(r"([|*_<])(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\\1", text)


def list_parts(package: str) -> str:
    """Return a line for each part of a package, with name, meaning and paper.

    Args:
      package: the full name of a package or module, such as "mtl".

    Returns:
      The lines as one text, sorted by name; "" if the package has no parts.

    Raises:
      UserError: the package cannot be imported.
    """
    lines = []
    for kind in sorted(find_parts(package), key=run_settings.gin_name):
        docstring = kind.__doc__ or ""
        first = next(iter(docstring.strip().splitlines()), "")
        paper = _PAPER.search(" ".join(docstring.split()))
        cells = [f"{run_settings.gin_name(kind):<36}", first, f"[{paper.group()}]" if paper else ""]
        lines.append(" ".join(cells).rstrip())
    return "\n".join(lines)


def choose_parts(
    names: Sequence[str],
    packages: Sequence[str] = (),
    trusted: trust.Trusted = trust.EVERYTHING,
) -> list[Any]:
    """Return the parts with certain names, from mtl and other packages.

    Args:
      names: names of classes, such as `MMoE` or `gates.Softmax`. A full path, such as
        `ours.towers.Deep`, is found even if its package is not in `packages`.
      packages: packages or modules to search, besides mtl.
      trusted: the packages whose code may be imported.

    Raises:
      UserError: a name is unknown.
    """
    by_name: dict[str, list[Any]] = {}
    for kind in (kind for package in (_OWN, *packages) for kind in find_parts(package)):
        for name in (kind.__name__, run_settings.gin_name(kind)):
            by_name.setdefault(name, []).append(kind)
    kinds = []
    for name in names:
        matches = by_name.get(name) or _find_elsewhere(name, trusted)
        fix = checks.nearest(name, by_name)
        checks.require(bool(matches), "The name", "belong to a part", name, fix)
        kinds += matches
    return kinds


def _find_elsewhere(name: str, trusted: trust.Trusted) -> list[Any]:
    """Return a list with the class or function of a full path; [] if its package does not exist."""
    module, _, last = name.rpartition(".")
    # Look up only the first word, because `find_spec` of a dotted name imports parent packages.
    top = module.partition(".")[0]
    if not top.isidentifier() or importlib.util.find_spec(top) is None:
        return []
    # Check the trust before the import, which runs the code of the module.
    trusted.check_module(module)
    members = vars(gin_names.import_module(module))
    target = members.get(last)
    names = [key for key, value in members.items() if callable(value) and not key.startswith("_")]
    fix = checks.nearest(last, names) or f"It has: {', '.join(sorted(names)) or 'none'}."
    checks.require(callable(target), "The name", f"be a class or function of {module}", last, fix)
    return [target]


def main() -> None:
    """Print a list or a page of networks, heads and other parts, or their settings."""
    parser = endings.Parser("launch.parts", __doc__)
    parser.add_argument("names", nargs="*", help="parts, such as MMoE or gates.Softmax")
    text = "your package, whose parts are listed or found by name"
    parser.add_argument("--package", default="", help=text)
    text = "a gin file of a run; shows the value of each setting, and where it is set"
    parser.add_argument("--gin_file", action="append", default=[], help=f"{text}; repeatable")
    text = "a binding that comes after all files; repeatable"
    parser.add_argument("--gin_param", action="append", default=[], help=text)
    text = "the folder of a run; without --gin_file, its config.gin is read"
    parser.add_argument("--model_dir", default="", help=text)
    text = "packages besides mtl whose code may run, with commas between them"
    parser.add_argument("--trusted_packages", help=text)
    text = "settings that may run code, write or connect, with commas between them"
    parser.add_argument("--trusted_settings", default="", help=text)
    parser.add_argument(
        "--markdown",
        metavar="PACKAGE",
        help="write a Markdown page of the parts of a package, such as networks, or of all",
    )
    print(_answer_arguments(parser.read(sys.argv[1:])))


def _check_flags(arguments: argparse.Namespace, is_of_run: bool) -> None:
    """Fail if flags exclude each other."""
    for flag, package in (("--markdown", arguments.markdown), ("--package", arguments.package)):
        rule = "come without --gin_file and --model_dir"
        checks.require(not (is_of_run and package), flag, rule, package)
    is_alone = not (arguments.markdown and (arguments.names or arguments.package))
    rule = "come without names and --package"
    checks.require(is_alone, "--markdown", rule, arguments.markdown)
    is_used, rule = is_of_run or not arguments.gin_param, "come with --gin_file or --model_dir"
    checks.require(is_used, "--gin_param", rule, arguments.gin_param)


def _check_package(package: str, trusted: trust.Trusted) -> None:
    is_name = all(word.isidentifier() for word in package.split("."))
    rule = "be a name that Python imports, such as ours.towers"
    checks.require(is_name, "--package", rule, package)
    trusted.check_module(package)


def _answer_arguments(arguments: argparse.Namespace) -> str:
    text = arguments.trusted_packages
    settings = arguments.trusted_settings.split(",")
    trusted_packages = None if text is None else text.split(",")
    trusted = trust.Trusted(trusted_packages, settings)
    here.open_to(trusted_packages)
    is_of_run = bool(arguments.gin_file or arguments.model_dir)
    _check_flags(arguments, is_of_run)
    if is_of_run:
        return run_settings.describe_run(
            arguments.gin_file, arguments.gin_param, arguments.model_dir, trusted, arguments.names
        )
    if arguments.markdown:
        is_index = arguments.markdown == "all"
        page = write_index() if is_index else write_page(arguments.markdown)
        return page.rstrip("\n")
    packages = [arguments.package] if arguments.package else []
    for package in packages:
        _check_package(package, trusted)
    if arguments.names:
        parts = choose_parts(arguments.names, packages, trusted)
        return "\n\n".join(map(describe_part, parts))
    lines = list_parts(*packages or [_OWN])
    checks.require(bool(lines), "--package", "hold a public dataclass", arguments.package)
    return lines


if __name__ == "__main__":
    endings.run(main)
