"""Limits the number of threads and the GPU memory that a process uses.

from mtl.distribution import resources
distribution.Distribution.resources = @resources.Resources()
resources.Resources.intra_op_threads = 4
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mtl import checks
from mtl.deferred import compat, tf, tf1


@checks.dataclass
class Resources:
    """Limits the threads and the GPU memory of a process.

    Attributes:
      intra_op_threads: the largest number of threads that a single op uses; 0 uses all cores.
      inter_op_threads: the largest number of ops that run at the same time; 0 uses the number of
        cores.
      memory_growth: True allocates GPU memory only when it is needed, which leaves memory for other
        processes; False allocates the whole GPU memory at the start.
    """

    intra_op_threads: checks.Natural = 0
    inter_op_threads: checks.Natural = 0
    memory_growth: bool = False

    def session_config(self) -> tf.compat.v1.ConfigProto:
        """Return the settings of a session."""
        config = tf1.ConfigProto(
            intra_op_parallelism_threads=self.intra_op_threads,
            inter_op_parallelism_threads=self.inter_op_threads,
        )
        config.gpu_options.allow_growth = self.memory_growth
        return config

    def take(self) -> None:
        """Apply the settings before a strategy, or an op outside a session, uses the GPUs."""
        if not self.memory_growth:
            return
        with _before_first_use("Resources.memory_growth"):
            for gpu in tf.config.list_physical_devices("GPU"):
                if not tf.config.experimental.get_memory_growth(gpu):
                    tf.config.experimental.set_memory_growth(gpu, True)


def configure_session(
    config: compat.estimator.RunConfig, session_config: tf.compat.v1.ConfigProto
) -> compat.estimator.RunConfig:
    """Return a RunConfig with additional settings for its session.

    Args:
      config: the RunConfig of an Estimator.
      session_config: additional settings of the session, which override settings of `config`.
    """
    # If RunConfig has no session settings, Estimator uses defaults, which the additional settings
    # would replace. To keep Estimator's defaults, the merged settings start with these defaults.
    merged = tf1.ConfigProto(allow_soft_placement=True)
    # Run TensorFlow's graph optimizer only once.
    merged.graph_options.rewrite_options.meta_optimizer_iterations = 1
    if config.session_config is not None:
        merged.CopyFrom(config.session_config)
    merged.MergeFrom(session_config)
    return config.replace(session_config=merged)


def split_cpu(count: int) -> None:
    """Split the processor into `count` devices.

    Args:
      count: the number of logical devices. If an earlier call has split the processor into at least
        `count` devices, nothing changes.

    Raises:
      UserError: TensorFlow already uses the processor as a single device.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    # An earlier training in this process may have split the processor already.
    if len(tf.config.get_logical_device_configuration(cpu) or ()) >= count:
        return
    with _before_first_use("Distribution.devices"):
        parts = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(cpu, parts)


@contextlib.contextmanager
def _before_first_use(where: str) -> Iterator[None]:
    """Explain TensorFlow's error about a setting that comes after the first use of the devices."""
    try:
        yield
    except RuntimeError as error:
        rule = "be set before TensorFlow is used"
        raise checks.UserError(f"{where} must {rule}: start a new process.") from error
