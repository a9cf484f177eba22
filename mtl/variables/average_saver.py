"""A saver that restores the moving averages of weights in place of the weights.

tf1.train.Scaffold(saver=average_saver.Saver())
"""

from __future__ import annotations

from mtl import checks, deferred
from mtl.deferred import tf, tf1
from mtl.variables import averaging, patterns

with deferred.imports():
    from mtl.variables import averages


class Saver(tf.compat.v1.train.Saver):
    """Restores averages instead of weights, if a checkpoint has averages, and pruned weights as 0.

    Saving works as with TensorFlow's saver, for all variables of the graph. A training graph, which
    has the averages beside the weights, needs TensorFlow's saver, as it continues from the weights.
    """

    def __init__(self):
        variables = tf1.global_variables()
        super().__init__(variables)
        self._variables, self._plain = variables, list(map(patterns.variable_name, variables))
        self._path = tf1.placeholder(tf.string, [])
        self._names = tf1.placeholder(tf.string, [len(variables)])
        everything, types_of = [""] * len(variables), [v.dtype.base_dtype for v in variables]
        values = tf.raw_ops.RestoreV2(
            prefix=self._path,
            tensor_names=self._names,
            shape_and_slices=everything,
            dtypes=types_of,
        )
        assignments = [
            variable.assign(tf.ensure_shape(value, variable.shape), read_value=False)
            for variable, value in zip(variables, values, strict=True)
        ]
        self._restored = tf.group(*assignments)

    def build(self) -> None:
        """Build the ops; `Scaffold` calls this method again when the whole graph is built.

        Raises:
          UserError: the graph is a training graph that updates averages.
        """
        super().build()
        read = [average.op.name for average in averages.list_read_averages().values()]
        names = [patterns.variable_name(variable) for variable in tf1.global_variables()]
        updated = [name for name in names if averaging.is_state(name) and name not in read]
        rule = "belong to a graph of evaluation or prediction"
        fix = "Give the EstimatorSpec of training no scaffold with this saver."
        checks.require(not updated, "average_saver.Saver", rule, updated[:1], fix)

    def restore(self, sess: tf.compat.v1.Session, save_path: str) -> None:
        """Restore all variables of the graph, from averages if the checkpoint has them.

        Args:
          sess: a session of the graph in which this saver was created.
          save_path: the path of the checkpoint, such as "model_dir/model.ckpt-100".
        """
        reader = tf.train.load_checkpoint(save_path)
        names = [averaging.name_in(reader, name) for name in self._plain]
        sess.run(self._restored, {self._path: save_path, self._names: names})
        for variable, name in zip(self._variables, names, strict=True):
            if averaging.is_behind(reader, name):
                # `self._restored` has assigned the saved value, which is not up to date.
                value = averaging.value_in(reader, name)
                sess.run(variable.initializer, {variable.initializer.inputs[1]: value})
