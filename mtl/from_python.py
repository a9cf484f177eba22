"""Trains and loads models in scripts and notebooks, for `import mtl`; see docs/python.md.

model = mtl.train(experiment, "runs/adult")
model = mtl.load("runs/adult", checkpoint="best")
model.predict(frame), model.evaluate(), model.export("models/adult")
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import logging
import os
import signal
import sys
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tqdm
from absl import logging as absl_logging

from mtl import checks, deferred, verbs
from mtl import experiment as experiment_lib
from mtl.checkpoints import run_directory
from mtl.configs import changes, config, gin_writing, imports, trust
from mtl.data import csv, examples, frames
from mtl.deferred import tf
from mtl.files import storage
from mtl.monitoring import summary
from mtl.serving import deployment
from mtl.tools.scoring import batches, image_rows

with deferred.imports():
    from mtl.runs import unknown_values
    from mtl.tools.scoring import run_source

_log = logging.getLogger("mtl")
# `launch.predict` uses this batch size by default. The last digit of a prediction may depend on the
# batch size.
_BATCH_ROWS = 512
_SPLIT = "data"


def train(
    experiment: experiment_lib.Experiment,
    model_dir: str | os.PathLike[str],
    verbose: bool | None = None,
) -> Model:
    """Train like `launch.train`, write config.gin, and return a model of the latest checkpoint.

    Training continues from the last checkpoint in `model_dir`. Rows in memory (`frames.Frames`) are
    written to `<model_dir>/data`, so that the commands of `launch` can read them.

    Args:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      verbose: True prints progress to standard error; None prints progress only on a terminal or in
        a notebook. Warnings are always printed.

    Raises:
      UserError: the settings, the data or the files in `model_dir` have an error.
      KeyboardInterrupt: the user pressed Ctrl-C, or stopped the cell. The trained steps are saved.
    """
    rule = "be an Experiment"
    checks.is_a("mtl.train: experiment", experiment, experiment_lib.Experiment, rule)
    model_dir = _read_path("mtl.train: model_dir", model_dir)
    with _quiet(verbose):
        # Check the folder before rows in memory are written there.
        storage.require_plain("model_dir", model_dir)
        storage.require_possible("model_dir", model_dir, "a folder", model_dir)
        data = experiment.data
        source = frames.store(data.source, data.spec, os.path.join(model_dir, "data"))
        experiment = dataclasses.replace(experiment, data=dataclasses.replace(data, source=source))
        settings = _write_settings(experiment)
        changes.tell(experiment, model_dir)
        save = functools.partial(_save_settings, model_dir, settings)
        try:
            with changes.undone_without_checkpoint(model_dir):
                metrics, steps = verbs.train(experiment, model_dir, on_start=save)
        except SystemExit as stopped:
            if stopped.code != 128 + signal.SIGINT:
                raise
            raise KeyboardInterrupt("The model is saved: train again to continue.") from None
        return Model(experiment, model_dir, "latest", None, metrics, steps)


def load(
    model_dir: str | os.PathLike[str],
    checkpoint: str | int = "latest",
    experiment: experiment_lib.Experiment | None = None,
    trusted_packages: Sequence[str] | None = None,
    trusted_settings: Sequence[str] = (),
) -> Model:
    """Return a model of a checkpoint that `train` or `launch.train` has saved.

    Args:
      model_dir: the folder of the run.
      checkpoint: "latest", "best", a step or a path.
      experiment: the settings of the run, if it has no config.gin.
      trusted_packages: the packages, besides mtl, from which config.gin may build parts; None
        trusts all packages. docs/security.md describes the risks.
      trusted_settings: the settings that may run code, write files or open connections if
        `trusted_packages` is a list.

    Raises:
      UserError: the run or the checkpoint does not exist, or config.gin cannot be read.
    """
    model_dir = _read_path("mtl.load: model_dir", model_dir)
    if experiment is not None:
        rule = "be an Experiment"
        checks.is_a("mtl.load: experiment", experiment, experiment_lib.Experiment, rule)
    if trusted_packages is not None:
        rule = "be a list of packages"
        checks.texts("mtl.load: trusted_packages", trusted_packages, rule)
    checks.texts("mtl.load: trusted_settings", trusted_settings, "be a list of settings")
    trusted = trust.Trusted(trusted_packages, trusted_settings)
    if experiment is None and not config.is_saved(model_dir):
        rule = "hold the config.gin of a run, or come with experiment"
        checks.fail("mtl.load: model_dir", rule, model_dir)
    state = None
    with _quiet():
        if experiment is None:
            with config.isolated():
                file = config.saved_in(model_dir)
                experiment = config.load([file], (), trusted)
                state = config.GinState()
        return Model(experiment, model_dir, checkpoint, state)


def _read_path(where: str, folder: str | os.PathLike[str]) -> str:
    checks.is_a(where, folder, (str, os.PathLike), "be the path of a folder")
    path = os.fspath(folder)
    checks.require(bool(path), where, "name a folder", path)
    return path


class Metrics(dict):
    """{metric: value} of an evaluation; its repr is a table with a block for each task."""

    def __repr__(self):
        return summary.metrics_table(self) if self else "{}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


class Model:
    """Evaluates, predicts and exports with one checkpoint of a run.

    A model does not change if its run is trained further; the next use of the model then logs a
    warning. The first prediction opens a session of TensorFlow; `close` or the end of a `with`
    block closes the session.

    Attributes:
      experiment: the settings of the run.
      model_dir: the folder of the run.
      checkpoint: the path of the checkpoint.
      step: the global step of the checkpoint.
      metrics: the metrics of the last evaluation in training; {} if `load` returned the model.
      steps_trained: the number of steps that the call of `train` trained; 0 if `load` returned the
        model.
    """

    def __init__(
        self,
        experiment: experiment_lib.Experiment,
        model_dir: str,
        checkpoint: str | int,
        gin_state: config.GinState | None = None,
        metrics: Mapping[str, float] | None = None,
        steps_trained: int = 0,
    ):
        self.experiment, self.model_dir = experiment, model_dir
        self._requested, self._gin_state = checkpoint, gin_state
        self.checkpoint = _find_checkpoint(model_dir, checkpoint)
        self._stamp = _read_stamp(self.checkpoint)
        self.step = run_directory.step_saved(self.checkpoint)
        self.metrics = Metrics(metrics or {})
        self.steps_trained = steps_trained
        self._open = contextlib.ExitStack()
        self._scorer: unknown_values.Counted | None = None
        self._has_warned = False
        self._close = weakref.finalize(self, self._open.close)

    def evaluate(self, data: Any = None, *, split: str | None = None) -> Metrics:
        """Evaluate the model on rows with labels or on a split, by default the run's eval split.

        Args:
          data: a DataFrame, an Arrow table, a dict of arrays or a list of dicts, with features and
            labels.
          split: the name of a split of the run's source.

        Raises:
          UserError: `data` and `split` are both set, or the rows or the split have an error.
        """
        rule = "come without split"
        checks.require(data is None or split is None, "Model.evaluate: data", rule, split)
        experiment = self.experiment if data is None else self._with_rows(data)
        with self._used():
            split = None if data is not None else split
            return Metrics(verbs.evaluate(experiment, self.model_dir, split, self.checkpoint))

    def predict(self, data: Any) -> Any:
        """Return the predictions of every task, as `launch.predict` writes them.

        Args:
          data: a DataFrame, an Arrow table, a dict of arrays [N, ...] or a list of N dicts, with
            all features; other columns are ignored.

        Returns:
          Columns `<task>/<prediction>` in the order of the rows: a DataFrame with the index of
          `data` if that is a DataFrame, else a dict of arrays [N, ...].

        Raises:
          UserError: a column is missing, or a value does not fit its field; the error names the
            row.
        """
        fields = self.experiment.data.spec.feature_fields
        table = frames.Table(data, fields, cells=self._cell_settings)
        files = image_rows.find(self.experiment.data.source)
        blocks: list[dict[str, np.ndarray]] = []
        with self._used():
            scorer = self._open_scorer()
            for start in range(0, max(1, len(table)), _BATCH_ROWS):
                columns = table.read(start, start + _BATCH_ROWS)
                rows = range(start, min(len(table), start + _BATCH_ROWS))
                chunk = batches.Chunk(path="the data", numbers=rows, rows=())
                columns = image_rows.read_columns(files, chunk, columns, unit="row")
                try:
                    blocks.append(scorer(examples.serialize_examples(columns)))
                except batches.RefusedError as error:
                    where = f"the data rows {start} to {start + len(rows) - 1}"
                    raise checks.UserError(f"{where}: the model refused them: {error}") from error
            scorer.tell_new()
        outputs = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
        return _match_type(data, {name: _decode_texts(values) for name, values in outputs.items()})

    def export(self, export_dir: str | os.PathLike[str] | None = None) -> str:
        """Write a SavedModel for TensorFlow Serving as `launch.export` does.

        Args:
          export_dir: the folder that gets a numbered version; `<model_dir>/export/manual` by
            default.

        Returns:
          The path of the version.
        """
        default = os.path.join(self.model_dir, "export", "manual")
        folder = _read_path(
            "Model.export: export_dir", default if export_dir is None else export_dir
        )
        with self._used():
            path = verbs.export(self.experiment, self.model_dir, folder, self.checkpoint)
            deployment.write(folder, self.experiment.serving.model_name)
        return path

    def close(self) -> None:
        """Close the session of predictions; the next prediction opens a new session."""
        self._scorer = None
        self._open.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self):
        trained = f", {self.steps_trained} steps trained by this call" if self.metrics else ""
        head = f"Model of {self.checkpoint}, step {self.step}{trained}"
        return f"{head}. Held-out metrics:\n\n{self.metrics!r}" if self.metrics else head

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"

    @property
    def _cell_settings(self) -> csv.Csv:
        """Return the settings by which this run reads texts."""
        return run_source.find_cells(self.experiment.data.source)

    def _with_rows(self, data: Any) -> experiment_lib.Experiment:
        """Return the settings of the run, with `data` as the split to evaluate."""
        pipeline = self.experiment.data
        source: Any = frames.Frames(splits={_SPLIT: data}, cells=self._cell_settings)
        files = image_rows.find(pipeline.source)
        if files is not None:
            source = dataclasses.replace(files, source=source)
        pipeline = dataclasses.replace(pipeline, source=source, eval_split=_SPLIT)
        return dataclasses.replace(self.experiment, data=pipeline)

    def _open_scorer(self) -> unknown_values.Counted:
        if self._scorer is None:
            settings = (self.experiment, self.model_dir)
            model = self._open.enter_context(verbs.open_scorer(*settings, self.checkpoint))
            self._scorer = self._open.enter_context(verbs.count_unknown(*settings, model))
        return self._scorer

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Hide the logs of libraries in a `with` block, and warn once of a newer checkpoint."""
        with _quiet():
            if not self._has_warned and self._is_behind():
                self._has_warned = True
                message = "%s was trained further, but this model is from step %d. Load it again."
                _log.warning(message, self.model_dir, self.step)
            with config.isolated(self._gin_state) if self._gin_state else contextlib.nullcontext():
                yield

    def _is_behind(self) -> bool:
        try:
            path = _find_checkpoint(self.model_dir, self._requested)
        except checks.UserError:  # The code that reads a deleted checkpoint raises an error.
            return False
        return path != self.checkpoint or _read_stamp(path) != self._stamp


