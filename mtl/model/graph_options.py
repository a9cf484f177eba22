"""The options of a model's graph, beside features, labels and mode.

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
    """The options of `MultiTaskModel.model_fn`; a run sets them, not a gin file.

    Attributes:
      statistics: the statistics of the training split, such as vocabularies.
      may_stack: True lets equal tasks share stacked variables in the graph. With stacks, the graph
        has no separate variables for single tasks.
      loop: the arguments of `training_loop.run_repeatedly`, for a training with several steps per
        session call; None runs one step per call.
      slices: the number of micro-batches of a training batch.
      precision: the number format of the network's computations in training.
      extensions: functions that make the extensions of a training step, the outermost first; None
        takes `MultiTaskModel.step_extensions`.
      training_hooks: a function from the results of a step to the hook arguments of the
        EstimatorSpec.
      attack: an attack that moves the inputs of an evaluation towards larger losses; None for no
        attack.
      evaluation_hooks: a function that returns the hooks of an evaluation; the hooks may read the
        evaluated rows.
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
