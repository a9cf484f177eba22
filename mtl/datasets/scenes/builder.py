"""The tensorflow-datasets builder of the scenes, which `rendering.py` renders.

tfds.Tfds.name = "mtl.datasets.scenes.builder.Scenes"
pipeline.Pipeline.train_split = "train"
pipeline.Pipeline.eval_split = "test"
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from mtl.datasets.scenes import rendering


class Scenes(tfds.core.GeneratorBasedBuilder):
    """Rendered scenes with maps of classes, depth and normals; see `rendering.render_scene`.

    A scene depends only on the split and on the index of the scene. To change the sizes, write a
    subclass with another name.

    Attributes:
      SIZE: the height and width of an image in pixels.
      COUNTS: {split: number of scenes}.
    """

    VERSION = tfds.core.Version("1.0.0")
    SIZE: ClassVar[int] = 32
    COUNTS: ClassVar[Mapping[str, int]] = {"train": 1500, "test": 300}

    def _info(self) -> tfds.core.DatasetInfo:
        size = self.SIZE
        packed = {"encoding": tfds.features.Encoding.ZLIB}
        features = {
            "image": tfds.features.Tensor(shape=(size, size, 3), dtype=np.uint8, **packed),
            "kind": tfds.features.Tensor(shape=(size, size), dtype=np.int64, **packed),
            "depth": tfds.features.Tensor(shape=(size, size), dtype=np.float32, **packed),
            "normal": tfds.features.Tensor(shape=(size, size, 3), dtype=np.float32, **packed),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description="Rendered spheres and boxes, with classes, depth and normals by pixel.",
            features=tfds.features.FeaturesDict(features),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
        del dl_manager  # The builder downloads no files.
        return {
            split: self._generate_examples(number, count)
            for number, (split, count) in enumerate(self.COUNTS.items())
        }

    def _generate_examples(self, split: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for index in range(count):
            random = np.random.default_rng([split, index])
            yield index, rendering.render_scene(random, self.SIZE)
