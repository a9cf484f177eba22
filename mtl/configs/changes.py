"""Reports changed settings of a continued run, once, when it starts.

changes.tell(experiment, "runs/a")
"""

from __future__ import annotations

import logging

from mtl import checks, deferred
from mtl.configs import config, places, trust

with deferred.imports():
    from mtl import experiment as experiment_lib
    from mtl import types
    from mtl.checkpoints import flat_settings, run_directory

_log = logging.getLogger("mtl")
_SHOWN = 3


def tell(experiment: experiment_lib.Experiment, model_dir: str) -> None:
    """Warn if a run goes on with settings that differ from its saved ones."""
    if run_directory.find_latest(model_dir) is None:
        return
    # Comparing may only import packages that the program already uses.
    parts = list(types.walk_parts(experiment))
    modules = [type(part).__module__ for part in parts]
    modules += [name for part in parts for name in getattr(part, "modules", {}).values()]
    known = {module.partition(".")[0] for module in modules}
    # Settings are only compared; files and servers that they name stay unopened.
    trusted = trust.Trusted(sorted(known), places.REFUSED)
    try:
        # Loading replaces gin's bindings, which functions of the present run still look up.
        with config.isolated():
            file = config.saved_in(model_dir)
            before = config.load([file], (), trusted)
    except checks.UserError:  # The saved file is missing, or cannot be built any more.
        return
    changed = flat_settings.compare({"before": before, "now": experiment})
    if changed:
        told = [f"{k} was {flat_settings.cut(v['before'], 60)}" for k, v in changed.items()]
        step = run_directory.step_of(model_dir)
        message = "%s goes on from step %d, with other settings: %s. Another folder starts anew."
        more = [f"and {len(told) - _SHOWN} more"] * (len(told) > _SHOWN)
        _log.warning(message, model_dir, step, ", ".join([*told[:_SHOWN], *more]))
