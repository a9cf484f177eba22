"""Quantisation-aware training of any network; patterns select weights and activations.

model.MultiTaskModel.quantization = @quantization.Quantization()
quantization.Quantization.weights = {"^network/trunk/.*/kernel$": @quantization.Uniform()}
quantization.Quantization.activations = {"^network/trunk/hidden_": @quantization.Uniform()}
quantization.Uniform.bits = 4

The network's code does not change: `get_variable` returns quantised weights, and `layers.dense` and
`layers.conv` quantise their inputs. Training, evaluation and the exported model compute with
quantised values, in float arithmetic. Training updates the float weights before rounding;
checkpoints, averages and warm starts also use these float weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Protocol

from mtl import checks
from mtl.deferred import tf, tf1
from mtl.layers import straight_through
from mtl.step import layer_hooks
from mtl.variables import freezing, patterns, pruned, views

# The momentum of the moving average of activation bounds, as in batch norm.
_MOMENTUM = 0.99


class Quantizer(Protocol):
    """Rounds values to a few levels, with a straight-through gradient."""

    def __call__(self, values: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
        """Quantise values of any shape; `bound`, their largest magnitude, broadcasts to them."""


@checks.dataclass
class Uniform:
    """Rounds values to evenly spaced levels between -bound and bound.

    A number x becomes `bound / n * round(n * clip(x / bound, -1, 1))`, with `n = 2^(bits - 1) - 1`.
    B. Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", 2018, arXiv:1712.05877, in the symmetric form, with a bound
    for each output unit of weights.

    Attributes:
      bits: the number of bits, from 2 to 16; 2 bits mean three levels.
    """

    bits: Annotated[
        int,
        checks.Is(int, "be a number of bits"),
        checks.Rule("be in 2 .. 16", lambda value: 2 <= value <= 16),
    ] = 8

    def __call__(self, values: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
        """Quantise values of any shape by their largest magnitude, `bound`."""
        return straight_through.round_uniformly(values, self.bits, bound)


@checks.dataclass
class Binary:
    """Quantises values to two levels, `a sign(x)`.

    The derivative of the result with respect to x is the scale a if |x| is at most 1, and 0
    otherwise. M. Courbariaux et al., "Binarized Neural Networks", 2016, arXiv:1602.02830. If
    `scaled` is True, the scale a is the mean of |x| over all axes except the last, as in XNOR-Net
    (M. Rastegari et al., 2016, arXiv:1603.05279). The scale a gets no gradient.

    Attributes:
      scaled: True for weights; False sets the scale a to 1, for activations.
    """

    scaled: bool = True
    has_zero = False

    def __call__(self, values: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
        """Quantise values of any shape; `bound` is not used."""
        del bound
        signs = straight_through.sign(values)
        if not self.scaled:
            return signs
        return signs * tf.stop_gradient(_over_units(tf.reduce_mean, tf.abs(values)))


@checks.dataclass
class Ternary:
    """Quantises values to three levels, `a t(x)` with t(x) in {-1, 0, 1}.

    t(x) is 0 if `|x| <= threshold mean|x|`, else the sign of x; the scale a is the mean of |x| over
    all x with t(x) != 0. F. Li, B. Liu, "Ternary Weight Networks", 2016, arXiv:1605.04711. The
    means of |x| are over all axes except the last; in the paper, the means are over the whole
    kernel. The derivative of t(x) with respect to x is set to 1, and the scale a gets no gradient.

    Attributes:
      threshold: the factor of the mean of |x|, above 0, up to which numbers become 0; the paper's
        0.7 is nearly optimal for normally distributed weights.
    """

    threshold: checks.Positive = 0.7

    def __call__(self, values: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
        """Quantise values of any shape; `bound` is not used."""
        del bound
        sizes = tf.abs(values)
        cutoff = self.threshold * _over_units(tf.reduce_mean, sizes)
        is_large = tf.cast(sizes > cutoff, values.dtype)
        total, count = (_over_units(tf.reduce_sum, x) for x in (sizes * is_large, is_large))
        scale = tf.stop_gradient(tf.math.divide_no_nan(total, count))
        return scale * straight_through.ternary(values, tf.stop_gradient(cutoff))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantization:
    """Selects quantised weights and activations by patterns; the first matching pattern is used.

    In training, the bound of activations is the largest magnitude in the batch, and
    `<layer>/input_bound` stores the moving average of bounds. In evaluation and prediction, the
    bound is the moving average of earlier bounds, so a prediction does not depend on other rows of
    the batch.

    Attributes:
      weights: {pattern of variables: quantizer}. A quantised embedding table gets a dense gradient,
        so each step processes the whole table.
      activations: {pattern of scopes of `layers.dense` and `layers.conv`: quantizer} for the inputs
        of these layers.
    """

    weights: Mapping[str, Quantizer] = dataclasses.field(default_factory=dict)
    activations: Mapping[str, Quantizer] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for setting in ("weights", "activations"):
            where, quantizers = f"Quantization.{setting}", getattr(self, setting)
            checks.mapping(where, quantizers, "map patterns to quantizers")
            patterns.check_patterns(where, list(quantizers))
            for pattern, quantizer in quantizers.items():
                checks.require_part(
                    f"{where}[{pattern!r}]", quantizer, "quantization.Uniform", arguments=2
                )

    @property
    def is_entrywise(self) -> bool:
        """True if no value is quantised, as with the default settings."""
        return self == Quantization()

    @contextlib.contextmanager
    def quantize_network(self, training: bool, requires_use: bool = True) -> Iterator[None]:
        """Quantise the network that is built within the context.

        Raises:
          UserError: at the end of the context, if `requires_use` and a pattern matches nothing.
        """
        if not self.weights and not self.activations:
            yield
            return
        scope = _Scope(self, training)
        with layer_hooks.attach(scope), views.enter(views.Stage.QUANTIZED, scope.variable):
            yield
        if requires_use:
            scope.require_used()


class _Scope(layer_hooks.LayerHook):
    """Quantises a network while it is built; `names` collects its weights and layers."""

    takes_inputs = True

    def __init__(self, quantization: Quantization, training: bool):
        self._quantization, self._training = quantization, training
        self.names: dict[str, list[str]] = {"weights": [], "activations": []}

    def variable(self, getter: Callable[..., Any], name: str, **settings: Any) -> Any:
        """Return the variable of `getter`, quantised if a pattern of weights matches its name."""
        # Moving averages and bounds are not weights.
        if settings.get("trainable") is False:
            return getter(name, **settings)
        quantizer = self._find_quantizer("weights", name)
        if quantizer is None:
            return getter(name, **settings)
        # Quantisation reads the whole variable, so shards would not help.
        weights = tf.convert_to_tensor(getter(name, **{**settings, "partitioner": None}))
        fits = getattr(quantizer, "has_zero", True) or not pruned.is_cut(name)
        rule = f"include the value 0 for {name!r}, which is pruned"
        checks.require(
            fits, "Quantization.weights", rule, quantizer, "Use Ternary(), which includes 0."
        )
        return quantizer(weights, _over_units(tf.reduce_max, tf.abs(weights)))

    def take_inputs(self, inputs: tf.Tensor) -> tf.Tensor:
        """Quantise the inputs of a layer if a pattern matches the scope of the layer."""
        quantizer = self._find_quantizer("activations", tf1.get_variable_scope().name)
        if quantizer is None:
            return inputs
        floats = tf.cast(inputs, tf.float32)
        bound = _running_bound(floats, self._training)
        return tf.cast(quantizer(floats, tf.stop_gradient(bound)), inputs.dtype)

    def require_used(self) -> None:
        """Fail if a pattern matches no weight or layer."""
        for setting, names in self.names.items():
            for pattern in getattr(self._quantization, setting):
                patterns.select_variables(f"Quantization.{setting}", pattern, names)

    def _find_quantizer(self, setting: str, name: str) -> Quantizer | None:
        self.names[setting].append(name)
        quantizers = getattr(self._quantization, setting)
        return next((quantizers[p] for p in quantizers if patterns.matches(p, name)), None)


def _running_bound(values: tf.Tensor, training: bool) -> tf.Tensor:
    """Return the largest magnitude in training, and its moving average otherwise; a scalar."""
    average = tf1.get_variable(
        "input_bound",
        [],
        values.dtype,
        tf1.zeros_initializer(),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )
    if not training:
        return average.read_value()
    bound = tf.reduce_max(tf.abs(values))
    # The first batch sets the initial moving average, even in a frozen layer, which may start from
    # a run without quantization.
    is_unset = tf.equal(average, 0)
    moves = freezing.averages_move(average)
    if moves is not True:
        bound = tf.where(is_unset | moves, bound, average)
    share = tf.where(is_unset, 1.0, 1 - _MOMENTUM)
    change = tf.cast(share, values.dtype) * (bound - average)
    update = average.assign_add(tf.where(tf.math.is_finite(change), change, tf.zeros_like(change)))
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)
    return bound


def _over_units(function: Callable[..., tf.Tensor], values: tf.Tensor) -> tf.Tensor:
    """Reduce all axes except the last, which holds the units; a vector is reduced to [1]."""
    axes = list(range(max(values.shape.rank - 1, 1)))
    return function(values, axes, keepdims=True)
