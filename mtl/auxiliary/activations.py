"""The network's outputs for the rows of a training step, and further passes of the network.

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
"""Takes encoded columns; returns towers and logits."""


@dataclasses.dataclass(frozen=True)
class Activations(types.Activations):
    """The network's outputs in a training step; see `types.Activations` for most attributes.

    Attributes:
      forward: a function that runs the network and its heads once more.
      scope: the variable scope of network and heads.
      draws_by_step: True if this pass drew random numbers, such as dropout.
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
        """Run the network once more: {column: [B, ...]} -> its outputs for these inputs.

        Args:
          inputs: {column: [B, ...]}, encoded columns.
          draw: the number of the pass; passes of different numbers draw different random numbers,
            and 0 repeats the draws of the plain pass.
          replace: a function from a trainable variable to the value that the network reads instead,
            of the same shape; None reads the variables themselves.

        Returns:
          The activations, with features, labels and heads of this pass.
        """
        with contextlib.ExitStack() as stack:
            # Only the plain pass of a step moves the averages of normalisations.
            stack.enter_context(whole_batch.withhold_collections())
            draw_names = stack.enter_context(draws.draw_again(draw))
            # A further pass reads the variables of the plain pass, and must not create new ones.
            stack.enter_context(tf1.variable_scope(self.scope, reuse=True))
            if replace:
                getter = _replace_variables(replace)
                stack.enter_context(views.enter(views.Stage.REPLACED, getter))
            towers, logits = self.forward(inputs)
        return dataclasses.replace(
            self, inputs=inputs, towers=towers, logits=logits, draws_by_step=bool(draw_names)
        )


def withhold_rows(activations: Activations, name: str) -> Activations:
    """Return activations without features and labels, for a loss of mixed rows with this name.

    Raises:
      UserError: when the loss reads features or labels.
    """
    labels = _Withheld(f"auxiliary loss {name!r}", "reads_labels")
    features = _Withheld(f"auxiliary loss {name!r}", "reads_features")
    return dataclasses.replace(activations, features=features, labels=labels)


class _Withheld(Mapping[str, "tf.Tensor"]):
    """A mapping that refuses to be read: mixed rows have no fields."""

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
        # Moving averages of normalisations are not trainable, so the student's averages are read.
        return replace(variable) if getattr(variable, "trainable", False) else variable

    return get
