"""Chooses the devices of a training: one device, GPUs, several machines or parameter servers.

from mtl import distribution
experiment.Experiment.distribution = @distribution.Distribution()
distribution.Distribution.strategy = "mirrored"       # "auto" by default
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

from mtl import checks
from mtl.deferred import tf
from mtl.distribution import resources as resources_lib
from mtl.distribution import tf_config
from mtl.step import replicas
from mtl.variables import sharding as sharding_lib

_log = logging.getLogger(__name__)

ONE, MIRRORED, WORKERS, SERVERS = "none", "mirrored", "multi_worker_mirrored", "parameter_server"
STRATEGIES = ("auto", ONE, MIRRORED, WORKERS, SERVERS)
_IMPLEMENTATIONS = ("auto", "ring", "nccl")


@dataclasses.dataclass(frozen=True)
class Place:
    """The role of this process in a run.

    Attributes:
      strategy: one of `STRATEGIES` except "auto".
      devices: the devices of this process, each with one replica of the model.
      cluster: the processes of the run; None for a single process.
    """

    strategy: str
    devices: tuple[str, ...]
    cluster: tf_config.Cluster | None = None

    @property
    def known_cluster(self) -> tf_config.Cluster:
        """The attribute `cluster`, for code that runs only in processes of a cluster."""
        return cast(tf_config.Cluster, self.cluster)

    @property
    def workers(self) -> int:
        """The number of processes that read data; each process reads a separate part."""
        return self.cluster.num_workers if self.cluster else 1

    @property
    def replicas(self) -> int:
        """The number of replicas in all processes; each replica takes an equal part of a batch."""
        return self.workers * len(self.devices)

    def count_rows(self, batch_size: int) -> int:
        """Return the number of rows of a step, given the number of rows of a whole batch.

        With parameter servers, a single worker makes each step, with its part of a batch.
        """
        return batch_size // self.workers if self.has_servers else batch_size

    @property
    def is_synchronous(self) -> bool:
        """True if replicas wait for each other in every step."""
        return self.strategy in (MIRRORED, WORKERS)

    @property
    def has_servers(self) -> bool:
        """True if servers hold the weights, and each worker updates the weights independently."""
        return self.strategy == SERVERS

    @property
    def is_chief(self) -> bool:
        """True if this process prepares the run, and writes summaries and checkpoints."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def job(self) -> str:
        return self.cluster.job if self.cluster else tf_config.CHIEF


ALONE = Place(ONE, ("/cpu:0",))
"""The role of a single process on one device."""


@checks.dataclass
class Communication:
    """Sets how replicas exchange tensors, such as gradients, to sum them.

    Attributes:
      implementation: the method of communication between machines: "ring" (gRPC), "nccl", or
        "auto", which lets TensorFlow choose.
      bytes_per_pack: the approximate number of bytes of gradients in a message between machines; 0
        lets TensorFlow choose.
      num_packs: the number of packs in which NCCL sends all gradients between the GPUs of a
        machine; None lets TensorFlow choose, 0 sends each gradient separately.
    """

    implementation: Annotated[str, checks.OneOf(_IMPLEMENTATIONS)] = "auto"
    bytes_per_pack: checks.Natural = 0
    num_packs: checks.Natural | None = None

    def options(self) -> tf.distribute.experimental.CommunicationOptions:
        """Return the options for communication between machines."""
        kind = tf.distribute.experimental.CommunicationImplementation[self.implementation.upper()]
        return tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=self.bytes_per_pack, implementation=kind
        )

    def reduction(self, on_cpu: bool) -> tf.distribute.CrossDeviceOps | None:
        """Return the op that sums over the devices of a machine; None lets TensorFlow choose.

        Args:
          on_cpu: True if the devices are parts of a processor.
        """
        if on_cpu:
            # On two CPU devices, TensorFlow's default hangs for ever.
            return tf.distribute.ReductionToOneDevice()
        return None if self.num_packs is None else tf.distribute.NcclAllReduce(self.num_packs)


