"""Runs an Estimator under TensorFlow's distribute coordinator.

TensorFlow 2.16 dropped the module `tensorflow.python.distribute.estimator_training`, but kept the
distribute coordinator. `mtl.compat.estimator_training` replaces the dropped module. RunConfig and
TF_CONFIG decide whether the coordinator runs. Every worker gets a copy of the Estimator, with the
strategy of the worker and its place in the cluster.

    init_run_config(config, tf_config)                 # RunConfig.__init__, with a strategy
    if should_run_distribute_coordinator(config):      # tf.estimator.train_and_evaluate
        train_and_evaluate(estimator, train_spec, eval_spec, executor_cls)
"""

import copy
from collections.abc import Callable
from typing import Any

from tensorflow.python.distribute import distribute_coordinator as coordinator
from tensorflow.python.distribute import distribute_coordinator_context as coordinator_context
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.platform import tf_logging as logging
from tensorflow.python.training import server_lib

from mtl import checks

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
STANDALONE_CLIENT = coordinator.CoordinatorMode.STANDALONE_CLIENT
INDEPENDENT_WORKER = coordinator.CoordinatorMode.INDEPENDENT_WORKER

_VERBS = {"train": "train", "eval": "evaluate"}


def init_run_config(config, tf_config: dict[str, Any]) -> None:
    """Set the cluster and the mode of the coordinator in a RunConfig that has a strategy.

    Args:
      config: a RunConfig, which this function changes in place.
      tf_config: the content of TF_CONFIG; {} if it is not set.

    Raises:
      UserError: both TF_CONFIG and `remote_cluster` have a cluster, or a strategy is set both in
        RunConfig and in its `experimental_distribute`.
    """
    for phase in _VERBS:
        _take_experimental_strategy(config, phase)
    cluster = server_lib.ClusterSpec(tf_config.get("cluster", {}))
    remote = getattr(config._experimental_distribute, "remote_cluster", None)
    # Start with the settings of a single process. The branches below replace them if there is a
    # cluster.
    config._init_distributed_setting_from_environment_var({})
    config._distribute_coordinator_mode = None
    if config._train_distribute and remote:
        if cluster:
            checks.fail(
                "RunConfig.experimental_distribute.remote_cluster",
                "stand alone",
                cluster.as_dict(),
                "Take 'cluster' out of TF_CONFIG, or do not set remote_cluster.",
            )
        config._distribute_coordinator_mode = STANDALONE_CLIENT
        config._cluster_spec = remote
    elif config._train_distribute and cluster and "master" not in cluster.jobs:
        config._distribute_coordinator_mode = INDEPENDENT_WORKER
        config._cluster_spec = cluster
    else:
        config._init_distributed_setting_from_environment_var(tf_config)
        config._maybe_overwrite_session_config_for_distributed_training()
    logging.info("Distribute coordinator mode: %s.", config._distribute_coordinator_mode)


def should_run_distribute_coordinator(config) -> bool:
    """Return True if `tf.estimator.train_and_evaluate` uses the distribute coordinator.

    Args:
      config: the RunConfig of the Estimator. For an unknown mode, or a mode without a cluster, the
        function logs a warning and returns False.
    """
    mode = getattr(config, "_distribute_coordinator_mode", None)
    if mode is None:
        return False
    if mode not in (STANDALONE_CLIENT, INDEPENDENT_WORKER):
        logging.warning("Unknown distribute coordinator mode %r: running without it.", mode)
        return False
    if not config.cluster_spec:
        logging.warning("No cluster for distribute coordinator mode %r: running locally.", mode)
        return False
    return True


def train_and_evaluate(estimator, train_spec, eval_spec, executor_cls) -> None:
    """Train on the workers and evaluate on the evaluator, if the cluster has one.

    Args:
      estimator: the Estimator, whose RunConfig has the mode of the coordinator.
      train_spec: a TrainSpec.
      eval_spec: an EvalSpec.
      executor_cls: Estimator's class `_TrainingExecutor`, which runs the evaluations in the
        evaluator's process.
    """
    config = estimator.config
    mode = config._distribute_coordinator_mode
    if not mode:
        checks.fail("RunConfig", "name a distribute coordinator mode", mode)

    def train(strategy):
        local, context = _copy_for_worker(estimator, "train", strategy)
        # A standalone client runs all workers as threads of one process, in which only the chief
        # needs the hooks.
        hooks = train_spec.hooks if mode == INDEPENDENT_WORKER or context.is_chief else ()
        local.train(
            train_spec.input_fn,
            hooks=list(hooks),
            max_steps=train_spec.max_steps,
            saving_listeners=train_spec.saving_listeners,
        )

    def evaluate(strategy):
        local, _ = _copy_for_worker(estimator, "eval", strategy)
        executor_cls(local, train_spec, eval_spec)._start_continuous_evaluation()

    coordinator.run_distribute_coordinator(
        train,
        config.train_distribute,
        evaluate,
        config.eval_distribute,
        mode=mode,
        # An independent worker reads the cluster, and its own place in the cluster, from TF_CONFIG.
        cluster_spec=config.cluster_spec if mode == STANDALONE_CLIENT else None,
        session_config=config.session_config,
    )


