"""Exports a checkpoint: writes a SavedModel, checks the outputs, and publishes a new version.

export = serving.Exporter(settings, spec, heads, read_rows, model_dir)
path = export(estimator, "models/income", checkpoint)
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.deferred import compat, tf
from mtl.serving import (
    blank,
    deployment,
    inputs,
    metadata,
    optimized,
    reference,
    rows,
    settings,
    signatures,
    verification,
    versions,
    warm_up,
)
from mtl.tf_internals import saved_model
from mtl.variables import row_names

_log = logging.getLogger(__name__)

REWRITING_FAILED = (
    "Units that add nothing stay in the export, because of a defect in mtl: without them, the "
    "check failed. Please report it"
)
"""The text of a logged error that hides a defect of mtl; tests fail if the text is logged."""


class Written(NamedTuple):
    """An export that is not published yet; it is checked unless `Serving.check_rows` is 0.

    Attributes:
      directory: the folder of the SavedModel.
      estimator: the Estimator of the run, whose `model_fn` adds the signatures of exports.
      checkpoint: the exported checkpoint.
      spec: the features of the model.
      may_drop_units: True if units of the network that add nothing may be missing in the export.
      held_out: the rows with which the export was checked; None if `Serving.check_rows` is 0.
    """

    directory: str
    estimator: compat.estimator.Estimator
    checkpoint: str
    spec: spec_lib.Spec
    may_drop_units: bool
    held_out: rows.HeldOut | None


AddFiles = Callable[[Written], None]
"""Adds files of other formats to the folder of an export."""


class Exporter:
    """Exports the checkpoints of one run.

    The first export reads the rows for the check, builds the graph of the Estimator, and writes the
    graph of the SavedModel. Later exports reuse the rows and the graphs, and write only new
    variables.

    Args:
      serving: the settings of exports.
      spec: the features of the model.
      heads: the heads of the tasks, for the metadata.
      read_rows: a function from a number of rows to the rows that check exports.
      model_dir: the folder of the run.
      is_pruned: True if training cuts weights, which can leave units that add nothing.
      add_files: adds files of other formats to each export.
    """

    def __init__(
        self,
        serving: settings.Serving,
        spec: spec_lib.Spec,
        heads: Sequence[types.Head],
        read_rows: Callable[[int], rows.Rows],
        model_dir: str,
        is_pruned: bool = False,
        add_files: AddFiles = lambda written: None,
    ):
        self._serving, self._spec, self._heads = serving, spec, heads
        self._read_rows, self._model_dir, self._is_pruned = read_rows, model_dir, is_pruned
        self._add_files = add_files
        self._rows: rows.Rows | None = None
        self._reference: reference.Reference | None = None
        self._blank: blank.Blank | None = None
        # The checkpoint of the last export, and the path of its version.
        self._last = ("", "")
        self._held_out_rows: rows.HeldOut | None = None

    def __call__(
        self,
        estimator: compat.estimator.Estimator,
        folder: str,
        checkpoint: str,
        before: Callable[[str, rows.HeldOut | None], None] = lambda written, held_out: None,
    ) -> str:
        """Publish a checkpoint as `folder/<version>`.

        Args:
          estimator: the Estimator of the run, whose `model_fn` adds the signatures of exports.
          folder: the folder of the versions.
          checkpoint: the path of the checkpoint.
          before: called before the export is published, with the folder of the export and the rows
            with which it was checked; the rows are None if `Serving.check_rows` is 0.

        Returns:
          The path of the version.

        Raises:
          RefusedError: the export and the Estimator predict different values, so nothing is
            published.
        """
        deployment.require_name(folder, self._serving.model_name)
        with versions.create_version(folder) as version:
            last_checkpoint, last_path = self._last
            # If the latest checkpoint is also exported as the best, copy its first export.
            if last_checkpoint == checkpoint and tf.io.gfile.isdir(last_path):
                written = os.path.join(version.partial, "copy")
                _copy_folder(last_path, written)
            else:
                written = self._write_rewritten(estimator, version.partial, checkpoint)
            metadata.add_metadata(written, version=version.number)
            before(written, self._held_out_rows)
            path = version.publish(written, self._serving.keep, deployment.stable(folder))
        self._last = (checkpoint, path)
        return path

    def _write_rewritten(
        self, estimator: compat.estimator.Estimator, partial: str, checkpoint: str
    ) -> str:
        """Write and check a SavedModel; leave out units that add nothing after pruning."""
        write = functools.partial(self._write, estimator, partial, checkpoint)
        if self._serving.optimized or not self._is_pruned:
            return write(self._serving.optimized)
        try:
            return write(optimized.Optimized())
        except verification.RefusedError as error:
            unchanged = write(None)  # Without removed units, the check fails only for other causes.
            _log.error("%s: %s", REWRITING_FAILED, error)
            return unchanged
        except checks.UserError as error:  # For example, the model is too large.
            _log.warning("Units that add nothing stay in the export: %s", error)
            return write(None)

    def _write(
        self,
        estimator: compat.estimator.Estimator,
        partial: str,
        checkpoint: str,
        part: settings.Rewriting | None,
    ) -> str:
        """Write a SavedModel, apply a rewriting such as `Optimized`, and check the result."""
        written = self._write_plain(estimator, partial, checkpoint)
        if part:
            part(written)
        metadata.add_metadata(
            written, **metadata.describe_export(self._serving, self._spec, self._heads)
        )
        metadata.add_metadata(written, step=int(tf.train.load_variable(checkpoint, "global_step")))
        if self._serving.check_rows:
            held_out = self._held_out()
            warm_up_rows = held_out.first(self._serving.warm_up_rows)
            defs = saved_model.read(written).signature_def
            warm_up.write(written, self._serving.model_name, defs, warm_up_rows)
            expected = self._predict_expected(estimator, checkpoint, held_out)
            allowed = part.allowed if part else verification.TOLERANCE
            difference = verification.verify_export(written, held_out, expected, allowed)
            metadata.add_metadata(written, checked_rows=len(held_out), difference=difference)
            self._held_out_rows = rows.HeldOut(held_out, expected.outputs)
        may_drop_units = part is not None and not part.keeps_graph
        self._add_files(
            Written(written, estimator, checkpoint, self._spec, may_drop_units, self._held_out_rows)
        )
        # Add the checksums last, when all files are final.
        metadata.add_metadata(written, files=metadata.list_files(written))
        return written

    def _write_plain(
        self, estimator: compat.estimator.Estimator, partial: str, checkpoint: str
    ) -> str:
        """Write a SavedModel with its signatures, without rewriting and checks; return the path."""
        # Reuse the graph of the first export, because exports of a run differ only in their
        # variables.
        if self._blank and self._reference:
            written = os.path.join(partial, f"written-{len(tf.io.gfile.listdir(partial))}")
            save = functools.partial(self._reference.save_variables, checkpoint)
            self._blank.write(written, save, self._assets_extra())
            return written
        written = estimator.export_saved_model(
            partial,
            lambda: inputs.build_receiver(self._spec),
            self._assets_extra(),
            checkpoint_path=checkpoint,
        ).decode()
        assets = signatures.finish_signatures(written, self._serving, self._spec)
        # Keep the graph before a rewriting turns the variables of this checkpoint into constants.
        self._blank = blank.take_blank(written, assets)
        return written

    def _assets_extra(self) -> dict[str, str]:
        """Return {name: path} of the file with the names of table rows; {} if there is none."""
        row_names.load(self._model_dir)  # Fails if `row_names.json` is damaged.
        path = os.path.join(self._model_dir, row_names.FILE)
        return {row_names.FILE: path} if tf.io.gfile.exists(path) else {}

    def _held_out(self) -> rows.Rows:
        if self._rows is None:
            self._rows = self._read_rows(self._serving.check_rows)
        return self._rows

    def _predict_expected(
        self, estimator: compat.estimator.Estimator, checkpoint: str, held_out: rows.Rows
    ) -> verification.Expected:
        if self._reference is None:
            self._reference = reference.Reference(estimator, self._spec)
        predictions, takes_no_rows = self._reference(checkpoint, held_out)
        passthrough = {name: held_out.dense(name) for name in self._serving.passthrough}
        return verification.Expected({**predictions, **passthrough}, takes_no_rows)


def or_warn(export: Callable[..., str]) -> Callable[..., str | None]:
    """Return a version of an export function that logs a refusal instead of failing.

    Args:
      export: a function that may raise `RefusedError`, and returns the path of an export.

    Returns:
      A function with the positional arguments of `export`; it returns None if `export` raises
      `RefusedError`.
    """

    def try_export(*args: Any) -> str | None:
        try:
            return export(*args)
        except verification.RefusedError as error:
            _log.error("Not exported: %s", error)
            return None

    return try_export


def _copy_folder(source: str, target: str) -> None:
    """Copy a folder with all its contents."""
    for folder, _, files in tf.io.gfile.walk(source):
        copy = os.path.join(target, os.path.relpath(folder, source))
        tf.io.gfile.makedirs(copy)
        for name in files:
            tf.io.gfile.copy(os.path.join(folder, name), os.path.join(copy, name))
