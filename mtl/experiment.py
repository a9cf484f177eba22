"""Defines `Experiment`: the settings of data, model and run that a gin file describes.

from mtl import experiment
experiment.Experiment.data = @pipeline.Pipeline()
experiment.Experiment.model = @model.MultiTaskModel()
experiment.Run.train_steps = 1000
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from mtl import checkpoints, checks, transfer, types
from mtl import distribution as distribution_lib
from mtl import model as model_lib
from mtl import serving as serving_lib
from mtl.data import files, pipeline
from mtl.layers import precision as precision_lib
from mtl.transfer import refit as refit_lib


def _check_profile(where: str, steps: Any) -> None:
    types.check_span(where, steps, "be None or two steps, such as [100, 110]")


@checks.dataclass
class Run:
    """Sets how long to train, and when to write files.

    Attributes:
      train_steps: the global step at which training ends.
      checkpoint_steps: save a checkpoint and evaluate it at every multiple of this step.
      checkpoint_secs: save and evaluate a checkpoint whenever this many seconds have passed; set
        either checkpoint_steps or checkpoint_secs, and set the other setting to None.
      keep_checkpoints: how many of the latest checkpoints to keep, besides the best checkpoint.
      summary_steps: write TensorBoard scalars at every multiple of this step.
      steps_per_call: the largest number of training steps in one call of `Session.run`; 1 trains
        without a loop in the graph. A call of `Session.run` also ends at each checkpoint and each
        summary, and after about a second; hooks run once for each call.
      micro_batches: the number of slices of a batch that go through the network one by one, to save
        memory. An update uses the gradients of the whole batch, but batch norm normalises each
        slice separately.
      precision: the number format in which a training step computes the network, and whether XLA
        compiles the network.
      profile: [first, last]: the run profiles time and memory of the training steps after global
        step `first`, up to `last`; None turns profiling off.
      seed: the seed of initial weights, shuffling and dropout.
      check_numerics: True checks every op of every step, and ends the run at the first op that
        turns finite inputs into NaN or infinity, whatever `Update.if_not_finite` says.
    """

    train_steps: checks.Count
    checkpoint_steps: checks.Count | None = 500
    checkpoint_secs: checks.Positive | None = None
    keep_checkpoints: checks.Count = 3
    summary_steps: checks.Count = 100
    steps_per_call: checks.Count = 100
    micro_batches: checks.Count = 1
    precision: Annotated[
        precision_lib.Precision,
        checks.Is(precision_lib.Precision, "be built, such as @precision.Precision()"),
    ] = precision_lib.PLAIN
    profile: Annotated[Sequence[int], _check_profile] | None = None
    seed: int = 1
    check_numerics: bool = False

    def __post_init__(self):
        ends = self.train_steps if self.profile is None else self.profile[1]
        rule = f"end at Run.train_steps, {self.train_steps}, or before"
        checks.require(ends <= self.train_steps, "Run.profile", rule, self.profile)
        checks.require(
            (self.checkpoint_steps is None) != (self.checkpoint_secs is None),
            "Run",
            "set either checkpoint_steps or checkpoint_secs, the other to None",
            (self.checkpoint_steps, self.checkpoint_secs),
        )


@checks.dataclass
class Experiment:
    """Describes a run completely: a gin file builds one experiment.

    Attributes:
      data: the source of examples, and how examples are batched.
      model: the network, its heads and its update.
      run: how long to train, and when to write files.
      best: decides which evaluated checkpoint is the best, and when to stop early.
      refit: a part that computes a new last layer of a head for an already trained network; the run
        then does not train.
      distribution: the devices and processes over which the training divides each batch.
      warm_start: the weights that a new run starts from; None for initial weights.
      serving: what an exported model contains, and how the run checks an export.
      clip_audit: a part that records the norm of the gradient of every example in training; None
        records nothing.
      attack: the part, such as `auxiliary.Adversarial`, that changes the inputs of an evaluation by
        `launch.evaluate --attacked`; training and other evaluations do not use it.
      trackers: services that get the metrics and files of the run, such as `tracking.MLflow`.
      tensorboard: what TensorBoard shows of a training besides scalars; None shows scalars only.
      hooks: your own parts that watch a training; each part builds a `SessionRunHook` of
        TensorFlow.
      observers: your own parts that act beside a training; the run calls each part with a
        `types.ObservedRun`, and the part returns a `types.RunObserver` or None.
    """

    data: pipeline.Pipeline
    model: model_lib.MultiTaskModel
    run: Run
    best: checkpoints.Best = checkpoints.Best()
    refit: Annotated[refit_lib.Refit, checks.Part("refit.TauNormalized", arguments=5)] | None = None
    distribution: distribution_lib.Distribution = distribution_lib.Distribution()
    warm_start: transfer.WarmStart | None = None
    serving: serving_lib.Serving = serving_lib.Serving()
    clip_audit: types.OpenObserver | None = None
    attack: types.Attack | None = None
    trackers: Annotated[Sequence[types.Tracker], types.check_trackers] = ()
    tensorboard: types.OpenObserver | None = None
    hooks: Sequence[types.Hook] = ()
    observers: Sequence[types.OpenObserver] = ()

    def __post_init__(self):
        for name, (kind, example) in _KINDS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                checks.is_a(f"Experiment.{name}", value, kind, f"be built, such as @{example}()")
        if self.attack is not None:
            rule = "be a part such as @auxiliary.Adversarial()"
            checks.has("Experiment.attack", self.attack, ["attack", "check"], rule)
            self.attack.check(self.model.heads_by_task)
        self._check_attached()
        others = [f.name for f in dataclasses.fields(self) if f.name != "data"]
        # Skip the source: it may hold all rows in memory, and rows have no `check_experiment`.
        parts = [self.data.sampler, *(getattr(self, name) for name in others)]
        types.check_parts(parts, "check_experiment", self)

    def _check_attached(self) -> None:
        for name, example in (
            ("clip_audit", "clip_audit.ClipAudit"),
            ("tensorboard", "tensorboard.TensorBoard"),
        ):
            if getattr(self, name) is not None:
                checks.require_part(f"Experiment.{name}", getattr(self, name), example, arguments=1)
        where = "Experiment.observers"
        checks.is_a(where, self.observers, (list, tuple), "be a list of observers")
        for observer in self.observers:
            checks.require_part(where, observer, "your_package.YourObserver", arguments=1)
        where = "Experiment.hooks"
        checks.is_a(where, self.hooks, (list, tuple), "be a list of hooks")
        for hook in self.hooks:
            checks.require_part(where, hook, "your_package.YourHook", arguments=1)
            every = types.read_member(hook, types.Hook, "every_steps")
            checks.whole(f"{type(hook).__name__}.every_steps", every, 1)

    @property
    def files_read(self) -> list[str]:
        """The paths of data and other input files of the run, which outputs must not overwrite."""
        return [*files.named_by(self.data.source), *self.model.training_files.values()]


_KINDS: dict[str, tuple[type, str]] = {
    "data": (pipeline.Pipeline, "pipeline.Pipeline"),
    "model": (model_lib.MultiTaskModel, "model.MultiTaskModel"),
    "run": (Run, "experiment.Run"),
    "best": (checkpoints.Best, "checkpoints.Best"),
    "distribution": (distribution_lib.Distribution, "distribution.Distribution"),
    "serving": (serving_lib.Serving, "serving.Serving"),
    "warm_start": (transfer.WarmStart, "transfer.WarmStart"),
}
_OPTIONAL = ("warm_start",)
