"""How a graph of a model is built, beside its features, labels and mode.

model_fn = functools.partial(
    model.model_fn, options=graph_options.GraphOptions(statistics=statistics, slices=2)
)
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mtl import features as features_lib
from mtl import types
from mtl.layers import precision as precision_lib
from mtl.step import training_loop


@dataclasses.dataclass(frozen=True)
class GraphOptions:
    """What `MultiTaskModel.model_fn` goes by; no part that a gin file builds.

    Attributes:
      statistics: of the training split, as the columns learned them.
      may_stack: whether equal tasks may share variables of the graph. Nothing else may then look
        for the variables of one task.
      loop: in training, the arguments of `training_loop.run_repeatedly`, for several steps per
        session call.
      slices: the number of micro-batches of a training batch.
      precision: the numbers that the network computes in, in training.
      extensions: act in each training step, the first outermost; None for those that the model's
        parts bring, `MultiTaskModel.step_extensions`.
      training_hooks: gives the hook arguments of the EstimatorSpec, to watch the steps.
      attack: moves the inputs of an evaluation, to where the losses of the labels are large.
      evaluation_hooks: gives the hooks of an evaluation, to watch its rows.
    """

    statistics: features_lib.Statistics
    may_stack: bool = False
    loop: Mapping[str, Any] | None = None
    slices: int = 1
    precision: precision_lib.Precision = precision_lib.PLAIN
    extensions: Sequence[types.MakeExtension] | None = None
    training_hooks: Callable[[training_loop.StepResult], dict[str, Any]] = lambda _: {}
    attack: types.Attack | None = None
    evaluation_hooks: types.EvaluationHooks = lambda *_: ()
