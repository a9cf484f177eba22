"""Where training runs: on one device, all GPUs of a machine, several machines, parameter servers.

from mtl import distribution
experiment.Experiment.distribution = @distribution.Distribution()
distribution.Distribution.strategy = "mirrored"       # "auto" by default
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

from mtl import checks
from mtl.distribution import resources as resources_lib
from mtl.distribution import tf_config
from mtl.step import replicas
from mtl.variables import sharding as sharding_lib

tf1 = tf.compat.v1
_log = logging.getLogger(__name__)

ONE, MIRRORED, WORKERS, SERVERS = "none", "mirrored", "multi_worker_mirrored", "parameter_server"
STRATEGIES = ("auto", ONE, MIRRORED, WORKERS, SERVERS)
_IMPLEMENTATIONS = ("auto", "ring", "nccl")


@dataclasses.dataclass(frozen=True)
class Place:
    """What this process does in a run.

    Attributes:
      strategy: one of `STRATEGIES`, "auto" decided.
      devices: on which devices of this process a step runs, one replica each.
      cluster: the processes beside it; None for one alone.
    """

    strategy: str
    devices: tuple[str, ...]
    cluster: tf_config.Cluster | None = None

    @property
    def known_cluster(self) -> tf_config.Cluster:
        """The cluster, where the process is not alone."""
        return cast(tf_config.Cluster, self.cluster)

    @property
    def workers(self) -> int:
        """How many processes read a part of the data each."""
        return self.cluster.num_workers if self.cluster else 1

    @property
    def replicas(self) -> int:
        """Into how many parts a batch is divided."""
        return self.workers * len(self.devices)

    @property
    def is_synchronous(self) -> bool:
        """Whether replicas meet in every step."""
        return self.strategy in (MIRRORED, WORKERS)

    @property
    def has_servers(self) -> bool:
        """Whether workers move weights that servers hold, each by itself."""
        return self.strategy == SERVERS

    @property
    def is_chief(self) -> bool:
        """Whether this process prepares the run, writes summaries and checkpoints."""
        return self.cluster is None or self.cluster.is_chief

    @property
    def job(self) -> str:
        return self.cluster.job if self.cluster else tf_config.CHIEF


@dataclasses.dataclass(frozen=True, kw_only=True)
class Communication:
    """How replicas send each other what they add up.

    Attributes:
      implementation: between machines: "ring" (gRPC), "nccl", or "auto", as TensorFlow chooses.
      bytes_per_pack: between machines: gradients are sent in packs of about so many bytes; 0 leaves
        it to TensorFlow.
      num_packs: between the GPUs of one machine: into how many packs NCCL gathers all gradients;
        None leaves it to TensorFlow, 0 sends each by itself.
    """

    implementation: str = "auto"
    bytes_per_pack: int = 0
    num_packs: int | None = None

    def __post_init__(self):
        checks.one_of("Communication.implementation", self.implementation, _IMPLEMENTATIONS)
        checks.whole("Communication.bytes_per_pack", self.bytes_per_pack, 0)
        if self.num_packs is not None:
            checks.whole("Communication.num_packs", self.num_packs, 0)

    def options(self) -> tf.distribute.experimental.CommunicationOptions:
        """Between machines."""
        kind = tf.distribute.experimental.CommunicationImplementation[self.implementation.upper()]
        return tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=self.bytes_per_pack, implementation=kind
        )

    def reduction(self, on_cpu: bool) -> tf.distribute.CrossDeviceOps | None:
        """Return how to reduce within a machine; None for TensorFlow's choice."""
        if on_cpu:
            # What TensorFlow chooses by default waits forever for itself on two CPU cores.
            return tf.distribute.ReductionToOneDevice()
        return None if self.num_packs is None else tf.distribute.NcclAllReduce(self.num_packs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distribution:
    """How a step is divided over devices; the batch size in the data settings is that of all.

    Each replica takes an equal part of the batch; what clipping and balancing see, and what moves
    the weights, is the sum over all of them, and batch norm sees the rows of all: updates are those
    of one device up to rounding. Replicas meet in every step, so a session call runs one step. With
    parameter servers they do not meet: every worker moves the weights by its part of the batch
    alone, and a step is that of one worker.

    Attributes:
      strategy: "none" is one device; "mirrored" copies the model to several devices of a machine;
        "multi_worker_mirrored" to those of several machines; "parameter_server" keeps it apart from
        the workers. "auto" follows TF_CONFIG (servers where it has a "ps"), and without one is
        "mirrored" where several GPUs are visible, else "none".
      devices: names such as "/gpu:0", for the mirrored ones; empty takes every visible GPU.
        "/cpu:0", "/cpu:1" split the processor, to try things out.
      communication: how replicas send each other what they add up.
      resources: threads and memory that a process takes.
      evaluator: whether a process of its own evaluates (task type "evaluator"); else the chief
        does, while the others wait.
      timeout_secs: after how long without a sign of life a process of the cluster is given up, and
        the others end, to be started again.
      batch_norm: which rows normalise a batch in training: "global" takes those of all replicas,
        which then meet twice in each such layer and twice on the way back; "replica" its own, as
        slices do (`Run.micro_batches`). Those of a KerasModel take their own.
      uneven: what is done with a batch size that the replicas do not divide: "refuse", or "round"
        it down.
      min_shard_bytes: parameter servers share an embedding table that has several times so many
        bytes, in shards of rows, each at least so large; None keeps tables whole.
    """

    strategy: str = "auto"
    devices: Sequence[str] = ()
    communication: Communication = Communication()
    resources: resources_lib.Resources = resources_lib.Resources()
    evaluator: bool = False
    timeout_secs: float = 60.0
    batch_norm: str = "global"
    uneven: str = "refuse"
    min_shard_bytes: int | None = 64 << 20

    def __post_init__(self):
        checks.one_of("Distribution.strategy", self.strategy, STRATEGIES)
        checks.texts("Distribution.devices", self.devices, "be a list of devices")
        checks.unique("Distribution.devices", self.devices)
        fits = not self.devices or self.strategy in (MIRRORED, WORKERS)
        fix = 'They are those of strategy "mirrored" or "multi_worker_mirrored".'
        checks.require(fits, "Distribution.devices", "be empty", self.devices, fix)
        example = "be built, such as @distribution.Communication()"
        checks.is_a("Distribution.communication", self.communication, Communication, example)
        example = "be built, such as @resources.Resources()"
        kind = resources_lib.Resources
        checks.is_a("Distribution.resources", self.resources, kind, example)
        checks.is_a("Distribution.evaluator", self.evaluator, bool, "be True or False")
        checks.at_least("Distribution.timeout_secs", self.timeout_secs, 5)
        checks.one_of("Distribution.batch_norm", self.batch_norm, ("global", "replica"))
        checks.one_of("Distribution.uneven", self.uneven, ("refuse", "round"))
        if self.min_shard_bytes is not None:
            checks.is_a("Distribution.min_shard_bytes", self.min_shard_bytes, int, "be a number")
            checks.positive("Distribution.min_shard_bytes", self.min_shard_bytes)

    def find_place(self) -> Place:
        """Return what this process does, by the settings, TF_CONFIG and the visible devices.

        Raises:
          UserError: TF_CONFIG does not fit the strategy, or a device is not there.
        """
        cluster = tf_config.read_cluster()
        if cluster and cluster.job == tf_config.EVALUATOR:
            fix = "Or start no process with the task type evaluator."
            checks.require(self.evaluator, "Distribution.evaluator", "be True", False, fix)
            return Place(ONE, ("/cpu:0",), cluster)
        strategy = self._strategy(cluster)
        devices = self._devices(strategy)
        if cluster is None and strategy != ONE:
            strategy = MIRRORED if len(devices) > 1 else ONE
        if strategy in (ONE, SERVERS):
            devices = devices[:1]
        place = Place(strategy, tuple(devices), cluster)
        _tell(place)
        return place

    def build_strategy(
        self, place: Place
    ) -> tuple[tf.distribute.Strategy | None, tf.compat.v1.ConfigProto]:
        """Return the strategy, None for plain training, and the session's settings."""
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
            return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options), config
        reduction = self.communication.reduction(on_cpu)
        return tf.distribute.MirroredStrategy(list(place.devices), reduction), config

    def _sharding(self, place: Place) -> sharding_lib.Sharding:
        """Return how tables are cut over the parameter servers of this place."""
        servers = place.cluster.num_servers if place.cluster and self.min_shard_bytes else 0
        return sharding_lib.Sharding(servers=servers, min_bytes=self.min_shard_bytes or 1)

    def distribute_model_fn(self, model_fn: Callable[..., Any], place: Place) -> Callable[..., Any]:
        """Return `model_fn`, with tables cut and batches normalised as set."""

        def distributed(features: Any, labels: Any, mode: str) -> Any:
            apart = replicas.separate_replicas(when=self.batch_norm == "replica")
            with self._sharding(place).cut_tables(), apart:
                return model_fn(features, labels, mode)

        return distributed

    def _strategy(self, cluster: tf_config.Cluster | None) -> str:
        """Return the strategy, "auto" decided; fail where TF_CONFIG does not fit it."""
        chosen = self.strategy
        if cluster is None:
            rule, fix = "have a TF_CONFIG", "Start every process with one, as launch.cluster does."
            is_alone = chosen not in (WORKERS, SERVERS)
            checks.require(is_alone, "Distribution.strategy", rule, chosen, fix)
            return chosen
        fits = SERVERS if tf_config.SERVER in cluster.jobs else WORKERS
        rule = f"be 'auto' or {fits!r} with this TF_CONFIG"
        checks.require(chosen in ("auto", fits), "Distribution.strategy", rule, chosen)
        return fits

    def _devices(self, strategy: str) -> Sequence[str]:
        gpus = [f"/gpu:{n}" for n in range(len(tf.config.list_physical_devices("GPU")))]
        if strategy == MIRRORED:
            fix = f"Visible GPUs: {', '.join(gpus) or 'none'}."
            checks.require(bool(gpus or self.devices), "Distribution.strategy", "have GPUs", 0, fix)
        for device in self.devices:
            is_there = device in gpus or device.startswith("/cpu:")
            fix = f"Visible GPUs: {', '.join(gpus) or 'none'}."
            checks.require(is_there, "Distribution.devices", "be there", device, fix)
        return self.devices or gpus or ["/cpu:0"]


def _tell(place: Place) -> None:
    """Log which devices are used, and how many GPUs were found."""
    gpus = tf.config.list_physical_devices("GPU")
    if place.replicas > 1 or gpus:
        name = place.cluster.name if place.cluster else "this process"
        found = f" (of {len(gpus)} GPUs found)" if gpus else ""
        used = ", ".join(place.devices) + found
        _log.info("Training on %d replicas, in %s: %s", place.replicas, name, used)
