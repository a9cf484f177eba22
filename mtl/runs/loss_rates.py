"""Moves the rates of a mixture by the losses of its tasks: what `moved_rates.ByLosses` decides.

training.Training(made, "runs/a", on_start, observers=[*observers, loss_rates.observe])

The graph sums the losses of an interval, and decides at its last step. The decisions are the
variable `mixture/log_factors`, so a checkpoint holds all of them. A hook hands them to the input.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.checkpoints import run_directory
from mtl.data import moved_rates, pipeline
from mtl.deferred import tf, tf1
from mtl.heads import together
from mtl.monitoring import hooks
from mtl.step import replicas, step_state

_log = logging.getLogger(__name__)
_SCOPE = "mixture"
_FACTORS, _FIRST = f"{_SCOPE}/log_factors", f"{_SCOPE}/first_losses"
# A ratio of losses stays within a thousandth and a thousand.
_LARGEST_LOG = float(np.log(1000.0))


def observe(run: types.ObservedRun) -> LossRates:
    """Return the observer of a run whose mixture follows the losses.

    Raises:
      UserError: several processes train, a source labels no task, or there are too many intervals.
    """
    experiment = run.experiment
    source, rates = experiment.data.source, experiment.data.source.rates
    where = "Mixture.rates"
    # Each process would have to hear of every decision before it reads its next rows.
    rule = "be numbers or schedules if several processes train"
    checks.require(run.place.workers == 1, where, rule, "ByLosses")
    tasks = source.list_tasks(experiment.model.heads_with_loss, experiment.data.spec)
    for name, of_source in tasks.items():
        rule = f"give the source {name!r} the label of a task with a loss"
        checks.require(bool(of_source), "Mixture.labels", rule, dict(source.labels))
    count = -(-experiment.run.train_steps // rates.every) + 2
    least = -(-experiment.run.train_steps // (moved_rates.MOST_INTERVALS - 2))
    rule = f"be at least {least}, as a run decides {moved_rates.MOST_INTERVALS - 2:,} times at most"
    is_few = count <= moved_rates.MOST_INTERVALS
    checks.require(is_few, "ByLosses.every", rule, rates.every)
    rule = f"be at least {len(tasks) + 3} for {len(tasks)} sources, as rows are dealt ahead"
    checks.require(source.known_steps >= 1, "ByLosses.every", rule, rates.every)
    return LossRates(rates, tasks, run.model_dir)


class LossRates(types.RunObserver):
    """Has the losses move the rates of a mixture.

    Args:
      rates: the settings.
      tasks: {source: its tasks}, in the order of the sources.
      model_dir: the folder of the run.
    """

    def __init__(
        self, rates: moved_rates.ByLosses, tasks: Mapping[str, Sequence[str]], model_dir: str
    ):
        self.rates, self.tasks, self._model_dir = rates, tasks, model_dir
        self.due_every = (rates.every,)

    def change_data(self, data: pipeline.Pipeline) -> pipeline.Pipeline:
        self._publish_saved(run_directory.find_latest(self._model_dir))
        return data

    def go_on_from(self, step: int) -> None:
        path = run_directory.find_latest(self._model_dir)
        self._publish_saved(path if step else None)

    def _publish_saved(self, checkpoint: str | None) -> None:
        """Hand the decisions of a checkpoint to the input; None for a run without one."""
        # The input may begin to read before the session is there, also after an earlier training.
        self.rates.decisions.open()
        reader = tf.train.load_checkpoint(checkpoint) if checkpoint else None
        if reader is None or not reader.has_tensor(_FACTORS):
            self.rates.decisions.publish(np.ones([2, len(self.tasks)]))
            return
        self.publish(reader.get_tensor(_FACTORS), run_directory.step_of(self._model_dir))

    def publish(self, log_factors: np.ndarray, step: int) -> None:
        """Hand the decisions before a step to the input: logarithms [K, S] of the factors."""
        self.rates.decisions.publish(np.exp(log_factors[: step // self.rates.every + 2]))

    def list_extensions(self, model: Any, statistics: Any) -> list[types.MakeExtension]:
        del statistics
        return [functools.partial(_Decide, self.rates, self.tasks)]

    def build_hooks(self, result: Any, metrics: Any) -> types.RunHooks:
        del metrics
        return types.RunHooks(of_steps=[_Publish(result, self)])

    def close(self) -> None:
        self.rates.decisions.close()


class _Decide(types.StepExtension):
    """Sums the losses of the tasks, and decides at the end of an interval."""

    def __init__(
        self,
        rates: moved_rates.ByLosses,
        tasks: Mapping[str, Sequence[str]],
        model: Any,
        features: types.Tensors,
        labels: types.Tensors,
    ):
        del features
        self._rates, self._tasks, self._model, self._labels = rates, tasks, model, labels

    @contextlib.contextmanager
    def around_update(self, found: Any, batch: Any) -> Iterator[None]:
        del batch
        with tf1.variable_scope(_SCOPE):
            self._decide(found.losses)
        yield

    def _decide(self, losses: types.Tensors) -> None:
        names = list(dict.fromkeys(task for tasks in self._tasks.values() for task in tasks))
        heads = [head for head in self._model.heads_with_loss if head.name in names]
        weights = replicas.sum_over_replicas(together.sum_label_weights(heads, self._labels))
        # [T] each. A task without a label in the batch has weight 0. A loss that is not finite also
        # has weight 0, because `Update.if_not_finite` may skip its step.
        loss, weight = (tf.stack([values[n] for n in names]) for values in (losses, weights))
        is_finite = tf.math.is_finite(loss)
        loss, weight = (tf.where(is_finite, x, tf.zeros_like(x)) for x in (loss, weight))
        seen = tf.cast(tf.stack([loss * weight, weight]), tf.float64)
        count, every = len(names), self._rates.every
        sums = step_state.create_variable("sums", np.zeros([2, count]))
        latest = step_state.create_variable("latest_losses", np.zeros([count]))
        first = step_state.create_variable("first_losses", np.zeros([count]))
        most = moved_rates.MOST_INTERVALS
        factors = step_state.create_variable("log_factors", np.zeros([most, len(self._tasks)]))

        done = tf1.train.get_or_create_global_step().read_value() + 1
        is_end = tf.equal(done % every, 0)
        total, weights_sum = tf.unstack(sums.read_value() + seen)
        means = tf.where(
            weights_sum > 0, tf.math.divide_no_nan(total, weights_sum), latest.read_value()
        )
        # The first interval in which the task had a label is what later ones are compared with.
        firsts = tf.where(tf.equal(first.read_value(), 0), means, first.read_value())
        logs = tf.math.log(tf.where((firsts > 0) & (means > 0), means / firsts, 1.0))
        logs = tf.clip_by_value(logs, -_LARGEST_LOG, _LARGEST_LOG)
        shares = np.array([[(n in own) / len(own) for n in names] for own in self._tasks.values()])
        # The mean of the ratios, and not of their logarithms.
        of_sources = self._rates.power * tf.math.log(tf.linalg.matvec(shares, tf.exp(logs)))
        interval = done // every + 1  # Of the steps up to `done`, the next but one.
        is_row = tf.equal(tf.range(most, dtype=tf.int64), interval)[:, tf.newaxis]
        decided = tf.where(is_row & is_end, of_sources, factors.read_value())
        step_state.assign_with_update(factors, decided)
        step_state.assign_with_update(latest, tf.where(is_end, means, latest.read_value()))
        step_state.assign_with_update(first, tf.where(is_end, firsts, first.read_value()))
        sums_left = tf.where(is_end, tf.zeros_like(seen), tf.stack([total, weights_sum]))
        step_state.assign_with_update(sums, sums_left)


class _Publish(hooks.StepHook):
    """Hands the decisions to the input once an interval has ended."""

    def __init__(self, result: Any, observer: LossRates):
        super().__init__(result)
        self._observer = observer

    def begin(self) -> None:
        by_name = {variable.op.name: variable for variable in tf1.global_variables()}
        self._factors, self._first = by_name[_FACTORS], by_name[_FIRST]

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        del session
        decisions = self._observer.rates.decisions
        decisions.open()

        # The input reads ahead, and may wait for a decision that a training which ends never makes.
        # The session closes only after its input: so the input has to hear of the end before that.
        def close() -> None:
            coord.wait_for_stop()
            decisions.close()

        threading.Thread(target=close, name="loss rates", daemon=True).start()

    def on_step(self, run_context: Any, step: int, values: np.ndarray, *more: Any) -> None:
        if step % self._observer.rates.every:
            return
        session = run_context.session
        log_factors, first_losses = session.run([self._factors, self._first])
        rule = "follow losses above 0; no ratio says how far others fell"
        lowest = float(first_losses.min())
        checks.require(lowest >= 0, "Mixture.rates, as ByLosses,", rule, lowest)
        self._observer.publish(log_factors, step)
        factors = np.exp(log_factors[step // self._observer.rates.every + 1])
        told = ", ".join(
            f"{name} times {factor:.3g}"
            for name, factor in zip(self._observer.tasks, factors, strict=True)
        )
        first_step = step + self._observer.rates.every
        _log.info("Rates of the mixture from step %s on: %s.", f"{first_step:,}", told)
