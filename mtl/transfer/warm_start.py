"""Starts a run from the weights of another one.

experiment.Experiment.warm_start = @transfer.WarmStart()
transfer.WarmStart.source = "runs/pretrained/best"       # a model_dir, a checkpoint, a SavedModel
transfer.WarmStart.exclude = ["^head/"]
"""

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import checks, compat, types
from mtl import features as features_lib
from mtl.compat import shards
from mtl.files import atomic
from mtl.transfer import decision, values
from mtl.transfer import plan as plan_lib
from mtl.transfer import source as source_lib
from mtl.variables import patterns
from mtl.variables import row_names as row_names_lib

tf1 = tf.compat.v1
_log = logging.getLogger(__name__)

# The scopes of what is learned; the state of the balancing belongs to a run.
SCOPES = ("^features/", "^network/", "^head/")
_FILE = "warm_start.txt"


def forget_warm_start(model_dir: str) -> None:
    """Remove what tells how an earlier run in `model_dir` started."""
    path = os.path.join(model_dir, _FILE)
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Chooses which variables start from saved values, and finds these.

    It acts on the first start of a run: one that goes on reads its own checkpoint. What the source
    lacks, such as a new head, starts as without it. `global_step` starts at 0. What happens to
    which variable, and why, lies in `<model_dir>/warm_start.txt`; `python -m launch.warm_start`
    tells beforehand.

    Rows follow their names: a row of an embedding its token, a column of a last layer its class,
    wherever they stand now. Runs of this library keep the names; for others give `row_names`.

    Attributes:
      source: a model_dir, whose latest checkpoint counts ("<model_dir>/best" is one too), a
        checkpoint such as "runs/a/model.ckpt-500", or an exported SavedModel.
      include: patterns (see `mtl.variables.patterns`) of what is warm-started, in the names here.
        Each must find a variable that the source holds.
      exclude: patterns of what is not, though it is included.
      rename: {pattern here: its replacement there}, as of `re.sub`, for what has another name in
        the source: {"^network/trunk/": "network/body/"}. The first that matches counts.
      row_names: {pattern here: the names of the rows there}, a list or a file with one a line.
      new_rows: what rows without an old one start from: "own", as without a warm start; "mean" of
        the old rows; "unknown", the mean of the old rows of unknown names where there are any; or
        "zeros". Rows of an optimizer's state always start as without a warm start.
      slots: True if the optimizer's state goes over as well.
      statistics: True if the columns keep what they learned of the source's training split, its
        vocabularies and moments, in place of learning from this run's. Needs a model_dir.
    """

    source: str
    include: Sequence[str] = SCOPES
    exclude: Sequence[str] = ()
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    row_names: Mapping[str, Sequence[str] | str] = dataclasses.field(default_factory=dict)
    new_rows: str = "own"
    slots: bool = False
    statistics: bool = False

    def __post_init__(self):
        checks.is_a("WarmStart.source", self.source, str, "be a path")
        patterns.check_patterns("WarmStart.include", self.include)
        checks.require(len(self.include) > 0, "WarmStart.include", "hold a pattern", self.include)
        patterns.check_patterns("WarmStart.exclude", self.exclude)
        checks.mapping("WarmStart.rename", self.rename, "map patterns to replacements")
        patterns.check_patterns("WarmStart.rename", list(self.rename))
        replacements = list(self.rename.values())
        checks.texts("WarmStart.rename", replacements, "map patterns to replacements")
        row_names_lib.check("WarmStart.row_names", self.row_names)
        patterns.check_patterns("WarmStart.row_names", list(self.row_names))
        checks.one_of("WarmStart.new_rows", self.new_rows, values.NEW_ROWS)
        for setting in ("slots", "statistics"):
            checks.is_a(f"WarmStart.{setting}", getattr(self, setting), bool, "be True or False")

    def check_source(self, model_dir: str) -> None:
        """Fail if the source is the run itself, whose checkpoints training goes on from anyway."""
        root, given = os.path.abspath(model_dir), os.path.abspath(self.source)
        own = (root, os.path.join(root, "best"))
        is_own = given in own or os.path.dirname(given) in own and not tf.io.gfile.isdir(given)
        fix = "A run goes on from its own checkpoints; give the new one a --model_dir of its own."
        rule = f"lie outside of --model_dir {model_dir}"
        checks.require(not is_own, "WarmStart.source", rule, self.source, fix)

    def take_statistics(self, directory: str, columns: Sequence[types.Column]) -> None:
        """Put what the columns learned in the source into `directory`, if that is asked for.

        Raises:
          UserError: if there they learned nothing, or with other settings.
        """
        if self.statistics:
            run = source_lib.open_source("WarmStart.source", self.source).directory
            names = [name for column in columns for name in column.accumulators()]
            features_lib.adopt_statistics(names, os.path.join(run, "statistics"), directory)

    def prepare(self, plan: plan_lib.Plan, model_dir: str) -> None:
        """Say what is planned for the variables of this graph, and write rows that have moved.

        Raises:
          UserError: if the source is damaged.
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
        """Return `model_fn`, whose training graph starts from the source, after `prepare`."""

        def warmed(features: Any, labels: Any, mode: str) -> compat.estimator.EstimatorSpec:
            spec = model_fn(features, labels, mode)
            if mode == compat.estimator.ModeKeys.TRAIN:
                values.initialize_variables(self.plan(tf1.global_variables(), named), model_dir)
            return spec

        return warmed

    def plan(
        self, variables: Sequence[tf.Variable], named: Mapping[str, types.RowNames]
    ) -> plan_lib.Plan:
        """Decide for every variable.

        Args:
          variables: of a training graph, with those of the optimizer.
          named: {scope: what the rows stand for} here.

        Raises:
          UserError: if there is no source, a pattern finds nothing, or a shape differs.
        """
        source = source_lib.open_source("WarmStart.source", self.source)
        shapes = {
            patterns.variable_name(variable): shards.whole_shape(variable) for variable in variables
        }
        model_names = [name for name in shapes if not decision.is_optimizers(name, shapes)]
        for setting in ("exclude", "rename", "row_names"):
            for pattern in getattr(self, setting):
                patterns.select_variables(f"WarmStart.{setting}", pattern, model_names)
        deciding = decision.Decision(self, source, shapes, named)
        plan = plan_lib.Plan([deciding.entry(name) for name in shapes], source)
        self._require_found(plan, model_names)
        return plan

    def _require_found(self, plan: plan_lib.Plan, model_names: Sequence[str]) -> None:
        """Fail unless every pattern of `include` finds something; of the default ones some may."""
        warmed = [entry.name for entry in plan.warmed()]
        is_default = tuple(self.include) == SCOPES
        for pattern in ["|".join(SCOPES)] if is_default else self.include:
            chosen = patterns.select_variables("WarmStart.include", pattern, model_names)
            found = any(patterns.matches(pattern, name) for name in warmed)
            rule = f"find a variable of {plan.source.path}"
            there = checks.nearest(chosen[0], plan.source.shapes)
            fix = f"It lacks {chosen[0]!r}. {there}".strip()
            checks.require(found, "WarmStart.include", rule, pattern, fix)
