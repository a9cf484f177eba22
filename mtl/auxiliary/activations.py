"""What the network computed for the rows of a training step, and how it runs once more.

again = activations.run({**activations.inputs, "image_x": noisy})
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import tensorflow as tf

from mtl import checks, types
from mtl.step import draws, whole_batch
from mtl.variables import views

tf1 = tf.compat.v1

Forward = Callable[[types.Tensors], tuple[types.Towers, types.Tensors]]
"""From encoded columns to towers and logits."""


@dataclasses.dataclass(frozen=True)
class Activations(types.Activations):
    """What the network of a training step computed: `types.Activations` has the attributes.

    Attributes:
      forward: the network and its heads, as the pass before ran them.
      scope: the variable scope that they lie in.
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
    ) -> "Activations":
        """Run the network once more: {column: [B, ...]} -> what it computes of these inputs."""
        with contextlib.ExitStack() as stack:
            # Averages of normalisations have moved by the pass before, and by that one alone.
            stack.enter_context(whole_batch.withhold_collections())
            drawn = stack.enter_context(draws.draw_again(draw))
            stack.enter_context(tf1.variable_scope(self.scope, reuse=True))
            if replace:
                own = _replace_variables(replace)
                stack.enter_context(views.enter(views.Stage.REPLACED, own))
            towers, logits = self.forward(inputs)
        return dataclasses.replace(
            self, inputs=inputs, towers=towers, logits=logits, draws_by_step=bool(drawn)
        )


def withhold_rows(activations: Activations, name: str) -> Activations:
    """Return activations of mixed rows for the loss of this name, without features and labels.

    Raises:
      UserError: once the loss reads one of them.
    """
    labels = _Withheld(f"auxiliary loss {name!r}", "reads_labels")
    features = _Withheld(f"auxiliary loss {name!r}", "reads_features")
    return dataclasses.replace(activations, features=features, labels=labels)


class _Withheld(Mapping[str, tf.Tensor]):
    """Fields of rows that have been mixed, which belong to no row any more."""

    def __init__(self, where: str, declaration: str):
        self._where, self._declaration = where, declaration

    def __getitem__(self, name: str) -> tf.Tensor:
        self._refuse(name)

    def __iter__(self) -> Iterator[str]:
        self._refuse(None)

    def __len__(self) -> int:
        self._refuse(None)

    def _refuse(self, name: str | None) -> NoReturn:
        rule = f"say {self._declaration} = True to read a field where MultiTaskModel.mixing mixes"
        checks.fail(self._where, rule, name)


def _replace_variables(replace: Callable[[tf.Variable], tf.Tensor]) -> Callable[..., Any]:
    def get(getter: Callable[..., Any], name: str, **settings: Any) -> Any:
        variable = getter(name, **settings)
        return replace(variable) if getattr(variable, "trainable", False) else variable

    return get
