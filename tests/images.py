"""Training steps of a small model of images: whole, in slices, and on two replicas."""

import re

import numpy as np
import tensorflow as tf

from mtl import compat, features, heads, model, networks
from mtl.model import graph_options
from mtl.optimization import optimizers, update

tf1 = tf.compat.v1

ROWS = 16
_RANDOM = np.random.default_rng(5)
FEATURES = {
    "photo": _RANDOM.integers(0, 256, [ROWS, 6, 5, 3]).astype(np.uint8),
    "x": _RANDOM.normal(size=[ROWS, 3]).astype(np.float32),
}
LABELS = {
    # Absent in every third row.
    "kind": np.where(np.arange(ROWS) % 3, _RANDOM.integers(0, 3, ROWS), -1),
    "size": _RANDOM.normal(size=ROWS).astype(np.float32),
    "row_weight": _RANDOM.integers(1, 4, ROWS).astype(np.float32),
}
TRUNK = networks.MLP(layers=[4], activation="tanh")
STATISTICS = features.Statistics(directory="", entries={})


def make_model(augmentations=(), **settings):
    """A model of images and numbers, trained by gradient descent."""
    return model.MultiTaskModel(
        **{
            "columns": [
                features.Image(names=["photo"], augmentations=augmentations),
                features.Numeric(names=["x"], normalization="none"),
            ],
            "network": networks.SharedBottom(trunk=TRUNK),
            "heads": [
                heads.MultiClass(name="kind", classes=3),
                heads.Regression(name="size", weight="row_weight"),
            ],
            "update": update.Update(optimizer=optimizers.SGD(learning_rate=0.1)),
            **settings,
        }
    )


def build_step(made, results=None, slices=1, rows=slice(None), labels=LABELS):
    """Return the op of a training step on these rows, and append its StepResult to `results`."""

    def hooks(result):
        if results is not None:
            results.append(result)
        return {}

    return made.model_fn(
        {name: tf.constant(values[rows]) for name, values in FEATURES.items()},
        {name: tf.constant(values[rows]) for name, values in labels.items()},
        compat.estimator.ModeKeys.TRAIN,
        options=graph_options.GraphOptions(
            statistics=STATISTICS, slices=slices, training_hooks=hooks
        ),
    ).train_op


class Step:
    """One training step in a graph, which any number of sessions take from the start."""

    def __init__(self, made, slices=1, labels=LABELS):
        results = []
        with tf.Graph().as_default() as graph:
            graph.seed = 1
            tf1.train.create_global_step()
            self._op = build_step(made, results, slices, labels=labels)
            self._initializer = tf1.global_variables_initializer()
            self._variables = {variable.op.name: variable for variable in tf1.global_variables()}
        self._graph, (self._result,) = graph, results

    def compute(self, fetches):
        """Return the values of tensors of the graph before the first step."""
        with tf1.Session(graph=self._graph) as session:
            session.run(self._initializer)
            return session.run(fetches)

    def follow(self, steps=2, feed=None):
        """Yield ({name: value} of every variable, monitors): at first, and after every step."""
        with tf1.Session(graph=self._graph) as session:
            session.run(self._initializer)
            yield session.run(self._variables), {}
            for _ in range(steps):
                _, values = session.run([self._op, self._result.values], feed)
                monitors = dict(zip(self._result.names, values, strict=True))
                yield session.run(self._variables), monitors

    def take(self, steps=2, feed=None):
        """Return the last item that `follow` yields."""
        *_, last = self.follow(steps, feed)
        return last


def take_steps(made, slices=1, steps=2, labels=LABELS):
    """{name: value} of every variable after some steps, and the monitors of the last one."""
    return Step(made, slices, labels).take(steps)


def take_steps_on_replicas(made, slices=1, steps=2):
    """The variables after the same steps on two replicas, each with a half of the rows."""
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with tf.Graph().as_default() as graph, strategy.scope():
        graph.seed = 1
        tf1.train.get_or_create_global_step()

        @tf.autograph.experimental.do_not_convert
        def model_fn():
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            first = int(tf.get_static_value(replica)) * ROWS // 2
            return build_step(made, None, slices, slice(first, first + ROWS // 2))

        train_op = strategy.group(strategy.extended.call_for_each_replica(model_fn))
        config = tf1.ConfigProto(device_count={"CPU": 2})
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf1.Session(config=config) as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(steps):
                session.run(train_op)
            variables = {v.name.split(":")[0]: v for v in tf1.global_variables()}
            variables = {n: strategy.extended.read_var(v) for n, v in variables.items()}
            return session.run(variables)


def build_graph(made, mode):
    """The graph of evaluation, prediction or training, as text."""
    with tf.Graph().as_default() as graph:
        tf1.train.create_global_step()
        given = {name: tf.constant(values) for name, values in FEATURES.items()}
        labels = {name: tf.constant(values) for name, values in LABELS.items()}
        made.model_fn(
            given, labels, mode, options=graph_options.GraphOptions(statistics=STATISTICS)
        )
        definition = graph.as_graph_def()
        branches = sorted(_without_counts(function) for function in definition.library.function)
        definition.ClearField("library")
        return "".join([_without_counts(definition), *branches])


def _without_counts(message):
    """A message as text; the names of branches count all that the process has built."""
    return re.sub(r"(_(?:true|false))_\d+", r"\1", str(message))
