"""Computes the last layer of a head from a trained network, without further training.

from mtl.transfer import refit
experiment.Experiment.refit = @refit.TauNormalized()
refit.TauNormalized.task = "digit"
refit.TauNormalized.source = "runs/joint"

With the setting `Experiment.refit`, `verbs.train` writes the network of `source` with a new kernel
and bias in one head, evaluates the network, and exports it. Except that it does not train, and that
only a new run with a warm start can go on from it, a run with `Experiment.refit` is like any other.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import numpy as np

from mtl import checks, deferred, heads, model, types
from mtl import features as features_lib
from mtl.checkpoints import mismatch, run_directory
from mtl.deferred import tf, tf1
from mtl.features import Statistics
from mtl.files import storage
from mtl.heads import calibrated, standardized
from mtl.heads import slices as slices_lib
from mtl.monitoring import doubts
from mtl.variables import patterns, row_names

with deferred.imports():
    from mtl.transfer import source as source_lib
    from mtl.variables import average_saver

_log = logging.getLogger(__name__)

# Calibration computes these settings of heads, {name: (value before calibration, hint)}.
_CALIBRATED: dict[str, tuple[Any, str]] = {
    "knots": (0, "Isotonic computes the knots."),
    "calibration_slices": ({}, "Platt, Temperature and Isotonic calibrate slices."),
}


class Classifier(NamedTuple):
    """The last layer of a head, and the calibration that follows the layer.

    Attributes:
      kernel: the weights, [H, C].
      bias: the bias, [C].
      behind: the values of the calibration that follows the layer, {name `heads.calibrated.KNOTS`
        or `LINES`: array}; empty without calibration.
      doubts: warnings about values that could not be computed.
    """

    kernel: np.ndarray
    bias: np.ndarray
    behind: Mapping[str, np.ndarray] = {}
    doubts: Sequence[str] = ()

    def compute_logits(self, towers: np.ndarray) -> np.ndarray:
        """Compute logits without calibration, [B, H] -> [B, C]."""
        return towers @ self.kernel + self.bias


class Rows(NamedTuple):
    """A batch of rows of a split.

    Attributes:
      towers: the inputs of the last layer, [B, H].
      targets: the targets of the head, [B] or [B, C].
      weights: the weights of the targets, [B] or [B, C]; 0 without a label.
      places: the index of each row's calibration slice, [B]; S for rows outside of all S slices.
    """

    towers: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    places: np.ndarray


@checks.dataclass
class Refit(abc.ABC):
    """The base class of methods that compute the last layers of heads.

    Attributes:
      source: a checkpoint, or a model_dir for its latest checkpoint.
    """

    source: Annotated[str, checks.Is(str, "name a source")]

    kinds: ClassVar[tuple[type[types.Head], ...]]
    """The classes of heads whose last layer the method can compute."""

    setting: ClassVar[str] = "task"
    """The name of the setting that lists the tasks."""

    computes: ClassVar[tuple[str, ...]] = ()
    """The names of the settings of a head whose values the method computes."""

    balances: ClassVar[bool] = False
    """True if the method corrects unequal class shares; training must not correct them, too."""

    def take_statistics(
        self, directory: str, columns: Sequence[types.Column], heads: Sequence[types.Head]
    ) -> None:
        """Copy the statistics of columns and heads from the source, whose variables stay in use.

        Without statistics beside the source, the statistics of the training split stay.

        Args:
          directory: the folder of this run's statistics.
          columns: the columns of this run.
          heads: the heads of this run; only their moments are copied, which scale predictions.

        Raises:
          UserError: the source has no checkpoint, or its columns or heads have other settings.
        """
        statistics = os.path.join(self._find_run(), "statistics")
        if tf.io.gfile.isdir(statistics):
            names = [*features_lib.list_fitted(columns), *standardized.list_moments(heads)]
            features_lib.adopt_statistics(names, statistics, directory)

    def _is_a(self, setting: str, kind: Any, rule: str) -> None:
        checks.is_a(f"{type(self).__name__}.{setting}", getattr(self, setting), kind, rule)

    @abc.abstractmethod
    def list_tasks(self) -> Sequence[str]:
        """Return the tasks whose heads are computed."""

    @abc.abstractmethod
    def split_of(self, train_split: str, eval_split: str) -> str:
        """Return the name of the split from whose rows the last layers are computed.

        Args:
          train_split: the name of the training split of this run.
          eval_split: the name of the evaluation split of this run.
        """

    @abc.abstractmethod
    def fit(self, head: types.Head, old: Classifier, rows: Iterable[Rows]) -> Classifier:
        """Compute the new classifier of a head from the trained classifier and the rows of a split.

        Args:
          head: the head whose classifier is computed.
          old: the trained classifier.
          rows: batches of one pass over the split; they can be read only once.
        """

    def __call__(
        self,
        network: model.MultiTaskModel,
        batches: tf.data.Dataset,
        statistics: Statistics,
        model_dir: str,
        step: int,
    ) -> None:
        """Write the source's checkpoint with new last layers into `model_dir`.

        Args:
          network: the model, whose parts know the statistics of the training split.
          batches: a dataset of (features, labels), one pass over the split that `split_of` names.
          statistics: the statistics of the columns.
          model_dir: the folder of this run.
          step: the step of the new checkpoint.
        """
        where = f"{type(self).__name__}.{self.setting}"
        heads_by_task = network.heads_by_task
        for task in self.list_tasks():
            checks.one_of(where, task, heads_by_task)
            self._check_head(where, heads_by_task[task])
        # The source has no variables for a calibration, so restoring them would fail.
        network = self.prepare(network)
        global_step = tf1.train.get_or_create_global_step()
        iterator = tf1.data.make_initializable_iterator(batches)
        features, labels = iterator.get_next()
        with network.quantize(training=False):
            towers = network.build_towers(features, statistics, training=False)
            logits = network.build_logits(towers, features)
        examples = {
            head.name: head.examples(logits[head.name], labels)
            for head in network.heads
            if head.name in self.list_tasks() and isinstance(head, types.ExampleHead)
        }
        layers = {task: self._find_layer(task) for task in self.list_tasks()}
        doubt_lines: list[str] = []
        with tf1.Session() as session:
            self._restore_source(session)
            session.run(tf1.tables_initializer())
            for task, layer in layers.items():
                # Each task takes a separate pass over the rows.
                session.run(iterator.initializer)
                example = examples[task]
                places = _find_places(heads_by_task[task], features, towers[task])
                rows = _read_rows(
                    session, Rows(towers[task], example.targets, example.weights, places)
                )
                new = self.fit(heads_by_task[task], Classifier(*session.run(layer)), rows)
                doubt_lines += new.doubts
                for variable, value in zip(layer, (new.kernel, new.bias), strict=True):
                    variable.load(value, session)
                for name, values in new.behind.items():
                    session.run(calibrated.create(task, name, values).initializer)
            doubts.record_doubts(model_dir, "refit", doubt_lines)
            global_step.load(step, session)
            prefix = os.path.join(model_dir, "model.ckpt")
            saver = tf1.train.Saver(tf1.global_variables())
            path = saver.save(session, prefix, global_step=step, write_state=False)
            run_directory.add_checkpoint(path, keep=1)

    def _check_head(self, where: str, head: types.Head) -> None:
        names = " or ".join(kind.__name__ for kind in self.kinds)
        rule, fix = f"name a task with a {names} head", f"It is the head of task {head.name!r}."
        checks.require(isinstance(head, self.kinds), where, rule, type(head).__name__, fix)

    def prepare(self, network: model.MultiTaskModel) -> model.MultiTaskModel:
        """Return a copy of the model without calibration, with the variables of the source.

        Args:
          network: the model. Only the heads of the tasks in `list_tasks` change in the copy.

        Raises:
          UserError: the head of a task in `list_tasks` has a calibration that this method does not
            compute.
        """
        new_heads = []
        for head in network.heads:
            if head.name in self.list_tasks():
                self.check_computed(head)
                empty = {n: default[0] for n, default in _CALIBRATED.items() if hasattr(head, n)}
                head = dataclasses.replace(cast(Any, head), **empty)
            new_heads.append(head)
        return dataclasses.replace(network, heads=new_heads)

    def check_order(self, network: model.MultiTaskModel, statistics: Statistics) -> None:
        """Check that tasks, classes and values have the same order in the source.

        Args:
          network: the model.
          statistics: the statistics of the columns.

        Raises:
          UserError: a task, class or value has another place in the source.
        """
        saved = row_names.load(self._find_run(), with_files=False)
        network.require_order(saved, statistics)

    def check_balance(self, network: model.MultiTaskModel, sampler: Any) -> None:
        """Check that loss and sampler do not also correct class shares if the method corrects them.

        Args:
          network: the model, with the losses of its heads.
          sampler: the sampler of the training rows, or None.

        Raises:
          UserError: the loss of a task, or the sampler, balances the classes of the task, too.
        """
        balanced = {types.read_member(h, types.ClassHead, "balances") for h in network.heads}
        balanced.add(sampler and sampler.balances)
        fix = "Train the source without balanced classes, or use another method."
        for head in network.heads if self.balances else ():
            if head.name in self.list_tasks():
                rule = f"not balance {head.field!r}, as {type(self).__name__} does"
                fits = head.field not in balanced
                checks.require(fits, "the loss or the sampler", rule, head.name, fix)

    def check_computed(self, head: types.Head) -> None:
        """Check that a head has no calibration that this method does not compute.

        Args:
          head: the head; a head whose class has no settings of calibration always passes.

        Raises:
          UserError: the head has a setting, such as `knots`, for a calibration that this method
            does not compute.
        """
        for name, (empty, fix) in _CALIBRATED.items():
            where = f"{type(head).__name__}.{name} of task {head.name!r}"
            value, rule = getattr(head, name, empty), f"be {empty} with {type(self).__name__}"
            checks.require(value == empty or name in self.computes, where, rule, value, fix)

    def _restore_source(self, session: tf.compat.v1.Session) -> None:
        """Restore the variables of the graph from the source."""
        checkpoint = self._find_checkpoint()
        saved_shapes = dict(tf.train.list_variables(checkpoint))
        graph_shapes = {v.op.name: v.shape.as_list() for v in tf1.global_variables()}
        restored_shapes = {
            name: shape for name, shape in saved_shapes.items() if name in graph_shapes
        }
        mismatch.require_same(checkpoint, restored_shapes, graph_shapes)
        average_saver.Saver().restore(session, checkpoint)

    def _find_run(self) -> str:
        """Return the folder of the run to which the checkpoint of the source belongs."""
        where = f"{type(self).__name__}.source"
        return source_lib.open_source(where, self._find_checkpoint()).directory

    def _find_checkpoint(self) -> str:
        """Return the checkpoint of the source; fail if there is none."""
        where = f"{type(self).__name__}.source"
        storage.require_plain(where, self.source)
        is_checkpoint = tf.io.gfile.exists(self.source + ".index")
        checkpoint = self.source if is_checkpoint else run_directory.find_latest(self.source)
        rule = "be a checkpoint, or a model_dir that holds one"
        if checkpoint is None:
            checks.fail(where, rule, self.source, "Train it first.")
        return checkpoint

    def _find_layer(self, task: str) -> list[tf.Variable]:
        """Return the kernel and the bias of a head."""
        pattern = f"^head/{task}/logits/"
        layer = {
            patterns.variable_name(v): v
            for v in tf1.global_variables()
            if patterns.matches(pattern, v)
        }
        names = [f"head/{task}/logits/{name}" for name in ("kernel", "bias")]
        rule = "have the Linear classifier"
        checks.require(sorted(layer) == sorted(names), f"head {task!r}", rule, sorted(layer))
        return [layer[name] for name in names]


def _find_places(head: types.Head, features: types.Tensors, tower: tf.Tensor) -> tf.Tensor:
    """Return the index of each row's calibration slice, [B]."""
    slices = getattr(head, "calibration_slices", {})
    if not slices:
        return tf.zeros(tf.shape(tower)[:1], tf.int32)
    where = f"{type(head).__name__}.calibration_slices of task {head.name!r}"
    return slices_lib.find_first(slices, features, where)


