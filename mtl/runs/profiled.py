"""What of a run is profiled, and what is set already that a profile may advise.

profiling = profiled.plan_profile(experiment, place, "runs/a")     # None for nothing
"""

from mtl import checks, distribution
from mtl import experiment as experiment_lib
from mtl.distribution import settings
from mtl.profiling import advice, hook


def plan_profile(
    experiment: experiment_lib.Experiment, place: settings.Place, model_dir: str
) -> hook.Profiling | None:
    """Return what is profiled of a run; None for nothing.

    Args:
      experiment: the run's settings.
      place: of this process.
      model_dir: of the run.

    Raises:
      UserError: steps of other processes come between its own.
    """
    run, surgery = experiment.run, experiment.model.surgery
    if run.profile is None:
        return None
    rule = "be None beside parameter servers, where workers take steps by themselves"
    checks.require(not place.has_servers, "Run.profile", rule, list(run.profile))
    decides_often = getattr(surgery, "every_steps", None) == 1
    is_one = place.strategy == distribution.ONE
    known = advice.Settings(
        steps_per_call=run.steps_per_call if is_one else 1,
        may_repeat=is_one,
        cache=experiment.data.cache,
        combines=decides_often and getattr(surgery, "on", "") == "parameters",
        xla=run.precision.xla,
    )
    return hook.Profiling(run.profile, model_dir, known, traces_ops=place.cluster is None)
