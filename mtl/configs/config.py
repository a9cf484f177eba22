"""Builds the experiment that gin files describe, and saves the settings in the run's folder.

A mistake in a gin file raises a `checks.UserError`.

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
# Warnings that were already logged. A command may load the same files several times, but logs each
# warning only once.
_WARNINGS = set[str]()
# The start of the first line of a saved file, which gin reads as a comment.
_SEAL = b"# checksum of the lines below: "


def load(
    files: Sequence[str],
    params: Sequence[str] = (),
    trusted: trust.Trusted = trust.EVERYTHING,
    model_dir: str | None = None,
) -> experiment.Experiment:
    """Build the experiment that gin files and additional bindings describe.

    Only `trusted` code is imported and built. If a later version of `mtl` has changed the default
    of a setting, a run in `model_dir` keeps the default with which it was trained.

    Args:
      files: paths of gin files; later bindings override earlier bindings.
      params: bindings such as "Run.seed = 2", which override the files.
      trusted: the packages whose code may run.
      model_dir: the folder of the run; None for a run without a folder.

    Raises:
      UserError: a file or a setting has a mistake; the error names file and line if possible.
    """
    bindings, used = find_bindings(files, params, trusted)
    for line in gin_usage.tell_replaced(bindings, experiment.Experiment):
        if line not in _WARNINGS:
            _WARNINGS.add(line)
            _log.warning("Warning: %s", line)
    # Clear the bindings of earlier calls, which gin keeps for the whole process.
    gin.clear_config()
    used = [*used, *earlier_defaults.fill_in(used, files, model_dir)]
    # Parse bindings with the same imports together, because imports take half of gin's time.
    for imports, group in itertools.groupby(used, lambda binding: binding.imports):
        gin.parse_config(gin_files.write_bindings(imports, group))
    try:
        gin.finalize()
        # Gin calls all constructors here, and their checks raise most errors about settings.
        built = gin.get_configurable(experiment.Experiment)()
    except (TypeError, ValueError) as error:
        raise checks.UserError(gin_errors.explain(error, bindings)) from error
    except SystemExit as error:
        problem = f"building the experiment ended Python, by sys.exit({error.code!r})"
        raise checks.UserError(f"--gin_file {list(files)}: {problem}.") from error
    try:
        # Check the built experiment, because settings may also come from defaults and from other
        # packages.
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
    """Return all bindings of gin files, and the bindings that an experiment uses.

    Args:
      files: paths of gin files.
      params: bindings such as "Run.seed = 2", which override the files.
      trusted: the packages whose code may run.

    Raises:
      UserError: a file has a mistake; the error names file and line.
    """
    root = experiment.Experiment
    bindings = gin_files.read(files, params, trusted)
    if not any(binding.target is root for binding in bindings):
        fix = 'Include "gin_configs/defaults.gin" and bind experiment.Experiment.data.'
        checks.fail("--gin_file", "describe an experiment", list(files), fix)
    return bindings, gin_usage.used(bindings, root)


def name_model_dir(files: Sequence[str]) -> str:
    """Return the default folder of a run: `runs/` and the name of the last gin file.

    Args:
      files: the paths of one or more gin files.
    """
    return f"runs/{pathlib.Path(files[-1]).stem}"


def saved_in(model_dir: str) -> str:
    """Return the path of the config.gin that a run saved in `model_dir`.

    Raises:
      UserError: the file is missing, or it has changed since the run wrote it.
    """
    path = os.path.join(model_dir, _FILE)
    if not is_saved(model_dir):
        rule = f"hold the {_FILE} of a run, or come with --gin_file"
        checks.fail("--model_dir", rule, model_dir)
    read(path)
    return path


def is_saved(model_dir: str) -> bool:
    """Return True if a run saved its config.gin in `model_dir`."""
    return storage.exists(os.path.join(model_dir, _FILE))


def read(path: str) -> str:
    """Return the text of a config.gin that a run saved.

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
        # The file has no checksum: an earlier version wrote the file, or a user edited it.
        seal, text = _sealing(data), data
    fix = "Copy the file back; if you changed the file on purpose, delete its first line."
    # Refuse a file of zeros, which a crash can leave, and which would count as a file without a
    # checksum.
    if seal != _sealing(text) or b"\0" in text:
        raise checksums.describe_damage(path, "its checksum differs", fix)
    if not text.strip():
        raise checksums.describe_damage(
            path, "it is empty", "Copy the file back, or give --gin_file."
        )
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise checksums.describe_damage(path, "it is not UTF-8", fix) from error


