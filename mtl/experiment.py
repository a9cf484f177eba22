"""An experiment: data, model and run settings, and what one can do with them.

from mtl import experiment
experiment.Experiment.data = @pipeline.Pipeline()
experiment.Experiment.model = @model.MultiTaskModel()
experiment.Run.train_steps = 1000
"""

import contextlib
import dataclasses
import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from mtl import (
    checks,
    cluster,
    compat,
    diagnosis,
    fitting,
    given_files,
    plausibility,
    preparation,
    resources,
    scoring,
    storage,
    training,
    transfer,
)
from mtl import clip_audit as clip_audit_lib
from mtl import compute as compute_lib
from mtl import distribution as distribution_lib
from mtl import model as model_lib
from mtl import refit as refit_lib
from mtl import serving as serving_lib
from mtl.clip_audit import finished, report
from mtl.data import files, pipeline
from mtl.monitoring import checkpoints, hooks, run_directory

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """How long to train, and what is written when.

    Attributes:
      train_steps: the global step at which training ends.
      checkpoint_steps: save a checkpoint and evaluate it at every multiple of this step.
      checkpoint_secs: or each so many seconds; set exactly one of the two.
      keep_checkpoints: how many of the latest checkpoints are kept; the best is kept apart.
      summary_steps: write TensorBoard scalars at every multiple of this step.
      steps_per_call: the most steps in one session call; 1 turns the loop in the graph off.
      micro_batches: into how many slices a batch is cut that go through the network one by one, to
        save memory. Updates are those of the whole batch; only batch norm sees each slice alone.
      compute: in which numbers, and by which compiler, the network of a training step computes.
      seed: of initial weights, shuffling and dropout.
    """

    train_steps: int
    checkpoint_steps: int | None = 500
    checkpoint_secs: float | None = None
    keep_checkpoints: int = 3
    summary_steps: int = 100
    steps_per_call: int = 100
    micro_batches: int = 1
    compute: compute_lib.Compute = compute_lib.PLAIN
    seed: int = 1

    def __post_init__(self):
        example = "be built, such as @compute.Compute()"
        checks.is_a("Run.compute", self.compute, compute_lib.Compute, example)
        checks.is_a("Run.seed", self.seed, int, "be an integer")
        counts = ["train_steps", "keep_checkpoints", "summary_steps"]
        counts += ["steps_per_call", "micro_batches"]
        if self.checkpoint_steps is not None:
            counts.append("checkpoint_steps")
        for name in counts:
            checks.is_a(f"Run.{name}", getattr(self, name), int, "be an integer")
            checks.at_least(f"Run.{name}", getattr(self, name), 1)
        if self.checkpoint_secs is not None:
            checks.positive("Run.checkpoint_secs", self.checkpoint_secs)
        checks.require(
            (self.checkpoint_steps is None) != (self.checkpoint_secs is None),
            "Run",
            "set either checkpoint_steps or checkpoint_secs, the other to None",
            (self.checkpoint_steps, self.checkpoint_secs),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One run: what a gin file describes.

    Attributes:
      data: where examples come from and how they are batched.
      model: the network, its heads and its update.
      run: how long to train, and what is written when.
      best: which evaluated checkpoint is the best, and when to stop early.
      refit: computes a classifier for a trained network, in place of training.
      distribution: on which devices training runs.
      warm_start: the weights that a new run starts from; None for initial ones.
      serving: what exports hold, and how they are checked.
      clip_audit: records the gradients of samples in training; None records nothing.
    """

    data: pipeline.Pipeline
    model: model_lib.MultiTaskModel
    run: Run
    best: checkpoints.Best = checkpoints.Best()
    refit: refit_lib.Refit | None = None
    distribution: distribution_lib.Distribution = distribution_lib.Distribution()
    warm_start: transfer.WarmStart | None = None
    serving: serving_lib.Serving = serving_lib.Serving()
    clip_audit: clip_audit_lib.ClipAudit | None = None

    def __post_init__(self):
        for name, kind in (
            ("data", pipeline.Pipeline),
            ("model", model_lib.MultiTaskModel),
            ("run", Run),
            ("best", checkpoints.Best),
            ("distribution", distribution_lib.Distribution),
            ("serving", serving_lib.Serving),
        ):
            example = f"be built, such as @{kind.__name__}()"
            checks.is_a(f"Experiment.{name}", getattr(self, name), kind, example)
        if self.refit is not None:
            checks.part("Experiment.refit", self.refit, "refit.TauNormalized", 5)
        if self.warm_start is not None:
            example = "be built, such as @transfer.WarmStart()"
            checks.is_a("Experiment.warm_start", self.warm_start, transfer.WarmStart, example)
        if self.clip_audit is not None:
            example = "be built, such as @clip_audit.ClipAudit()"
            checks.is_a("Experiment.clip_audit", self.clip_audit, clip_audit_lib.ClipAudit, example)
            self.clip_audit.check(self.data.spec)
        self.serving.check(self.data.spec, self.model.tasks)
        balanced = self.data.sampler and self.data.sampler.balances
        for head in self.model.heads:
            twice = balanced and getattr(head, "balances", None) == balanced
            rule = f"not balance {balanced!r} where the loss of {head.name!r} does"
            fix = "Together they correct twice: leave out one of the two."
            checks.require(not twice, "Pipeline.sampler", rule, self.data.sampler, fix)

    def train(
        self, model_dir: str, on_start: Callable[[], None] = lambda: None
    ) -> tuple[dict[str, Any], int]:
        """Trains up to `run.train_steps` and evaluates every checkpoint, exporting latest and best.

        Goes on from the last checkpoint in `model_dir` that is whole, as if it had not been left.

        Args:
          model_dir: where everything is written.
          on_start: called once the model is built and restored, before the first step.

        Returns:
          The metrics of the last evaluation, {} where another process evaluates; and the number of
          steps trained by this call.

        Raises:
          UserError: for anything wrong with the settings, the data or what is in `model_dir`.
          SystemExit: a signal asked to stop; what was trained is saved.
        """
        return training.Training(self, model_dir, on_start).run()

    def plan_warm_start(self) -> transfer.Plan:
        """What every variable of a new run would start from, and why; writes nothing.

        Raises:
          UserError: as `train` would.
        """
        rule, fix = "be set", "Bind Experiment.warm_start = @transfer.WarmStart()."
        checks.require(self.warm_start is not None, "Experiment.warm_start", rule, None, fix)
        with tempfile.TemporaryDirectory() as scratch:
            fitting.fit(self.data, self.model, self.warm_start, scratch)
            with preparation.warm_start(self, scratch) as plan:
                return plan

    def evaluate(
        self, model_dir: str, split: str | None = None, checkpoint: str = "latest"
    ) -> dict:
        """Evaluates a checkpoint on the whole of `split`; {metric: value}.

        Of a split that the run does not evaluate itself the metrics are also written for
        TensorBoard, to `eval_<split>`, where later steps are forgotten. `eval` is the run's own.
        """
        split = split or self.data.eval_split
        path = run_directory.checkpoint_path(model_dir, checkpoint)
        is_own = split == self.data.eval_split
        with self.explained(path, split), tempfile.TemporaryDirectory() as scratch:
            self.distribution.resources.take()
            plausibility.labels(self.model, self.data, split)
            estimator = self.estimator(model_dir, path, events=scratch if is_own else None)
            name = None if is_own else re.sub(r"\W+", "_", split)
            restored = []
            if not is_own:
                forget = functools.partial(hooks.forget_from, estimator.eval_dir(name))
                step = run_directory.step_saved(path)
                restored.append(hooks.Callbacks(functools.partial(forget, step)))
            one_pass = functools.partial(self.data.one_pass, split)
            return estimator.evaluate(one_pass, hooks=restored, checkpoint_path=path, name=name)

    @property
    def files_read(self) -> list[str]:
        """The data and the other files that the settings name, and no output may replace."""
        return [*files.named_by(self.data.source), *self.model.training_files.values()]

    def predict(
        self,
        model_dir: str,
        split: str | None = None,
        checkpoint: str = "latest",
        keep: Sequence[str] = (),
    ) -> Iterator[dict[str, Any]]:
        """Yields {"<task>/<name>": value} for each example of `split`, in order.

        Before them come the fields `keep` of the example: features, labels, and columns of a CSV
        file. They pass through the graph with its features, so that no row can lose another's.
        """
        split = split or self.data.eval_split
        path = run_directory.checkpoint_path(model_dir, checkpoint)
        data = self.data.keeping(keep)

        def batches() -> tf.data.Dataset:
            if not data.spec.labels:
                return data.one_pass(split, with_labels=False)
            return data.one_pass(split).map(lambda features, labels: {**features, **labels})

        with self.explained(path, split):
            estimator = self.estimator(model_dir, path, keep)
            yield from scoring.kept.rows(estimator.predict(batches, checkpoint_path=path))

    def audit_clipping(
        self,
        model_dir: str,
        checkpoint: str = "all",
        output: str | None = None,
        key: str | None = None,
        others: Sequence[str] = (),
    ) -> str:
        """Audits the training split, a visit for each checkpoint; the path of the summary.

        Args:
          model_dir: of a run that is trained.
          checkpoint: "all" that are kept, or one.
          output: where the report is written; `<model_dir>/clip_audit/checkpoints` by default.
          key: the field that tells samples apart, in place of `ClipAudit.key`.
          others: reports of other runs on the same samples, to compare with.
        """
        settings = self.clip_audit or clip_audit_lib.ClipAudit()
        settings = dataclasses.replace(settings, key=key or settings.key)
        settings.check(self.data.spec)
        for other in others:
            report.read_samples(other)
        latest = run_directory.checkpoint_path(
            model_dir, "latest" if checkpoint == "all" else checkpoint
        )
        paths = run_directory.saved(model_dir) if checkpoint == "all" else [latest]
        output = output or os.path.join(model_dir, "clip_audit", "checkpoints")
        for name in report.FILES:
            guard = scoring.Protection(files=self.files_read)
            guard.check(os.path.join(output, name))
        run_directory.require_writable("--output", output)
        with self.explained(latest, self.data.train_split):
            finished.audit(self, model_dir, settings, paths, output)
        return report.write(output, settings, others)

    @contextlib.contextmanager
    def scorer(self, model_dir: str, checkpoint: str = "latest") -> Iterator[scoring.Checkpoint]:
        """What predicts every task for serialized tf.Examples, as a checkpoint does."""
        path = run_directory.checkpoint_path(model_dir, checkpoint)
        with self.explained(path):
            estimator = self.estimator(model_dir, path)
            with scoring.Checkpoint.restored(estimator, self.data.spec, path) as model:
                yield model

    def export(
        self,
        model_dir: str,
        export_dir: str,
        checkpoint: str = "latest",
        before: Callable[[str], None] = lambda written: None,
    ) -> str:
        """Writes `export_dir/<version>`, a SavedModel for TF Serving; returns its path.

        Nothing is published if `before`, called with the folder of the export, fails.

        Raises:
          UserError: there is no such checkpoint, or the export does not predict as it does.
        """
        path = run_directory.checkpoint_path(model_dir, checkpoint)
        storage.require_plain("--export_dir", export_dir)
        run_directory.require_writable("--export_dir", export_dir)
        with self.explained(path):
            estimator = self.estimator(model_dir, path)
            return self.exporter(model_dir)(estimator, export_dir, path, before)

    def exporter(self, model_dir: str) -> serving_lib.Exporter:
        """What exports the checkpoints of the run in `model_dir`."""
        rows = functools.partial(self.data.one_pass, self.data.eval_split, with_labels=False)
        heads = self.model.fitted(fitting.load(model_dir)).heads
        return serving_lib.Exporter(self.serving, self.data.spec, heads, rows, model_dir)

    def estimator(
        self,
        model_dir: str,
        checkpoint: str,
        keep: Sequence[str] = (),
        events: str | None = None,
    ) -> compat.estimator.Estimator:
        """What evaluates, predicts and exports a checkpoint of the run in `model_dir`.

        Predictions come with the features `keep`. Evaluations are written for TensorBoard under
        `events`, `model_dir` by default.
        """
        given_files.check(self.model.column_files, model_dir)
        statistics = fitting.load(model_dir)
        model_fn = functools.partial(self.model.fitted(statistics).model_fn, statistics=statistics)
        model_fn = serving_lib.exporting(model_fn, self.serving)
        with cluster.alone():
            config = compat.estimator.RunConfig(
                model_dir=events or model_dir, tf_random_seed=self.run.seed
            )
        session_config = self.distribution.resources.session_config()
        config = resources.configured(config, session_config)
        model_fn = scoring.kept.over(checkpoints.fitting(model_fn, checkpoint), keep)
        return compat.estimator.Estimator(model_fn, config=config)

    def explained(
        self, checkpoint: str | None, *splits: str
    ) -> contextlib.AbstractContextManager[None]:
        """Within it, what a user can fix in the data or the checkpoint is one line."""
        return diagnosis.explained(self.data, self.model.heads, checkpoint, *splits)
