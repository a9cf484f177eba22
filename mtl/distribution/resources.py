"""Threads, memory and devices of its machine that a process uses.

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
    """Limits what a process uses of its machine.

    Attributes:
      intra_op_threads: how many threads a single op may use; 0 uses all cores.
      inter_op_threads: how many ops may run at the same time; 0 allows as many as there are cores.
      memory_growth: True takes memory of GPUs when it is needed, which leaves memory to other
        processes; False takes all of it at the start.
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
    """Return `config` with these settings added to the session settings of Estimator."""
    # Estimator takes these settings if RunConfig has none: ours would replace them.
    merged = tf1.ConfigProto(allow_soft_placement=True)
    # One pass of the graph optimizer, the default of Estimator as well.
    merged.graph_options.rewrite_options.meta_optimizer_iterations = 1
    if config.session_config is not None:
        merged = config.session_config
    merged.MergeFrom(session_config)
    return config.replace(session_config=merged)


def split_cpu(count: int) -> None:
    """Split the processor into `count` devices.

    Args:
      count: the number of logical devices; a processor with as many or more stays as it is.

    Raises:
      UserError: TensorFlow already uses it as a single device.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    # A process with several trainings may have split it already.
    if len(tf.config.get_logical_device_configuration(cpu) or ()) >= count:
        return
    with _before_first_use("Distribution.devices"):
        parts = [tf.config.LogicalDeviceConfiguration()] * count
        tf.config.set_logical_device_configuration(cpu, parts)


@contextlib.contextmanager
def _before_first_use(where: str) -> Iterator[None]:
    """Explain errors of settings that come after TensorFlow has taken the devices."""
    try:
        yield
    except RuntimeError as error:
        rule = "be chosen before TensorFlow is used"
        raise checks.UserError(f"{where} must {rule}: start a new process.") from error