def _sealing(text: bytes) -> bytes:
    """Return the first line of config.gin, with the checksum; a truncated file keeps this line."""
    return _SEAL + checksums.compute_checksum(text).encode()


def save(model_dir: str, written: str | None = None) -> None:
    """Write the settings that were loaded last, or another text, to config.gin in the run's folder.

    Args:
      model_dir: the folder of the run.
      written: the text of a gin file; None for the settings that were loaded last.
    """
    data = (text() if written is None else written).encode()
    atomic.write(os.path.join(model_dir, _FILE), _sealing(data) + b"\n" + data)


def read_saved(model_dir: str) -> bytes | None:
    """Return the content of the config.gin that a run saved, for `restore`; None without one."""
    if not is_saved(model_dir):
        return None
    with tf.io.gfile.GFile(os.path.join(model_dir, _FILE), "rb") as file:
        return file.read()


def restore(model_dir: str, data: bytes) -> None:
    """Write the content of an earlier config.gin, which `read_saved` has returned."""
    atomic.write(os.path.join(model_dir, _FILE), data)


def forget(model_dir: str) -> None:
    """Remove the config.gin that a run saved, if there is one."""
    if is_saved(model_dir):
        tf.io.gfile.remove(os.path.join(model_dir, _FILE))


class GinState:
    """A snapshot of gin's state: the bindings, and the classes that the bindings name.

    A function that a gin file names, such as `KerasModel.build`, looks up bindings when it is
    called. When a graph is built later, gin must therefore have the same bindings as when the
    experiment was loaded.
    """

    def __init__(self):
        config = gin.config
        # Read private attributes, because gin has no public way to save its state.
        self._maps = [config._CONFIG, config._SINGLETONS, config._IMPORTS]
        self._maps += [config._OPERATIVE_CONFIG, config._INVERSE_REGISTRY]
        self._copies = [state.copy() for state in self._maps]
        # The registry is not a dict, because it also indexes the endings of its keys.
        self._registry, self._is_locked = config._REGISTRY.copy(), config.config_is_locked()

    def restore(self) -> None:
        """Set gin's state to this snapshot; later bindings are removed."""
        for current, saved in zip(self._maps, self._copies, strict=True):
            current.clear()
            current.update(saved)
        gin.config._REGISTRY.clear()
        # Set the entries one by one, so that gin's registry rebuilds its index of the endings of
        # names.
        for selector, configurable in self._registry.items():
            gin.config._REGISTRY[selector] = configurable
        gin.config._set_config_is_locked(self._is_locked)


@contextlib.contextmanager
def isolated(state: GinState | None = None) -> Iterator[None]:
    """Restore gin's state at the end of a `with` block.

    The user's program may use gin, too, so mtl must not change the bindings of the program.

    Args:
      state: gin's state at the beginning of the block; None keeps the present state.
    """
    before = GinState()
    try:
        if state is not None:
            state.restore()
        yield
    finally:
        before.restore()


def text() -> str:
    """Return the settings that were loaded last as a gin file; dictionaries keep their order."""
    with _in_order():
        return gin.config_str()


@contextlib.contextmanager
def _in_order() -> Iterator[None]:
    """Make gin keep the order of dictionaries in a `with` block, instead of sorting their keys.

    The order of a dictionary may matter; for example, splits hold out rows in this order.
    """
    # Replace the module `pprint`, with which `gin.config_str` formats each value.
    before = gin.config.pprint
    format_value = functools.partial(pprint.pformat, sort_dicts=False)
    gin.config.pprint = types.SimpleNamespace(pformat=format_value)
    try:
        yield
    finally:
        gin.config.pprint = before
