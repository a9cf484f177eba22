"""Settings that switch TensorBoard items on, and say at which steps an item is due.

tensorboard.TensorBoard.weights = True
tensorboard.TensorBoard.variables = ["^network/"]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from mtl import checks, features, types
from mtl.tools.tensorboard import due, pictures
from mtl.variables import patterns

ONCE = ("graph", "configuration", "custom_scalars", "hparams", "embeddings")
"""The items that are written once, at the start of a training."""

OF_GRADIENTS = (
    "gradients_before_surgery",
    "task_gradients",
    "gradients",
    "clipped_gradients",
    "updates",
)
OF_STEPS = ("weights", *OF_GRADIENTS, "activations", "dead_units")
"""The items of training steps."""

MATRICES = ("confusion",)
"""The items that count predictions by pairs of a true and a predicted class."""

CURVES = ("pr_curves", "roc_curves", "reliability", "prediction_histograms")
"""The items that count predictions by thresholds or bins."""

OF_EVALUATIONS = ("predictions", *MATRICES, *CURVES)
"""The items of evaluations."""

_DRAWN = ("predictions", "confusion", "roc_curves", "reliability")
_MOST_TASKS = 32


@checks.dataclass
class Items:
    """The settings of `TensorBoard`, which switch its items on.

    Attributes:
      graph: the graph of the forward pass and the losses, grouped by scopes. The graph leaves out
        constants, checks and reads of variables. The weighting, the surgery and the update are
        drawn as a single node each.
      configuration: the run's config.gin, as text.
      custom_scalars: a layout that groups charts by task.
      hparams: the settings that are numbers, texts or bools, and the main metric of each task, for
        TensorBoard's HParams.
      embeddings: the names of the rows of embedding tables, for TensorBoard's projector, which
        reads the tables from the checkpoint.
      weights: a histogram of each variable before the step.
      gradients_before_surgery: histograms of the gradients of the sum of the weighted losses. With
        a surgery, the item `gradients_before_surgery` needs another backward pass.
      task_gradients: histograms of the gradients of each task's weighted loss. The item
        `task_gradients` needs a backward pass for each task.
      gradients: histograms of the gradients that result from the surgery, or from the plain sum of
        the losses if there is no surgery.
      clipped_gradients: histograms of the gradients that the optimizer gets, after regularisation,
        clipping and transforms.
      updates: a histogram of the change of each variable in the step, and a scalar: the norm of the
        change, divided by the norm of the weights before the step. For an embedding table, the item
        `updates` shows only the rows that the batch looked up.
      activations: a histogram of the outputs of each activation function, for the first micro-batch
        on the first replica.
      dead_units: the share of units of each activation function that are 0 for all rows of the
        first micro-batch on the first replica.
      predictions: the images in the first rows of the split, with the predictions of each task.
      confusion: a confusion matrix for each task with classes, as a picture. The cells of the
        matrix are sums of label weights.
      pr_curves: curves of precision and recall for each binary task, and for each class of other
        tasks.
      roc_curves: a picture of the ROC curves of each task with classes.
      reliability: a picture for each task with classes, which shows the share of positive labels in
        each bin of predicted probabilities; the bins are the same as in the metric
        `calibration_error`.
      prediction_histograms: histograms of the predicted probabilities of each task with classes.
      variables: patterns of names. Histograms only show variables that match a pattern; () for all
        variables.
      num_images: the number of rows whose images the item `predictions` shows.
    """

    graph: bool = True
    configuration: bool = True
    custom_scalars: bool = True
    hparams: bool = True
    embeddings: bool = False
    weights: due.When = False
    gradients_before_surgery: due.When = False
    task_gradients: due.When = False
    gradients: due.When = False
    clipped_gradients: due.When = False
    updates: due.When = False
    activations: due.When = False
    dead_units: due.When = False
    predictions: due.When = False
    confusion: due.When = False
    pr_curves: due.When = False
    roc_curves: due.When = False
    reliability: due.When = False
    prediction_histograms: due.When = False
    variables: Annotated[Sequence[str], patterns.check_patterns] = ()
    num_images: Annotated[checks.Count, checks.AtMost(pictures.MOST_IMAGES)] = 16

    def _where(self, setting: str) -> str:
        return f"TensorBoard.{setting}"

    def list_on(self, names: Sequence[str]) -> list[str]:
        """Return the names of items that are switched on, among `names`."""
        # Compare with `is not False`, because a number or a list of steps also switches an item on.
        return [name for name in names if getattr(self, name) is not False]

    def due_of(self, name: str, every: int) -> due.Due:
        """Return the steps at which a TensorBoard item is computed.

        Args:
          name: the name of a TensorBoard item whose setting is not False, such as "weights".
          every: the number of steps between two computations of the item if its setting is True.
        """
        steps = due.Due.from_setting(getattr(self, name), every)
        assert steps is not None
        return steps

    def check_experiment(self, experiment: Any) -> None:
        """Fail if an item needs an image column or a task with classes that the model lacks.

        Args:
          experiment: an `experiment.Experiment`.

        Raises:
          UserError: an item cannot be shown for the model, or Pillow is missing.
        """
        columns, heads = experiment.model.columns, experiment.model.heads
        has_image = any(isinstance(column, features.Image) for column in columns)
        fix = "The model has no column @features.Image()."
        if self.predictions is not False:
            checks.require(has_image, "TensorBoard.predictions", "be False", self.predictions, fix)
        for name, shown_heads in _list_shown(heads).items():
            if getattr(self, name) is not False:
                where, fix = f"TensorBoard.{name}", "No task has classes."
                checks.require(bool(shown_heads), where, "be False", getattr(self, name), fix)
        if self.list_on(_DRAWN):
            # Check for Pillow before the training, and only if the run draws a picture.
            pictures.require_pillow(f"TensorBoard.{self.list_on(_DRAWN)[0]}")

    def check_run(
        self, run: Any, adds_losses: bool, num_losses: int, replicas: int, has_servers: bool
    ) -> None:
        """Fail if a run cannot show a TensorBoard item, or reaches none of the item's steps.

        Args:
          run: an `experiment.Run`.
          adds_losses: True if the step only computes gradients of the sum of the losses.
          num_losses: the number of losses, including auxiliary losses.
          replicas: the number of replicas that compute a step together.
          has_servers: True if workers train asynchronously, with parameter servers.
        """
        for name in self.list_on(OF_STEPS):
            where, value = f"TensorBoard.{name}", getattr(self, name)
            rule = "be False with parameter servers, as no worker sees every step"
            checks.require(not has_servers, where, rule, value)
            self._check_due(where, value, run.summary_steps, run.train_steps)
        if self.task_gradients is not False:
            rule = f"be False with more than {_MOST_TASKS} losses, as each needs a backward pass"
            where, value = "TensorBoard.task_gradients", self.task_gradients
            checks.require(
                num_losses <= _MOST_TASKS, where, rule, value, f"There are {num_losses}."
            )
        # Without a surgery, the update already computes the gradients before surgery.
        needs_all = [] if adds_losses else ["gradients_before_surgery"]
        for name in self.list_on(["task_gradients", *needs_all]):
            rule = (
                "be False with several replicas, which would have to synchronise at due steps only"
            )
            checks.require(replicas == 1, f"TensorBoard.{name}", rule, getattr(self, name))
        for name in self.list_on(OF_EVALUATIONS):
            self._check_evaluated(f"TensorBoard.{name}", getattr(self, name), run)

    def _check_due(self, where: str, value: Any, every: int, last: int) -> None:
        steps = due.Due.from_setting(value, every)
        assert steps is not None
        # An item that is shown every n steps is first shown at step n.
        late = [step for step in steps.at or (steps.every,) if step > last]
        rule = f"be due up to the last step, {last}"
        fix = f"Run.summary_steps is {every}." if value is True else ""
        checks.require(not late, where, rule, value, fix)

    def _check_evaluated(self, where: str, value: Any, run: Any) -> None:
        if value is True:
            return
        every = run.checkpoint_steps
        rule = "be True or False if Run.checkpoint_secs says when to evaluate"
        checks.require(every is not None, where, rule, value)
        # A run always evaluates its last step.
        evaluated_steps = {*range(every, run.train_steps + 1, every), run.train_steps}
        steps = due.Due.from_setting(value, every)
        assert steps is not None
        rule = f"name steps that are evaluated: multiples of {every}, and {run.train_steps}"
        wrong = [step for step in steps.at if step not in evaluated_steps]
        is_met = bool(steps.at) or any(map(steps.includes, evaluated_steps))
        checks.require(not wrong and is_met, where, rule, value)


def _list_shown(heads: Sequence[types.Head]) -> dict[str, list[types.Head]]:
    """Return {item: heads that the item can show} for matrices and curves."""
    of_rows = [h for h in heads if not types.read_member(h, types.MapHead, "is_dense")]
    with_classes = [h for h in of_rows if types.read_member(h, types.ClassHead, "class_names")]
    one_class = [h for h in with_classes if types.read_member(h, types.ClassHead, "has_one_class")]
    return {
        **dict.fromkeys(MATRICES, one_class),
        **dict.fromkeys(CURVES, with_classes),
    }
