"""Gates, which weigh experts for each task, and monitors of the weights for TensorBoard.

scopes, names = ["gate_income", "gate_age"], ["expert_0", "expert_1", "expert_2"]
mixed = gates.build_mixtures(gates.Softmax(), inputs, experts, scopes, names, training)

mmoe.MMoE.gate = @gates.Softmax()
gates.Softmax.dropout = 0.1
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Protocol

from mtl import checks, layers
from mtl.deferred import tf, tf1
from mtl.networks import trunk
from mtl.step import draws, outlets


class Gate(Protocol):
    """Computes weights of experts for each example."""

    def __call__(
        self, inputs: tf.Tensor, scopes: Sequence[str], num_experts: int, training: bool
    ) -> tf.Tensor:
        """Build a gate in each scope: [B, D] -> [B, N, E]; the E weights of a gate sum to 1."""


@checks.dataclass
class Softmax:
    """A softmax gate as in the papers of MMoE and PLE, `softmax(W x / temperature)`.

    Attributes:
      layers: the numbers of units of hidden ReLU layers in a gate; by default, a gate has no hidden
        layers.
      temperature: a number above 0; a value below 1 makes the largest weight larger.
      dropout: the share of experts that a training step drops for each example, in [0, 1). The
        weights of the remaining experts are divided by their sum. If all experts would be dropped,
        no expert is dropped. Dropout keeps a gate from relying on a single expert (Z. Zhao et al.,
        "Recommending What Video to Watch Next", RecSys 2019,
        https://doi.org/10.1145/3298689.3346997, section 4.2.1, which uses 0.1).
    """

    layers: Annotated[Sequence[int], trunk.check_sizes] = ()
    temperature: checks.Positive = 1.0
    dropout: checks.Rate = 0.0

    def __call__(
        self, inputs: tf.Tensor, scopes: Sequence[str], num_experts: int, training: bool
    ) -> tf.Tensor:
        """Build a gate in each scope.

        Args:
          inputs: the inputs that all gates read, [B, D].
          scopes: N variable scopes, relative to the current scope.
          num_experts: E, the number of experts.
          training: True turns dropout on.

        Returns:
          Weights [B, N, E]; the weights of each gate sum to 1.
        """
        logits = []
        for scope in scopes:
            with tf1.variable_scope(scope):
                hidden = trunk.dense_layers(inputs, self.layers, "relu", 0.0, False, training)
                logits.append(layers.dense(hidden, num_experts, "weights", use_bias=False))
        all_logits = tf.cast(tf.stack(logits, axis=1), tf.float32)
        weights = tf.nn.softmax(all_logits / self.temperature)
        if training and self.dropout:
            weights = self._drop_weights(weights, scopes[0])
        return tf.cast(weights, inputs.dtype)

    def _drop_weights(self, weights: tf.Tensor, scope: str) -> tf.Tensor:
        # All gates of this call use the same random draw, which is named after the first scope.
        uniform = draws.draw_uniform(tf.shape(weights), draws.make_step_seed(f"{scope}/drop"))
        remaining = tf.where(uniform >= self.dropout, weights, tf.zeros_like(weights))
        total = tf.reduce_sum(remaining, axis=-1, keepdims=True)
        # A division by 0 would give NaN gradients, even in the branch that `where` ignores.
        is_empty = tf.equal(total, 0)
        divisor = tf.where(is_empty, tf.ones_like(total), total)
        return tf.where(is_empty, weights, remaining / divisor)


@checks.dataclass
class DSelectK:
    """A gate that chooses k of E experts by differentiable binary codes.

    H. Hazimeh et al., "DSelect-k: Differentiable Selection in the Mixture of Experts with
    Applications to Multi-Task Learning", NeurIPS 2021, arXiv:2106.03760. The weights of the experts
    are `sum_i p_i r(s(z_i))` over k selectors i. The index of an expert has log2(E) bits, rounded
    up, and a selector has a number z for each bit. The smooth step s maps the number z of a bit to
    the probability that the bit is 1: 0 below -gamma/2, 1 above gamma/2, and a cubic polynomial
    between. The probability r(e) of expert e is the product over the bits of its index, and the
    weights p of the selectors are the softmax of k numbers. A linear map of the gate's inputs
    computes the numbers z and the k numbers of the softmax; if `static` is True, all of these
    numbers are variables.

    An entropy penalty in REGULARIZATION_LOSSES makes each selector choose a single expert:
    `entropy * sum_i H(r_i)`, a mean over the batch. If E is not a power of 2, some codes do not
    stand for an expert. A second penalty, `1 / sum_e r(e)` with the factor `entropy`, makes codes
    without an expert improbable (appendix of the paper). Unlike in the paper, the weights of the
    experts are divided by their sum.

    Attributes:
      k: the largest number of experts that a gate uses, at least 1.
      gamma: the width of the smooth step, above 0.
      entropy: the factor of the entropy penalty, at least 0.
      static: True chooses the same experts for every example.
    """

    k: checks.Count = 2
    gamma: checks.Positive = 1.0
    entropy: checks.NotNegative = 1e-3
    static: bool = False

    def __call__(
        self, inputs: tf.Tensor, scopes: Sequence[str], num_experts: int, training: bool
    ) -> tf.Tensor:
        """Build a gate in each scope: [B, D] -> [B, N, E]; the E weights of a gate sum to 1.

        Raises:
          UserError: k is above the number of experts.
        """
        fits = self.k <= num_experts
        rule = f"be at most {num_experts}, the number of experts"
        checks.require(fits, "DSelectK.k", rule, self.k)
        gates = []
        for scope in scopes:
            with tf1.variable_scope(scope):
                gates.append(self._build_gate(tf.cast(inputs, tf.float32), num_experts, training))
        return tf.cast(tf.stack(gates, axis=1), inputs.dtype)

    def _build_gate(self, inputs: tf.Tensor, num_experts: int, training: bool) -> tf.Tensor:
        """Build a single gate, [B, D] -> [B, E]."""
        # Use at least one bit, so that even a single expert has a code.
        num_bits = max(1, math.ceil(math.log2(num_experts)))
        codes = tf.reshape(
            self._build_numbers(inputs, self.k * num_bits, "codes"), [-1, self.k, num_bits]
        )
        shares = tf.nn.softmax(self._build_numbers(inputs, self.k, "shares"))
        ones = smooth_step(codes, self.gamma)[:, :, tf.newaxis]  # [B, k, 1, bits]
        places = tf.range(num_experts)[:, tf.newaxis] // 2 ** tf.range(num_bits) % 2  # [E, bits]
        # [B, k, E]: the probability of an expert is the product over the bits of its index.
        selections = tf.reduce_prod(tf.where(tf.equal(places, 1), ones, 1 - ones), axis=-1)
        if training and self.entropy:
            tf1.add_to_collection(
                tf1.GraphKeys.REGULARIZATION_LOSSES,
                self.entropy * self._penalise_selectors(selections),
            )
        # Codes without an expert may have some of the probability, so divide weights by their sum.
        weights = tf.reduce_sum(shares[:, :, tf.newaxis] * selections, axis=1)
        total = tf.reduce_sum(weights, axis=-1, keepdims=True)
        spread = tf.fill(tf.shape(weights), 1 / num_experts)
        # A division by 0 would give NaN gradients, even in the branch that `where` ignores.
        divisor = tf.where(total > _LEAST, total, tf.ones_like(total))
        return tf.where(total > _LEAST, weights / divisor, spread)

    def _build_numbers(self, inputs: tf.Tensor, count: int, name: str) -> tf.Tensor:
        """Return `count` logits of the gate for each example, [B, count]."""
        # Use small random numbers, as selectors with equal initial numbers would stay equal.
        uniform = tf1.random_uniform_initializer(-self.gamma / 100, self.gamma / 100)
        if self.static:
            numbers = tf1.get_variable(name, [count], tf.float32, uniform)
            return tf.tile(numbers[tf.newaxis], [tf.shape(inputs)[0], 1])
        with tf1.variable_scope(name):
            kernel = tf1.get_variable("kernel", [inputs.shape[-1], count], tf.float32)
            bias = tf1.get_variable("bias", [count], tf.float32, uniform)
            return tf.linalg.matmul(inputs, kernel) + bias

    def _penalise_selectors(self, selections: tf.Tensor) -> tf.Tensor:
        """Penalise the entropy of selectors, and codes without an expert: [B, k, E] -> scalar."""
        total = tf.maximum(tf.reduce_sum(selections, axis=-1), _LEAST)
        shares = selections / total[..., tf.newaxis]
        logarithms = tf.math.log(tf.maximum(shares, _LEAST))
        entropy = -tf.reduce_sum(shares * logarithms, axis=-1)
        is_whole = math.log2(selections.shape[-1]).is_integer()
        penalty = tf.zeros_like(total) if is_whole else 1 / total
        return tf.reduce_mean(tf.reduce_sum(entropy + penalty, axis=-1))


# The lower bound of logarithms' arguments and of divisors, which keeps the results finite.
_LEAST = 1e-6
# Monitors of the experts' outputs use only this number of rows, the first rows of a batch.
_SHOWN_ROWS = 128


def smooth_step(numbers: tf.Tensor, gamma: float) -> tf.Tensor:
    """Map numbers to [0, 1] by a cubic with a continuous slope.

    The result for a number t is 0 below -gamma/2, 1 above gamma/2, and
    `-2 (t / gamma)^3 + 3/2 (t / gamma) + 1/2` between. The derivative of the smooth step is 0 below
    -gamma/2 and above gamma/2.

    Args:
      numbers: t, of any shape.
      gamma: the width of the cubic part, above 0.

    Returns:
      The mapped numbers, in the shape of `numbers`.
    """
    places = tf.clip_by_value(numbers / gamma, -0.5, 0.5)
    return -2 * places**3 + 1.5 * places + 0.5


def build_mixtures(
    gate: Gate,
    inputs: tf.Tensor,
    experts: tf.Tensor,
    scopes: Sequence[str],
    names: Sequence[str],
    training: bool,
) -> list[tf.Tensor]:
    """Build a gate in each scope, and mix the experts by the weights of each gate.

    Args:
      gate: the gate that weighs the experts.
      inputs: the inputs of the gates, [B, D].
      experts: the outputs of the experts, [B, E, H].
      scopes: N scopes, one for each gate.
      names: E names of the experts, for monitors.
      training: True in a training step.

    Returns:
      N mixtures, [B, H] each.

    Raises:
      UserError: the weights of the gate are not [B, N, E].
    """
    weights = gate(inputs, scopes, len(names), training)
    shape, kind = [len(scopes), len(names)], type(gate).__name__
    rule = f"be [B, {shape[0]}, {shape[1]}], of {shape[0]} gates over {shape[1]} experts"
    fits = weights.shape[1:].as_list() == shape
    checks.require(fits, f"{kind} weights", rule, tuple(weights.shape))
    _monitor_gates(scopes, names, weights, experts, training)
    # A matrix product avoids N copies of the experts, which a weighted sum would take.
    return tf.unstack(tf.linalg.matmul(weights, experts), len(scopes), axis=1)


def _monitor_gates(
    scopes: Sequence[str],
    names: Sequence[str],
    weights: tf.Tensor,
    experts: tf.Tensor,
    training: bool,
) -> None:
    """Add monitors of gates to a training step, for TensorBoard.

    `gate/<scope>/<expert>` is the mean weight of an expert. `gate/<scope>/entropy` is the mean
    entropy of the weights, divided by its greatest possible value. `gate/<scope>/dead_units` is the
    share of the experts' units that are 0 for all of the first 128 examples.
    `gate/<scope>/similarity` is the mean cosine of pairs of experts over the first 128 examples: 1
    if all outputs are proportional.

    Args:
      scopes: N scopes of the gates.
      names: E names of the experts.
      weights: the weights of the N gates, [B, N, E].
      experts: the outputs of the E experts, [B, E, H].
      training: False adds no monitors.
    """
    if not training:
        return
    prefix = tf1.get_variable_scope().name.partition("/")[2]
    monitor_names = []
    for scope in scopes:
        prefix_of_gate = "/".join(filter(None, ["gate", prefix, scope]))
        monitor_names += [
            f"{prefix_of_gate}/{name}" for name in (*names, "entropy", "dead_units", "similarity")
        ]
    weights, experts = (tf.stop_gradient(x) for x in (weights, experts))
    outlets.add_scalars_where_due(
        monitor_names, functools.partial(_describe_gates, weights, experts)
    )


def _describe_gates(weights: tf.Tensor, experts: tf.Tensor) -> tf.Tensor:
    """Compute the monitors of each gate: [B, N, E], [B, E, H] -> [N (E + 3)]."""
    weights, experts = (tf.cast(x, tf.float32) for x in (weights, experts))
    num_gates, num_experts = weights.shape[1:]
    means = tf.reduce_mean(weights, axis=0)
    logarithms = tf.math.log(tf.maximum(weights, _LEAST))
    max_entropy = max(math.log(num_experts), _LEAST)
    entropies = -tf.reduce_mean(tf.reduce_sum(weights * logarithms, axis=-1), axis=0) / max_entropy
    sample = experts[:_SHOWN_ROWS]
    dead = tf.reduce_mean(tf.cast(tf.reduce_all(tf.equal(sample, 0), axis=0), tf.float32))
    flat = tf.reshape(tf.transpose(sample, [1, 0, 2]), [num_experts, -1])
    flat = tf.math.l2_normalize(flat, axis=1)
    cosines = tf.linalg.matmul(flat, flat, transpose_b=True)
    # A single expert has no pairs: divide by 1, which gives a similarity of 0.
    pairs = max(num_experts * (num_experts - 1), 1)
    # Omit the diagonal, which compares each expert with itself.
    similarity = (tf.reduce_sum(cosines) - tf.linalg.trace(cosines)) / pairs
    expert_monitors = tf.tile([[dead, similarity]], [num_gates, 1])
    return tf.reshape(tf.concat([means, entropies[:, tf.newaxis], expert_monitors], axis=1), [-1])
