"""Builds the experiment that gin files describe, refuses their mistakes, and saves them.

A gin file describes one run.

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
# A launcher may load the same files several times.
_TOLD = set[str]()
# The first line of a saved file; gin reads it as a comment.
_SEAL = b"# checksum of the lines below: "


def load(
    files: Sequence[str],
    params: Sequence[str] = (),
    trusted: trust.Trusted = trust.EVERYTHING,
    model_dir: str | None = None,
) -> experiment.Experiment:
    """Build the experiment that the files and then the bindings `params` describe.

    Imports and builds only `trusted` code. A run in `model_dir` keeps the defaults that it was
    trained with, if this version has others.

    Args:
      files: paths of gin files; later bindings override earlier ones.
      params: bindings such as "Run.seed = 2", which come after all files.
      trusted: the packages whose code may run.
      model_dir: the folder of the run; None if it has none yet.

    Raises:
      UserError: in one line, with file and line if they are known.
    """
    bindings, used = find_bindings(files, params, trusted)
    for line in gin_usage.tell_replaced(bindings, experiment.Experiment):
        if line not in _TOLD:
            _TOLD.add(line)
            _log.warning("Warning: %s", line)
    # Gin keeps its bindings for the whole process: earlier bindings would hold here, too.
    gin.clear_config()
    used = [*used, *earlier_defaults.fill_in(used, files, model_dir)]
    # Parse all bindings with the same imports at once: gin spends half its time on imports.
    for imports, some in itertools.groupby(used, lambda binding: binding.imports):
        gin.parse_config(gin_files.write_bindings(imports, some))
    try:
        gin.finalize()
        # Gin calls all constructors here; their checks raise most of the errors of settings.
        made = gin.get_configurable(experiment.Experiment)()
    except (TypeError, ValueError) as error:
        raise checks.UserError(gin_errors.explain(error, bindings)) from error
    except SystemExit as error:
        problem = f"building the experiment ended Python, by sys.exit({error.code!r})"
        raise checks.UserError(f"--gin_file {list(files)}: {problem}.") from error
    try:
        # Only now are the settings that lie in defaults and in parts of other packages known.
        trusted.check_built(made)
    except checks.UserError as error:
        part = str(error).partition(".")[0]
        raise checks.UserError(gin_errors.put_place(str(error), part, None, bindings)) from error
    return made


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
      UserError: with file and line.
    """
    root = experiment.Experiment
    bindings = gin_files.read(files, params, trusted)
    if not any(binding.target is root for binding in bindings):
        fix = 'Include "gin_configs/defaults.gin" and bind experiment.Experiment.data.'
        checks.fail("--gin_file", "describe an experiment", list(files), fix)
    return bindings, gin_usage.used(bindings, root)


def name_model_dir(files: Sequence[str]) -> str:
    """Return a folder for a run without --model_dir, from the name of its last file."""
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
        # From an earlier version, or from a user who removed the checksum to edit the rest.
        seal, text = _sealing(data), data
    fix = "Copy it back; if you changed it on purpose, delete its first line."
    # A file of zeros, as a crash can leave it, looks like one without a checksum.
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
    """Write the effective configuration, or a text, beside the checkpoints, atomically.

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
    """The state of gin at a moment: bindings, and the classes that they name.

    A function that a gin file names, such as `KerasModel.build`, looks up its bindings when it is
    called. Building a graph therefore needs gin's state from the load of the experiment.
    """

    def __init__(self):
        config = gin.config
        # Gin has no public way to save its state.
        self._maps = [config._CONFIG, config._SINGLETONS, config._IMPORTS]
        self._maps += [config._OPERATIVE_CONFIG, config._INVERSE_REGISTRY]
        self._held = [held.copy() for held in self._maps]
        # A map of selectors with an index of their endings, so it is copied apart.
        self._known, self._is_locked = config._REGISTRY.copy(), config.config_is_locked()

    def restore(self) -> None:
        """Give gin this state again, without any later bindings."""
        for current, held in zip(self._maps, self._held, strict=True):
            current.clear()
            current.update(held)
        gin.config._REGISTRY.clear()
        # Set one by one, which builds the index of endings anew.
        for selector, configurable in self._known.items():
            gin.config._REGISTRY[selector] = configurable
        gin.config._set_config_is_locked(self._is_locked)


@contextlib.contextmanager
def isolated(state: GinState | None = None) -> Iterator[None]:
    """Restore gin's state at the end, since a program may use gin itself; `state` holds within."""
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
    theirs = gin.config.pprint
    formatted = functools.partial(pprint.pformat, sort_dicts=False)
    gin.config.pprint = types.SimpleNamespace(pformat=formatted)
    try:
        yield
    finally:
        gin.config.pprint = theirs
