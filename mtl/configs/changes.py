"""Reports changed settings when a run continues.

changes.tell(experiment, "runs/a")
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence

from mtl import checks, deferred
from mtl.configs import config, places, trust
from mtl.deferred import tf
from mtl.files import storage

with deferred.imports():
    from mtl import experiment as experiment_lib
    from mtl import types
    from mtl.checkpoints import flat_settings, run_directory
    from mtl.runs import failures

_log = logging.getLogger("mtl")
_SHOWN = 3


def tell(
    experiment: experiment_lib.Experiment, model_dir: str, trusted_packages: Sequence[str] = ()
) -> None:
    """Warn if a run continues with settings that differ from its saved settings.

    Args:
      experiment: the experiment with which the run continues.
      model_dir: the folder of the run. Without a checkpoint, or without saved settings, there is no
        warning.
      trusted_packages: packages that the saved settings may use, besides those of `experiment`.
    """
    if run_directory.find_latest(model_dir) is None or not config.is_saved(model_dir):
        return
    step = run_directory.step_of(model_dir)
    # To build the saved settings, trust only packages that this program already uses, or that the
    # user names.
    parts = list(types.walk_parts(experiment))
    modules = [type(part).__module__ for part in parts]
    modules += [name for part in parts for name in getattr(part, "modules", {}).values()]
    packages = {*trusted_packages, *(module.partition(".")[0] for module in modules)} - {"mtl"}
    # All settings are allowed, because they are only compared: no file or server is opened.
    trusted = trust.Trusted(sorted(packages), places.REFUSED)
    try:
        # Loading replaces the bindings of gin, which functions of the new run still need.
        with config.isolated():
            file = config.saved_in(model_dir)
            before = config.load([file], (), trusted)
    except checks.UserError as error:  # Of other packages, damaged, or of parts that are gone.
        message = "%s goes on from step %d, maybe with other settings: its config.gin, which may "
        message += "use only packages of the new settings, cannot be compared. %s."
        _log.warning(message, model_dir, step, str(error).partition(". ")[0])
        return
    changes = flat_settings.compare({"before": before, "now": experiment})
    if changes:
        texts = [f"{k} was {flat_settings.cut(v['before'], 60)}" for k, v in changes.items()]
        message = "%s goes on from step %d, with other settings: %s. Choose another folder to "
        more = [f"and {len(texts) - _SHOWN} more"] * (len(texts) > _SHOWN)
        text = ", ".join([*texts[:_SHOWN], *more])
        _log.warning(message + "start anew.", model_dir, step, text)


@contextlib.contextmanager
def undone_without_checkpoint(model_dir: str) -> Iterator[None]:
    """Put the saved settings back if the training ends by an exception before its first checkpoint.

    The settings of a run must fit its checkpoints. `launch.debug` replays a step whose loss is not
    finite with the new settings, so after such an error the new settings stay. They also stay if
    the start has enlarged the tables of the checkpoint, which no longer fits the earlier settings.

    Args:
      model_dir: the folder of the run.
    """
    before = config.read_saved(model_dir)
    latest = _measure_latest(model_dir)
    try:
        yield
    except BaseException:  # Also Ctrl-C in the first batch.
        is_untrained = _measure_latest(model_dir) == latest
        if before is not None and is_untrained and failures.read_step(model_dir) is None:
            config.restore(model_dir, before)
        raise


def _measure_latest(model_dir: str) -> tuple[int, int]:
    """Return the step of the latest checkpoint, and how many bytes its values take."""
    path = run_directory.find_latest(model_dir)
    files = storage.listed(*os.path.split(f"{path}.data-")) if path else []
    return run_directory.step_of(model_dir), sum(tf.io.gfile.stat(file).length for file in files)
