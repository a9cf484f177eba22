"""Adds the folder `portable` to exports that other runtimes will run.

add_files = added.choose_files(experiment.serving)
exporter = estimators.build_exporter(experiment, "runs/digits", add_files)
"""

from __future__ import annotations

from mtl import serving, types
from mtl.serving import metadata
from mtl.tools.runtimes import frozen, portable


def choose_files(settings: serving.Serving, is_converted: bool = False) -> serving.AddFiles:
    """Return a function that adds the folder `portable` to an export if the export needs it.

    Args:
      settings: the settings of exports.
      is_converted: True if the export is converted for another runtime. If the runtime needs ids as
        inputs, the export gets the folder `portable`, as with `Serving.portable = True`.
    """

    def add_files(written: serving.Written) -> None:
        if settings.portable or (is_converted and frozen.needs_ids(written.directory)):
            _add_portable(written)

    return add_files


def _add_portable(written: serving.Written) -> None:
    """Write the folder `portable` of an export, and compare its models with the checkpoint."""
    directory, estimator, checkpoint, spec, may_drop_units, held_out = written
    portable.write_portable(directory, estimator, checkpoint, spec, may_drop_units)
    if held_out is not None:
        difference = portable.verify_portable(directory, *held_out)
        metadata.add_metadata(directory, portable_difference=difference)


def observe(run: types.ObservedRun) -> types.RunObserver:
    """Return an observer that adds the folder `portable` to the exports of a training."""
    return _Observer(choose_files(run.experiment.serving))


class _Observer(types.RunObserver):
    def __init__(self, add_files: serving.AddFiles):
        self._add_files = add_files

    def add_to_export(self, written: serving.Written) -> None:
        self._add_files(written)
