"""The extensions of the training step that is being built; most runs have none.

with extensions.enter([make(model, features, labels) for make in makers]) as entered:
    for extension in entered: ...
extensions.current()                # the same, read within the network
"""

import contextlib
from collections.abc import Iterator, Sequence

from mtl import ambient, types


@contextlib.contextmanager
def enter(extensions: Sequence[types.StepExtension]) -> Iterator[Sequence[types.StepExtension]]:
    """Enter these extensions for the step within the context; the first is the outermost."""
    with contextlib.ExitStack() as stack, _CURRENT.set(tuple(extensions)):
        for extension in extensions:
            stack.enter_context(extension.enter())
        yield extensions


def current() -> Sequence[types.StepExtension]:
    """Return the extensions of the step that is being built; () outside of a step."""
    return _CURRENT.get()


_CURRENT: ambient.Ambient[tuple[types.StepExtension, ...]] = ambient.Ambient(
    "step extensions", default=()
)
