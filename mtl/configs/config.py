"""Builds the experiment that gin files describe, and saves its settings in the run's folder.

A mistake in a gin file is a `checks.UserError`. A gin file describes one run.

    experiment = config.load(["gin_configs/experiments/x.gin"], ["Run.train_steps = 5"])
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import pathlib
import pprint
import types
from collections.abc import Iterator, Sequence

import gin

from mtl import checks, deferred
from mtl.configs import (
    earlier_defaults,
    gin_errors,
    gin_files,
    gin_usage,
    trust,
)
from mtl.deferred import tf
from mtl.files import atomic, checksums, storage

with deferred.imports():
    from mtl import experiment

_log = logging.getLogger("mtl")

_FILE = "config.gin"
# The warnings so far: a command may load the same files several times.
_WARNINGS = set[str]()
# The first line of a saved file; gin reads it as a comment.
_SEAL = b"# checksum of the lines below: "


def load(
    files: Sequence[str],
    params: Sequence[str] = (),
    trusted: trust.Trusted = trust.EVERYTHING,
    model_dir: str | None = None,
) -> experiment.Experiment:
    """Build the experiment that the files and then the bindings `params` describe.

    Only `trusted` code is imported and built. If a default has changed since a run in `model_dir`
    was trained, the run keeps its earlier default.

    Args:
      files: paths of gin files; later bindings override earlier bindings.
      params: bindings such as "Run.seed = 2", which come after all files.
      trusted: the packages whose code may run.
      model_dir: the folder of the run; None for a run without a folder.

    Raises:
      UserError: a file or a setting has a mistake; the text names file and line if possible.
    """
    bindings, used = find_bindings(files, params, trusted)
    for line in gin_usage.tell_replaced(bindings, experiment.Experiment):
        if line not in _WARNINGS:
            _WARNINGS.add(line)
            _log.warning("Warning: %s", line)
    # Gin keeps its bindings for the whole process: bindings of an earlier call would still hold.
    gin.clear_config()
    used = [*used, *earlier_defaults.fill_in(used, files, model_dir)]
    # Parse all bindings with the same imports at once: gin spends half its time on imports.
    for imports, group in itertools.groupby(used, lambda binding: binding.imports):
        gin.parse_config(gin_files.write_bindings(imports, group))
    try:
        gin.finalize()
        # Gin calls all constructors here; their checks raise most of the errors of settings.
        built = gin.get_configurable(experiment.Experiment)()
    except (TypeError, ValueError) as error:
        raise checks.UserError(gin_errors.explain(error, bindings)) from error
    except SystemExit as error:
        problem = f"building the experiment ended Python, by sys.exit({error.code!r})"
        raise checks.UserError(f"--gin_file {list(files)}: {problem}.") from error
    try:
        # Checked after building: settings may also come from defaults and from other packages.
        trusted.check_built(built)
    except checks.UserError as error:
        part = str(error).partition(".")[0]
        raise checks.UserError(gin_errors.put_place(str(error), part, None, bindings)) from error
    return built


def find_bindings(
    files: Sequence[str],
    params: Sequence[str],
    trusted: trust.Trusted,
) -> tuple[list[gin_files.Binding], list[gin_files.Binding]]:
    """Return all bindings, and the bindings that an experiment uses.

    Args:
      files: paths of gin files.
      params: bindings that come after all files.
      trusted: the packages whose code may run.

    Raises:
      UserError: a file has a mistake; the text names file and line.
    """
    root = experiment.Experiment
    bindings = gin_files.read(files, params, trusted)
    if not any(binding.target is root for binding in bindings):
        fix = 'Include "gin_configs/defaults.gin" and bind experiment.Experiment.data.'
        checks.fail("--gin_file", "describe an experiment", list(files), fix)
    return bindings, gin_usage.used(bindings, root)


def name_model_dir(files: Sequence[str]) -> str:
    """Return the folder of a run without --model_dir: `runs/` and the name of its last file."""
    return f"runs/{pathlib.Path(files[-1]).stem}"


def saved_in(model_dir: str) -> str:
    """Return the path of the configuration that a run saved in `model_dir`.

    Raises:
      UserError: the file is missing, or it has changed since the run wrote it.
    """
    path = os.path.join(model_dir, _FILE)
    if not storage.exists(path):
        rule = f"hold the {_FILE} of a run, or come with --gin_file"
        checks.fail("--model_dir", rule, model_dir)
    read(path)
    return path


def read(path: str) -> str:
    """Return the text of a configuration that a run saved.

    Raises:
      UserError: the file has changed since the run wrote it.
    """
    try:
        data = storage.read(path)
    except OSError as error:
        checks.fail(
            "the run's config.gin", "be a file that can be read", path, f"{error.strerror}."
        )
    seal, _, text = data.partition(b"\n")
    if not seal.startswith(_SEAL):
        # An earlier version wrote the file, or a user removed the checksum to edit the file.
        seal, text = _sealing(data), data
    fix = "Copy it back; if you changed it on purpose, delete its first line."
    # After a crash, a file can consist of zeros; it then looks like a file without a checksum.
    if seal != _sealing(text) or b"\0" in text:
        raise checksums.describe_damage(path, "its checksum differs", fix)
    if not text.strip():
        raise checksums.describe_damage(path, "it is empty", "Copy it back, or give --gin_file.")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise checksums.describe_damage(path, "it is not UTF-8", fix) from error


def _sealing(text: bytes) -> bytes:
    """Return the line with the checksum; it comes first, so that a truncated file still has it."""
    return _SEAL + checksums.compute_checksum(text).encode()


def save(model_dir: str, written: str | None = None) -> None:
    """Write the effective configuration, or another text, to config.gin in the run's folder.

    Args:
      model_dir: the folder of the run.
      written: the text of a gin file; None for the configuration that was loaded last.
    """
    data = (text() if written is None else written).encode()
    atomic.write(os.path.join(model_dir, _FILE), _sealing(data) + b"\n" + data)


def forget(model_dir: str) -> None:
    """Remove the configuration that a run saved, if there is one."""
    path = os.path.join(model_dir, _FILE)
    if storage.exists(path):
        tf.io.gfile.remove(path)


class GinState:
    """A snapshot of gin's state: its bindings, and the classes that they name.

    A function that a gin file names, such as `KerasModel.build`, looks up its bindings when it is
    called. Building a graph therefore needs gin's state from the load of the experiment.
    """

    def __init__(self):
        config = gin.config
        # Gin has no public way to save its state.
        self._maps = [config._CONFIG, config._SINGLETONS, config._IMPORTS]
        self._maps += [config._OPERATIVE_CONFIG, config._INVERSE_REGISTRY]
        self._copies = [state.copy() for state in self._maps]
        # The registry is not a dict: it also indexes the endings of its keys.
        self._registry, self._is_locked = config._REGISTRY.copy(), config.config_is_locked()

    def restore(self) -> None:
        """Restore this state, without any later bindings."""
        for current, saved in zip(self._maps, self._copies, strict=True):
            current.clear()
            current.update(saved)
        gin.config._REGISTRY.clear()
        # Set the items one by one: that builds the index of the endings again.
        for selector, configurable in self._registry.items():
            gin.config._REGISTRY[selector] = configurable
        gin.config._set_config_is_locked(self._is_locked)


@contextlib.contextmanager
def isolated(state: GinState | None = None) -> Iterator[None]:
    """Set gin's state to `state`, or keep it, inside this context; restore it at the end.

    A program may use gin for its own purposes, so mtl must not change gin's state.
    """
    before = GinState()
    try:
        if state is not None:
            state.restore()
        yield
    finally:
        before.restore()


def text() -> str:
    """Return the configuration that was loaded last, with the order of its dictionaries."""
    with _in_order():
        return gin.config_str()


@contextlib.contextmanager
def _in_order() -> Iterator[None]:
    """Make gin write dictionaries in their order inside this context, instead of sorting them.

    Some orders have a meaning: for example, which rows a split holds out first.
    """
    # `gin.config_str` formats each value with this module.
    before = gin.config.pprint
    format_value = functools.partial(pprint.pformat, sort_dicts=False)
    gin.config.pprint = types.SimpleNamespace(pformat=format_value)
    try:
        yield
    finally:
        gin.config.pprint = before