@checks.dataclass
class Distribution:
    """Divides the batch of each step over devices; `Pipeline.batch_size` is the total.

    Each replica takes an equal part of the batch. Gradients are summed over replicas before
    clipping, balancing and the update, and batch norm sees the rows of all replicas. Apart from
    rounding, random draws and losses that compare rows, the updates of the weights are the same as
    on a single device. Replicas wait for each other in every step, so a session call runs a single
    step. With parameter servers, each worker updates the weights with its part of the batch without
    waiting for the others, and each update counts as a step.

    Attributes:
      strategy: "none" is a single device; "mirrored" copies the model to several devices of a
        machine; "multi_worker_mirrored" copies the model to devices of several machines;
        "parameter_server" keeps the weights on servers. "auto" chooses the strategy by TF_CONFIG:
        parameter servers if TF_CONFIG has a "ps". Without TF_CONFIG, "auto" means "mirrored" if
        several GPUs are visible, else "none".
      devices: names such as "/gpu:0", for "mirrored"; empty uses every visible GPU. "/cpu:0" and
        "/cpu:1" split the processor, to try a strategy without GPUs. On several machines, each
        process uses all GPUs that CUDA_VISIBLE_DEVICES makes visible; a process without GPUs is one
        replica.
      communication: sets how replicas exchange tensors.
      resources: limits the threads and the GPU memory of a process.
      evaluator: True if a separate process evaluates (task type "evaluator"); otherwise the chief
        evaluates, while other processes wait.
      timeout_secs: a process of the cluster counts as lost after this many seconds without a
        heartbeat; the other processes then end, and you can start them again.
      batch_norm: "global" normalises a batch in training by the rows of all replicas, which then
        communicate twice in each layer of batch norm; "replica" normalises the rows of each replica
        separately, like the slices of `Run.micro_batches`. A KerasModel always uses "replica".
      uneven: "refuse" fails if the number of replicas does not divide the batch size; "round"
        rounds the batch size down.
      min_shard_bytes: the smallest size in bytes of a shard; larger embedding tables are cut into
        shards of rows for the parameter servers. If `min_shard_bytes` is None, tables stay whole.
    """

    strategy: Annotated[str, checks.OneOf(STRATEGIES)] = "auto"
    devices: checks.Names = ()
    communication: Annotated[
        Communication, checks.Is(Communication, "be built, such as @distribution.Communication()")
    ] = Communication()
    resources: Annotated[
        resources_lib.Resources,
        checks.Is(resources_lib.Resources, "be built, such as @resources.Resources()"),
    ] = resources_lib.Resources()
    evaluator: bool = False
    timeout_secs: Annotated[float, checks.AtLeast(5)] = 60.0
    batch_norm: Annotated[str, checks.OneOf(("global", "replica"))] = "global"
    uneven: Annotated[str, checks.OneOf(("refuse", "round"))] = "refuse"
    min_shard_bytes: checks.Count | None = 64 << 20

    def __post_init__(self):
        fits = not self.devices or self.strategy in (MIRRORED, WORKERS)
        fix = 'Only strategy "mirrored" uses devices.'
        checks.require(fits, "Distribution.devices", "be empty", self.devices, fix)

    def find_place(self) -> Place:
        """Return the role of this process, from the settings, TF_CONFIG and visible devices.

        Raises:
          UserError: TF_CONFIG does not fit the strategy, or a device does not exist.
        """
        cluster = tf_config.read_cluster()
        if cluster and cluster.job == tf_config.EVALUATOR:
            fix = "Alternatively, start no process of task type evaluator."
            checks.require(self.evaluator, "Distribution.evaluator", "be True", False, fix)
            return Place(ONE, ("/cpu:0",), cluster)
        strategy = self._choose_strategy(cluster)
        devices = self._choose_devices(strategy)
        if cluster is None and strategy != ONE:
            strategy = MIRRORED if len(devices) > 1 else ONE
        # Each asynchronous worker runs a single replica.
        if strategy in (ONE, SERVERS):
            devices = devices[:1]
        place = Place(strategy, tuple(devices), cluster)
        _tell(place)
        return place

    def build_strategy(
        self, place: Place
    ) -> tuple[tf.distribute.Strategy | None, tf.compat.v1.ConfigProto]:
        """Return TensorFlow's strategy (None for a single device) and the settings of the session.

        Args:
          place: the role of this process, from `find_place`.

        Raises:
          UserError: TensorFlow uses other devices than `devices`.
        """
        # Set the GPU memory first, because a strategy initializes the GPUs.
        self.resources.take()
        config = self.resources.session_config()
        if not place.is_synchronous:
            return None, config
        on_cpu = any(device.startswith("/cpu:") for device in place.devices)
        count = len(place.devices)
        if on_cpu and count > 1:
            resources_lib.split_cpu(count)
            config.device_count["CPU"] = count
        if place.strategy == WORKERS:
            options = self.communication.options()
            strategy: tf.distribute.Strategy = tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=options
            )
        else:
            reduction = self.communication.reduction(on_cpu)
            strategy = tf.distribute.MirroredStrategy(list(place.devices), reduction)
        self._check_replicas(place, strategy.num_replicas_in_sync)
        return strategy, config

    def _check_replicas(self, place: Place, made: int) -> None:
        """Fail unless TensorFlow made exactly one replica for each part of a batch."""
        # MultiWorkerMirroredStrategy chooses its devices itself. A part of a batch without a
        # replica would never be trained.
        rule = f"give {made} replicas, as TensorFlow makes for {place.strategy!r}, not "
        fix = "Leave it empty. CUDA_VISIBLE_DEVICES chooses GPUs; without GPUs, use more processes."
        fits = made == place.replicas
        checks.require(fits, "Distribution.devices", f"{rule}{place.replicas}", self.devices, fix)

    def _sharding(self, place: Place) -> sharding_lib.Sharding:
        """Return the settings that cut embedding tables into shards for parameter servers."""
        # If `servers` is 0, tables are not cut.
        servers = place.cluster.num_servers if place.cluster and self.min_shard_bytes else 0
        return sharding_lib.Sharding(servers=servers, min_bytes=self.min_shard_bytes or 1)

    def distribute_model_fn(self, model_fn: Callable[..., Any], place: Place) -> Callable[..., Any]:
        """Return a `model_fn` that applies the settings for sharded tables and batch norm.

        Args:
          model_fn: takes features, labels and a mode, and builds the graph.
          place: the role of this process, from `find_place`.
        """

        def distributed(features: Any, labels: Any, mode: str) -> Any:
            apart = replicas.separate_replicas(when=self.batch_norm == "replica")
            with self._sharding(place).cut_tables(), apart:
                return model_fn(features, labels, mode)

        return distributed

    def _choose_strategy(self, cluster: tf_config.Cluster | None) -> str:
        """Return the name of the strategy; fail if TF_CONFIG does not fit the setting."""
        setting = self.strategy
        if cluster is None:
            rule, fix = (
                "have a TF_CONFIG",
                "Start every process with a TF_CONFIG, as launch.cluster does.",
            )
            is_alone = setting not in (WORKERS, SERVERS)
            checks.require(is_alone, "Distribution.strategy", rule, setting, fix)
            return setting
        strategy = SERVERS if tf_config.SERVER in cluster.jobs else WORKERS
        rule = f"be 'auto' or {strategy!r} with this TF_CONFIG"
        checks.require(setting in ("auto", strategy), "Distribution.strategy", rule, setting)
        return strategy

    def _choose_devices(self, strategy: str) -> Sequence[str]:
        gpus = [f"/gpu:{n}" for n in range(len(tf.config.list_physical_devices("GPU")))]
        if strategy == MIRRORED:
            fix = f"Visible GPUs: {', '.join(gpus) or 'none'}."
            checks.require(bool(gpus or self.devices), "Distribution.strategy", "have GPUs", 0, fix)
        # The processor is split into as many parts as `devices` has entries, so a part may be
        # unused.
        cpus = [f"/cpu:{n}" for n in range(len(self.devices))]
        for device in self.devices:
            fix = f"Visible GPUs: {', '.join(gpus) or 'none'}. Processor: {', '.join(cpus)}."
            checks.require(device in (*gpus, *cpus), "Distribution.devices", "exist", device, fix)
        return self.devices or gpus or ["/cpu:0"]


def _tell(place: Place) -> None:
    """Log the devices in use, and the number of visible GPUs."""
    gpus = tf.config.list_physical_devices("GPU")
    if place.replicas > 1 or gpus:
        name = place.cluster.name if place.cluster else "this process"
        visible = f" (of {len(gpus)} visible GPUs)" if gpus else ""
        devices = ", ".join(place.devices) + visible
        _log.info("Training on %d replicas, in %s: %s", place.replicas, name, devices)
