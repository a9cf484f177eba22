"""Holds the extensions of the training step that is being built, such as pruning.

with extensions.enter([make(model, features, labels) for make in makers]) as entered:
    for extension in entered: ...
extensions.current()                # within the `with`: the extensions of the step
gradients = extensions.mask_gradients(gradients, variables)     # in the update
before = extensions.check_update(losses, gradients, step, unless=False)
extensions.show_update(gradients, variables)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from mtl import ambient, checks, types
from mtl.deferred import tf


@contextlib.contextmanager
def enter(extensions: Sequence[types.StepExtension]) -> Iterator[Sequence[types.StepExtension]]:
    """Activate extensions for the step that is built in the context.

    Args:
      extensions: the extensions of the step; the first is the outermost.

    Yields:
      The argument `extensions`, after the context `enter` of each extension is open.

    Raises:
      UserTypeError: an entry of `extensions` is not a `types.StepExtension`.
    """
    for extension in extensions:
        rule = "be a types.StepExtension"
        checks.is_a("an extension of the step", extension, types.StepExtension, rule)
    with contextlib.ExitStack() as stack, _CURRENT.set(tuple(extensions)):
        for extension in extensions:
            stack.enter_context(extension.enter())
        yield extensions


def current() -> Sequence[types.StepExtension]:
    """Return the extensions of the step that is being built; () outside of a step."""
    return _CURRENT.get()


def mask_gradients(
    gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]
) -> Sequence[types.Connected]:
    """Set entries of gradients to 0, as the extensions of the step decide.

    Args:
      gradients: N gradients.
      variables: the N variables of the gradients.

    Returns:
      N gradients.
    """
    for extension in current():
        gradients = extension.mask_gradients(gradients, variables)
    return gradients


def check_update(
    losses: types.Tensors,
    gradients: Sequence[types.Gradient],
    step: tf.Tensor,
    unless: tf.Tensor | bool,
) -> list[tf.Operation]:
    """Build ops that fail if an extension rejects the step; see `types.StepExtension`.

    Args:
      losses: {task: scalar}.
      gradients: the gradients of the step.
      step: the global step, a scalar.
      unless: a bool scalar; if it is True, no op fails.
    """
    return [
        op
        for extension in current()
        for op in extension.check_update(losses, gradients, step, unless)
    ]


def show_update(gradients: Sequence[types.Connected], variables: Sequence[tf.Variable]) -> None:
    """Pass the gradients that the optimizer gets to all extensions of the step.

    Args:
      gradients: N gradients, after masks and clipping.
      variables: N variables, which have not changed yet.
    """
    for extension in current():
        extension.see_update(gradients, variables)


_CURRENT: ambient.Ambient[tuple[types.StepExtension, ...]] = ambient.Ambient(
    "step extensions", default=()
)
