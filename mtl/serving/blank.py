"""A SavedModel without variables; the export of each checkpoint adds its variables.

template = blank.take_blank("exports/1700000000", {"words.txt": "vocabularies/words.txt"})
template.write("exports/1700000600", save_variables, assets_extra={})
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mtl.deferred import tf
from mtl.tf_internals import saved_model


class Blank(NamedTuple):
    """The part of an export that is the same for all checkpoints of a run.

    Attributes:
      graph: the bytes of the file with the graph and its signatures.
      assets: {name in the SavedModel: path of the file to copy}.
    """

    graph: bytes
    assets: Mapping[str, str]

    def write(
        self, directory: str, save: Callable[[str], None], assets_extra: Mapping[str, str]
    ) -> None:
        """Write a SavedModel as Estimator does.

        Args:
          directory: the folder of the SavedModel, which is created.
          save: saves variables; called with the path with which the names of their files begin.
          assets_extra: {name: path of the file to copy}, for files that the graph does not read.
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
    """Return a SavedModel without its variables.

    Args:
      directory: the folder of the SavedModel.
      assets: {name in the SavedModel: path of the file to copy}.
    """
    with tf.io.gfile.GFile(os.path.join(directory, saved_model.FILE), "rb") as file:
        return Blank(file.read(), assets)
