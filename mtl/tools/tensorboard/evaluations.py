"""Shows an evaluation in TensorBoard: its curves, and its first images with predictions.

write = evaluations.CurveWriter(heads, items, writer_dir)            # for `curves.Counting`
hook = evaluations.Rows(features, labels, logits, heads, columns, writer_dir, num_images)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tensorboard.plugins.pr_curve import summary as pr_curves

from mtl import deferred, types
from mtl import features as features_lib
from mtl.deferred import tf, tf1
from mtl.tools.tensorboard import pictures

with deferred.imports():
    from mtl.monitoring import curves


_MOST_LINES = 6
_LONGEST_LINE = 26


class CurveWriter:
    """Writes summaries of curves and matrices for an evaluation.

    Args:
      heads: the heads of the tasks.
      items: the names of the items that are due, from `settings.OF_EVALUATIONS`.
      directory: the folder of the event files.
    """

    def __init__(self, heads: Sequence[types.Head], items: Sequence[str], directory: str):
        self._names = {h.name: types.read_member(h, types.ClassHead, "class_names") for h in heads}
        self._items, self._directory = items, directory

    def __call__(self, step: int, counted: Mapping[str, curves.Counted]) -> None:
        """Write the summaries of all tasks for a step."""
        writer = tf1.summary.FileWriterCache.get(self._directory)
        for task, sums in counted.items():
            for summary in self._draw(task, sums):
                writer.add_summary(summary, step)
        writer.flush()

    def _draw(self, task: str, sums: curves.Counted) -> Iterator[tf.compat.v1.Summary]:
        if sums.confusion is not None:
            picture = pictures.draw_matrix(sums.confusion, self._names[task], task)
            yield _to_summary(f"confusion/{task}", picture)
        for number, name in enumerate(sums.names):
            tag = task if len(sums.names) == 1 else f"{task}/{name}"
            if "pr_curves" in self._items:
                yield draw_pr_curve(tag, sums, number)
            if "prediction_histograms" in self._items:
                yield _draw_histogram(f"prediction_histograms/{tag}", sums, number)
        if "roc_curves" in self._items:
            lines = {name: sums.trace_roc(at) for at, name in enumerate(sums.names)}
            title = f"{task}: recall by false positive rate"
            yield _to_summary(f"roc_curves/{task}", pictures.draw_shares(lines, title))
        if "reliability" in self._items:
            lines = {name: sums.trace_reliability(at) for at, name in enumerate(sums.names)}
            title = f"{task}: share of rows by probability"
            yield _to_summary(f"reliability/{task}", pictures.draw_shares(lines, title))


def draw_pr_curve(tag: str, sums: curves.Counted, number: int) -> tf.compat.v1.Summary:
    """Return a summary with the precision-recall curve of a class.

    Args:
      tag: the tag of the summary, with the task and the class.
      sums: the counts of predictions that the evaluation has collected for the task.
      number: the index of the class.
    """
    hits, misses = sums.hits[number], sums.misses[number]
    # Sum up all bins above each threshold, [thresholds]. The first bin is below all thresholds.
    true, false = (np.cumsum(bins[:0:-1])[::-1] for bins in (hits, misses))
    missed, rejected = hits.sum() - true, misses.sum() - false
    # If no row is above a threshold, as for the highest thresholds, `maximum` turns 0 / 0 into 0.
    precision = true / np.maximum(true + false, 1e-12)
    recall = true / np.maximum(true + missed, 1e-12)
    return pr_curves.raw_data_pb(
        tag, true, false, rejected, missed, precision, recall, curves.NUM_THRESHOLDS
    )


def _draw_histogram(tag: str, sums: curves.Counted, number: int) -> tf.compat.v1.Summary:
    """Return a summary with a histogram of the predicted probabilities of a class."""
    bars = sums.count_predictions(number)
    counts = [bar.positives + bar.negatives for bar in bars]
    weights, predicted, _ = sums.by_share[:, number].sum(1)  # [3, bins] -> [3]
    histogram = tf1.HistogramProto(
        min=0.0,
        max=1.0,
        num=weights,
        sum=predicted,
        bucket_limit=[bar.high for bar in bars],
        bucket=counts,
    )
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, histo=histogram)])


class Rows(tf.compat.v1.train.SessionRunHook):
    """Draws the first images of an evaluation, with the predictions of each task.

    Args:
      features: {field: [B, ...]}.
      labels: {field: [B, ...]}.
      logits: {task: [B, C]}.
      heads: the fitted heads of the tasks.
      columns: the columns of the model; its image columns are drawn.
      directory: the folder of the event files.
      num_images: the number of rows whose images are drawn.
    """

    def __init__(
        self,
        features: types.Tensors,
        labels: types.Tensors,
        logits: types.Tensors,
        heads: Sequence[types.Head],
        columns: Sequence[types.Column],
        directory: str,
        num_images: int,
    ):
        self._directory, self._num_images = directory, num_images
        self._heads = {head.name: head for head in heads}
        outputs = [(h, curves.watch_head(h, logits[h.name], labels)) for h in heads]
        self._outputs = {h.name: values for h, values in outputs if values and _fits(h, values)}
        self._pixels = read_images(features, columns)
        self._images: dict[str, list[np.ndarray]] = {field: [] for field in self._pixels}
        self._rows: list[dict[str, dict[str, np.ndarray]]] = []
        self._num_rows = 0

    def after_create_session(self, session, coord):
        self._step = int(session.run(tf1.train.get_global_step()))

    def before_run(self, run_context):
        # After the first batches, fetch nothing, so that later batches take no time for pictures.
        is_full = self._num_rows >= self._num_images
        return None if is_full else tf1.train.SessionRunArgs([self._outputs, self._pixels])

    def after_run(self, run_context, run_values):
        if run_values.results is None:
            return
        outputs, images = run_values.results
        # The last batch may hold more rows than are left to draw.
        room = self._num_images - self._num_rows
        for field, pixels in images.items():
            self._images[field].append(pixels[:room])
        self._rows.append({t: {n: v[:room] for n, v in o.items()} for t, o in outputs.items()})
        self._num_rows += len(next(iter(images.values()))[:room])

    def end(self, session):
        writer = tf1.summary.FileWriterCache.get(self._directory)
        captions, are_right = self._write_captions()
        for field, parts in self._images.items():
            if parts:
                # The pictures of different image fields have the same captions.
                picture = pictures.draw_rows(np.concatenate(parts), captions, are_right)
                writer.add_summary(_to_summary(f"predictions/{field}", picture), self._step)
        writer.flush()

    def _write_captions(self) -> tuple[list[list[str]], list[list[bool]]]:
        """Return the lines below each image, and for each line whether its prediction is right."""
        lines: list[list[str]] = []
        right: list[list[bool]] = []
        if not self._outputs:  # Captions show predictions, of which there are none.
            return [[] for _ in range(self._num_rows)], [[] for _ in range(self._num_rows)]
        for batch in self._rows:
            size = len(next(iter(batch.values()))["targets"]) if batch else 0
            for row in range(size):
                captions = self._tell_row(batch, row)
                lines.append([line for line, _ in captions])
                right.append([is_right for _, is_right in captions])
        return lines, right

    def _tell_row(
        self, batch: Mapping[str, Mapping[str, np.ndarray]], row: int
    ) -> list[tuple[str, bool]]:
        return [
            _tell_prediction(self._heads[task], {name: value[row] for name, value in out.items()})
            # If a caption had more lines, the caption would be higher than the image.
            for task, out in list(batch.items())[:_MOST_LINES]
        ]


def _fits(head: types.Head, outputs: types.Tensors) -> bool:
    """Return True if the predictions of a head fit into captions, as numbers and classes do."""
    is_number = "value" in outputs and outputs["value"].shape.rank == 1
    return is_number or curves.has_shares(head, outputs)


def read_images(features: types.Tensors, columns: Sequence[types.Column]) -> dict[str, tf.Tensor]:
    """Return {field: [B, H, W, C]} for all image columns, with values in [0, 1].

    Args:
      features: {field: [B, ...]}.
      columns: the columns of the model.
    """
    images = {}
    for column in columns:
        if isinstance(column, features_lib.Image):
            # An image column reads exactly one field.
            for (field,) in column.columns.values():
                images[field] = column.pixels(features, field)
    return images


def _tell_prediction(head: types.Head, outputs: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the prediction of a head for a row as text, and False if it differs from the label."""
    names = types.read_member(head, types.ClassHead, "class_names")
    target, has_label, is_right = outputs["targets"], bool(np.any(outputs["weights"] > 0)), True
    if "class_id" in outputs and np.ndim(target) == 0:
        line, is_right = _tell_class(names, outputs, has_label)
    elif "value" in outputs and np.ndim(outputs["value"]) == 0:
        line = f"{outputs['value']:.4g}" + (f", was {target:.4g}" if has_label else "")
    else:
        # If a row has several labels, list the classes with a probability above 0.5.
        high = [n for n, p in zip(names, outputs["probabilities"], strict=True) if p > 0.5]
        line = ", ".join(high) or "(none)"
    caption = f"{head.name}: {line}"
    if len(caption) > _LONGEST_LINE:
        caption = f"{caption[: _LONGEST_LINE - 1]}…"
    return caption, is_right


def _tell_class(
    names: Sequence[str], outputs: Mapping[str, Any], has_label: bool
) -> tuple[str, bool]:
    predicted, true, share = int(outputs["class_id"]), int(outputs["targets"]), np.nan
    if "probability" in outputs:
        # "probability" is the probability of class 1.
        share = outputs["probability"] if predicted else 1 - outputs["probability"]
    elif "probabilities" in outputs:
        share = outputs["probabilities"][predicted]
    line = f"{names[predicted]} ({share:.2f})"
    if predicted == true or not has_label:
        return line, True
    return f"{line}, was {names[true]}", False


def _to_summary(tag: str, picture: pictures.Picture) -> tf.compat.v1.Summary:
    image = tf1.Summary.Image(
        width=picture.width,
        height=picture.height,
        colorspace=3,
        encoded_image_string=picture.png,
    )
    return tf1.Summary(value=[tf1.Summary.Value(tag=tag, image=image)])
