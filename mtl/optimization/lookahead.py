"""The Lookahead optimizer around any other optimizer.

from mtl.optimization import lookahead
update.Update.optimizer = @lookahead.Lookahead()
lookahead.Lookahead.optimizer = @optimizers.LazyAdam()
"""

from __future__ import annotations

from typing import Annotated

from mtl import checks, deferred, types
from mtl.deferred import tf
from mtl.optimization import groups

with deferred.imports():
    from mtl.optimization import wrapped


@checks.dataclass
class Lookahead:
    """`slow <- slow + rate * (w - slow);  w <- slow` after every `steps` steps of an optimizer.

    M. Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back", 2019, arXiv:1907.08610.
    The assignments to `slow` and to the weights `w` are the paper's step back. A step back does not
    change the state of the inner optimizer, as in the paper's experiments. `slow` is a copy of the
    weights, saved as `<variable>/Lookahead`. Embedding tables have no step back, because few of
    their rows change between two steps back.

    Attributes:
      optimizer: the optimizer that takes the steps forward.
      steps: the number of steps forward before each step back, at least 2.
      rate: the share of the change of `w` that remains after a step back, in (0, 1].
    """

    optimizer: Annotated[types.Optimizer, groups.check_optimizer]
    steps: Annotated[int, checks.AtLeast(2)] = 5
    rate: Annotated[float, checks.In("(0, 1]")] = 0.5

    @property
    def learning_rate(self) -> float | types.Schedule:
        """The learning rate of the inner optimizer."""
        return self.optimizer.learning_rate

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Build TensorFlow's optimizer with a learning rate, a float32 scalar of the graph."""
        return wrapped.Lookahead(self.optimizer(learning_rate), self.steps, self.rate)
