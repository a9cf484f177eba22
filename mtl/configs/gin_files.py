"""Reads gin files binding by binding, so that every error has its file and line.

bindings = gin_files.read(["gin_configs/x.gin"], ["Run.train_steps = 5"])
gin.parse_config(gin_files.write_bindings(bindings[0].imports, bindings[:1]))
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gin import config_parser

from mtl import checks
from mtl.configs import gin_names, trust

_ONE_BINDING = (
    "must be one binding. Repeat --gin_param for more; put other statements into a gin file."
)
_BINDING = config_parser.BindingStatement
# The largest depth of includes: deeper includes would exceed Python's recursion limit.
_DEEPEST = 50
# With the statement `dynamic_registration`, gin resolves the name of a class by the imports of the
# file, and not in a global registry.
_DYNAMIC = "from __gin__ import dynamic_registration"
# The folder that holds mtl/ and gin_configs/.
_ROOT = pathlib.Path(__file__).resolve().parents[2]


class PlacedError(checks.UserError):
    """An error whose message starts with the file and line of a binding."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of a gin file, or a --gin_param, which has no line number.

    Attributes:
      file: the path of the file; for a binding of a flag, a text such as "--gin_param 'Run.seed =
        2'".
      line: the number of the line, from 1; 0 for a --gin_param.
    """

    file: str
    line: int = 0

    def __str__(self):
        return f"{self.file} line {self.line}" if self.line else self.file


# This class is mutable, and has no `__eq__`, because `_resolve_binding` sets the full name and the
# class later.
@dataclasses.dataclass(eq=False)
class Reference:
    """A reference such as `@scope/module.Class()` in the value of a binding.

    Attributes:
      scope: the text before the last "/"; "" without a scope.
      selector: the name of the class, such as "module.Class".
      called: True if parentheses follow the name, so that gin builds the part.
      target: the class or function itself; None until the name is resolved.
    """

    scope: str
    selector: str
    called: bool
    target: Any = None

    def __repr__(self):
        scope = f"{self.scope}/" if self.scope else ""
        return f"@{scope}{self.selector}" + "()" * self.called


@dataclasses.dataclass(frozen=True)
class Macro:
    """A macro such as `%name` in the value of a binding.

    Attributes:
      name: the name without "%".
    """

    name: str

    def __repr__(self):
        return f"%{self.name}"


@dataclasses.dataclass(frozen=True)
class Binding:
    """A binding of a gin file, with the class whose setting it binds.

    Attributes:
      scope: the part of the key before the last "/"; "" without a scope.
      selector: the name of the class in the file, or the name of a macro.
      parameter: the setting; "" for a macro.
      target: the class that `selector` names; None for a macro.
      value: Python literals, which may contain `Reference` and `Macro` objects.
      uses: the references and macros in the value of the binding.
      imports: the import statements that the binding needs.
      place: the file and the line of the binding.
      within: the files that include the file of `place`, the outermost first.
    """

    scope: str
    selector: str
    parameter: str
    target: Any
    value: Any
    uses: tuple[Reference | Macro, ...]
    imports: tuple[str, ...]
    place: Place
    within: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The key of the binding in gin's notation, such as "scope/heads.Binary.name"."""
        scope = f"{self.scope}/" if self.scope else ""
        return scope + self.selector + (f".{self.parameter}" if self.parameter else "")

    @property
    def key(self) -> tuple[str, Any, str]:
        """A key that is the same for bindings that override each other."""
        return self.scope, self.target or self.selector, self.parameter


def write_bindings(imports: Sequence[str], bindings: Iterable[Binding]) -> str:
    """Return the text of a gin file with bindings that need the same imports.

    Args:
      imports: import statements.
      bindings: bindings of the classes that the statements in `imports` import.
    """
    lines = (f"{binding.name} = {binding.value!r}" for binding in bindings)
    return "\n".join([_DYNAMIC, *imports, *lines])


def read(
    files: Sequence[str],
    params: Sequence[str],
    trusted: trust.Trusted = trust.EVERYTHING,
) -> list[Binding]:
    """Return the bindings in files and their includes, followed by the bindings in `params`.

    Args:
      files: paths, from the current folder or from the folder of this project.
      params: single bindings, such as "Run.seed = 2".
      trusted: the packages whose modules may be imported.

    Raises:
      UserError: a file or binding has a mistake; the error names file and line.
    """
    reader = _Reader(trusted)
    for file in files:
        reader.read_file(file, ())
    for param in params:
        reader.read_param(param)
    _check_macros(reader.bindings)
    return reader.bindings


