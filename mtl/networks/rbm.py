"""Restricted Boltzmann machines (RBM), which learn the density of columns without a label.

networks.SharedBottom.trunk = @networks.RBM()
networks.RBM.units = 64
networks.RBM.chains = 100                               # persistent chains; 0 for CD-k
networks.RBM.output = "free_energy"                     # an anomaly score, for `heads.Score`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import numpy as np

from mtl import checks, layers, types
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.networks import trunk
from mtl.step import draws, outlets, step_state

_LOSS = "contrastive_divergence"
_BINARY, _GAUSSIAN = "binary", "gaussian"
_HIDDEN, _FREE_ENERGY = "hidden", "free_energy"
# The name of the first layer of `networks.MLP`, so that a sigmoid MLP can start from the variables
# of an RBM.
_LAYER = "hidden_0"


@checks.dataclass
class RBM:
    """A restricted Boltzmann machine on the columns, trained by contrastive divergence.

    The output is `h = sigmoid(W^T v + b)` for columns v with the density `p(v) = exp(-F(v)) / Z`.

    The free energy F sums over all states of the hidden units:

        binary:    F(v) = -a v - sum_j log(1 + exp(b_j + v W_j))
        gaussian:  F(v) = |v - a|^2 / 2 - sum_j log(1 + exp(b_j + v W_j))

    The auxiliary loss "contrastive_divergence" of a row v is `F(v) - F(v')`, with a sample v' of
    the model. Gradients treat the samples v' as constants, so the gradient with respect to the
    kernel is the mean `<v h>` of samples of the model minus the mean `<v h>` of the data. The value
    of the contrastive loss is not a likelihood: it may be negative, and stays near 0. The gradient
    stops at the columns, because embeddings could otherwise increase their density without limit.

    - `chains = 0`, CD-k: v' is the row after k steps of Gibbs sampling. G. Hinton, "Training
      Products of Experts by Minimizing Contrastive Divergence", Neural Computation 14, 2002.
    - `chains = N`, persistent chains: each training step advances N chains by k Gibbs steps, and
      F(v') is the mean over chains. T. Tieleman, "Training Restricted Boltzmann Machines using
      Approximations to the Likelihood Gradient", ICML 2008. Initial chains are 0. Chains are saved
      with the model, and do not depend on the rows, so all slices and replicas have the same
      chains.

    Random draws depend on the seed of the run, the step, and the row's index in the whole batch.

    Variables are `hidden_0/kernel` [D, units] and `hidden_0/bias`, as in an `MLP` with one layer,
    and `visible/bias` [D].

    Attributes:
      units: the number of hidden units, at least 1.
      visible: "binary" for columns with values in [0, 1]; any other value is an error. "gaussian"
        for any numbers; standardise these columns, as the model assumes a variance of 1.
      steps: k, the number of Gibbs steps in a training step, at least 1.
      chains: the number of persistent chains; 0 starts Gibbs sampling from each row (CD-k).
      weight: the weight of the auxiliary loss, at least 0; 0 omits the loss.
      output: "hidden" or "free_energy". "hidden" returns the probabilities of the hidden units, [B,
        units]; "free_energy" returns F(v) [B, 1], in nats and up to a constant. Unusual rows have a
        higher free energy F(v).
    """

    units: checks.Count = 128
    visible: Annotated[str, checks.OneOf((_BINARY, _GAUSSIAN))] = _BINARY
    steps: checks.Count = 1
    chains: checks.Natural = 0
    weight: checks.NotNegative = 1.0
    output: Annotated[str, checks.OneOf((_HIDDEN, _FREE_ENERGY))] = _HIDDEN

    @property
    def emitted_losses(self) -> Mapping[str, float]:
        """The weight of the auxiliary loss that trains the RBM, {name: weight}."""
        return {_LOSS: self.weight}

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the RBM, {column: [B, ...]} -> [B, units] or [B, 1].

        Raises:
          InvalidArgumentError: when run, if a binary unit gets a value outside of [0, 1].
        """
        del training  # Training collects the emitted loss.
        columns = trunk.join_columns("RBM", inputs)
        if self.output == _HIDDEN:
            output = layers.dense(columns, self.units, _LAYER, tf.sigmoid)
        # Always create all variables, as exports and warm starts need the variables of training.
        machine, chains = self._create_variables(columns.shape[1])
        if self.output == _FREE_ENERGY:
            energies = machine.compute_free_energies(self._check_columns(columns))
            output = tf.cast(energies[:, tf.newaxis], columns.dtype)
        if self.weight:
            outlets.add_loss(
                _LOSS, lambda: self._contrast_rows(machine, chains, tf.stop_gradient(columns))
            )
        return output

    def _create_variables(self, width: int) -> tuple[Machine, tf.Variable | None]:
        """Create the variables of the free energy F and, if `chains` is set, of the chains."""
        zeros = tf1.zeros_initializer()
        with tf1.variable_scope("visible"):
            visible = tf1.get_variable("bias", [width], tf.float32, zeros)
        # With the output "hidden", `layers.dense` has already created the kernel and the bias.
        with tf1.variable_scope(_LAYER, reuse=tf1.AUTO_REUSE):
            kernel = tf1.get_variable("kernel", [width, self.units], tf.float32)
            hidden = tf1.get_variable("bias", [self.units], tf.float32, zeros)
        kernel, hidden, visible = map(tf.convert_to_tensor, (kernel, hidden, visible))
        machine = Machine(kernel, hidden, visible, self.visible)
        if not self.chains:
            return machine, None
        # A slice may read the chains before or after another slice updates them. So a step reads
        # one of two copies, and all slices write the same chains to the other copy.
        initial = np.zeros([2, self.chains, width], np.float32)
        return machine, step_state.create_variable("chains", initial)

    def _contrast_rows(
        self, machine: Machine, chains: tf.Variable | None, columns: tf.Tensor
    ) -> tf.Tensor:
        """Compute the losses of rows, [B, D] -> [B]."""
        columns = self._check_columns(columns)
        if chains is None:
            samples = self._draw_samples(machine, columns)
        else:
            samples = self._advance_chains(machine, chains)
        sample_energies = machine.compute_free_energies(tf.stop_gradient(samples))
        if chains is not None:
            # Chains do not belong to rows, so compare each row with the mean over chains.
            sample_energies = tf.reduce_mean(sample_energies)
        return precision.share_output(machine.compute_free_energies(columns) - sample_energies)[1]

    def _check_columns(self, columns: tf.Tensor) -> tf.Tensor:
        """Return the columns in float32; the graph fails on binary values outside of [0, 1]."""
        columns = tf.cast(columns, tf.float32)
        if self.visible != _BINARY:
            return columns
        valid = (columns >= 0) & (columns <= 1)
        bad_values = tf.boolean_mask(columns, ~valid)
        text = (
            "RBM inputs must lie between 0 and 1 for binary visible units. "
            "Encode columns as one-hot, or standardise columns for RBM.visible = 'gaussian'."
        )
        check = tf.raw_ops.Assert(
            condition=tf.reduce_all(valid), data=[text, bad_values], summarize=1
        )
        with tf.control_dependencies([check]):
            return tf.identity(columns)

    def _draw_samples(self, machine: Machine, columns: tf.Tensor) -> tf.Tensor:
        """Apply k steps of Gibbs sampling to each row, [B, D] -> [B, D]."""
        num_rows, size = tf.shape(columns)[0], machine.count_draws()
        for step in range(self.steps):
            columns = machine.resample(columns, draws.draw_rows(f"gibbs_{step}", num_rows, size))
        return columns

    def _advance_chains(self, machine: Machine, state: tf.Variable) -> tf.Tensor:
        """Return the chains of this step, [N, D], and save them for the next step."""
        is_odd = tf.equal(tf1.train.get_global_step() % 2, 1)
        chain_pairs = state.read_value()
        chains = tf.where(is_odd, chain_pairs[1], chain_pairs[0])
        # All slices advance the same chains, so their random numbers must be equal.
        with draws.draw_for_slice(0):
            seed = draws.make_step_seed("chains")
        shape = [self.steps, self.chains, machine.count_draws()]
        for uniform in tf.unstack(draws.draw_uniform(shape, seed)):
            chains = machine.resample(chains, uniform)
        new_pairs = tf.where(
            is_odd, tf.stack([chains, chain_pairs[1]]), tf.stack([chain_pairs[0], chains])
        )
        step_state.assign_with_update(state, tf.stop_gradient(new_pairs))
        return chains


class Machine(NamedTuple):
    """An RBM of D visible and H hidden units.

    Attributes:
      kernel: the weights between units, [D, H].
      hidden_bias: the biases of the hidden units, [H].
      visible_bias: the biases of the visible units, [D].
      visible: "binary" or "gaussian".
    """

    kernel: tf.Tensor
    hidden_bias: tf.Tensor
    visible_bias: tf.Tensor
    visible: str

    def compute_free_energies(self, columns: tf.Tensor) -> tf.Tensor:
        """Compute the free energy F of rows.

        Args:
          columns: v, float32 [B, D].

        Returns:
          The free energies of the rows, [B], in nats and up to a constant.
        """
        hidden = tf.reduce_sum(tf.nn.softplus(self._sum_up(columns)), 1)
        if self.visible == _BINARY:
            return -tf.linalg.matvec(columns, self.visible_bias) - hidden
        return tf.reduce_sum(tf.square(columns - self.visible_bias), 1) / 2 - hidden

    def count_draws(self) -> int:
        """Return the number of uniform draws of a Gibbs step, one for each unit."""
        return sum(self.kernel.shape)

    def resample(self, columns: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Take a Gibbs step for each row, h ~ p(h | v) and then v ~ p(v | h).

        Args:
          columns: v, float32 [B, D].
          uniform: random numbers in [0, 1), [B, H + D].

        Returns:
          The columns v after the step, float32 [B, D]; 0 or 1 for binary units.
        """
        # A uniform number is below p with probability p.
        of_hidden, of_visible = tf.split(uniform, self.kernel.shape[::-1], 1)
        hidden = tf.cast(of_hidden < tf.sigmoid(self._sum_up(columns)), tf.float32)
        sums = self.visible_bias + tf.linalg.matmul(hidden, self.kernel, transpose_b=True)
        if self.visible == _BINARY:
            return tf.cast(of_visible < tf.sigmoid(sums), tf.float32)
        # Draws are multiples of 2^-23 in [0, 1). Add half a step, as `ndtri(0)` is infinite.
        return sums + tf.math.ndtri(of_visible + 2.0**-24)

    def _sum_up(self, columns: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matmul(columns, self.kernel) + self.hidden_bias