def _read_rows(session: tf.compat.v1.Session, rows: Rows) -> Iterator[Rows]:
    read_next = session.make_callable(list(rows))
    while True:
        try:
            yield Rows(*read_next())
        except tf.errors.OutOfRangeError:
            return


def _normalise_columns(kernel: np.ndarray, tau: float) -> np.ndarray:
    """Divide each column by the power tau of its length; a column of zeros does not change."""
    lengths = np.linalg.norm(kernel, axis=0)
    return kernel / np.where(lengths > 0, lengths, 1) ** tau


@checks.dataclass
class _Computed(Refit):
    """The base class of methods for `MultiClass` heads that need labelled training rows."""

    task: Annotated[str, checks.Is(str, "name a task")]

    kinds = (heads.MultiClass,)

    def list_tasks(self) -> Sequence[str]:
        """Return the setting `task` as a list with one entry."""
        return [self.task]

    def split_of(self, train_split: str, eval_split: str) -> str:
        """Return the training split."""
        del eval_split
        return train_split


@checks.dataclass
class NearestMean(_Computed):
    """Predicts `argmax_c cos(h, m_c)`: m_c is the mean of class c's towers h in the training split.

    The method is the nearest class mean of Kang et al., "Decoupling Representation and Classifier
    for Long-Tailed Recognition", 2020, arXiv:1910.09217. The kernel is `W_c = m_c / |m_c|`, because
    the length of a tower h does not change the order of the classes. The probabilities of the new
    classifier are not calibrated.

    Attributes:
      task: the task of a `MultiClass` head with the `Linear` classifier.
      source: a checkpoint, or a model_dir for its latest checkpoint.
      distance: the distance of a tower h from the class means m_c: "cosine", or "euclidean" for the
        logits `-|h - m_c|^2 / 2`. The paper reports the better of the two distances.
    """

    distance: Annotated[str, checks.OneOf(["cosine", "euclidean"])] = "cosine"

    def fit(self, head: types.Head, old: Classifier, rows: Iterable[Rows]) -> Classifier:
        """Return a classifier whose kernel has the means of the classes.

        Raises:
          UserError: the rows have no label of a class.
        """
        del head
        sums, total = np.zeros(old.kernel.shape[::-1]), np.zeros(len(old.bias))
        for towers, targets, weights, _ in rows:
            # If a class has several rows in the batch, `sums[targets] += ...` would add only one of
            # these rows.
            np.add.at(sums, targets, towers * weights[:, np.newaxis])
            np.add.at(total, targets, weights)
        empty_classes = np.flatnonzero(total == 0).tolist()
        rule = "find a row of every class in the training split"
        checks.require(not empty_classes, "NearestMean", rule, f"none of class {empty_classes[:3]}")
        means = (sums / total[:, np.newaxis]).T
        if self.distance == "cosine":
            return Classifier(_normalise_columns(means, 1), np.zeros_like(old.bias))
        # -|h - m|^2 / 2 is <h, m> - |m|^2 / 2 - |h|^2 / 2, and the last term is the same for all
        # classes.
        return Classifier(means, -np.sum(means**2, axis=0) / 2)