class _Reader:
    """Collects the bindings of several files."""

    def __init__(self, trusted: trust.Trusted):
        self.bindings: list[Binding] = []
        self._trusted = trusted
        self._names = gin_names.Names(trusted)

    def read_file(self, file: str, within: tuple[str, ...]) -> None:
        """Read a file and its includes; `within` are the files that include it."""
        if file in within:
            raise checks.UserError(f"{file!r} includes itself.")
        if len(within) > _DEEPEST:
            raise checks.UserError(f"more than {_DEEPEST} files include one another.")
        text = _load_text(file)
        try:
            self._read_text(file, text, within)
        except checks.UserError:
            # Do not quote the line of a syntax error in an include, which can name any private file
            # of this machine.
            if not _may_be_private(file, within):
                raise
            problem = "is not a gin file, or has a mistake; only mistakes in *.gin files are shown"
            # `from None` hides the first error, which quotes the line.
            raise checks.UserError(f"{file!r} {problem}.") from None

    def _read_text(self, file: str, text: str, within: tuple[str, ...]) -> None:
        names, is_dynamic = gin_names.Names(self._trusted), False
        # Collect the bindings of this file: a file may override its includes, but not bind a
        # setting twice.
        bindings: dict[Any, Binding] = {}
        for place, statement, uses in _statements(file, text):
            with _add_place(place):
                match statement:
                    case config_parser.ImportStatement(module="__gin__.dynamic_registration"):
                        is_dynamic = True
                    case config_parser.ImportStatement():
                        names.add(statement)
                    case config_parser.IncludeStatement():
                        start = len(self.bindings)
                        self.read_file(statement.filename, (*within, file))
                        _refuse_overridden(bindings, self.bindings[start:], place)
                    case config_parser.BindingStatement():
                        # A macro needs no class, so a file with only macros can omit the statement
                        # `_DYNAMIC`.
                        if statement.arg_name and not is_dynamic:
                            raise checks.UserError(f"the file must start with {_DYNAMIC!r}.")
                        resolved = _resolve_binding(statement, uses, names, place, names.known)
                        binding = dataclasses.replace(resolved, within=within)
                        _refuse_twice(bindings, binding)
                        bindings[binding.key] = binding
                        self.bindings.append(binding)
        # Collect the names of all files for `read_param`; each file uses only the names that it
        # imports.
        self._names.update(names)

    def read_param(self, param: str) -> None:
        """Read a binding that may shorten the name of a class, such as Run for experiment.Run."""
        place = Place(f"--gin_param {param!r}")
        with _add_place(place):
            try:
                statements = list(_statements(place.file, param))
            except PlacedError as error:
                # Explain that the text has two bindings: the parser only says that it expected a
                # line end.
                if "; " in param or param.count(" = ") > 1:
                    raise checks.UserError(_ONE_BINDING) from error
                raise
            if [type(statement) for _, statement, _ in statements] != [_BINDING]:
                raise checks.UserError(_ONE_BINDING)
            ((_, statement, uses),) = statements
            full = self._names.full
            self.bindings.append(_resolve_binding(statement, uses, self._names, place, full))


def _resolve_binding(
    statement: config_parser.BindingStatement,
    uses: Sequence[Reference | Macro],
    names: gin_names.Names,
    place: Place,
    full: Callable[[str], str],
) -> Binding:
    for use in uses:
        if isinstance(use, Reference):
            # `statement.value` holds the same `Reference`, so the full name appears in
            # `statement.value`, too.
            use.selector = full(use.selector)
            use.target = names.resolve(use.selector)
    selector, target, parameter = statement.selector, None, statement.arg_name
    if parameter:
        selector = full(selector)
        target = names.resolve(selector)
        gin_names.check_parameter(selector, parameter, target)
    for use in uses:
        if not isinstance(use, Reference) or not isinstance(use.target, type) or use.called:
            continue
        if not (isinstance(target, type) and checks.takes_class(target, parameter)):
            raise checks.UserError(f"{use!r} must be built, as in '{use!r}()'.")
    gin_names.check_value(f"{selector}.{parameter}".rstrip("."), statement.value)
    return Binding(
        scope=statement.scope,
        selector=selector,
        parameter=parameter,
        target=target,
        value=statement.value,
        uses=tuple(uses),
        imports=names.imports,
        place=place,
    )


def _refuse_twice(bindings: Mapping[Any, Binding], binding: Binding) -> None:
    earlier = bindings.get(binding.key)
    if earlier:
        raise checks.UserError(f"{binding.name} is bound in line {earlier.place.line} already.")


def _refuse_overridden(
    bindings: Mapping[Any, Binding], included: Sequence[Binding], place: Place
) -> None:
    """Fail if an include overrides a binding in a line above the include."""
    for late in included:
        early = bindings.get(late.key)
        # Compare values as texts, because equal references in two files are different objects.
        if early and repr(early.value) != repr(late.value):
            raise checks.UserError(
                f"{late.place} overrides {early.name}, bound above in line "
                f"{early.place.line}. Put the include before it."
            )