def _find_checkpoint(model_dir: str, checkpoint: str | int) -> str:
    if isinstance(checkpoint, str):
        return run_directory.checkpoint_path(model_dir, checkpoint)
    checks.is_a("checkpoint", checkpoint, int, "be 'latest', 'best', a step or a path")
    checks.at_least("checkpoint", checkpoint, 0)
    paths = [os.path.join(model_dir, *at, f"model.ckpt-{checkpoint}") for at in ((), ("best",))]
    existing = [path for path in paths if run_directory.is_checkpoint(path)]
    return run_directory.checkpoint_path(model_dir, (existing or paths)[0])


def _read_stamp(checkpoint: str) -> int:
    """Return when a checkpoint was written, in ns; another run may reuse the checkpoint's name."""
    return tf.io.gfile.stat(f"{checkpoint}.index").mtime_nsec


def _write_settings(experiment: experiment_lib.Experiment) -> str | None:
    """Return the text of a gin file that builds `experiment`; warn and return None on failure."""
    try:
        text = gin_writing.write(experiment)
        with tempfile.TemporaryDirectory() as folder, config.isolated():
            path = os.path.join(folder, "config.gin")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            second_text = gin_writing.write(config.load([path]))
        rule = "be the same when read again"
        difference = _first_difference(text, second_text)
        checks.require(second_text == text, "config.gin", rule, difference)
    except checks.UserError as error:
        _log.warning("No config.gin is written, so commands cannot continue the run: %s", error)
        return None
    return text


