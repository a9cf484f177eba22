"""Trains a run: prepares its files, builds the Estimator, and calls the observers.

metrics, steps = training.Training(experiment, "runs/digits", on_start=lambda: None).run()
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from mtl import checkpoints, checks, deferred, distribution, types
from mtl import experiment as experiment_lib
from mtl.checkpoints import given_files, input_state, mismatch, run_directory
from mtl.deferred import compat, tf, tf1
from mtl.distribution import interruption as interruption_lib
from mtl.distribution import memory, resources, tf_config
from mtl.files import storage
from mtl.model import graph_options
from mtl.monitoring import progress
from mtl.runs import diagnosis, evaluation, failures, fitting, preparation
from mtl.runs import observers as observers_lib
from mtl.step import training_loop, whole_batch

with deferred.imports():
    from mtl.checkpoints import saving
    from mtl.distribution import heartbeat
    from mtl.monitoring import hooks
    from mtl.runs import members

_log = logging.getLogger(__name__)


class Training:
    """Trains one run, in one process or as one of several processes.

    Args:
      experiment: the run's settings.
      model_dir: the folder of the run; the same for all processes.
      on_start: called once the model is built and restored, before the first step.
      part: the place of this training in a run of several trainings, for trackers.
      observers: the parts that act beside the training, such as trackers.

    Raises:
      UserError: the replicas do not divide the batch, or devices are missing.
    """

    def __init__(
        self,
        experiment: experiment_lib.Experiment,
        model_dir: str,
        on_start: Callable[[], None],
        part: types.RunPart | None = None,
        observers: Sequence[types.OpenObserver] = (),
    ):
        # Check the folder's name first: TensorFlow would misread some names when it writes files.
        storage.require_plain("--model_dir", model_dir)
        self._place = experiment.distribution.find_place()
        parts = self._place.replicas * experiment.run.micro_batches
        data = preparation.divide_batch(experiment.data, parts, experiment.distribution.uneven)
        preparation.check_added_rows(experiment.model, parts)
        run = types.ObservedRun(
            experiment=experiment, model_dir=model_dir, place=self._place, part=part
        )
        self._observers = observers_lib.open_all(run, observers)
        self._data = self._observers.change_data(data)
        self._experiment, self._model_dir, self._on_start = experiment, model_dir, on_start
        self._run = experiment.run
        # The clocks of processes differ, so checkpoint_secs would save at different steps.
        rule = "be set, because several processes save together"
        fits = self._run.checkpoint_steps or self._place.strategy != distribution.WORKERS
        checks.require(bool(fits), "Run.checkpoint_steps", rule, None)

    def run(self) -> tuple[dict[str, Any], int]:
        """Train up to the last step.

        Returns:
          The metrics of the last evaluation, {} if another process evaluates; and the number of
          steps that this call trained.
        """
        with (
            self._lock_folder(),
            tf_config.confine_server(self._place.cluster),
            hooks.closing_writers(self._model_dir),
            self._observers.around_run(),
        ):
            return self._take_part()

    def _lock_folder(self) -> contextlib.AbstractContextManager[None]:
        """Lock the folder of the run against a second chief or a second evaluator.

        A second chief would delete checkpoints. Workers need no lock, because they wait for the
        chief.
        """
        if self._place.is_chief:
            return run_directory.lock_run(self._model_dir)
        if self._place.job == tf_config.EVALUATOR:
            return members.lock_evaluator(self._model_dir)
        return contextlib.nullcontext()

    def _take_part(self) -> tuple[dict[str, Any], int]:
        """Run the job of this process: chief, worker, parameter server or evaluator."""
        strategy = self._experiment.distribution.build_strategy(self._place)
        interruption = interruption_lib.Interruption()
        timeout_secs = self._experiment.distribution.timeout_secs
        with members.open_heartbeat(
            self._place.cluster, self._model_dir, timeout_secs, self._is_evaluated_beside
        ) as beat:
            evaluator = evaluation.Evaluator(
                self._experiment, self._model_dir, interruption, self._observers
            )
            if self._place.job == tf_config.SERVER:
                members.serve_parameters(self._place.known_cluster, beat, interruption)
                return {}, 0
            if self._place.job == tf_config.EVALUATOR:
                # Wait for the chief to train: until then, the folder may hold files of an earlier
                # run.
                beat.wait_for(members.CHIEF, members.TRAINING)
                self._observers.begin()
                metrics = members.evaluate_all(evaluator, self._model_dir, beat, interruption)
                return metrics, 0
            return self._train_or_follow(_Context(strategy, evaluator, interruption, beat))

    def _train_or_follow(self, context: _Context) -> tuple[dict[str, Any], int]:
        """Train as the chief or as a worker."""
        # Workers wait until the chief has repaired and prepared the folder.
        if not self._place.is_chief:
            status = context.beat.wait_for(members.CHIEF, members.TRAINING)
            if status["phase"] == heartbeat.DONE:
                return {}, 0
            name = status["checkpoint"]
            checkpoint = os.path.join(self._model_dir, name) if name else None
            is_independent = not self._place.is_synchronous
            with (
                members.ending_with_chief(context.beat)
                if is_independent
                else contextlib.nullcontext()
            ):
                return {}, self._train_from(context, checkpoint, hooks.Callbacks())
        # Check the memory before the pass over the data, because this check needs only the
        # settings.
        self._data.require_memory(self._data.batch_size // self._place.workers)
        # Remove half-written files of a killed process before anything reads the folder.
        run_directory.repair_run(self._model_dir)
        # Until `keep` is called with the first step, an error or Ctrl-C removes all files that this
        # start has written.
        with run_directory.claim_run(self._model_dir) as keep:
            evaluator = context.evaluator
            if preparation.prepare_run(
                self._experiment, self._model_dir, lambda: evaluator.graph, self._place
            ):
                self._on_start()
                keep()
            # If a run was killed between a checkpoint and its evaluation, that checkpoint could be
            # the best.
            context.evaluator.catch_up(self._is_evaluated_beside)
            checkpoint = run_directory.find_latest(self._model_dir)
            step = run_directory.step_of(self._model_dir)
            self._observers.prepare(is_new=checkpoint is None)
            reason = self._why_done(step, evaluator.keeper)
            if reason:
                metrics = self._measure_last(evaluator, step)
                # If the rows have changed, the count of `Best.patience` has started anew.
                reason = self._why_done(step, evaluator.keeper)
            if reason:
                evaluator.forget_later()
                self._observers.end_early()
                self._observers.write_results()
                _log.info(
                    "Nothing to train: step %d of %d, %s", step, self._run.train_steps, reason
                )
                return metrics, 0
            # With parameter servers, `Leading` announces the training when variables have values.
            if not self._place.has_servers:
                members.announce_training(context.beat, checkpoint)
            start = functools.partial(self._announce_start, context, step)
            with failures.keep_failure(self._model_dir, keep, self._place):
                steps = self._train_from(context, checkpoint, hooks.Callbacks(start, on_call=keep))
            if self._is_evaluated_beside:
                members.tell_what_waits(evaluated=evaluator.keeper.last_step, last=step + steps)
            self._observers.write_results()
            return context.evaluator.metrics or {}, steps

    def _measure_last(self, evaluator: evaluation.Evaluator, step: int) -> dict[str, Any]:
        """Return the metrics of a finished run; {} if another process still evaluates the run."""
        if self._is_evaluated_beside and evaluator.keeper.last_step < step:
            return {}
        return evaluator.metrics or evaluator.evaluate_again()

    def _why_done(self, step: int, keeper: checkpoints.BestKeeper) -> str:
        """Return the reason why training is complete; "" if steps are left."""
        if keeper.should_stop():
            return "Best.patience has ended the run"
        return "all steps are done" if step >= self._run.train_steps else ""

    def _announce_start(self, context: _Context, step: int) -> None:
        """Log that training starts, after the model is restored and all checks have passed."""
        context.evaluator.forget_later()
        start_text = f"Going on from step {step}" if step else "Training"
        tasks = ", ".join(self._experiment.model.loss_names)
        _log.info("%s to step %d: %s", start_text, self._run.train_steps, tasks)
        self._on_start()
        self._observers.begin()

    def _train_from(
        self, context: _Context, checkpoint: str | None, callbacks: hooks.Callbacks
    ) -> int:
        """Train from a checkpoint, or from the first values; return the number of trained steps."""
        first = run_directory.step_in_name(checkpoint) if checkpoint else 0
        self._observers.go_on_from(first)
        place, inputs = self._place, self._input_state()
        training_hooks = functools.partial(
            self._build_hooks, context, checkpoint, callbacks, inputs
        )
        estimator = self._build_estimator(checkpoint, training_hooks, *context.strategy)
        input_fn = functools.partial(self._build_input, inputs, first)
        spec = compat.estimator.TrainSpec(input_fn, self._run.train_steps)
        model, split = self._experiment.model, self._data.train_split
        error_context = diagnosis.explain_run_errors(self._data, model, checkpoint, split)
        with error_context, context.interruption.handle_signals():
            if not place.is_chief:
                context.beat.publish_phase(members.TRAINING)
            # A strategy would trace the step with AutoGraph, which garbles error messages.
            train = tf.autograph.experimental.do_not_convert(members.train_estimator)
            try:
                train(place.cluster, estimator, spec)
            finally:
                self._observers.close()
        return run_directory.step_of(self._model_dir) - first

    @property
    def _input_settings(self) -> tuple[Any, ...]:
        """The settings that decide the order of the examples."""
        settings = (self._data, self._run.seed, self._place.workers)
        added_rows = [
            types.read_member(head, types.AddingHead, "rows_added")
            for head in self._experiment.model.heads
        ]
        if any(added_rows):
            return (*settings, self._parts, added_rows)
        # If the order of rows depends on the number of micro-batches, a position that was saved
        # with a different number of micro-batches would mean different rows.
        return (*settings, self._parts) if self._data.depends_on_parts else settings

    @property
    def _parts(self) -> int:
        """The number of micro-batches of all replicas in this process."""
        return self._run.micro_batches * self._place.replicas // self._place.workers

    def _input_state(self) -> input_state.InputState:
        """Return the input state of this process.

        An asynchronous worker saves its input state without waiting for other workers.
        """
        settings = self._input_settings
        readers = self._place.workers if self._place.is_synchronous else 1
        rank = self._place.known_cluster.rank if readers > 1 else 0
        return input_state.InputState(
            self._model_dir,
            settings,
            readers,
            rank,
            starts_anywhere=self._data.starts_anywhere,
            depends_on_readers=self._data.depends_on_parts,
        )

    def _build_estimator(
        self,
        checkpoint: str | None,
        training_hooks: Callable[[training_loop.StepResult], dict[str, Any]],
        strategy: tf.distribute.Strategy | None,
        session_config: tf.compat.v1.ConfigProto,
    ) -> compat.estimator.Estimator:
        config = compat.estimator.RunConfig(
            model_dir=self._model_dir,
            train_distribute=strategy,
            tf_random_seed=self._run.seed,
            # Estimator's hooks assume one step per session call, and count from the start of the
            # process. Instead of Estimator, `Saving` and our hooks save checkpoints, log and count
            # steps.
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            keep_checkpoint_max=saving.ALL_CHECKPOINTS,
            save_summary_steps=None,
            log_step_count_steps=None,
            # By default, Estimator lets worker n wait for 5 (n + 1) seconds.
            experimental_max_worker_delay_secs=0,
        )
        config = resources.configure_session(config, session_config)
        experiment, statistics = self._experiment, fitting.load_statistics(self._model_dir)
        given_files.check_unchanged(experiment.model.training_files, self._model_dir)
        model = experiment.model.fill_schedules(experiment.run.train_steps).fitted(statistics)
        # A warm start finds values by the names of variables, so the variables of tasks must stay
        # separate.
        is_warm = experiment.warm_start is not None and not checkpoint
        model_fn: Callable[..., Any] = functools.partial(
            model.model_fn,
            options=graph_options.GraphOptions(
                statistics=statistics,
                loop=self._loop_settings,
                slices=self._run.micro_batches,
                precision=self._run.precision,
                training_hooks=training_hooks,
                extensions=[
                    *self._observers.list_extensions(model, statistics),
                    *model.step_extensions,
                    *self._observers.list_last_extensions(),
                ],
                may_stack=self._place.strategy == distribution.ONE and not is_warm,
            ),
        )
        # Wrap the model from the inside out; docs/follow_a_batch.md draws the layers.
        model_fn = self._observers.wrap_model_fn(model_fn)
        model_fn = experiment.distribution.distribute_model_fn(model_fn, self._place)
        # A worker of parameter servers restores no checkpoint. The chief may have deleted the first
        # checkpoint before a worker reads it.
        if self._place.is_chief or self._place.is_synchronous:
            model_fn = mismatch.refuse_mismatch(model_fn, checkpoint)
        if experiment.warm_start and is_warm:
            names = model.row_names(statistics)
            model_fn = experiment.warm_start.warm_model_fn(model_fn, names, self._model_dir)
        return compat.estimator.Estimator(model_fn, config=config)

    @property
    def _is_evaluated_beside(self) -> bool:
        """True if a separate process evaluates."""
        return bool(self._place.cluster) and self._experiment.distribution.evaluator

    @property
    def _loop_settings(self) -> dict[str, Any] | None:
        if self._run.steps_per_call == 1 or self._place.strategy != distribution.ONE:
            return None
        has_due = self._observers.has_due_items
        return {"steps_per_call": self._run.steps_per_call, **self._seen, "has_due": has_due}

    @property
    def _seen(self) -> dict[str, Any]:
        """The steps that hooks must see, as arguments of `hooks.UnseenSteps`."""
        intervals = filter(None, (self._run.checkpoint_steps, self._run.summary_steps))
        return {
            "last_step": self._run.train_steps,
            "due_every": (*intervals, *self._observers.due_every),
            "due_at": self._observers.due_at,
        }

    def _build_input(
        self,
        inputs: input_state.InputState,
        first: int,
        input_context: tf.distribute.InputContext | None = None,
    ) -> Any:
        """Build the input: an iterator of batches for a loop in the graph, else the next batch.

        With a strategy of several replicas, the input is a function that returns the rows of a
        replica.
        """
        place = self._place
        reading = types.Reading(
            fitting.load_statistics(self._model_dir),
            self._run.seed,
            first,
            self._parts,
            place.workers,
            place.cluster.rank if place.cluster else 0,
        )
        dataset = self._data.dataset(
            self._data.train_split,
            training=True,
            seed=reading.seed,
            num_shards=reading.num_shards,
            shard=reading.shard,
            batch_size=self._data.batch_size // place.workers,
            statistics=reading.statistics,
            start_step=reading.start_step,
            parts=reading.parts,
        )
        for head in self._experiment.model.heads:
            add_rows = types.read_member(head, types.AddingHead, "add_rows")
            dataset = add_rows(dataset, self._data.spec, reading)
        # Make the iterator here instead of in Estimator: checkpoints save the iterator's position,
        # and the loop over steps calls `get_next` in its body.
        iterator = tf1.data.make_initializable_iterator(dataset)
        tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        inputs.watch(iterator, trusted=self._data.sampler is not None)
        if self._loop_settings:
            return iterator, None
        # All replicas of this process share a batch, and each replica takes a slice of the batch.
        batch, count = iterator.get_next(), len(place.devices)
        if input_context is None:
            return batch
        # A strategy calls the returned function once for each replica, in the order of the
        # replicas.
        parts = iter(range(count))
        return lambda: whole_batch.take_slice(batch, next(parts), count)

    def _build_hooks(
        self,
        context: _Context,
        checkpoint: str | None,
        callbacks: hooks.Callbacks,
        inputs: input_state.InputState,
        result: training_loop.StepResult,
    ) -> dict[str, list[tf.compat.v1.train.SessionRunHook]]:
        place = self._place
        if place.strategy == distribution.ONE:
            # Check the memory now, because creating the session allocates the variables.
            memory.require_variables(tf1.global_variables())
        # Only the chief writes checkpoints of the variables on the servers.
        if place.has_servers and not place.is_chief:
            return {"training_hooks": [members.Following(context.beat, context.interruption)]}
        saving_hook = self._build_saving(context, checkpoint, inputs, result)
        if not place.is_chief:
            return {"training_hooks": [saving_hook]}
        leading = members.Leading(context.beat, context.interruption, checkpoint)
        seen_steps = self._seen
        seen_steps["due_at"] += self._observers.seen_at
        # With several processes, hooks must see every step, because all processes must see the same
        # steps.
        is_one_process = place.strategy in (distribution.ONE, distribution.MIRRORED)
        takes_unseen = is_one_process and not self._loop_settings
        unseen = hooks.UnseenSteps(**seen_steps) if takes_unseen else None
        run_hooks = self._observers.build_hooks(result, lambda: context.evaluator.metrics)
        step_hooks = [*run_hooks.of_steps, *self._build_step_hooks(result)]
        return {
            "training_chief_hooks": [
                *run_hooks.first,
                callbacks,
                hooks.StepHooks(result, step_hooks, unseen),
                *run_hooks.before_saving,
                *([leading] if place.has_servers else []),
                saving_hook,
                *run_hooks.last,
            ],
        }

    def _build_saving(
        self,
        context: _Context,
        checkpoint: str | None,
        inputs: input_state.InputState,
        result: training_loop.StepResult,
    ) -> saving.Saving:
        """Build the hook that saves checkpoints and starts their evaluation."""
        run, place = self._run, self._place
        return saving.Saving(
            result,
            self._model_dir,
            saved=checkpoint,
            every=(run.checkpoint_steps, run.checkpoint_secs),
            inputs=inputs,
            votes=saving.Votes(context.interruption, place.strategy == distribution.WORKERS),
            evaluate=self._checkpoint_evaluator(context.evaluator),
            before=self._observers.save if place.is_chief else lambda step: None,
            is_chief=place.is_chief,
            keep=run.keep_checkpoints,
            evaluated=self._last_evaluated_step(context.evaluator.keeper),
        )

    def _build_step_hooks(self, result: training_loop.StepResult) -> list[hooks.StepHook]:
        """Build the hooks that watch the steps of a run in its chief."""
        run, model_dir, model = self._run, self._model_dir, self._experiment.model
        num_rows = self._place.count_rows(self._data.batch_size)
        writes_graph = not self._observers.writes_graph
        return [
            hooks.Summaries(result, model_dir, run.summary_steps, num_rows, writes_graph),
            progress.Progress(result, run.train_steps, num_rows, model.loss_names),
            hooks.Dominance(result, model_dir, model, run),
            hooks.Skipped(result, model_dir),
            hooks.FullTables(result, model_dir, model),
        ]

    def _last_evaluated_step(self, keeper: checkpoints.BestKeeper) -> Callable[[], float]:
        """Return a function that returns the last step whose checkpoint was evaluated."""
        return lambda: keeper.last_step if self._is_evaluated_beside else math.inf

    def _checkpoint_evaluator(self, evaluator: evaluation.Evaluator) -> Callable[[str], bool]:
        """Return a function that evaluates a checkpoint, and returns True if training must end."""
        place = self._place

        def evaluate(checkpoint: str) -> bool:
            if place.is_chief and not self._is_evaluated_beside:
                evaluator(checkpoint)
            return place.is_chief and evaluator.keeper.should_stop()

        return evaluate


@dataclasses.dataclass(frozen=True)
class _Context:
    """Holds objects that the methods of `Training` share."""

    strategy: tuple[tf.distribute.Strategy | None, tf.compat.v1.ConfigProto]
    evaluator: evaluation.Evaluator
    interruption: interruption_lib.Interruption
    beat: heartbeat.Heartbeat
