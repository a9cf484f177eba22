"""Restricted Boltzmann machines: hidden units that explain columns, trained without a label.

networks.SharedBottom.trunk = @networks.RBM()
networks.RBM.units = 64
networks.RBM.chains = 100                               # persistent ones; 0 for CD-k
networks.RBM.output = "free_energy"                     # an anomaly score, for `heads.Score`
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from mtl import checks, layers, types
from mtl.layers import precision
from mtl.networks import trunk
from mtl.step import draws, emitted, step_state

tf1 = tf.compat.v1

_LOSS = "contrastive_divergence"
_BINARY, _GAUSSIAN = "binary", "gaussian"
_HIDDEN, _FREE_ENERGY = "hidden", "free_energy"
# Names of a layer of `networks.MLP`, so that one with "sigmoid" starts from an RBM as it is.
_LAYER = "hidden_0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RBM:
    """h = sigmoid(W^T v + b), of columns v whose density is `p(v) = exp(-F(v)) / Z`.

    The free energy F sums over all states of the hidden units:

        binary:    F(v) = -a v - sum_j log(1 + exp(b_j + v W_j))
        gaussian:  F(v) = |v - a|^2 / 2 - sum_j log(1 + exp(b_j + v W_j))

    The auxiliary loss "contrastive_divergence" of a row is `F(v) - F(v')` with samples v' that are
    constant to gradients, so that its gradient is `<v h>` of the model less that of the data. Its
    value is no likelihood: it may be negative, and is near 0 all the time. No gradient of it
    reaches the columns, since they could make any density as great as they like.

    - `chains = 0`, CD-k: v' is what k steps of Gibbs sampling make of the row. G. Hinton, "Training
      Products of Experts by Minimizing Contrastive Divergence", Neural Computation 14, 2002.
    - `chains = N`, persistent: N chains go on from step to step by k Gibbs steps each, and F(v') is
      their mean. T. Tieleman, "Training Restricted Boltzmann Machines using Approximations to the
      Likelihood Gradient", ICML 2008. They start at 0, and are saved with the model. Rows do not
      meet them: the same chains are in every slice and on every replica.

    Draws count by the run, the step, and the row of the whole batch.

    Variables are `hidden_0/kernel` [D, units] and `hidden_0/bias`, named as those of an `MLP` of
    one layer, and `visible/bias` [D].

    Attributes:
      units: how many hidden units, at least 1.
      visible: "binary" for columns that hold 0 and 1, or probabilities in between; any other value
        ends the run. "gaussian" for numbers, with a variance of 1 given the hidden units:
        standardise them.
      steps: k, of Gibbs sampling in a training step, at least 1.
      chains: how many persistent chains; 0 for none.
      weight: of the loss, at least 0; 0 for none.
      output: "hidden" gives the probabilities of the hidden units, [B, units]; "free_energy" gives
        F(v) [B, 1], in nats and up to a constant: the higher, the more unusual the row.
    """

    units: int = 128
    visible: str = _BINARY
    steps: int = 1
    chains: int = 0
    weight: float = 1.0
    output: str = _HIDDEN

    def __post_init__(self):
        checks.whole("RBM.units", self.units, 1)
        checks.one_of("RBM.visible", self.visible, (_BINARY, _GAUSSIAN))
        checks.whole("RBM.steps", self.steps, 1)
        checks.whole("RBM.chains", self.chains, 0)
        checks.at_least("RBM.weight", self.weight, 0)
        checks.one_of("RBM.output", self.output, (_HIDDEN, _FREE_ENERGY))

    @property
    def emitted_losses(self) -> Mapping[str, float]:
        """The loss that trains it."""
        return {_LOSS: self.weight}

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run it, {column: [B, ...]} -> [B, units] or [B, 1].

        Raises:
          InvalidArgumentError: when run, on a value outside of [0, 1] of binary units.
        """
        del training  # Who trains collects the loss.
        columns = trunk.join_columns("RBM", inputs)
        if self.output == _HIDDEN:
            output = layers.dense(columns, self.units, _LAYER, tf.sigmoid)
        # In any case: what is served has the variables of training, and warm starts find them.
        machine, chains = self._create_variables(columns.shape[1])
        if self.output == _FREE_ENERGY:
            energies = machine.compute_free_energies(self._check(columns))
            output = tf.cast(energies[:, tf.newaxis], columns.dtype)
        if self.weight:
            emitted.add(_LOSS, lambda: self._contrast(machine, chains, tf.stop_gradient(columns)))
        return output

    def _create_variables(self, width: int) -> tuple["Machine", tf.Variable | None]:
        """Return those of the energy, in 32 bits also in a network of 16, and the chains."""
        zeros = tf1.zeros_initializer()
        with tf1.variable_scope("visible"):
            visible = tf1.get_variable("bias", [width], tf.float32, zeros)
        # The layer has created them, or does not exist.
        with tf1.variable_scope(_LAYER, reuse=tf1.AUTO_REUSE):
            kernel = tf1.get_variable("kernel", [width, self.units], tf.float32)
            hidden = tf1.get_variable("bias", [self.units], tf.float32, zeros)
        kernel, hidden, visible = map(tf.convert_to_tensor, (kernel, hidden, visible))
        machine = Machine(kernel, hidden, visible, self.visible)
        if not self.chains:
            return machine, None
        # Slices may read before or after another one's update. So a step reads one of two places,
        # and all slices write the same chains to the other one.
        initial = np.zeros([2, self.chains, width], np.float32)
        return machine, step_state.create_variable("chains", initial)

    def _contrast(
        self, machine: "Machine", chains: tf.Variable | None, columns: tf.Tensor
    ) -> tf.Tensor:
        """Compute the losses of rows, [B, D] -> [B]."""
        columns = self._check(columns)
        if chains is None:
            samples = self._draw_samples(machine, columns)
        else:
            samples = self._advance_chains(machine, chains)
        others = machine.compute_free_energies(tf.stop_gradient(samples))
        if chains is not None:
            others = tf.reduce_mean(others)
        return precision.share_output(machine.compute_free_energies(columns) - others)[1]

    def _check(self, columns: tf.Tensor) -> tf.Tensor:
        """Return the columns in 32 bits; fail when run on values that binary units cannot have."""
        columns = tf.cast(columns, tf.float32)
        if self.visible != _BINARY:
            return columns
        valid = (columns >= 0) & (columns <= 1)
        wrong = tf.boolean_mask(columns, ~valid)
        text = (
            "RBM inputs must lie between 0 and 1 for binary visible units. "
            "Encode them as one-hot, or standardise them for RBM.visible = 'gaussian'."
        )
        check = tf.raw_ops.Assert(condition=tf.reduce_all(valid), data=[text, wrong], summarize=1)
        with tf.control_dependencies([check]):
            return tf.identity(columns)

    def _draw_samples(self, machine: "Machine", columns: tf.Tensor) -> tf.Tensor:
        """Return what Gibbs sampling makes of each row, [B, D] -> [B, D]."""
        num_rows, size = tf.shape(columns)[0], machine.count_draws()
        for step in range(self.steps):
            columns = machine.resample(columns, draws.draw_rows(f"gibbs_{step}", num_rows, size))
        return columns

    def _advance_chains(self, machine: "Machine", kept: tf.Variable) -> tf.Tensor:
        """Return the chains of this step, [N, D], and leave them to the next one."""
        is_odd = tf.equal(tf1.train.get_global_step() % 2, 1)
        both = kept.read_value()
        chains = tf.where(is_odd, both[1], both[0])
        with draws.draw_for_slice(0):
            seed = draws.make_step_seed("chains")
        shape = [self.steps, self.chains, machine.count_draws()]
        for drawn in tf.unstack(draws.draw_uniform(shape, seed)):
            chains = machine.resample(chains, drawn)
        new = tf.where(is_odd, tf.stack([chains, both[1]]), tf.stack([both[0], chains]))
        step_state.assign_with_update(kept, tf.stop_gradient(new))
        return chains


class Machine(NamedTuple):
    """An RBM of D visible and H hidden units.

    Attributes:
      kernel: [D, H].
      hidden_bias: [H].
      visible_bias: [D].
      visible: "binary" or "gaussian".
    """

    kernel: tf.Tensor
    hidden_bias: tf.Tensor
    visible_bias: tf.Tensor
    visible: str

    def compute_free_energies(self, columns: tf.Tensor) -> tf.Tensor:
        """Compute F, [B, D] -> [B]."""
        hidden = tf.reduce_sum(tf.nn.softplus(self._sum_up(columns)), 1)
        if self.visible == _BINARY:
            return -tf.linalg.matvec(columns, self.visible_bias) - hidden
        return tf.reduce_sum(tf.square(columns - self.visible_bias), 1) / 2 - hidden

    def count_draws(self) -> int:
        """Return how many uniform numbers a Gibbs step takes: one for each unit."""
        return sum(self.kernel.shape)

    def resample(self, columns: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
        """Take a Gibbs step, h ~ p(h | v), v ~ p(v | h): [B, D], uniform [B, H + D] -> [B, D]."""
        of_hidden, of_visible = tf.split(drawn, self.kernel.shape[::-1], 1)
        hidden = tf.cast(of_hidden < tf.sigmoid(self._sum_up(columns)), tf.float32)
        sums = self.visible_bias + tf.linalg.matmul(hidden, self.kernel, transpose_b=True)
        if self.visible == _BINARY:
            return tf.cast(of_visible < tf.sigmoid(sums), tf.float32)
        # Draws are multiples of 2^-23 from 0 on: in the middle between two all are finite.
        return sums + tf.math.ndtri(of_visible + 2.0**-24)

    def _sum_up(self, columns: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matmul(columns, self.kernel) + self.hidden_bias