def _first_difference(text: str, second_text: str) -> str:
    lines = set(second_text.splitlines())
    return next((line for line in text.splitlines() if line not in lines), "")


def _save_settings(model_dir: str, settings: str | None) -> None:
    # Without settings to write, delete the old config.gin, which would describe another experiment.
    config.forget(model_dir) if settings is None else config.save(model_dir, settings)


def _match_type(data: Any, columns: dict[str, np.ndarray]) -> Any:
    """Return columns as a DataFrame if the data is a DataFrame."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return columns
    cells = {name: v if v.ndim == 1 else list(v) for name, v in columns.items()}
    return pandas.DataFrame(cells, index=data.index)


def _decode_texts(values: np.ndarray) -> np.ndarray:
    """Return an array of bytes as an array of texts, if all its values are UTF-8."""
    if values.dtype.kind not in "OS":
        return values
    try:
        texts = [value.decode() for value in values.ravel()]
    except UnicodeDecodeError:
        return values
    return np.array([*texts, None], object)[:-1].reshape(values.shape)


@contextlib.contextmanager
def _quiet(verbose: bool | None = None) -> Iterator[None]:
    """Hide the logs of libraries, and print the lines of mtl; restore the loggers at the end."""
    tensorflow, verbosity = tf.get_logger(), absl_logging.get_verbosity()
    levels = tensorflow.level, _log.level
    is_verbose = _is_watched() if verbose is None else verbose
    # If the user's program has log handlers, they decide which lines appear.
    lines = None if _log.hasHandlers() else _Lines()
    with warnings.catch_warnings(), storage.explain_storage_errors():
        imports.silence_warnings()
        tensorflow.setLevel(logging.ERROR)
        absl_logging.set_verbosity(absl_logging.ERROR)
        if lines:
            _log.setLevel(logging.INFO if is_verbose else logging.WARNING)
            _log.addHandler(lines)
        try:
            yield
        finally:
            if lines:
                _log.removeHandler(lines)
            absl_logging.set_verbosity(verbosity)
            tensorflow.setLevel(levels[0])
            _log.setLevel(levels[1])


def _is_watched() -> bool:
    """Return True if a person sees standard error, on a terminal or in a notebook."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class _Lines(logging.Handler):
    """Writes log lines to standard error, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if record.levelno >= logging.WARNING and not text.startswith("Warning: "):
            text = f"Warning: {text}"
        tqdm.tqdm.write(checks.mask(text), file=sys.stderr)
