"""Mixed precision and XLA compilation for the network of a training step.

from mtl.layers import precision
precision.Precision.dtype = "bfloat16"          # or "float16", with a dynamic loss scale
precision.Precision.xla = True
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np

from mtl import ambient, checks, types
from mtl.deferred import tf, tf1
from mtl.step import draws, outlets, penalties, step_state
from mtl.tf_internals import graphs
from mtl.variables import views

_FLOAT32 = "float32"
DTYPES = (_FLOAT32, "bfloat16", "float16")

StepFn = Callable[[Any, Any], tuple["tf.Operation", Mapping[str, "tf.Tensor"]]]


@checks.dataclass
class Precision:
    """Mixed precision and XLA compilation of the network's forward and backward pass in training.

    P. Micikevicius et al., "Mixed Precision Training", 2017, arXiv:1710.03740. Activations and
    weights have 16 bits in matrix products. Variables, gradients, optimizer state, checkpoints,
    columns, normalisations, heads, losses, balancing and the update of the weights stay in 32 bits.
    Evaluation, prediction and exports compute in float32, so the served model has the same metrics
    on any device.

    In float16, small gradients would vanish. The paper multiplies the loss by a loss scale, which
    keeps small gradients from vanishing. Here a gradient is multiplied by the loss scale when it
    enters the network, and divided by the scale when it leaves the network, at every variable and
    input. So code outside of the network, such as balancing, gets gradients without the loss scale.

    If the losses of a step are finite, but a gradient is NaN or infinite, the step changes no
    variable and halves the scale. The loss scale doubles after `growth_steps` steps with finite
    losses and gradients since its last change. If the loss scale is already 1, or if the losses
    themselves are not finite, `Update.if_not_finite` determines what the step does. The loss scale
    is saved with the model.

    XLA compiles as many ops of the network as possible. The columns, which read strings and
    embedding tables, and ops that XLA does not support run without XLA.

    Attributes:
      dtype: "float32", "bfloat16" (any recent device, no scale) or "float16" (older GPUs).
      xla: True compiles the network. Compilation is useful on GPUs; few models become faster on a
        CPU.
      initial_scale: the initial scale of float16, at least 1; a power of 2, so scaling is exact.
      growth_steps: the number of finite steps, at least 1, after which the scale of float16
        doubles; the default is the default of `tf.keras.mixed_precision.LossScaleOptimizer`.
    """

    dtype: Annotated[str, checks.OneOf(DTYPES)] = _FLOAT32
    xla: bool = False
    initial_scale: Annotated[
        float,
        checks.AtLeast(1),
        checks.Rule("be a power of 2", lambda value: math.frexp(value)[0] == 0.5),
    ] = 2.0**15
    growth_steps: checks.Count = 2000

    def __post_init__(self):
        fix = "This TensorFlow is built without XLA: set Precision.xla = False."
        has_xla = not self.xla or tf.test.is_built_with_xla()
        checks.require(has_xla, "Precision.xla", "be False", self.xla, fix)

    def wrap_step(self, step_fn: StepFn) -> StepFn:
        """Apply these settings to the networks that a step function builds.

        Args:
          step_fn: a function from features and labels to the training op and {name: scalar to
            monitor}.

        Returns:
          A step function; `step_fn` itself if all settings have their default values.
        """
        if self == PLAIN:
            return step_fn

        def step(features: Any, labels: Any) -> tuple[tf.Operation, Mapping[str, tf.Tensor]]:
            with _STEP.set(_Step(self)):
                return step_fn(features, labels)

        return step


def run_network(
    network: Callable[[types.Tensors], types.Tensors], inputs: types.Tensors, training: bool
) -> types.Towers:
    """Run a network in the precision of the step, with float32 inputs and outputs.

    Args:
      network: a function from {column: tensor} to {task: tower}.
      inputs: {column: float32}.
      training: False computes in float32, as in evaluation.

    Returns:
      The towers in float32, {task: tower}, with the shared outputs of the network.
    """
    step = _STEP.get() if training else None
    if step is None:
        with _STEP.set(None):
            towers = network(inputs)
        float_towers = {task: tf.cast(tower, tf.float32) for task, tower in towers.items()}
        return types.Towers(float_towers, getattr(towers, "shared", ()))
    with _STEP.set(step), step.compile_network():
        network_inputs = {name: step.enter(value) for name, value in inputs.items()}
        with step.cast_variables(), step.leave_penalties():
            towers = network(network_inputs)
        float_towers = {task: step.leave(tower) for task, tower in towers.items()}
    return types.Towers(float_towers, getattr(towers, "shared", ()))


def share_output(hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the output of shared layers for the next layers, and for a surgery of gradients.

    Args:
      hidden: the output of shared layers, of any shape.

    Returns:
      Two tensors: the output in the precision of the network, for the next layers, and a float32
      copy for `Towers.shared`. The output for the next layers is a cast of the float32 copy, so
      gradients of the next layers pass through the float32 copy. Gradients with respect to the
      float32 copy are not multiplied by the loss scale.
    """
    step = _STEP.get()
    if step is None:
        hidden = tf.cast(hidden, tf.float32)
        return hidden, hidden
    # Cast the values to float32, which unscales gradients, and back, which scales gradients. A
    # surgery then reads unscaled float32 gradients of `float_hidden`.
    float_hidden = step.leave(hidden)
    return step.enter(float_hidden), float_hidden