def _check_macros(bindings: Sequence[Binding]) -> None:
    macros = {binding.name: None for binding in bindings if not binding.parameter}
    for binding in bindings:
        for use in binding.uses:
            if isinstance(use, Macro) and use.name not in macros:
                settings = [other.name for other in bindings if other.parameter == use.name]
                hint = checks.nearest(use.name, list(macros))
                if settings:
                    hint = f"{settings[0]} is a setting; a macro is bound as '{use.name} = ...'."
                raise PlacedError(f"{binding.place}: {use!r} is not defined. {hint}".rstrip())


class _Delegate(config_parser.ParserDelegate):
    """Records the references and macros that gin's parser finds."""

    def __init__(self):
        self._uses: list[Reference | Macro] = []

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        scope, _, selector = scoped_configurable_name.rpartition("/")
        reference = Reference(scope, selector, evaluate)
        self._uses.append(reference)
        return reference

    def macro(self, macro_name: str) -> Macro:
        macro = Macro(macro_name)
        self._uses.append(macro)
        return macro

    def take(self) -> list[Reference | Macro]:
        """Return the references and macros that the parser has found since the last call."""
        uses, self._uses = self._uses, []
        return uses


def _statements(file: str, text: str) -> Iterator[tuple[Place, Any, list[Reference | Macro]]]:
    delegate = _Delegate()
    place = Place(file, 1)
    # The place of a --gin_param has no line.
    is_file = not file.startswith("--")
    try:
        parser = config_parser.ConfigParser(text + "\n", delegate)
        for statement in parser:
            place = Place(file, statement.location.line_num)
            yield place if is_file else Place(file), statement, delegate.take()
    except SyntaxError as error:
        where = Place(file, (error.lineno or place.line) * is_file)
        raise PlacedError(f"{where}: {_syntax_problem(error)}") from error
    except TypeError as error:  # Python raises TypeError for {[]: 1}.
        problem = "the statement after it has a list or a map as a key."
        raise PlacedError(f"{place}: {problem}") from error
    except RecursionError as error:
        raise PlacedError(f"{place}: the statement after it has too many brackets.") from error
    except tokenize.TokenError as error:
        where = Place(file, place.line * is_file)
        problem = "a bracket or a quote that opens in this statement or after it is not closed."
        raise PlacedError(f"{where}: {problem}") from error


def _syntax_problem(error: SyntaxError) -> str:
    """Explain a syntax error of gin's parser in one line."""
    message, line = error.msg, (error.text or "").strip()
    # Tell mistakes apart by the message, because gin's parser raises the same class for all of
    # them.
    if message.startswith("Expected newline"):
        return f"a line must hold one binding, include or import of one name, got {line[:200]!r}."
    unquoted = re.search(r"Failed to parse token '(.*)'", message, re.DOTALL)
    if unquoted:
        fix = "Write a text in quotes, a class as '@x.Y()', a macro as '%x'."
        if re.search(r"\bnan\b", line, re.IGNORECASE):
            fix = 'Write a default that is NaN in quotes: "nan".'
        return f"{unquoted.group(1)[:200]!r} must be a value. {fix} The line is {line[:200]!r}."
    return f"{' '.join(message.split()).rstrip('.')}, in {line!r}."


def _find_file(file: str) -> pathlib.Path | None:
    """Find a file in the current folder, or else in the folder of this project."""
    return next((p for p in (pathlib.Path(file), _ROOT / file) if p.is_file()), None)


def _may_be_private(file: str, within: tuple[str, ...]) -> bool:
    """Return True if an include or a link could refer to a private file such as /proc/self/environ.

    Errors must not quote lines of private files. A file that the user names in a flag is private
    only if it is a link to a file without the ending .gin.
    """
    path = _find_file(file)
    is_other = path is not None and path.resolve().suffix != ".gin"
    return is_other and (bool(within) or file.endswith(".gin"))


def _load_text(file: str) -> str:
    """Return the text of a gin file; fail with a hint if the file does not exist."""
    path = _find_file(file)
    if path is None:
        folder, name = os.path.split(file)
        neighbours = next((p for p in (pathlib.Path(folder), _ROOT / folder) if p.is_dir()), None)
        hint = checks.nearest(name, os.listdir(neighbours)) if neighbours else ""
        hint = "It is a folder." if os.path.isdir(file) else hint
        raise checks.UserError(f"there is no gin file {file!r}. {hint}".rstrip())
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise checks.UserError(f"gin file {file!r} must be text in UTF-8.") from error
    except OSError as error:
        raise checks.UserError(f"gin file {file!r} cannot be read: {error.strerror}.") from error


@contextlib.contextmanager
def _add_place(place: Place) -> Iterator[None]:
    """Name the file and line of a binding in an error that does not name them yet."""
    try:
        yield
    except PlacedError:
        raise
    except checks.UserError as error:
        raise PlacedError(f"{place}: {error}") from error
