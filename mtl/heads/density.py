"""The base class of mixture models over the tower: the density of each row.

usual/heads.GaussianMixture.name = "usual"               # log_density: how usual a row is
usual/heads.GaussianMixture.num_components = 8           # responsibilities: the kind of the row
usual/heads.GaussianMixture.num_starts = 10              # trains 10 mixtures, uses the best
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.heads import base, metrics, objectives, unlabelled
from mtl.step import row_draws, step_state

# The moving average of each start's loss covers about 100 steps.
_DECAY = 0.99


@checks.dataclass
class Density(unlabelled.Unlabelled):
    """A mixture `p(h) = sum_k pi_k p_k(h)` for the tower h, with `loss = -log p(h)` in nats.

    The head has no label, and every row weighs 1. The gradient of the head does not reach the
    network, because a network could raise the density without limit by mapping all rows to the same
    point. With a network without layers (`MLP.layers = []`), p is a density of the feature columns.

    The gradient treats the responsibilities as constants, as in `objectives.mixture_loss`. Training
    ends in one of many local optima; as with EM, the optimum depends on the initial values. With
    `num_starts` above 1, several independent mixtures train at the same time. Metrics, predictions
    and exports use the mixture with the smallest moving average of the training loss, over about
    100 steps, or about 100 slices with `Run.micro_batches`. With several replicas, this moving
    average covers only rows of the first replica.

    Predicts `log_density` [B] in nats; `responsibilities` [B, K], the share of each component in
    the density of the row; `component` [B], the component with the largest share; and `samples`
    [B, S, ...] of the mixture. Samples do not depend on the tower: the features of a row only seed
    its draws (`mtl.step.row_draws`).

    The first axis of every variable, such as `weights` [R, K], has an entry for each of the R
    mixtures.

    Attributes:
      name: the name of the task, with which the names of its metrics and predictions begin.
        Variables are in `head/<name>`.
      num_components: K, the number of components of a mixture.
      num_starts: R, the number of independent mixtures that train at the same time. A training step
        of the head takes R times as long as with one mixture.
      num_samples: S, the number of random samples of the mixture that each prediction has; 0 for
        none.
      trainable: False freezes the mixture. `mtl.variables.freezing` freezes variables by name.
    """

    name: checks.Name
    num_components: checks.Count = 8
    num_starts: checks.Count = 1
    num_samples: checks.Natural = 0
    trainable: bool = True

    directions: ClassVar[Mapping[str, bool]] = {"log_likelihood": True, "average_loss": False}

    def _where(self, setting: str) -> str:
        of = "" if setting == "name" else f" of task {self.name!r}"
        return f"{type(self).__name__}.{setting}{of}"

    # Subclasses define the members below.

    @abc.abstractmethod
    def parameters(self, width: int) -> Sequence[tf.Tensor]:
        """Create the parameters of all components.

        Args:
          width: H, the width of the tower.

        Returns:
          The parameters of the R mixtures, [R, K, ...] each.
        """

    @abc.abstractmethod
    def log_densities(self, tower: tf.Tensor, parameters: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return `log p_k(h)` of each row for each component.

        Args:
          tower: the output of the tower, [B, H].
          parameters: the parameters of all mixtures, [R, K, ...] each, or of the best mixture
            alone, [1, K, ...] each.

        Returns:
          The logarithms of the densities, [B, R, K], in nats.
        """

    @abc.abstractmethod
    def draw_size(self, width: int) -> int:
        """Return how many uniform random numbers `sample` takes for one sample.

        Args:
          width: H, the width of the tower.
        """

    @abc.abstractmethod
    def sample(
        self, chosen: tf.Tensor, drawn: tf.Tensor, parameters: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Draw S samples for each row, each from a given component of the mixture.

        Args:
          chosen: the component of each sample, one-hot [B, S, K].
          drawn: uniform numbers in (0, 1), [B, S, draw_size].
          parameters: the parameters of the best mixture, [K, ...] each.

        Returns:
          The samples, [B, S, n].
        """

    # All densities share the members below.

    def logits(self, tower: tf.Tensor) -> tf.Tensor:
        """Compute `log(pi_k p_k(h))`, and in prediction also draw samples.

        Args:
          tower: the output of the tower, [B, H].

        Returns:
          The logits [B, C]: the K values of the best mixture, then the R K values of all mixtures
          if R > 1, then the samples in prediction. In prediction, copies of the values of the best
          mixture replace the values of all mixtures.
        """
        # Stop the gradient, as the density must not change the network.
        tower, shape = tf.stop_gradient(tower), [self.num_starts, self.num_components]
        weights = tf1.get_variable("weights", shape, tf.float32, tf1.zeros_initializer())
        parameters = self.parameters(tower.shape[-1])
        is_predicted = row_draws.are_rows_known()
        best = self._find_best()
        best_parameters = [values[best] for values in (weights, *parameters)]
        if is_predicted or self.num_starts == 1:
            log_joint = self._log_joint(tower, *[values[tf.newaxis] for values in best_parameters])
            # In training, each start has separate logits. Repeat the logits of the best start, so
            # that logits have the same layout in prediction.
            parts = [log_joint[:, 0]] + [log_joint[:, 0]] * (
                self.num_starts if self._has_starts else 0
            )
        else:
            log_joint = self._log_joint(tower, weights, *parameters)
            self._follow_losses(-tf.reduce_mean(tf.reduce_logsumexp(log_joint, axis=-1), axis=0))
            parts = [tf.gather(log_joint, best, axis=1), *tf.unstack(log_joint, axis=1)]
        uniform = self._draw(tower.shape[-1]) if is_predicted and self.num_samples else None
        if uniform is not None:
            samples = self._sample(uniform, *best_parameters)
            size = self.num_samples * samples.shape[-1]
            parts.append(tf.reshape(samples, [tf.shape(tower)[0], size]))
        return tf.concat(parts, axis=1)

    @property
    def _has_starts(self) -> bool:
        return self.num_starts > 1

    def _log_joint(self, tower: tf.Tensor, weights: tf.Tensor, *parameters: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_softmax(weights) + self.log_densities(tower, parameters)

    def _find_best(self) -> tf.Tensor | int:
        """Return the index of the mixture with the smallest average of the training loss."""
        return tf.argmin(self._get_averages().read_value()) if self._has_starts else 0

    def _get_averages(self) -> tf.Variable:
        """Return the moving averages of the losses of all mixtures, [R], which start at 0."""
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            return step_state.create_variable(
                "average_losses", np.zeros([self.num_starts], np.float32)
            )

    def _follow_losses(self, losses: tf.Tensor) -> None:
        """Update the moving averages with the losses of a batch, [R], in the step's update."""
        averages = self._get_averages()
        before = averages.read_value()
        step_state.assign_with_update(averages, before + (1 - _DECAY) * (losses - before))

    def _draw(self, width: int) -> tf.Tensor | None:
        size = self.draw_size(width) + 1
        uniform = row_draws.draw(self.name, self.num_samples * size)
        return None if uniform is None else tf.reshape(uniform, [-1, self.num_samples, size])

    def _sample(self, uniform: tf.Tensor, weights: tf.Tensor, *parameters: tf.Tensor) -> tf.Tensor:
        """Return samples of the mixture: uniform numbers [B, S, draw_size + 1] -> [B, S, n]."""
        # Inverse transform sampling: the id of the component is the number of cumulative weights
        # below the uniform number.
        ends = tf.cumsum(tf.nn.softmax(weights))[:-1]
        index = tf.reduce_sum(tf.cast(uniform[..., :1] > ends, tf.int32), axis=-1)
        return self.sample(tf.one_hot(index, self.num_components), uniform[..., 1:], parameters)

    def losses(self, logits: tf.Tensor) -> tf.Tensor:
        """Compute the loss of each row; the gradient of the loss trains all mixtures.

        Args:
          logits: [B, C], as the method `logits` returns them.

        Returns:
          The loss of the best mixture in nats, [B].
        """
        best = objectives.mixture_loss(logits[:, : self.num_components])
        if not self._has_starts:
            return best
        shape = [-1, self.num_starts, self.num_components]
        log_joint = tf.reshape(logits[:, self.num_components : self._num_joint], shape)
        total = tf.reduce_sum(objectives.mixture_loss(log_joint), axis=1)
        # The value is the loss of the best start, but the gradient trains all starts.
        return tf.stop_gradient(best) + (total - tf.stop_gradient(total))

    @property
    def _num_joint(self) -> int:
        """The number of logits that come before the samples."""
        return self.num_components * (1 + self._has_starts * self.num_starts)

    def loss(self, logits: tf.Tensor, labels: types.Tensors) -> tf.Tensor:
        """Compute the mean loss of all rows, a scalar; 0 without rows."""
        del labels
        losses = self.losses(logits)
        return objectives.weighted_mean(losses, tf.ones_like(losses))

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return the predictions that the docstring of the class lists, from logits [B, C]."""
        log_joint, samples = logits[:, : self.num_components], logits[:, self._num_joint :]
        predictions = {
            "log_density": tf.reduce_logsumexp(log_joint, axis=-1),
            "responsibilities": tf.nn.softmax(log_joint),
            "component": tf.argmax(log_joint, axis=-1),
        }
        if samples.shape[1]:
            shape = [-1, self.num_samples, samples.shape[1] // self.num_samples]
            predictions["samples"] = tf.reshape(samples, shape)
        return predictions

    def metrics(self, logits: tf.Tensor, labels: types.Tensors) -> types.Metrics:
        """Build the metrics.

        `average_loss` and `log_likelihood` are the means of `-log p(h)` and of `log p(h)`, in nats.
        `used_components` is exp of the entropy of the mean responsibilities: K if all components
        have the same share of the rows, 1 if a single component has all rows. `nan_predictions`
        counts rows with a NaN in a prediction or in the loss; a single such row turns the other
        metrics into NaN.
        """
        del labels
        losses, predictions = self.losses(logits), self.predictions(logits)
        counts = tf.ones_like(losses, tf.bool)
        sums = {
            "loss": tf.reduce_sum(tf.cast(losses, tf.float64)),
            "rows": tf.cast(tf.size(losses), tf.float64),
            "shares": tf.reduce_sum(tf.cast(predictions["responsibilities"], tf.float64), axis=0),
            base.NAN_PREDICTIONS: base.nan_rows([*predictions.values(), losses], counts),
        }
        return metrics.stream_sums(sums, _summarize_sums)


def _summarize_sums(sums: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    average = metrics.ratio(sums["loss"], sums["rows"])
    shares = metrics.ratio(sums["shares"], sums["rows"])
    entropy = -tf.reduce_sum(tf.math.xlogy(shares, shares))
    summary = {
        "average_loss": average,
        "log_likelihood": -average,
        "used_components": tf.exp(entropy),
    }
    return base.or_nan(summary, sums[base.NAN_PREDICTIONS], ())
