"""One process of a cluster, with TF_CONFIG set.

python -m tests.compat.cluster_member KIND MODEL_DIR STEPS
"""

import json
import os
import sys

import tensorflow as tf

from mtl import compat
from tests.compat import toy

tf1 = tf.compat.v1


def _input_fn():
    # Every worker sees the same full batch, so that the mean gradient is the plain one.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return toy.input_fn().with_options(options)


def _half_batches():
    return toy.input_fn(batch=len(toy.ROWS) // 2)


def _two_cpus():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def _lookups():
    """1 to 4, another number in every step, and by process."""
    step = tf1.train.get_global_step().read_value()
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker"
    return [1 + (step + rank) % 4]


STRATEGIES = {
    "mirrored": _two_cpus,
    "multi_worker": lambda: tf.distribute.experimental.MultiWorkerMirroredStrategy(),
    "parameter_server_strategy": lambda: tf1.distribute.experimental.ParameterServerStrategy(),
    "parameter_servers": lambda: None,
    "client": lambda: tf1.distribute.MirroredStrategy(
        cross_device_ops=tf.distribute.ReductionToOneDevice()
    ),
}


def _run_client(path, steps):
    """Trains and evaluates on servers that are not part of this Estimator's own process."""
    from tensorflow.python.distribute import distribute_config

    cluster = json.loads(os.environ.pop("CLUSTER"))
    strategy = STRATEGIES["client"]()
    config = compat.estimator.RunConfig(
        model_dir=path,
        experimental_distribute=distribute_config.DistributeConfig(
            train_distribute=strategy, eval_distribute=strategy, remote_cluster=cluster
        ),
    )
    estimator = compat.estimator.Estimator(toy.model_fn, config=config)
    estimator.train(_input_fn, max_steps=steps // 2)
    compat.estimator.train_and_evaluate(
        estimator,
        compat.estimator.TrainSpec(_input_fn, max_steps=steps),
        compat.estimator.EvalSpec(_input_fn, steps=1),
    )
    metrics = estimator.evaluate(_input_fn, steps=1)
    print(json.dumps({key: float(value) for key, value in metrics.items()}))


def main(kind, path, steps):
    if kind == "client":
        return _run_client(path, steps)
    if kind == "server":
        place = json.loads(os.environ["TF_CONFIG"])
        tf.distribute.Server(place["cluster"], place["task"]["type"], place["task"]["index"]).join()
    config = compat.estimator.RunConfig(
        model_dir=path, train_distribute=STRATEGIES[kind](), save_checkpoints_steps=steps
    )
    params = {"lookups": _lookups} if kind == "multi_worker" else {}
    estimator = compat.estimator.Estimator(toy.model_fn, config=config, params=params)
    train = compat.estimator.TrainSpec(
        _half_batches if kind == "mirrored" else _input_fn, max_steps=steps
    )
    evaluate = compat.estimator.EvalSpec(_input_fn, steps=1, start_delay_secs=0, throttle_secs=0)
    compat.estimator.train_and_evaluate(estimator, train, evaluate)
    return None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