@checks.dataclass
class _Tau(_Computed):
    taus: Annotated[Sequence[checks.NotNegative], checks.Filled("hold a number")] = (1.0,)
    split: Annotated[str, checks.Is(str, "name a split")] | None = None

    def __post_init__(self):
        super().__post_init__()
        where = f"{type(self).__name__}.split"
        rule = "name a split for the choice of tau, such as 'validation'"
        checks.require(len(self.taus) == 1 or bool(self.split), where, rule, self.split)

    def split_of(self, train_split: str, eval_split: str) -> str:
        """Return the split on which `tau` is chosen, which must not be the evaluation split."""
        where = f"{type(self).__name__}.split"
        rule = f"differ from Pipeline.eval_split ({eval_split!r})"
        fix = "Results on the split that chose tau are too good."
        checks.require(
            len(self.taus) == 1 or self.split != eval_split, where, rule, self.split, fix
        )
        return self.split or train_split

    @abc.abstractmethod
    def at(self, tau: float, old: Classifier, counts: Sequence[int] | None) -> Classifier:
        """Return the classifier for one value of tau.

        Args:
          tau: how strongly the trained classifier is adjusted, at least 0.
          old: the trained classifier.
          counts: the number of training rows of each class, [C]; None if unknown.
        """

    def fit(self, head: types.Head, old: Classifier, rows: Iterable[Rows]) -> Classifier:
        """Return the classifier for the tau with the highest balanced accuracy on the rows."""
        counts = types.read_member(head, types.ClassHead, "class_counts")
        candidates = [self.at(tau, old, counts) for tau in self.taus]
        if len(candidates) == 1:
            return candidates[0]
        hits, total = np.zeros([len(candidates), len(old.bias)]), np.zeros(len(old.bias))
        for towers, targets, weights, _ in rows:
            np.add.at(total, targets, weights)
            for hit, candidate in zip(hits, candidates, strict=True):
                logits = candidate.compute_logits(towers)
                is_correct = np.argmax(logits, axis=1) == targets
                is_correct &= ~np.isnan(logits).any(axis=1)  # `argmax` of NaN is also a class.
                np.add.at(hit, targets, weights * is_correct)
        # The recall of a class without a row in the split is undefined.
        has_rows = total > 0
        rule = "hold a row with a label"
        checks.require(bool(has_rows.any()), f"split {self.split!r}", rule, "none")
        accuracies = (hits[:, has_rows] / total[has_rows]).mean(axis=1)
        best = int(np.argmax(accuracies))
        accuracies_by_tau = ", ".join(
            f"{t:g}: {a:.4f}" for t, a in zip(self.taus, accuracies, strict=True)
        )
        _log.info(
            "tau = %g; balanced accuracy on %r by tau: %s",
            self.taus[best],
            self.split,
            accuracies_by_tau,
        )
        return candidates[best]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TauNormalized(_Tau):
    """`W_c / |W_c|^tau`, without the bias: makes weight vectors W_c of all classes similarly long.

    The method is from Kang et al., "Decoupling Representation and Classifier for Long-Tailed
    Recognition", 2020, arXiv:1910.09217. In a trained classifier, frequent classes have longer
    weight vectors; with tau = 1, all lengths are equal.

    Attributes:
      task: the task of a `MultiClass` head with the `Linear` classifier.
      source: a checkpoint, or a model_dir for its latest checkpoint.
      taus: the candidates for tau, at least 0; `fit` chooses the best candidate on `split`.
      split: a held-out split for the choice of tau, which must not be the evaluation split.
    """

    def at(self, tau: float, old: Classifier, counts: Sequence[int] | None) -> Classifier:
        """Return the classifier with normalised columns in the kernel."""
        del counts
        return Classifier(_normalise_columns(old.kernel, tau), np.zeros_like(old.bias))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitAdjusted(_Tau):
    """`b_c - tau log(n_c / sum(n))`: adjusts the bias b_c of class c by its count n_c of rows.

    The method is the post-hoc logit adjustment of Menon et al., "Long-tail learning via logit
    adjustment", 2020, arXiv:2007.07314.

    Attributes:
      task: the task of a `MultiClass` head with the `Linear` classifier, and with `class_counts`
        from its settings or counted for its `shots`.
      source: a checkpoint, or a model_dir for its latest checkpoint.
      taus: the candidates for tau, at least 0; `fit` chooses the best candidate on `split`.
      split: a held-out split for the choice of tau, which must not be the evaluation split.
    """

    balances: ClassVar[bool] = True

    def at(self, tau: float, old: Classifier, counts: Sequence[int] | None) -> Classifier:
        """Return the classifier with an adjusted bias.

        Raises:
          UserError: the counts are unknown, or a class has no training row.
        """
        has_counts = counts is not None and min(counts) > 0
        fix = "Set class_counts, or MultiClass.shots to count them."
        rule = "count a row of every class"
        checks.require(
            has_counts, f"MultiClass.class_counts of task {self.task!r}", rule, counts, fix
        )
        rows = np.asarray(counts, np.float64)
        return Classifier(old.kernel, old.bias - tau * np.log(rows / rows.sum()))
