"""The parts of a model: the settings of a gin file, their checks, and values derived from them."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from mtl import checks, deferred, types
from mtl import features as features_lib
from mtl.auxiliary import emitted as emitted_losses
from mtl.balancing import balanced
from mtl.balancing import surgery as surgery_lib
from mtl.balancing import weighting as weighting_lib
from mtl.heads import metrics as metrics_lib
from mtl.heads import slices as slices_lib
from mtl.layers import quantization as quantization_lib
from mtl.sparsity import pruning as pruning_lib
from mtl.variables import freezing as freezing_lib
from mtl.variables import row_names as row_names_lib

with deferred.imports():
    from mtl import mixing as mixing_lib
    from mtl.auxiliary import pass_losses

_LOSSES = ("loss", "average_loss")
_OF_ALL_TASKS = (*_LOSSES, "global_step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The columns, network, heads, balancing, update and further settings of a model.

    Attributes:
      columns: the columns, which turn features into the network's inputs; variable scope
        `features/<column>`.
      network: the network, which turns the inputs into one output (tower) for each task; variable
        scope `network`.
      heads: the heads, one for each task; variable scope `head/<task>`. A block, such as
        `heads.Block`, stands for all its heads.
      update: clips the gradients, and changes the variables by them.
      weighting: scales the losses of the tasks; variable scope `balancing`. Equal weights by
        default.
      surgery: combines the tasks' gradients; a plain sum by default.
      freezing: keeps variables constant, for the whole run or up to a step; no variables by
        default.
      quantization: rounds weights and inputs to few values; None by default.
      pruning: sets weights to 0 during training; no weights by default.
      mixing: mixes the rows of a batch in training, such as `mixing.Mixup`; None by default. With
        mixing, every head must compute a loss for each row, as `types.ExampleHead` does.
      auxiliary_losses: losses without a head, such as `auxiliary.VirtualAdversarial`. Only training
        computes auxiliary losses, and balances them like the losses of tasks; their variables are
        in the scope `auxiliary/<name>`.
      slices: {field: values} of features or labels. Evaluations repeat every metric for the rows
        with each value, as `income/auc@country=DE`. A pair of numbers (from, to) stands for values
        of at least the first number and below the second: `@age=30..40`. `None` in place of a
        number means no limit.
      combined_metrics: metrics that an evaluation computes from metrics of several tasks, such as
        `combined.MeanGain`.
      extensions: functions that make extensions of every training step, see `types.StepExtension`.
        Parts in other settings of the model, such as `pruning`, add their own extensions.
    """

    columns: Sequence[types.Column]
    network: types.Network
    heads: Sequence[types.Head]
    update: types.Update
    weighting: types.Weighting = weighting_lib.Equal()
    surgery: types.Surgery = surgery_lib.Sum()
    freezing: freezing_lib.Freezing = freezing_lib.Freezing()
    quantization: quantization_lib.Quantization | None = None
    pruning: Sequence[pruning_lib.Pruning] = ()
    mixing: types.Mixing | None = None
    auxiliary_losses: Sequence[types.AuxiliaryLoss] = ()
    slices: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    combined_metrics: Sequence[types.CombinedMetric] = ()
    extensions: Sequence[types.MakeExtension] = ()

    def __post_init__(self):
        for setting, (arguments, example) in _CALLED.items():
            where, value = f"MultiTaskModel.{setting}", getattr(self, setting)
            checks.require_part(where, value, example, arguments)
        for setting, (kind, example) in _BUILT.items():
            where, rule = f"MultiTaskModel.{setting}", f"be built, such as @{example}()"
            checks.is_a(where, getattr(self, setting), kind, rule)
        for setting, (arguments, example) in _LISTS.items():
            where, parts = f"MultiTaskModel.{setting}", getattr(self, setting)
            checks.is_a(where, parts, (list, tuple), f"be a list, such as [@{example}()]")
            for part in parts:
                checks.require_part(where, part, example, arguments)
        checks.is_a("MultiTaskModel.heads", self.heads, (list, tuple), "be a list")
        object.__setattr__(self, "heads", _list_heads(self.heads))
        self._check_heads()
        example = "be a list, such as [@pruning.Pruning()]"
        checks.is_a("MultiTaskModel.pruning", self.pruning, (list, tuple), example)
        for part in self.pruning:
            checks.is_a("MultiTaskModel.pruning", part, pruning_lib.Pruning, example)
        slices_lib.check("MultiTaskModel.slices", self.slices)
        self._check_combined_metrics()
        self._check_auxiliary_losses()
        self._check_composed()
        if self.mixing is not None:
            self._check_mixing()
        for head in self.heads:
            if types.read_member(head, types.MapHead, "is_dense"):
                self._check_places(head)
        types.check_parts(self._all_parts, "check_model", self)

    def check_experiment(self, experiment: Any) -> None:
        """Fail unless the data has the fields and the sampler that the model needs.

        Args:
          experiment: the `experiment.Experiment` of the run.

        Raises:
          UserError: the data lacks a field that a part of the model names, sampler and loss balance
            the same label, or a head needs whole groups that the sampler does not form.
        """
        spec, sampler = experiment.data.spec, experiment.data.sampler
        for field in self.slices:
            checks.one_of("MultiTaskModel.slices", field, spec.fields)
        for part in self.auxiliary_losses:
            for field in types.read_member(part, types.AuxiliaryLoss, "label_fields"):
                where = f"the label that the auxiliary loss {part.name!r} reads"
                checks.one_of(where, field, spec.labels)
        for head in self.heads:
            where = f"{type(head).__name__}.calibration_slices of task {head.name!r}"
            for field in getattr(head, "calibration_slices", ()):
                checks.one_of(where, field, spec.feature_fields)
            types.read_member(head, types.CheckingHead, "check_fields")(spec)
            _check_sampler(sampler, head)

    def _check_heads(self) -> None:
        """Check that there are columns and heads, and that the tasks' names differ."""
        for setting in ("columns", "heads"):
            value = getattr(self, setting)
            checks.require(bool(value), f"MultiTaskModel.{setting}", "not be empty", value)
        for head in self.heads:
            is_head = hasattr(head, "logits") and hasattr(head, "metrics")
            rule = "hold heads such as @heads.Binary()"
            checks.require(is_head, "MultiTaskModel.heads", rule, head)
            for name, higher in types.read_member(head, types.Head, "directions").items():
                where = f"directions[{name!r}] of head {head.name!r}"
                checks.is_a(where, higher, bool, "be True or False")
        checks.unique("MultiTaskModel.heads", self.tasks)

    def _check_combined_metrics(self) -> None:
        """Check that each entry is a combined metric, and that the names differ."""
        where, rule = "MultiTaskModel.combined_metrics", "be a list, such as [@combined.MeanGain()]"
        checks.is_a(where, self.combined_metrics, (list, tuple), rule)
        for part in self.combined_metrics:
            checks.has(where, part, ["name", "metrics", "combine"], rule)
            of_part = f"{type(part).__name__}.higher_is_better"
            better = getattr(part, "higher_is_better", None)
            checks.is_a(of_part, better, bool, "be True or False")
        checks.unique(where, [*_OF_ALL_TASKS, *(part.name for part in self.combined_metrics)])

    def _check_auxiliary_losses(self) -> None:
        """Check that each auxiliary loss suits the heads, and that the names differ."""
        where = "MultiTaskModel.auxiliary_losses"
        checks.is_a(where, self.auxiliary_losses, (list, tuple), "be a list")
        for part in self.auxiliary_losses:
            example = "auxiliary.VirtualAdversarial"
            checks.require_part(where, part, example, arguments=1, attributes=["name"])
            types.read_member(part, types.AuxiliaryLoss, "check")(self.heads_by_task)
            rule = f"keep averages, which the auxiliary loss {part.name!r} reads"
            fix = "Set Update.average = @averaging.ExponentialAverage()."
            reads = types.read_member(part, types.AuxiliaryLoss, "reads_average")
            average = types.read_member(self.update, types.Update, "average")
            checks.require(not reads or average is not None, "Update.average", rule, average, fix)
        names = [*self.tasks, *(part.name for part in self._all_losses)]
        checks.unique(f"MultiTaskModel.heads and {where.partition('.')[2]}", names)

    def _check_composed(self) -> None:
        """Check that the tasks of composed heads exist, and that a loss trains every tower."""
        where, tower_tasks = "MultiTaskModel.heads", self.tower_tasks
        for head in self.heads:
            for task in types.read_member(head, types.ComposingHead, "composes"):
                checks.one_of(f"{where}: a task of {head.name!r}", task, tower_tasks)
        checks.require(bool(self.heads_with_loss), where, "hold a task with a loss", self.tasks)
        teachers = (
            *((head, types.ComposingHead, "composes") for head in self.heads_with_loss),
            *((part, types.AuxiliaryLoss, "teaches") for part in self.built_losses),
        )
        taught = {task for teacher in teachers for task in types.read_member(*teacher)}
        for task in sorted(set(tower_tasks) - set(self.loss_names) - taught):
            rule = f"hold a loss that trains the task {task!r}, whose head has no loss"
            fix = "Train the task by a heads.Joint, or an auxiliary loss such as InversePropensity."
            checks.fail(where, rule, list(self.loss_names), fix)

    def _check_mixing(self) -> None:
        """Check that every head and auxiliary loss can train on mixed rows."""
        where = "MultiTaskModel.mixing"
        checks.require_part(where, self.mixing, "mixing.Mixup", arguments=1)
        for head in self.heads:
            rule = f"be None, as the loss of head {head.name!r} is not a sum over rows"
            knows = isinstance(head, types.ExampleHead)
            checks.require(knows, where, rule, self.mixing, f"It is {type(head).__name__}.")
        for part in self.built_losses:
            rule = f"be None, as the auxiliary loss {part.name!r} reads labels of rows"
            reads = types.read_member(part, types.AuxiliaryLoss, "reads_labels")
            checks.require(not reads, where, rule, self.mixing)

    def _check_places(self, head: types.Head) -> None:
        """Check that neither augmentations nor mixing move an image apart from its label map."""
        for part in (p for column in self.columns for p in getattr(column, "augmentations", ())):
            moves = types.read_member(part, types.Augmentation, "moves_pixels")
            rule = f"not move pixels, as the label map of task {head.name!r} would stay in place"
            checks.require(not moves, "Image.augmentations", rule, type(part).__name__)
        if self.mixing is not None:
            rule = f"mix all pixels alike, as task {head.name!r} has a label for each pixel"
            is_even = types.read_member(self.mixing, types.Mixing, "is_even")
            fix = "mixing.Mixup has the same share for all pixels."
            checks.require(is_even, "MultiTaskModel.mixing", rule, self.mixing, fix)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in the order of the heads."""
        return tuple(head.name for head in self.heads)

    @property
    def tower_tasks(self) -> tuple[str, ...]:
        """The tasks with a tower (output of the network); other heads combine logits of tasks."""
        return tuple(
            h.name for h in self.heads if not types.read_member(h, types.ComposingHead, "composes")
        )

    @property
    def heads_with_loss(self) -> Sequence[types.Head]:
        """The heads that have a loss in training."""
        return [
            head for head in self.heads if types.read_member(head, types.UnlabelledHead, "has_loss")
        ]

    @property
    def heads_by_task(self) -> dict[str, types.Head]:
        """The head of each task, {task: head}, in the order of the heads."""
        return {head.name: head for head in self.heads}

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The names of all training losses: tasks with a loss, then auxiliary losses."""
        tasks = (head.name for head in self.heads_with_loss)
        return (*tasks, *(part.name for part in self.built_losses))

    @functools.cached_property  # Cached: the search goes through all parts.
    def _all_losses(self) -> Sequence[types.AuxiliaryLoss]:
        """All auxiliary losses: of the setting `auxiliary_losses`, then of columns and network."""
        emitted = emitted_losses.find_losses([*self.columns, self.network])
        return [*self.auxiliary_losses, *emitted]

    @property
    def built_losses(self) -> Sequence[types.AuxiliaryLoss]:
        """The auxiliary losses that a step computes: all losses without a constant weight of 0."""
        losses = self._all_losses
        weights = (types.read_member(p, types.AuxiliaryLoss, "weight") for p in losses)
        return [
            part
            for part, weight in zip(losses, weights, strict=True)
            if callable(weight) or weight != 0
        ]

    def extend_pass(self, training: bool) -> list[types.PassExtension]:
        """Make the extensions of a forward pass: auxiliary losses and mixing of rows.

        Args:
          training: True for training mode; only training mixes rows.
        """
        extensions: list[types.PassExtension] = []
        if self.built_losses:
            extensions.append(pass_losses.PassLosses(self, training))
        if self.mixing is not None and training:
            extensions.append(mixing_lib.MixedRows(self.mixing))
        return extensions

    @property
    def heads_of_losses(self) -> Sequence[types.Head]:
        """The heads that auxiliary losses build in addition to the heads of tasks."""
        return [
            head
            for part in self.built_losses
            for head in types.read_member(part, types.AuxiliaryLoss, "own_heads")
        ]

    @property
    def are_rows_apart(self) -> bool:
        """True if the training losses of a row do not depend on other rows of the batch."""
        apart = [types.read_member(h, types.GroupHead, "are_rows_apart") for h in self.heads]
        apart += [
            types.read_member(p, types.AuxiliaryLoss, "are_rows_apart") for p in self.built_losses
        ]
        return self.mixing is None and all(apart)

    @property
    def held(self) -> freezing_lib.Freezing:
        """The setting `freezing`, extended by the variables that the network freezes."""
        return types.read_member(self.network, types.Network, "hold")(self.freezing)

    @property
    def adds_losses(self) -> bool:
        """True if surgery takes the gradient of the sum of the weighted losses."""
        return types.read_member(self.surgery, types.Surgery, "adds_losses")

    @property
    def stacks_tasks(self) -> bool:
        """True if equal tasks may share stacked variables; see `mtl.variables.stacks`.

        Variables can be stacked only if all parts of the model treat every entry of a variable
        independently of other entries.
        """
        parts = [self.network, self.weighting, self.surgery, self.update, self.held]
        parts += [*self.pruning, *self.built_losses]
        optional = [part for part in (self.quantization, self.mixing) if part is not None]
        return types.are_entrywise([*parts, *optional])

    @property
    def _all_parts(self) -> list[Any]:
        """All parts of the model; extensions of earlier parts enclose extensions of later parts."""
        first = (self.pruning, self.columns, self.network, self.heads, self.built_losses)
        last = (self.mixing, self.weighting, self.surgery, self.update, self.combined_metrics)
        return [*first, *last, self.freezing, self.quantization]

    @functools.cached_property  # Cached: the search goes through all parts.
    def step_extensions(self) -> Sequence[types.MakeExtension]:
        """Functions that make extensions of a step: `extensions`, and functions of the parts."""
        parts = types.walk_parts(self._all_parts)
        of_parts = [part.step_extension for part in parts if hasattr(part, "step_extension")]
        return [*self.extensions, *dict.fromkeys(of_parts)]

    @property
    def reads_losses(self) -> bool:
        """True if weighting or surgery depends on the values of the losses."""
        return balanced.read_losses(self.weighting, self.surgery)

    def find_direction(self, metric: str) -> bool | None:
        """Return True if higher values of a metric are better, False if lower values are better.

        Args:
          metric: "loss", "average_loss", "<task>/<metric>", or the name of a combined metric.

        Returns:
          True or False; None if the metric is unknown, or its head declares no direction.
        """
        if metric in _LOSSES:
            return False
        for part in self.combined_metrics:
            if part.name == metric:
                return part.higher_is_better
        task, _, name = metric.partition("/")
        heads = [head for head in self.heads if head.name == task]
        pairs = [pair for head in heads for pair in metrics_lib.find_directions(head, [name])]
        return pairs[0][1] if pairs else None

    def find_main_metrics(self, metrics: Iterable[str]) -> list[str]:
        """Find the main metric of each task, and all combined metrics.

        Args:
          metrics: the names of the metrics to choose from.

        Returns:
          The names among `metrics`: main metrics in the order of the heads, then combined metrics.
          A task is left out if none of its metrics has a known direction.
        """
        metrics = list(metrics)
        names = [metric.partition("/")[::2] for metric in metrics]
        mains = []
        for head in self.heads:
            of_task = [name for task, name in names if task == head.name]
            mains += [
                f"{head.name}/{name}" for name, _ in metrics_lib.find_directions(head, of_task)[:1]
            ]
        return [*mains, *(p.name for p in self.combined_metrics if p.name in metrics)]

    def find_first_final_step(self, train_steps: int) -> int:
        """Return the first global step whose checkpoint has the final sparsity of the pruning.

        Args:
          train_steps: the number of steps of the run.

        Returns:
          The global step; 0 if the model prunes nothing, or if the run ends before the final
          sparsity is reached.
        """
        first = max((part.schedule.last_step + 1 for part in self.pruning), default=0)
        return first if first <= train_steps else 0

    @property
    def column_files(self) -> dict[str, str]:
        """The files named by settings of columns, such as vocabularies, {purpose: path}."""
        maps = (types.read_member(column, types.Column, "files") for column in self.columns)
        return {f"features/{output}": path for files in maps for output, path in files.items()}

    @property
    def training_files(self) -> dict[str, str]:
        """The files that columns, masks and auxiliary losses read, {purpose: path}."""
        entries = self.freezing.entries.items()
        masks = {f"Freezing.entries[{key!r}]": getattr(mask, "path", None) for key, mask in entries}
        other_files = {purpose: path for purpose, path in masks.items() if path}
        for part in self.built_losses:
            files = types.read_member(part, types.AuxiliaryLoss, "files")
            prefix = f"auxiliary/{part.name}"
            other_files |= {f"{prefix}/{purpose}": path for purpose, path in files.items()}
        return {**self.column_files, **other_files}

    def row_names(self, statistics: features_lib.Statistics) -> dict[str, types.RowNames]:
        """Return the names of the rows of tables: the token or the class of each row.

        Args:
          statistics: the statistics of the training split, such as vocabularies.

        Returns:
          {variable scope, such as `features/<column>/` or `head/<task>/`: names}, and the names of
          tasks and auxiliary losses by the keys `row_names.TASKS` and `LOSSES`.
        """
        names_by_scope: dict[str, types.RowNames] = {}
        for column in self.columns:
            by_name = types.read_member(column, types.Column, "row_names")(statistics)
            of_column = {f"features/{name}/": names for name, names in by_name.items()}
            names_by_scope = row_names_lib.join(names_by_scope, of_column)
        for head in self.heads:
            of_head = types.read_member(head, types.NamingHead, "row_names")
            names_by_scope |= {f"head/{head.name}/": of_head} if of_head else {}
        names_by_key = {
            row_names_lib.TASKS: tuple(head.name for head in self.heads),
            row_names_lib.LOSSES: tuple(part.name for part in self.built_losses),
        }
        for key, names in names_by_key.items():
            names_by_scope |= {key: types.RowNames(names=names, axis=0)} if names else {}
        return names_by_scope

    def require_order(
        self, saved: Mapping[str, types.RowNames], statistics: features_lib.Statistics
    ) -> None:
        """Refuse tasks, classes and values with other places than in the variables of a checkpoint.

        Args:
          saved: the names that the run of the checkpoint has saved, as in `row_names.load`.
          statistics: the statistics of this run.

        Raises:
          UserError: a name has another place than in the checkpoint.
        """
        if saved:
            named = self.row_names(statistics)
            # The network and states of balancing need the order of these names.
            del named[row_names_lib.TASKS]
            named.pop(row_names_lib.LOSSES, None)
            row_names_lib.require_order(saved, named)
            self.require_task_order(saved)

    def require_task_order(self, saved: Mapping[str, types.RowNames]) -> None:
        """Refuse tasks in another order than in a checkpoint if the network depends on the order.

        Args:
          saved: the names that the run of the checkpoint has saved, as in `row_names.load`.

        Raises:
          UserError: a task has another place than in the checkpoint.
        """
        pattern = types.read_member(self.network, types.Network, "ordered_variables")
        if pattern:
            tasks = types.RowNames(names=tuple(self.heads_by_task), axis=0)
            fix = (
                f"{type(self.network).__name__} has variables by the places of the tasks. A new "
                f"run may have another order with WarmStart.exclude = [{pattern!r}]."
            )
            row_names_lib.require_order(saved, {row_names_lib.TASKS: tasks}, fix)


