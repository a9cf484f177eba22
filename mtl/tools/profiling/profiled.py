"""The profile of a run's steps, and which settings a profile need not advise."""

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
    """Profiles some steps, and writes how their time and memory are used (docs/profiling.md).

    `Run.profile` adds such a part.

    Attributes:
      steps: [first, last]: profiles the steps between these two global steps.
    """

    steps: Annotated[Sequence[int], types.check_span]

    def __call__(self, run: types.ObservedRun) -> Profiled:
        """Return the observer that profiles a run.

        Raises:
          UserError: other processes take steps in between, or the run ends earlier.
        """
        rule = "be left out beside parameter servers, where workers take steps by themselves"
        checks.require(not run.place.has_servers, "Run.profile", rule, list(self.steps))
        known = _list_known(run.experiment, run.place)
        # docs/profiling.md: in a cluster, the profile lacks memory and small ops.
        traces_ops = run.place.cluster is None
        return Profiled(hook.Profiling(self.steps, run.model_dir, known, traces_ops=traces_ops))

    def check_experiment(self, experiment: experiment_lib.Experiment) -> None:
        """Fail if the run ends before the last step."""
        last = experiment.run.train_steps
        rule = f"end at Run.train_steps, {last}, or before"
        checks.require(self.steps[1] <= last, "Profile.steps", rule, self.steps)


class Profiled(types.RunObserver):
    """Profiles the steps between two global steps.

    Args:
      profiling: the steps, and the folder of the profile.
    """

    def __init__(self, profiling: hook.Profiling):
        self._profiling = profiling
        # Calls of several steps end there, so that a call lies within the profile or outside of it.
        self.due_at = tuple(profiling.due_at)
        self.seen_at = tuple(range(profiling.begin, profiling.end))

    def build_hooks(
        self, result: Any, metrics: Callable[[], Mapping[str, Any] | None]
    ) -> types.RunHooks:
        # Before all others, so that the time of other hooks lies between the marks of two calls.
        return types.RunHooks(first=[self._profiling.build_hook(result)])

    def close(self) -> None:
        self._profiling.close()


def _list_known(experiment: experiment_lib.Experiment, place: settings.Place) -> advice.Settings:
    """Return the settings of a run that advice from a profile could change."""
    run, surgery = experiment.run, experiment.model.surgery
    # Only surgeries with this setting can decide less often.
    decides_often = getattr(surgery, "every_steps", None) == 1
    is_one = place.strategy == distribution.ONE
    return advice.Settings(
        steps_per_call=run.steps_per_call if is_one else 1,
        may_repeat=is_one,
        cache=experiment.data.cache,
        combines=decides_often and getattr(surgery, "on", "") == "parameters",
        xla=run.precision.xla,
    )
