"""Look-ahead around any optimizer.

from mtl.optimization import lookahead
update.Update.optimizer = @lookahead.Lookahead()
lookahead.Lookahead.optimizer = @optimizers.LazyAdam()
"""

from __future__ import annotations

import dataclasses

from mtl import checks, deferred, types
from mtl.deferred import tf
from mtl.optimization import groups

with deferred.imports():
    from mtl.optimization import wrapped


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lookahead:
    """`slow <- slow + rate * (w - slow);  w <- slow` after every `steps` steps of an optimizer.

    M. Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back", 2019, arXiv:1907.08610.
    A step back keeps the state of the optimizer, as in the paper's experiments. `slow` is saved as
    `<variable>/Lookahead`, one more copy of the weights. Looked-up tables follow the optimizer
    alone, because few of their rows move between two steps back.

    Attributes:
      optimizer: takes the steps forward.
      steps: the number of steps between two steps back, at least 2.
      rate: the share of the way forward that a step back keeps, in (0, 1].
    """

    optimizer: types.Optimizer
    steps: int = 5
    rate: float = 0.5

    def __post_init__(self):
        groups.check_optimizer("Lookahead.optimizer", self.optimizer)
        checks.is_a("Lookahead.steps", self.steps, int, "be a number of steps")
        checks.at_least("Lookahead.steps", self.steps, 2)
        checks.positive("Lookahead.rate", self.rate)
        checks.require(self.rate <= 1, "Lookahead.rate", "be in (0, 1]", self.rate)

    @property
    def learning_rate(self) -> float | types.Schedule:
        """The learning rate of the steps forward."""
        return self.optimizer.learning_rate

    def __call__(self, learning_rate: tf.Tensor) -> tf.compat.v1.train.Optimizer:
        """Return the optimizer for a learning rate, a float32 scalar of the graph."""
        return wrapped.Lookahead(self.optimizer(learning_rate), self.steps, self.rate)
