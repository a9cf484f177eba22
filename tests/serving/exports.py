"""Exports of models that were not trained, so that a test can afford many of them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mtl import compat, features, model, serving, types
from mtl import spec as spec_lib
from mtl.model import graph_options
from mtl.optimization import update
from mtl.tools.runtimes import added
from tests.optimization import training

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Untrained:
    """A model with drawn weights on rows in memory.

    Attributes:
      directory: where its checkpoint lies.
      columns, network, heads: of the model; columns that learn nothing of the data.
      spec: of the rows, features only.
      values: {field: N values}.
      settings: what is exported.
      zeros: the share of the weights of kernels that are 0.
      may_stack: whether equal tasks may share variables of the graph.
    """

    directory: str
    columns: Sequence[types.Column]
    network: types.Network
    heads: Sequence[types.Head]
    spec: spec_lib.Spec
    values: Mapping[str, Any]
    settings: serving.Serving = serving.Serving()
    zeros: float = 0.0
    may_stack: bool = False

    def dataset(self) -> tf.data.Dataset:
        """Batches of 16 rows."""
        values = {
            name: tf.ragged.constant(
                self.values[name], field.dtype, ragged_rank=1, row_splits_dtype=tf.int64
            )
            if field.is_ragged
            else self.values[name]
            for name, field in self.spec.fields.items()
        }
        return tf.data.Dataset.from_tensor_slices(values).batch(16)

    def read_rows(self, count: int) -> serving.Rows:
        """The first rows."""
        return serving.read_rows(self.dataset, self.spec, count)

    @functools.cached_property
    def estimator(self) -> Any:
        """The Estimator of the model."""
        made = model.MultiTaskModel(
            columns=self.columns, network=self.network, heads=self.heads, update=update.Update()
        )
        statistics = features.Statistics(directory=self.directory, entries={})
        options = graph_options.GraphOptions(statistics=statistics, may_stack=self.may_stack)
        model_fn = functools.partial(made.model_fn, options=options)
        return compat.estimator.Estimator(
            serving.add_signatures(model_fn, self.settings), self.directory
        )

    @functools.cached_property
    def checkpoint(self) -> str:
        """A checkpoint of values that differ in every element, moving averages included."""
        random = np.random.default_rng(0)
        with tf.Graph().as_default(), tf1.Session() as session:
            step = tf1.train.create_global_step()
            batch = tf1.data.make_one_shot_iterator(self.dataset()).get_next()
            self.estimator.model_fn(batch, None, "infer", self.estimator.config)
            session.run(tf1.global_variables_initializer())
            variables = {v.op.name: v for v in tf1.global_variables() if v is not step}
            values = session.run(variables)

            def draw(variable: tf.Variable) -> np.ndarray:
                noise = random.uniform(0.8, 1.2, variable.shape) + 0.1 * (variable.shape.rank == 1)
                value = values[variable.op.name] * noise + 0.01 * noise
                if variable.shape.rank > 1:
                    value *= random.random(variable.shape) >= self.zeros
                return value

            training.load(session, variables.values(), draw)
            return tf1.train.Saver().save(session, f"{self.directory}/model.ckpt", step)

    def export(
        self,
        folder: str,
        before: Callable[[str, Any], None] = lambda written, held_out: None,
        is_converted: bool = False,
    ) -> str:
        """Publishes a version in `folder`, unless `before` fails."""
        exporter = serving.Exporter(
            self.settings,
            self.spec,
            self.heads,
            self.read_rows,
            self.directory,
            add_files=added.choose_files(self.settings, is_converted),
        )
        return exporter(self.estimator, str(folder), self.checkpoint, before)

    def predictions(self) -> dict[str, np.ndarray]:
        """Return the output of `Estimator.predict` for all rows."""
        rows = list(self.estimator.predict(self.dataset, checkpoint_path=self.checkpoint))
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
