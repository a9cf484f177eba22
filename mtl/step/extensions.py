"""The extensions of the training step that is being built; none in most runs.

with extensions.enter([make(model, features, labels) for make in makers]) as entered:
    for extension in entered: ...
extensions.current()                # the same, from within the network
"""

import contextlib
from collections.abc import Iterator, Sequence

from mtl import ambient, types


@contextlib.contextmanager
def enter(extensions: Sequence[types.StepExtension]) -> Iterator[Sequence[types.StepExtension]]:
    """Build a step with these extensions within it; those that come first are outermost."""
    with contextlib.ExitStack() as stack, _CURRENT.set(tuple(extensions)):
        for extension in extensions:
            stack.enter_context(extension.enter())
        yield extensions


def current() -> Sequence[types.StepExtension]:
    """Return the extensions of the step that is being built; none outside of a step."""
    return _CURRENT.get()


_CURRENT: ambient.Ambient[tuple[types.StepExtension, ...]] = ambient.Ambient(
    "step extensions", default=()
)
