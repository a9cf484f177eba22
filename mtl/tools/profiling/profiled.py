"""Attaches a profiler to a run, which profiles some of its training steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from mtl import checks, deferred, distribution, types
from mtl import experiment as experiment_lib
from mtl.distribution import settings
from mtl.tools.profiling import advice

with deferred.imports():
    from mtl.tools.profiling import hook


@checks.dataclass
class Profile:
    """Profiles some steps, and writes how they use time and memory (docs/profiling.md).

    `Run.profile` adds this part to a run.

    Attributes:
      steps: [first, last], the global steps at which the profile begins and ends.
    """

    steps: Annotated[Sequence[int], types.check_span]

    def __call__(self, run: types.ObservedRun) -> Profiled:
        """Return the observer that profiles a run.

        Raises:
          UserError: the run uses parameter servers, whose workers take steps independently.
        """
        rule = "be left out with parameter servers, whose workers take steps independently"
        checks.require(not run.place.has_servers, "Run.profile", rule, list(self.steps))
        run_settings = _read_settings(run.experiment, run.place)
        # In a cluster, the profile leaves out memory and small ops (docs/profiling.md).
        traces_ops = run.place.cluster is None
        return Profiled(
            hook.Profiling(self.steps, run.model_dir, run_settings, traces_ops=traces_ops)
        )

    def check_experiment(self, experiment: experiment_lib.Experiment) -> None:
        """Fail if the run ends before the last step of the profile.

        Raises:
          UserError: `steps` ends after `Run.train_steps`.
        """
        train_steps = experiment.run.train_steps
        rule = f"end at Run.train_steps, {train_steps}, or before"
        checks.require(self.steps[1] <= train_steps, "Profile.steps", rule, self.steps)


class Profiled(types.RunObserver):
    """Profiles the steps between two global steps.

    Args:
      profiling: the profile to write.
    """

    def __init__(self, profiling: hook.Profiling):
        self._profiling = profiling
        # Session calls of several steps must end at the steps in `due_at`, so that the profile has
        # whole calls only.
        self.due_at = tuple(profiling.due_at)
        self.seen_at = tuple(range(profiling.begin, profiling.end))

    def build_hooks(
        self, result: Any, metrics: Callable[[], Mapping[str, Any] | None]
    ) -> types.RunHooks:
        # This hook comes first, so that the time in other hooks counts as
        # time between session calls.
        return types.RunHooks(first=[self._profiling.build_hook(result)])

    def close(self) -> None:
        self._profiling.close()


def _read_settings(experiment: experiment_lib.Experiment, place: settings.Place) -> advice.Settings:
    """Return the settings of a run that the advice in its profile may suggest to change."""
    run, surgery = experiment.run, experiment.model.surgery
    # A surgery without the setting `every_steps` cannot decide less often.
    decides_often = getattr(surgery, "every_steps", None) == 1
    is_one = place.strategy == distribution.ONE
    return advice.Settings(
        steps_per_call=run.steps_per_call if is_one else 1,
        may_repeat=is_one,
        cache=experiment.data.cache or experiment.data.starts_anywhere,
        combines=decides_often and getattr(surgery, "on", "") == "parameters",
        xla=run.precision.xla,
    )