def estimator_train(estimator, train_distributed_fn: Callable, hooks) -> Any:
    """Run `Estimator.train` on a remote cluster.

    Args:
      estimator: the Estimator.
      train_distributed_fn: trains in one worker, called with (estimator, strategy, hooks).
      hooks: the hooks of the chief; other workers run without hooks.
    """
    return _run_as_client(estimator, "train", train_distributed_fn, hooks)


def estimator_evaluate(estimator, evaluate_distributed_fn: Callable, hooks) -> Any:
    """Run `Estimator.evaluate` on a remote cluster.

    Args:
      estimator: the Estimator.
      evaluate_distributed_fn: evaluates in one worker, called with (estimator, strategy, hooks).
      hooks: the hooks of the chief; other workers run without hooks.
    """
    return _run_as_client(estimator, "eval", evaluate_distributed_fn, hooks)


def _run_as_client(estimator, phase: str, run: Callable, hooks) -> Any:
    """Call `run(estimator, strategy, hooks)` on all workers, as a standalone client."""
    config = estimator._config
    where = f"Estimator.{_VERBS[phase]}"
    strategy = getattr(config, f"_{phase}_distribute")
    cluster = multi_worker_util.normalize_cluster_spec(config.cluster_spec)
    mode = config._distribute_coordinator_mode
    fix = "Call tf.estimator.train_and_evaluate instead."
    checks.require(EVALUATOR not in cluster.jobs, where, "have no evaluator", cluster.jobs, fix)
    checks.require(mode == STANDALONE_CLIENT, where, f"run in {STANDALONE_CLIENT} mode", mode, fix)
    checks.require(
        not strategy.extended.experimental_between_graph,
        where,
        "have a strategy with one graph for all workers",
        type(strategy).__name__,
        fix,
    )

    def work(strategy):
        local, context = _copy_for_worker(estimator, phase, strategy)
        return run(local, strategy, hooks if context.is_chief else [])

    return coordinator.run_distribute_coordinator(
        work, strategy, mode=mode, cluster_spec=cluster, session_config=config.session_config
    )


def _take_experimental_strategy(config, phase: str) -> None:
    """Copy `experimental_distribute.<phase>_distribute` to the field that Estimator reads."""
    name = f"{phase}_distribute"
    strategy = getattr(config._experimental_distribute, name, None)
    if not strategy:
        return
    if getattr(config, f"_{name}"):
        checks.fail(
            f"RunConfig.{name}",
            f"not be set together with experimental_distribute.{name}",
            type(strategy).__name__,
        )
    setattr(config, f"_{name}", strategy)


def _copy_for_worker(estimator, phase: str, strategy) -> tuple[Any, Any]:
    """Return a copy of an Estimator for this worker, and the coordinator's context."""
    context = coordinator_context.get_current_worker_context()
    local = copy.deepcopy(estimator)
    setattr(local._config, f"_{phase}_distribute", strategy)
    setattr(local, f"_{phase}_distribution", strategy)
    _set_place(local._config, context)
    # The copy of the Estimator already runs under the coordinator, and must not start another
    # coordinator.
    local._config._distribute_coordinator_mode = None
    logging.info("This worker's RunConfig: %s", vars(local._config))
    return local, context


def _set_place(config, context) -> None:
    """Write the place of a worker in the cluster into the worker's RunConfig."""
    cluster = context.cluster_spec
    config._service = None
    config._task_type, config._task_id = context.task_type, context.task_id
    config._master = config._evaluation_master = context.master_target
    config._is_chief = context.is_chief
    if not cluster:
        ps, workers, global_id = 0, 1, 0
    elif context.task_type == EVALUATOR:
        # The evaluator works alone, so its RunConfig must not name the other processes.
        cluster = server_lib.ClusterSpec({})
        ps, workers, global_id = 0, 0, None
    else:
        ps = _count_tasks(cluster, PS)
        workers = _count_tasks(cluster, WORKER) + _count_tasks(cluster, CHIEF)
        global_id = _global_id(cluster, context.task_type, context.task_id)
    config._cluster_spec = cluster
    config._num_ps_replicas, config._num_worker_replicas = ps, workers
    config._global_id_in_cluster = global_id


def _count_tasks(cluster, job: str) -> int:
    return len(cluster.job_tasks(job)) if job in cluster.jobs else 0


def _global_id(cluster, task_type: str | None, task_id: Any) -> int:
    """Return the number of a task among all tasks of a cluster: chief first, servers last."""
    if not task_type:
        return 0
    jobs = sorted(cluster.jobs, key=lambda job: (job != CHIEF, job == PS, job))
    checks.one_of("TF_CONFIG.task.type", task_type, jobs)
    return task_id + sum(_count_tasks(cluster, job) for job in jobs[: jobs.index(task_type)])