def current_dtype() -> tf.DType:
    """Return the floating-point type of the network's computations."""
    return _current_step().dtype


def current_loss_scale() -> LossScale | None:
    """Return the loss scale of the step being built; None if gradients are not scaled."""
    step = _STEP.get()
    return step.scale if step else None


def pause_loss_scale() -> contextlib.AbstractContextManager[None]:
    """Leave gradients that are built within the context unscaled, also in float16.

    Use the context for gradients that choose an input, such as an adversarial input. If a scaled
    gradient that chooses an input overflowed, the loss would not be finite, so no step could find
    out that the loss scale is too large.
    """
    scale = current_loss_scale()
    return scale.pause() if scale else contextlib.nullcontext()


class LossScale:
    """The dynamic loss scale of float16, which multiplies gradients within the network.

    Attributes:
      value: the loss scale of this step, a float32 scalar.
    """

    def __init__(self, initial: float, growth_steps: int):
        self._growth_steps = growth_steps
        with tf1.variable_scope("loss_scale"):
            self._variable = step_state.create_variable("value", np.float32(initial))
            self._finite_steps = step_state.create_variable("finite_steps", np.zeros([], np.int64))
        self.value = self._variable.read_value()

    def overflows(self, losses_are_finite: tf.Tensor, all_is_finite: tf.Tensor) -> tf.Tensor:
        """Check whether the loss scale is too large; add UPDATE_OPS that set the next loss scale.

        Args:
          losses_are_finite: True if all losses of the step are finite, a bool scalar.
          all_is_finite: True if all losses and gradients of the step are finite, a bool scalar.

        Returns:
          A bool scalar, True if the step must not change variables. A loss scale of 1 never counts
          as too large.
        """
        overflows = losses_are_finite & ~all_is_finite & (self.value > 1)
        finite_steps = self._finite_steps.read_value() + tf.cast(all_is_finite, tf.int64)
        grows = finite_steps >= self._growth_steps
        smaller, greater = tf.maximum(self.value / 2, 1), tf.where(grows, 2.0, 1.0) * self.value
        step_state.assign_with_update(self._variable, tf.where(overflows, smaller, greater))
        step_state.assign_with_update(
            self._finite_steps,
            tf.where(overflows | grows, tf.zeros_like(finite_steps), finite_steps),
        )
        return overflows

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Leave gradients that are built within the context unscaled."""
        value, self.value = self.value, tf.ones_like(self.value)
        try:
            yield
        finally:
            self.value = value


class _Step:
    """The precision settings and the loss scale of the step that is being built."""

    def __init__(self, settings: Precision):
        self._xla = settings.xla
        self.dtype = tf.as_dtype(settings.dtype)
        is_scaled = self.dtype == tf.float16
        self.scale = LossScale(settings.initial_scale, settings.growth_steps) if is_scaled else None
        # Tensors of the network with scaled gradients, and tensors that have left the network.
        self._entered: list[tf.Tensor] = []
        self._left: list[tf.Tensor] = []

    @contextlib.contextmanager
    def compile_network(self) -> Iterator[None]:
        """Compile the ops within the context and their gradients, if `Precision.xla` is True."""
        if not self._xla:
            yield
            return
        with tf.xla.experimental.jit_scope(), tf.variable_creator_scope(_create_uncompiled):
            yield

    def enter(self, value: tf.Tensor) -> tf.Tensor:
        """Cast a value that enters the network, and divide the value's gradient by the scale."""
        entered = self._cast_value(value, self.dtype, lambda gradient, scale: gradient / scale)
        self._entered.append(entered)
        return entered

    def leave(self, value: tf.Tensor) -> tf.Tensor:
        """Cast a value that leaves the network, and multiply the value's gradient by the scale."""
        left = self._cast_value(value, tf.float32, lambda gradient, scale: gradient * scale)
        self._left.append(left)
        return left

    @contextlib.contextmanager
    def leave_penalties(self) -> Iterator[None]:
        """Cast penalties and losses within the context to float32, and scale their gradients."""
        if self.scale is None:
            yield
            return
        count = len(tf1.get_collection_ref(tf1.GraphKeys.REGULARIZATION_LOSSES))
        with outlets.change_losses(self._leave_added):
            yield
        penalties.change_terms(count, self._leave_added)

    def _leave_added(self, value: tf.Tensor) -> tf.Tensor:
        """Cast a penalty or loss to float32 and scale its gradient, unless this has been done.

        Raises:
          UserError: the penalty or loss depends on a tensor with a scaled gradient and on a tensor
            with an unscaled gradient, which `share_output` returned.
        """
        is_inside, has_left = graphs.find_gradient_sources(value, self._entered, self._left)
        if not is_inside:
            return value
        where = f"the penalty or loss {value.op.name!r} of the network"
        rule = "use only outputs of precision.share_output, or none of them, in float16"
        checks.require(not has_left, where, rule, value)
        return self.leave(value)

    @contextlib.contextmanager
    def cast_variables(self) -> Iterator[None]:
        """Cast variables within the context if a layer requests the network's dtype."""
        if self.dtype == tf.float32:
            yield
            return
        with views.enter(views.Stage.CAST, self._get_variable):
            yield

    def _get_variable(
        self, getter: Callable[..., Any], name: str, dtype: Any = None, **settings: Any
    ) -> Any:
        value_dtype = tf.as_dtype(dtype or tf.float32)
        # Store variables in 32 bits, as small updates would be lost to rounding in 16 bits.
        variable = getter(
            name, dtype=tf.float32 if value_dtype == self.dtype else value_dtype, **settings
        )
        # A cast returns a tensor, but code assigns to averages, which must be variables.
        if settings.get("trainable") is False or not value_dtype.is_floating:
            return variable
        value = tf.convert_to_tensor(variable)
        entered = self._cast_value(value, value_dtype, lambda gradient, scale: gradient / scale)
        self._entered.append(entered)
        return entered

    def _cast_value(
        self,
        value: tf.Tensor,
        dtype: tf.DType,
        rescale: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        scale = self.scale
        if scale is None:
            return tf.cast(value, dtype)

        @tf.custom_gradient
        def cast(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                # Rescale in float32, as small gradients would vanish in float16.
                upstream = tf.cast(tf.convert_to_tensor(upstream), tf.float32)
                return tf.cast(rescale(upstream, scale.value), value.dtype)

            return tf.cast(value, dtype), gradient

        return cast(value)


def _current_step() -> _Step:
    """Return the settings of the step that is being built; float32 outside of training."""
    return _STEP.get() or _Step(PLAIN)


def _create_uncompiled(next_creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
    """Create a variable, with random initial values that do not depend on XLA."""
    with draws.draw_without_xla():
        return next_creator(**settings)


PLAIN = Precision()
"""The default precision: float32, without XLA."""

_STEP: ambient.Ambient[_Step | None] = ambient.Ambient("precision", default=None)
