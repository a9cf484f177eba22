"""Writes the exports of a run from a template: the same graph, with each checkpoint's variables.

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
    """The graph and the assets of an export, which are the same for all checkpoints of a run.

    Attributes:
      graph: the content of the file with the graph and its signatures.
      assets: {name in the SavedModel: path of the file to copy}.
    """

    graph: bytes
    assets: Mapping[str, str]

    def write(
        self, directory: str, save: Callable[[str], None], assets_extra: Mapping[str, str]
    ) -> None:
        """Write a SavedModel with the same files as Estimator writes.

        Args:
          directory: the folder of the SavedModel, which this method creates.
          save: saves variables; its argument is the common prefix of the paths of their files.
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
    """Read the template of a SavedModel: its graph, without variables.

    Args:
      directory: the folder of the SavedModel.
      assets: {name in the SavedModel: path of the file to copy}.
    """
    with tf.io.gfile.GFile(os.path.join(directory, saved_model.FILE), "rb") as file:
        return Blank(file.read(), assets)
