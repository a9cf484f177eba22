"""Warm starts: a run starts from the weights of another run.

experiment.Experiment.warm_start = @transfer.WarmStart()
transfer.WarmStart.source = "runs/pretrained/best"       # a model_dir, a checkpoint, a SavedModel
transfer.WarmStart.exclude = ["^head/"]
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from mtl import checks, deferred, types
from mtl import features as features_lib
from mtl.deferred import compat, tf, tf1
from mtl.files import atomic
from mtl.heads import standardized
from mtl.tf_internals import shards
from mtl.variables import patterns
from mtl.variables import row_names as row_names_lib

with deferred.imports():
    from mtl.transfer import decision, values
    from mtl.transfer import plan as plan_lib
    from mtl.transfer import source as source_lib

_log = logging.getLogger(__name__)

# By default, only variables in these scopes are loaded. Variables in other scopes, such as the
# state of balancing, are not loaded.
SCOPES = ("^features/", "^network/", "^head/")
_FILE = "warm_start.txt"


def forget_warm_start(model_dir: str) -> None:
    """Remove `warm_start.txt`, the record of an earlier warm start, from a model_dir."""
    path = os.path.join(model_dir, _FILE)
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


@checks.dataclass
class WarmStart:
    """Chooses the variables of a new run that start from saved values.

    A warm start affects only the first start of a run; a resumed run reads its own checkpoint.
    Variables that are not in the source, such as a new head, have their usual initial values.
    `global_step` starts at 0. `<model_dir>/warm_start.txt` lists the outcome for each variable, and
    the reason. `python -m launch.warm_start` prints the outcome for each variable before a run.

    Rows are matched by name: rows of an embedding table by token, columns of a last layer by class.
    Runs of this library save the names of rows; set `row_names` for other sources.

    Attributes:
      source: a checkpoint such as "runs/a/model.ckpt-500"; a model_dir, for its latest checkpoint;
        "<model_dir>/best", for its best checkpoint; or an exported SavedModel.
      include: patterns (see `mtl.variables.patterns`) of the variables that are loaded, by their
        names in this run. Each pattern must match a variable in the source.
      exclude: patterns of variables that are not loaded, even if `include` matches them.
      rename: {pattern: replacement}, as in `re.sub`, which converts names in this run into names in
        the source, such as {"^network/trunk/": "network/body/"}. If several patterns match a name,
        only the first pattern applies.
      row_names: {pattern of variables in this run: names of the rows in the source}. The names are
        a list, or a file with one name on each line.
      new_rows: the initial values of rows that are not in the source: "own", values of the
        initialiser; "mean", the mean of all saved rows; "unknown", the mean of the saved rows for
        unknown values, if there are such rows; or "zeros". New rows of optimizer state always have
        their usual initial values.
      slots: True also loads optimizer state.
      statistics: True copies the statistics of the columns (vocabularies and moments), and the
        moments by which heads scale predictions, from the source, which must then be a model_dir.
        If `statistics` is False, the run computes the statistics from the training split.
    """

    source: str
    include: Annotated[Sequence[str], patterns.check_patterns, checks.Filled("hold a pattern")] = (
        SCOPES
    )
    exclude: Annotated[Sequence[str], patterns.check_patterns] = ()
    rename: Annotated[Mapping[str, str], checks.Map("map patterns to replacements")] = (
        dataclasses.field(default_factory=dict)
    )
    row_names: Annotated[Mapping[str, Sequence[str] | str], row_names_lib.check] = (
        dataclasses.field(default_factory=dict)
    )
    new_rows: Annotated[str, checks.OneOf(values.NEW_ROWS)] = "own"
    slots: bool = False
    statistics: bool = False

    def __post_init__(self):
        patterns.check_patterns("WarmStart.rename", list(self.rename))
        replacements = list(self.rename.values())
        checks.texts("WarmStart.rename", replacements, "map patterns to replacements")
        for pattern, replacement in self.rename.items():
            try:
                re.sub(pattern, replacement, "")
            except (re.error, IndexError) as error:
                where, rule = f"WarmStart.rename[{pattern!r}]", "be a replacement as in re.sub"
                checks.fail(where, rule, replacement, f"It has a mistake: {error}.")
        patterns.check_patterns("WarmStart.row_names", list(self.row_names))

    def check_source(self, model_dir: str) -> None:
        """Check that the source is not the run itself.

        Args:
          model_dir: the folder of this run.

        Raises:
          UserError: the source is `model_dir`, its folder "best", or a checkpoint in one of them.
        """
        root, source = os.path.abspath(model_dir), os.path.abspath(self.source)
        # A checkpoint is a prefix of file names in a folder, not a folder.
        own_folders = (root, os.path.join(root, "best"))
        is_own = (
            source in own_folders
            or os.path.dirname(source) in own_folders
            and not tf.io.gfile.isdir(source)
        )
        fix = "A run continues from its own checkpoints. Give the new run another --model_dir."
        rule = f"lie outside of --model_dir {model_dir}"
        checks.require(not is_own, "WarmStart.source", rule, self.source, fix)

    def take_statistics(
        self, directory: str, columns: Sequence[types.Column], heads: Sequence[types.Head]
    ) -> None:
        """Copy the statistics of columns and heads from the source, if `statistics` is True.

        Args:
          directory: the folder of this run's statistics.
          columns: the columns of this run.
          heads: the heads of this run; moments of labels are copied if the source has them.

        Raises:
          UserError: the source has no statistics, or computed them with other settings.
        """
        names = features_lib.list_fitted(columns)
        if self.statistics and (names or standardized.list_moments(heads)):
            statistics, fix = self._find_statistics(), "Set WarmStart.statistics = False."
            rule = "be a model_dir with statistics, because WarmStart.statistics is True"
            is_run = tf.io.gfile.isdir(statistics)
            checks.require(is_run, "WarmStart.source", rule, self.source, fix)
            fix = "Set WarmStart.statistics = False, or copy the settings of the column."
            names += _find_moments(heads, statistics)
            features_lib.adopt_statistics(names, statistics, directory, fix)

    def require_statistics(
        self, directory: str, columns: Sequence[types.Column], heads: Sequence[types.Head]
    ) -> None:
        """Fail if columns or heads have other statistics than in the source.

        Args:
          directory: the folder of this run's statistics.
          columns: the columns of this run.
          heads: the heads of this run, of which the source may lack some.

        Raises:
          UserError: the statistics of a column or head differ.
        """
        statistics = self._find_statistics()
        names = [*features_lib.list_fitted(columns), *_find_moments(heads, statistics)]
        differing = features_lib.list_differing(names, statistics, directory)
        rule = f"be True, because old tasks need the statistics of {', '.join(differing[:3])} there"
        checks.require(not differing, "WarmStart.statistics", rule, self.statistics)

    def _find_statistics(self) -> str:
        run = source_lib.open_source("WarmStart.source", self.source).directory
        return os.path.join(run, "statistics")

    def prepare(self, plan: plan_lib.Plan, model_dir: str) -> None:
        """Log and write the plan of a warm start, and write the values of moved rows.

        Raises:
          UserError: the source is damaged.
        """
        _log.info("%s", plan.summary())
        atomic.write(os.path.join(model_dir, _FILE), plan.table() + "\n")
        values.write_rows(plan, self.new_rows, model_dir)

    def warm_model_fn(
        self,
        model_fn: Callable[..., Any],
        named: Mapping[str, types.RowNames],
        model_dir: str,
    ) -> Callable[..., Any]:
        """Return a `model_fn` whose training graph starts from the source; call `prepare` first.

        Args:
          model_fn: a `model_fn` of Estimator, with the arguments features, labels and mode.
          named: {scope: names of the rows in this run}.
          model_dir: the folder of this run, where `prepare` has written moved rows.
        """

        def start_warm(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
            spec = model_fn(features, labels, mode)
            # Evaluations and exports read the checkpoint of this run.
            if mode == compat.estimator.ModeKeys.TRAIN:
                values.initialize_variables(self.plan(tf1.global_variables(), named), model_dir)
            return spec

        return start_warm

    def plan(
        self, variables: Sequence[tf.Variable], named: Mapping[str, types.RowNames]
    ) -> plan_lib.Plan:
        """Decide for each variable which saved value it starts from.

        Args:
          variables: the variables of a training graph, with optimizer state.
          named: {scope: names of the rows in this run}.

        Raises:
          UserError: the source is missing, a pattern matches nothing, or a shape differs.
        """
        source = source_lib.open_source("WarmStart.source", self.source)
        # The shapes of variables include optimizer state. The name of a slot begins with the name
        # of its variable.
        shapes = {
            patterns.variable_name(variable): shards.whole_shape(variable) for variable in variables
        }
        trained = {patterns.variable_name(variable) for variable in tf1.trainable_variables()}
        decisions = decision.Decision(self, source, shapes, named, trained)
        model_names = [name for name in shapes if not decisions.is_optimizers(name)]
        for setting in ("exclude", "rename", "row_names"):
            for pattern in getattr(self, setting):
                patterns.select_variables(f"WarmStart.{setting}", pattern, model_names)
        plan = plan_lib.Plan([decisions.entry(name) for name in shapes], source)
        self._require_matches(plan, model_names)
        return plan

    def _require_matches(self, plan: plan_lib.Plan, model_names: Sequence[str]) -> None:
        """Check that each pattern of `include`, or one default pattern, matches a variable."""
        warmed_names = [entry.name for entry in plan.warmed()]
        is_default = tuple(self.include) == SCOPES
        # A single default pattern may match nothing, for example if all heads are new.
        for pattern in ["|".join(SCOPES)] if is_default else self.include:
            candidates = patterns.select_variables("WarmStart.include", pattern, model_names)
            is_matched = any(patterns.matches(pattern, name) for name in warmed_names)
            rule = f"match a variable of {plan.source.path}"
            fix = _explain_unmatched(plan, candidates[0])
            checks.require(is_matched, "WarmStart.include", rule, pattern, fix)


def _find_moments(heads: Sequence[types.Head], statistics: str) -> list[str]:
    """Return the names of the moments by which heads scale predictions, of those in a folder."""
    known = features_lib.load_statistics(statistics).entries
    return [name for name in standardized.list_moments(heads) if name in known]


def _explain_unmatched(plan: plan_lib.Plan, name: str) -> str:
    """Return the reason why a variable does not start from a saved value."""
    if name not in plan.source.shapes:
        return f"The source lacks {name!r}. {checks.nearest(name, plan.source.shapes)}".strip()
    reason = next(entry.why for entry in plan.entries if entry.name == name)
    return f"{name!r} is not warmed: {reason}."
