"""Adapts the sampling rates of a mixture of sources to the losses (`moved_rates.ByLosses`).

training.Training(made, "runs/a", on_start, observers=[*observers, loss_rates.observe])

The training graph sums the losses of an interval of steps. At the last step of each interval, the
graph computes one factor for each source, which multiplies the source's rate. The variable
`mixture/log_factors` holds the logarithms of the sources' factors in all intervals, so a checkpoint
saves the factors. A hook passes the factors of the sources to the input, which then draws rows at
the new rates.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, types
from mtl.checkpoints import run_directory
from mtl.data import moved_rates, pipeline
from mtl.deferred import tf, tf1
from mtl.files import checksums
from mtl.heads import together
from mtl.monitoring import hooks
from mtl.step import replicas, step_state

_log = logging.getLogger(__name__)
_SCOPE = "mixture"
_FACTORS, _FIRST = f"{_SCOPE}/log_factors", f"{_SCOPE}/first_losses"
_LATEST = f"{_SCOPE}/latest_losses"
_FILE = "loss_rates.json"
# Ratios of losses are clipped to the range from 0.001 to 1000.
_LARGEST_LOG = float(np.log(1000.0))


def observe(run: types.ObservedRun) -> LossRates:
    """Return an observer that adapts the rates of a mixture to the losses.

    Raises:
      UserError: several processes train, a source labels no task, or there are too many intervals.
    """
    experiment = run.experiment
    source, rates = experiment.data.source, experiment.data.source.rates
    where = "Mixture.rates"
    # With several processes, each process would need all new factors before it reads its next rows.
    rule = "be numbers or schedules if several processes train"
    checks.require(run.place.workers == 1, where, rule, "ByLosses")
    data = experiment.data
    tasks = source.list_tasks(data.train_split, experiment.model.heads_with_loss, data.spec)
    for name, source_tasks in tasks.items():
        rule = f"give the source {name!r} the label of a task with a loss"
        checks.require(bool(source_tasks), "Mixture.labels", rule, dict(source.labels))
    count = -(-experiment.run.train_steps // rates.every) + 2
    least = -(-experiment.run.train_steps // (moved_rates.MOST_INTERVALS - 2))
    rule = f"be at least {least}, as a run decides {moved_rates.MOST_INTERVALS - 2:,} times at most"
    is_few = count <= moved_rates.MOST_INTERVALS
    checks.require(is_few, "ByLosses.every", rule, rates.every)
    rule = f"be at least {len(tasks) + 3} for {len(tasks)} sources, as rows are read ahead"
    checks.require(source.known_steps >= 1, "ByLosses.every", rule, rates.every)
    return LossRates(rates, tasks, run.model_dir)


class LossRates(types.RunObserver):
    """Multiplies the rates of a mixture by factors that depend on the losses.

    Args:
      rates: the settings of the rates.
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

    def prepare(self, is_new: bool) -> None:
        """Store the settings of a new run; refuse to continue a run with other settings.

        Raises:
          UserError: `every` or `temperature` differs from the value with which the saved factors
            were computed.
        """
        path = os.path.join(self._model_dir, _FILE)
        settings = {"every": self.rates.every, "temperature": self.rates.temperature}
        if is_new or not tf.io.gfile.exists(path):
            checksums.write_json(path, settings)
            return
        fix = "Start again in another --model_dir."
        for name, given in checksums.read_json(path, fix).items():
            rule = f"be {given}, as when the run was started"
            checks.require(settings[name] == given, f"ByLosses.{name}", rule, settings[name], fix)

    def go_on_from(self, step: int) -> None:
        path = run_directory.find_latest(self._model_dir)
        self._publish_saved(path if step else None)

    def _publish_saved(self, checkpoint: str | None) -> None:
        """Pass the saved factors of the rates to the input; without a checkpoint, factors are 1."""
        # Let the input wait for factors from now on, because the input may start before the session
        # exists.
        self.rates.decisions.open()
        reader = tf.train.load_checkpoint(checkpoint) if checkpoint else None
        if reader is None or not reader.has_tensor(_FACTORS):
            self.rates.decisions.publish(np.ones([2, len(self.tasks)]))
            return
        self.publish(reader.get_tensor(_FACTORS), run_directory.step_of(self._model_dir))

    def publish(self, log_factors: np.ndarray, step: int) -> None:
        """Pass the factors of the sampling rates that are known at a step to the input pipeline.

        Args:
          log_factors: [K, S], logarithms of the factors of S sources in K intervals.
          step: the global step; the factors of intervals that begin later are not computed yet.
        """
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
    """Sums the losses of tasks, and computes factors of the rates at the end of an interval."""

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
        # `loss` and `weight` are [T], with a number for each task. A task without a label in the
        # batch has weight 0. A loss that is not finite also has weight 0, because
        # `Update.if_not_finite` may skip its step.
        loss, weight = (tf.stack([values[n] for n in names]) for values in (losses, weights))
        is_finite = tf.math.is_finite(loss)
        loss, weight = (tf.where(is_finite, x, tf.zeros_like(x)) for x in (loss, weight))
        batch_sums = tf.cast(tf.stack([loss * weight, weight]), tf.float64)
        count, every = len(names), self._rates.every
        sums = step_state.create_variable("sums", np.zeros([2, count]))
        latest = step_state.create_variable("latest_losses", np.zeros([count]))
        first = step_state.create_variable("first_losses", np.zeros([count]))
        max_intervals = moved_rates.MOST_INTERVALS
        factors = step_state.create_variable(
            "log_factors", np.zeros([max_intervals, len(self._tasks)])
        )

        step = tf1.train.get_or_create_global_step().read_value() + 1
        is_end = tf.equal(step % every, 0)
        total, weights_sum = tf.unstack(sums.read_value() + batch_sums)
        means = tf.where(
            weights_sum > 0, tf.math.divide_no_nan(total, weights_sum), latest.read_value()
        )
        # Later losses are compared with the first interval in which the task had a label.
        firsts = tf.where(tf.equal(first.read_value(), 0), means, first.read_value())
        # A loss of 0 gives log(0) = -inf, which is clipped. `_Publish` refuses losses below 0.
        logs = tf.math.log(tf.where(firsts > 0, tf.maximum(means, 0.0) / firsts, 1.0))
        logs = tf.clip_by_value(logs, -_LARGEST_LOG, _LARGEST_LOG)
        shares = np.array(
            [
                [(n in source_tasks) / len(source_tasks) for n in names]
                for source_tasks in self._tasks.values()
            ]
        )
        # A source with several tasks uses the mean of the ratios of its tasks, not of the
        # logarithms.
        log_ratios = self._rates.power * tf.math.log(tf.linalg.matvec(shares, tf.exp(logs)))
        interval = step // every + 1  # The input has already read rows for the next interval.
        is_row = tf.equal(tf.range(max_intervals, dtype=tf.int64), interval)[:, tf.newaxis]
        new_factors = tf.where(is_row & is_end, log_ratios, factors.read_value())
        step_state.assign_with_update(factors, new_factors)
        step_state.assign_with_update(latest, tf.where(is_end, means, latest.read_value()))
        step_state.assign_with_update(first, tf.where(is_end, firsts, first.read_value()))
        next_sums = tf.where(is_end, tf.zeros_like(batch_sums), tf.stack([total, weights_sum]))
        step_state.assign_with_update(sums, next_sums)


