"""What TensorBoard shows of an evaluation: rows as they were predicted, gathered batch by batch.

hook = evaluations.Rows(features, labels, heads, logits, columns, items, writer_dir, num_images)

The pass of the evaluation itself is watched, so that the sums are those of its metrics. What is
kept of a batch are sums, and the first images.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorboard.plugins.pr_curve import summary as pr_curves

from mtl import features as features_lib
from mtl import types
from mtl.monitoring.tensorboard import pictures

tf1 = tf.compat.v1

NUM_THRESHOLDS = 201
MOST_CURVES = 32
"""Of a task with more classes, curves of the first ones alone."""
_MOST_LINES = 6
_LONGEST_LINE = 26


@dataclasses.dataclass
class Counted:
    """What a task's rows add up to, weighted as in its metrics.

    Attributes:
      names: of the classes that curves are drawn of.
      confusion: [C, C] of true by predicted classes; None for tasks without one class a row.
      hits: [K, N + 1], for each class the weights of its rows by the number of thresholds that
        their scores reach.
      misses: the same of rows of other classes.
    """

    names: Sequence[str]
    confusion: np.ndarray | None
    hits: np.ndarray
    misses: np.ndarray

    def add(self, said: Mapping[str, np.ndarray]) -> None:
        """Add the rows of a batch."""
        targets, weights = said["targets"], said["weights"]
        if self.confusion is not None:
            np.add.at(self.confusion, (targets.astype(int), said["class_id"]), weights)
        for number in range(len(self.names)):
            if "probability" in said:
                scores, is_hit, own = said["probability"], targets > 0.5, weights
            elif targets.ndim == 2:
                scores = said["probabilities"][:, number]
                is_hit, own = targets[:, number] > 0.5, weights[:, number]
            else:
                scores, is_hit, own = said["probabilities"][:, number], targets == number, weights
            known = np.nan_to_num(scores, nan=-1.0)  # A NaN is no prediction of any class.
            reached = np.searchsorted(_THRESHOLDS, known, side="right")
            np.add.at(self.hits[number], reached, np.where(is_hit, own, 0))
            np.add.at(self.misses[number], reached, np.where(is_hit, 0, own))

    def draw_curve(self, tag: str, number: int) -> tf.compat.v1.Summary:
        """Draw precision by recall of a class."""
        true, false = (np.cumsum(sums[number][:0:-1])[::-1] for sums in (self.hits, self.misses))
        missed, rejected = self.hits[number].sum() - true, self.misses[number].sum() - false
        precision = true / np.maximum(true + false, 1e-12)
        recall = true / np.maximum(true + missed, 1e-12)
        return pr_curves.raw_data_pb(
            tag, true, false, rejected, missed, precision, recall, NUM_THRESHOLDS
        )


_THRESHOLDS = np.arange(NUM_THRESHOLDS) / (NUM_THRESHOLDS - 1)


class Rows(tf.compat.v1.train.SessionRunHook):
    """Watches the rows of an evaluation, and writes pictures and curves of them at its end.

    Args:
      features: {field: [B, ...]}.
      labels: {field: [B, ...]}.
      logits: {task: [B, C]}.
      heads: of the tasks, fitted.
      columns: of the model, for images.
      items: which of `settings.OF_EVALUATIONS`.
      directory: of the event files.
      num_images: how many rows are drawn.
    """

    def __init__(
        self,
        features: types.Tensors,
        labels: types.Tensors,
        logits: types.Tensors,
        heads: Sequence[types.Head],
        columns: Sequence[types.Column],
        items: Sequence[str],
        directory: str,
        num_images: int,
    ):
        self._items, self._directory, self._num_images = items, directory, num_images
        self._said: dict[str, dict[str, tf.Tensor]] = {}
        self._counted: dict[str, Counted] = {}
        for head in heads:
            self._watch(head, labels, logits[head.name])
        self._pixels = read_images(features, columns) if "predictions" in items else {}
        self._images: dict[str, list[np.ndarray]] = {field: [] for field in self._pixels}
        self._rows: list[dict[str, dict[str, np.ndarray]]] = []
        self._kept = 0
        self._heads = {head.name: head for head in heads}

    def _watch(self, head: types.Head, labels: types.Tensors, logits: tf.Tensor) -> None:
        """Watch a task, if its predictions are of a kind that can be shown."""
        if not isinstance(head, types.ExampleHead) or head.field not in labels:
            return
        said = dict(head.predictions(logits))
        examples = head.examples(logits, labels)
        kept = {name: said[name] for name in _SHOWN if name in said}
        if not kept or any(value.shape.rank > 2 for value in kept.values()):
            return
        names = types.read_member(head, types.Head, "class_names")
        rank = examples.targets.shape.rank
        has_one = rank == 1 and "class_id" in kept
        is_binary = has_one and "probability" in kept
        shares = kept.get("probabilities")
        is_known = is_binary or (shares is not None and shares.shape[-1] == len(names))
        if is_known:
            has_matrix = has_one and len(names) <= pictures.MOST_CLASSES
            curves = [names[-1]] if is_binary else list(names[:MOST_CURVES])
            self._counted[head.name] = Counted(
                curves if "pr_curves" in self._items else [],
                np.zeros([len(names)] * 2) if has_matrix and "confusion" in self._items else None,
                np.zeros([len(curves), NUM_THRESHOLDS + 1]),
                np.zeros([len(curves), NUM_THRESHOLDS + 1]),
            )
        # A number has a caption, and several numbers a row have none.
        is_told = is_known or ("value" in kept and kept["value"].shape.rank == 1)
        if is_told and (is_known or "predictions" in self._items):
            more = {"targets": examples.targets, "weights": examples.weights}
            self._said[head.name] = {**kept, **more}

    def after_create_session(self, session, coord):
        self._step = int(session.run(tf1.train.get_global_step()))

    def before_run(self, run_context):
        more = self._pixels if self._kept < self._num_images else {}
        return tf1.train.SessionRunArgs([self._said, more])

    def after_run(self, run_context, run_values):
        said, images = run_values.results
        for task, counted in self._counted.items():
            counted.add(said[task])
        if images:
            left = self._num_images - self._kept
            for field, values in images.items():
                self._images[field].append(values[:left])
            self._rows.append({t: {n: v[:left] for n, v in own.items()} for t, own in said.items()})
            self._kept += len(next(iter(images.values()))[:left])

    def end(self, session):
        writer = tf1.summary.FileWriterCache.get(self._directory)
        for summary in self._draw():
            writer.add_summary(summary, self._step)
        writer.flush()

    def _draw(self) -> list[tf.compat.v1.Summary]:
        found = []
        for task, counted in self._counted.items():
            names = types.read_member(self._heads[task], types.Head, "class_names")
            if counted.confusion is not None:
                drawn = pictures.draw_matrix(counted.confusion, names, task)
                found.append(_to_summary(f"confusion/{task}", drawn))
            is_one = len(counted.names) == 1
            for number, name in enumerate(counted.names):
                tag = task if is_one else f"{task}/{name}"
                found.append(counted.draw_curve(tag, number))
        for field, parts in self._images.items():
            if parts:
                captions, are_right = self._caption()
                images = np.concatenate(parts)
                drawn = pictures.draw_rows(images, captions, are_right)
                found.append(_to_summary(f"predictions/{field}", drawn))
        return found

    def _caption(self) -> tuple[list[list[str]], list[list[bool]]]:
        """Return the lines below each image, and whether they are right."""
        lines: list[list[str]] = []
        right: list[list[bool]] = []
        if not self._said:  # No task tells anything of a row: images stand alone.
            return [[] for _ in range(self._kept)], [[] for _ in range(self._kept)]
        for batch in self._rows:
            size = len(next(iter(batch.values()))["targets"]) if batch else 0
            for row in range(size):
                told = [
                    _tell(self._heads[task], {name: value[row] for name, value in own.items()})
                    for task, own in list(batch.items())[:_MOST_LINES]
                ]
                lines.append([line for line, _ in told])
                right.append([is_right for _, is_right in told])
        return lines, right


_SHOWN = ("class_id", "probability", "probabilities", "value")


def read_images(features: types.Tensors, columns: Sequence[types.Column]) -> dict[str, tf.Tensor]:
    """Return {field: [B, H, W, C] in [0, 1]} of the image columns, without normalisation."""
    found = {}
    for column in columns:
        if isinstance(column, features_lib.Image):
            for (field,) in column.columns.values():
                found[field] = column.pixels(features, field)
    return found


def _tell(head: types.Head, said: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what a task says of a row, and whether that is right; a missing label is."""
    names = types.read_member(head, types.Head, "class_names")
    target, is_known = said["targets"], np.any(said["weights"] > 0)
    if "class_id" in said and np.ndim(target) == 0:
        chosen = int(said["class_id"])
        if "probability" in said:
            share = said["probability"] if chosen else 1 - said["probability"]
        else:
            share = said["probabilities"][chosen] if "probabilities" in said else np.nan
        true = int(target)
        line, is_right = f"{head.name}: {names[chosen]} ({share:.2f})", chosen == true
        told = "" if is_right or not is_known else f", was {names[true]}"
    elif "value" in said and np.ndim(said["value"]) == 0:
        line, is_right = f"{head.name}: {said['value']:.4g}", True
        told = f", was {target:.4g}" if is_known else ""
    else:
        high = [n for n, p in zip(names, said["probabilities"], strict=True) if p > 0.5]
        line, told, is_right = f"{head.name}: {', '.join(high) or '(none)'}", "", True
    whole = line + told
    shown = whole if len(whole) <= _LONGEST_LINE else f"{whole[: _LONGEST_LINE - 1]}…"
    return shown, bool(is_right or not is_known)


def _to_summary(tag: str, picture: pictures.Picture) -> tf.compat.v1.Summary:
    image = tf1.Summary.Image(
        width=picture.width,
        height=picture.height,
        colorspace=3,
        encoded_image_string=picture.png,
    )
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, image=image)])
