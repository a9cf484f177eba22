"""Opens the source of a warm start: a checkpoint, a model_dir or a SavedModel.

digits = source.open_source("WarmStart.source", "runs/digits")
digits.shapes["head/digit/logits/kernel"]                # [32, 10]
digits.named["head/digit/"]                              # the names of the classes
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.checkpoints import run_directory
from mtl.deferred import tf
from mtl.files import storage
from mtl.variables import averaging
from mtl.variables import row_names as row_names_lib

_ENDING = re.compile(r"\.(index|data-\d+-of-\d+)$")
_KERAS_ENDINGS = (".keras", ".h5", ".hdf5")
_OTHER_READ_ERRORS = (IndexError, RuntimeError, ValueError)


@dataclasses.dataclass(frozen=True)
class Source:
    """Saved variables, and the names of their rows.

    Attributes:
      path: the checkpoint, without `.index`.
      directory: the folder of the run or SavedModel to which the checkpoint belongs.
    """

    path: str
    directory: str

    @functools.cached_property
    def shapes(self) -> dict[str, list[int]]:
        """The shapes of the saved variables, {variable: shape}."""
        return dict(tf.train.list_variables(self.path))

    @functools.cached_property
    def named(self) -> Mapping[str, types.RowNames]:
        """The names of the rows of saved tables, {scope: names}."""
        return row_names_lib.load(self.directory)

    @functools.cached_property
    def _checkpoint_reader(self) -> Any:
        return tf.train.load_checkpoint(self.path)

    def dtype(self, name: str) -> tf.DType:
        """Return the type of a saved variable."""
        return self._checkpoint_reader.get_variable_to_dtype_map()[name]

    def trained_name(self, name: str) -> str:
        """Return the name of a variable's average if there is one, else the variable's name."""
        return averaging.name_in(self._checkpoint_reader, name)

    def is_behind(self, name: str) -> bool:
        """Return True if `read_value` may change the saved value; see `averaging.is_behind`."""
        return averaging.is_behind(self._checkpoint_reader, name)

    def read_value(self, name: str) -> np.ndarray:
        """Read the value of a variable; averages are updated to the checkpoint's step.

        Raises:
          UserError: the value cannot be read.
        """
        try:
            return averaging.value_in(self._checkpoint_reader, name)
        except (tf.errors.OpError, *_OTHER_READ_ERRORS) as error:
            problem = f"{name!r} cannot be read"
            raise checks.UserError(
                f"checkpoint {self.path} is damaged: {problem}. Copy the checkpoint back, or "
                "choose another one."
            ) from error


def open_source(where: str, location: str) -> Source:
    """Open a checkpoint, the latest checkpoint of a model_dir, or a SavedModel.

    Args:
      where: the name of the setting, for error messages.
      location: the path of a checkpoint or a folder.

    Raises:
      UserError: there is no checkpoint; the message names similar files.
    """
    storage.require_plain(where, location)
    location = _ENDING.sub("", location)  # `location` may be a file of a checkpoint.
    is_folder, rule = tf.io.gfile.isdir(location), "be a checkpoint, a model_dir or a SavedModel"
    is_keras = not is_folder and location.endswith(_KERAS_ENDINGS)
    fix = "Write the Keras model by `model.export(FOLDER)`, and take that folder."
    checks.require(not is_keras, where, rule, location, fix)
    # `find_latest` would refuse the checkpoints of Keras, which have no global step.
    path = next(reversed(run_directory.list_checkpoints(location)), None) if is_folder else location
    # If a folder holds a run and exports, the checkpoint of the run is the source.
    saved_model = _saved_model(location) if is_folder and path is None else None
    if saved_model:
        variables = os.path.join(saved_model, "variables", "variables")
        fix = "Optimised and pruned exports have no variables: use the model_dir of the run."
        has_variables = run_directory.is_checkpoint(variables)
        checks.require(has_variables, where, "hold variables", saved_model, fix)
        return _open_source(variables, saved_model)
    if path is None or not run_directory.is_checkpoint(path):
        checks.fail(where, rule, location, _tell_nearby(location))
    return _open_source(path, _run_of(os.path.dirname(path)))


def _open_source(path: str, directory: str) -> Source:
    try:
        variables = tf.train.list_variables(path)
        # The list of variables is in the checkpoint's index file. Read the smallest variable as
        # well, so that a file with values is opened.
        for name, _ in sorted(variables, key=lambda pair: math.prod(pair[1]))[:1]:
            tf.train.load_variable(path, name)
    except (tf.errors.OpError, *_OTHER_READ_ERRORS) as error:
        problem = str(error).splitlines()[0].rstrip(".")
        raise checks.UserError(f"checkpoint {path} cannot be read: {problem}.") from error
    return Source(path, directory)


def _saved_model(path: str) -> str | None:
    """Return the folder of a SavedModel, or of its newest version; None for other folders."""
    if not tf.io.gfile.isdir(path):
        return None
    versions = [name.rstrip("/") for name in tf.io.gfile.listdir(path)]
    version_names = sorted((name for name in versions if name.isdigit()), key=int, reverse=True)
    folders = [path, *(os.path.join(path, name) for name in version_names)]
    return next(filter(tf.saved_model.contains_saved_model, folders), None)


def _run_of(directory: str) -> str:
    """Return the folder of the run of a checkpoint; the best checkpoint is in a subfolder."""
    candidates = [directory, os.path.dirname(directory)]
    files = [os.path.join(folder, row_names_lib.FILE) for folder in candidates]
    return os.path.dirname(next(filter(tf.io.gfile.exists, files), files[0]))


def _tell_nearby(path: str) -> str:
    """Return a hint for an error: similar names, or a folder of the path that does not exist."""
    folder, name = os.path.split(path.rstrip("/"))
    if tf.io.gfile.isdir(path):
        return run_directory.tell_unlisted(path) or "That folder holds no checkpoint."
    if not tf.io.gfile.isdir(folder or "."):
        return f"There is no folder {folder!r}."
    names = {
        entry.rstrip("/").removesuffix(".index") for entry in tf.io.gfile.listdir(folder or ".")
    }
    return checks.nearest(name, sorted(names))