class _Publish(hooks.StepHook):
    """Passes the new factors of the sampling rates to the input at the end of each interval."""

    def __init__(self, result: Any, observer: LossRates):
        super().__init__(result)
        self._observer = observer

    def begin(self) -> None:
        by_name = {variable.op.name: variable for variable in tf1.global_variables()}
        names = _FACTORS, _FIRST, _LATEST
        self._factors, self._first, self._latest = (by_name[name] for name in names)

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        del session
        decisions = self._observer.rates.decisions
        decisions.open()

        # The input reads ahead, and may wait for factors that a training never computes because it
        # ends. The session waits for its input to close, so the input must learn of the end first.
        def close() -> None:
            coord.wait_for_stop()
            decisions.close()

        threading.Thread(target=close, name="loss rates", daemon=True).start()

    def on_step(self, run_context: Any, step: int, values: np.ndarray, *more: Any) -> None:
        if step % self._observer.rates.every:
            return
        session = run_context.session
        log_factors, *losses = session.run([self._factors, self._first, self._latest])
        rule = "follow losses above 0, because ratios of negative losses mean nothing"
        lowest = float(np.min(losses))
        checks.require(lowest >= 0, "Mixture.rates, as ByLosses,", rule, lowest)
        self._observer.publish(log_factors, step)
        factors = np.exp(log_factors[step // self._observer.rates.every + 1])
        factor_texts = ", ".join(
            f"{name} times {factor:.3g}"
            for name, factor in zip(self._observer.tasks, factors, strict=True)
        )
        first_step = step + self._observer.rates.every
        _log.info("Rates of the mixture from step %s on: %s.", f"{first_step:,}", factor_texts)
