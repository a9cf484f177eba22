"""The network's outputs in a training step, and further forward passes over the same rows.

again = activations.run({**activations.inputs, "image_x": noisy})
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.step import draws, whole_batch
from mtl.variables import views

Forward = Callable[[types.Tensors], tuple[types.Towers, types.Tensors]]
"""A function {encoded column: [B, ...]} -> (towers, logits)."""


@dataclasses.dataclass(frozen=True)
class Activations(types.Activations):
    """The network's outputs in a training step; see `types.Activations` for most attributes.

    Attributes:
      forward: a function that runs the network and its heads a second time.
      scope: the variable scope of the network and the heads.
      draws_by_step: True if this pass draws random numbers, such as dropout.
    """

    features: types.Tensors
    labels: types.Tensors
    inputs: types.Tensors
    towers: types.Towers
    logits: types.Tensors
    heads: Mapping[str, types.Head]
    forward: Forward
    scope: Any
    emitted: types.Tensors
    draws_by_step: bool = False

    def run(
        self,
        inputs: types.Tensors,
        draw: int = 0,
        replace: Callable[[tf.Variable], tf.Tensor] | None = None,
    ) -> Activations:
        """Run the network a second time, on other inputs for the same rows.

        Args:
          inputs: {column: [B, ...]}, encoded columns.
          draw: a number that selects the random draws of the second pass, such as dropout.
            Different values of `draw` give different draws, and 0 repeats the draws of the first
            pass.
          replace: a function from a trainable variable to a value of the same shape, which the
            network reads in place of the variable; None reads the variables.

        Returns:
          The activations of the second pass, with the same features, labels and heads.
        """
        with contextlib.ExitStack() as stack:
            # Only the first pass of a step updates the moving averages of normalisations.
            stack.enter_context(whole_batch.withhold_collections())
            draw_names = stack.enter_context(draws.draw_again(draw))
            # The second pass reuses the variables of the first pass, and must not create new
            # variables.
            stack.enter_context(tf1.variable_scope(self.scope, reuse=True))
            if replace:
                getter = _replace_variables(replace)
                stack.enter_context(views.enter(views.Stage.REPLACED, getter))
            towers, logits = self.forward(inputs)
        return dataclasses.replace(
            self, inputs=inputs, towers=towers, logits=logits, draws_by_step=bool(draw_names)
        )


def withhold_rows(activations: Activations, name: str) -> Activations:
    """Return activations without features and labels, for an auxiliary loss of mixed rows.

    Raises:
      UserError: not in this call, but when the loss later reads features or labels.
    """
    labels = _Withheld(f"auxiliary loss {name!r}", "reads_labels")
    features = _Withheld(f"auxiliary loss {name!r}", "reads_features")
    return dataclasses.replace(activations, features=features, labels=labels)


class _Withheld(Mapping[str, "tf.Tensor"]):
    """A mapping that raises an error when it is read, because mixed rows have no fields."""

    def __init__(self, where: str, declaration: str):
        self._where, self._declaration = where, declaration

    def __getitem__(self, name: str) -> tf.Tensor:
        self._refuse_field(name)

    def __iter__(self) -> Iterator[str]:
        self._refuse_field(None)

    def __len__(self) -> int:
        self._refuse_field(None)

    def _refuse_field(self, name: str | None) -> NoReturn:
        rule = f"set {self._declaration} = True to read fields beside MultiTaskModel.mixing"
        checks.fail(self._where, rule, name)


def _replace_variables(replace: Callable[[tf.Variable], tf.Tensor]) -> Callable[..., Any]:
    def get(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
        variable = getter(name, **settings)
        # Moving averages of normalisations are not trainable, so they are not replaced.
        return replace(variable) if getattr(variable, "trainable", False) else variable

    return get
