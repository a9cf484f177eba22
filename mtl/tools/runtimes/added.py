"""Adds the files of `Serving.portable` to exports, and to exports that become other formats.

add_files = added.choose_files(experiment.serving)
exporter = estimators.build_exporter(experiment, "runs/digits", add_files)
"""

from __future__ import annotations

from mtl import serving, types
from mtl.serving import metadata
from mtl.tools.runtimes import frozen, portable


def choose_files(settings: serving.Serving, is_converted: bool = False) -> serving.AddFiles:
    """Return a function that adds the files that exports with these settings need.

    Args:
      settings: the settings of exports.
      is_converted: True if the export becomes a file of another runtime. If that file needs ids,
        the export gets the folder `portable`, as with `Serving.portable = True`.
    """

    def add_files(written: serving.Written) -> None:
        if settings.portable or (is_converted and frozen.needs_ids(written.directory)):
            _add_portable(written)

    return add_files


def _add_portable(written: serving.Written) -> None:
    """Write the files for other runtimes into the folder of an export, and check them."""
    directory, estimator, checkpoint, spec, may_drop_units, held_out = written
    portable.write_portable(directory, estimator, checkpoint, spec, may_drop_units)
    if held_out is not None:
        difference = portable.verify_portable(directory, *held_out)
        metadata.add_metadata(directory, portable_difference=difference)


def observe(run: types.ObservedRun) -> types.RunObserver:
    """Return an observer that adds these files to the exports of a training."""
    return _Observer(choose_files(run.experiment.serving))


class _Observer(types.RunObserver):
    def __init__(self, add_files: serving.AddFiles):
        self._add_files = add_files

    def add_to_export(self, written: serving.Written) -> None:
        self._add_files(written)
