"""A SavedModel without variables, to which each checkpoint of a run adds its variables.

kept = blank.take_blank("exports/1700000000", {"words.txt": "vocabularies/words.txt"})
kept.write("exports/1700000600", save_variables, assets_extra={})
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mtl.deferred import tf
from mtl.tf_internals import saved_model


class Blank(NamedTuple):
    """The part that the exports of all checkpoints share.

    Attributes:
      graph: the bytes of the file with the graph and its signatures.
      assets: {name in the SavedModel: path of the file that is copied}.
    """

    graph: bytes
    assets: Mapping[str, str]

    def write(
        self, directory: str, save: Callable[[str], None], assets_extra: Mapping[str, str]
    ) -> None:
        """Write a SavedModel in the form that Estimator writes.

        Args:
          directory: the folder of the SavedModel, which is created.
          save: saves variables to files that begin with a path.
          assets_extra: {name: path of the file that is copied}, for files that graphs do not read.
        """
        for folder, files in (("assets", self.assets), ("assets.extra", assets_extra)):
            for name, source in files.items():
                tf.io.gfile.makedirs(os.path.join(directory, folder))
                tf.io.gfile.copy(source, os.path.join(directory, folder, name))
        tf.io.gfile.makedirs(os.path.join(directory, "variables"))
        save(os.path.join(directory, "variables", "variables"))
        with tf.io.gfile.GFile(os.path.join(directory, saved_model.FILE), "wb") as file:
            file.write(self.graph)


def take_blank(directory: str, assets: Mapping[str, str]) -> Blank:
    """Return the blank of a SavedModel, with `assets`, {name: path of the copied file}."""
    with tf.io.gfile.GFile(os.path.join(directory, saved_model.FILE), "rb") as file:
        return Blank(file.read(), assets)