def _list_heads(entries: Sequence[types.Head]) -> list[types.Head]:
    """Return a list of heads, in which each block of heads is replaced by its heads."""
    heads: list[types.Head] = []
    for entry in entries:
        # If a gin file names the class without calling it, as `@heads.Block`, a later check refuses
        # it.
        is_block = isinstance(entry, types.HeadBlock) and checks.is_built(entry)
        heads += cast(types.HeadBlock, entry).list_heads() if is_block else [entry]
    return heads


def _check_sampler(sampler: Any, head: types.Head) -> None:
    """Check that sampler and loss do not correct the same imbalance, and that groups stay whole."""
    field = types.read_member(head, types.ClassHead, "balances")
    balances_twice = sampler and sampler.balances and sampler.balances == field
    rule = f"not balance {field!r}, as the loss of {head.name!r} does"
    fix = "Sampler and loss would correct the imbalance twice: leave out one of them."
    checks.require(not balances_twice, "Pipeline.sampler", rule, sampler, fix)
    group = types.read_member(head, types.GroupHead, "whole_groups")
    rule = f"keep all rows of a {group!r} together, because head {head.name!r} ranks them"
    fix = f"Set it to @whole_groups.WholeGroups() with group = {group!r}."
    is_whole = getattr(sampler, "group", None) == group
    checks.require(not group or is_whole, "Pipeline.sampler", rule, sampler, fix)


# Settings with a function or callable object: {setting: (its number of arguments, an example)}.
_CALLED: dict[str, tuple[int, str]] = {
    "network": (3, "networks.SharedBottom"),
    "update": (3, "update.Update"),
    "weighting": (2, "weighting.Equal"),
    "surgery": (3, "surgery.Sum"),
}
_LISTS: dict[str, tuple[int, str]] = {
    "columns": (2, "features.Numeric"),
    "extensions": (3, "your_package.YourExtension"),
}
# Settings with an object that is not called: {setting: (its class, an example)}.
_BUILT: dict[str, tuple[type | tuple[type, ...], str]] = {
    "freezing": (freezing_lib.Freezing, "freezing.Freezing"),
    "quantization": (
        (quantization_lib.Quantization, type(None)),
        "quantization.Quantization",
    ),
}
