"""Writes the sections of a report about size, large gradients, problems and further commands."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtl.deferred import tf
from mtl.files import storage
from mtl.tools.clip_audit import tables
from mtl.tools.drawing import figures, gates_picture, line_charts, sparsity_picture
from mtl.tools.reports import blocks, record
from mtl.variables import pruned

_MOST_SAMPLES = 20
_MOST_STEPS = 10
_MOST_TAGS = 10
# The share of dead units above which an expert or a layer is reported.
_DEAD_SHARE = 0.1
_OF_SURGERY = re.compile(r"(^|/)surgery/(?!loss$)")  # A task may have the name "surgery".
_AUDITS = ("training", "checkpoints")


def tell_size(run: record.Run) -> list | str:
    """Return a section about the number of parameters, sizes of files, speed and pruned weights.

    Returns:
      The blocks of the section; without a checkpoint, a text that says why the section is left out.
    """
    if run.checkpoint is None:
        return "no checkpoint is saved yet."
    parameters, size = record.count_parameters(run.checkpoint)
    rows: list[list] = [
        ["parameters of the model", parameters],
        ["bytes of the checkpoint, with the optimizer's state", size],
    ]
    if run.export:
        rows.append([f"bytes of the {run.export['kind']} export", run.export["bytes"]])
    pruned_counts = pruned.count_weights(run.checkpoint)
    if pruned_counts:
        rows += [
            ["weights that may be pruned", pruned_counts[1]],
            ["pruned weights", pruned_counts[0]],
            ["bytes of the weights that may be pruned", 4 * pruned_counts[1]],  # float32
            ["bytes of these weights, packed by zlib", pruned_counts[2]],
        ]
    for name, median in run.speeds.items():
        label = f"{name.replace('_per_sec', '')} per second (median)"
        rows.append([label, blocks.Right(f"{median:,.1f}")])
    parts: list = [blocks.Table(["what", "how much"], rows), _tell_export(run.export)]
    speed = {"examples": run.training.curves.get("examples_per_sec", {})}
    if speed["examples"]:
        picture = line_charts.draw_curves("speed", speed, "examples per second", may_be_log=False)
        parts.append(blocks.Figures([picture]))
    panels = sparsity_picture.draw_panels(run.training.curves)
    if panels:
        parts.append(blocks.Figures(panels, "Sparsity"))
    return parts


def _tell_export(export: dict) -> blocks.Text:
    if not export:
        return blocks.Text("There is no export.", "note")
    # If there were no held-out rows, an export was published without a check, and has no
    # `difference`.
    if "difference" not in export:
        return blocks.Text(f"The export {export['path']} was not checked.", "note")
    return blocks.Text(
        f"The export {export['path']} was checked on {export['checked_rows']} held-out rows: its "
        f"predictions differ from the checkpoint's by at most {export['difference']:.1g}.",
        "note",
    )


def tell_samples(run: record.Run) -> list | str:
    """Return a section about the samples with the largest gradients, from a clip audit.

    Returns:
      The blocks of the section; without a clip audit in the folder of the run, a text that says why
      the section is left out.
    """
    for name in _AUDITS:
        path = os.path.join(run.model_dir, "clip_audit", name, "samples.parquet")
        if tf.io.gfile.exists(path):
            return _tell_audit(tables.read_parquet(path))
    return "the run has no clip audit (Experiment.clip_audit, or launch.clip_audit)."


def _tell_audit(samples: dict[str, np.ndarray]) -> list:
    tasks = [name.removeprefix("label/") for name in samples if name.startswith("label/")]
    columns = {
        "id": "sample",
        "visits": "visits",
        "norm/mean/all": "mean norm",
        "share_above": "above the threshold",
    }
    columns |= {
        f"{quantity}/{task}": f"{task}, {quantity}"
        for task in tasks
        for quantity in ("label", "prediction")
    }
    titles = {name: title for name, title in columns.items() if name in samples}
    rows = [
        [_make_cell(name, samples[name][place]) for name in titles]
        for place in range(min(_MOST_SAMPLES, len(samples["id"])))
    ]
    caption = f"The {len(rows)} of {len(samples['id']):,} samples with the largest mean norm"
    table = blocks.Table(list(titles.values()), rows, caption)
    return [table, blocks.Figures([_draw_norms(samples["norm/mean/all"])])]


def _draw_norms(norms: np.ndarray) -> figures.Figure:
    finite = np.sort(norms[np.isfinite(norms)])[::-1]
    points = [(place, float(norm)) for place, norm in enumerate(finite)]
    picture = line_charts.draw(
        "mean norm of samples, by rank", {"norm": points}, "rank", "mean norm", may_be_log=True
    )
    left_out = len(norms) - len(finite)
    note = f"{left_out} of {len(norms):,} norms are not finite, and not drawn." if left_out else ""
    return picture._replace(note=note)


def _make_cell(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    # Class ids are stored as floats, like all labels, so write 3.0 as 3.
    is_label = name.startswith(("label/", "prediction/"))
    if is_label and isinstance(value, np.number):
        return blocks.Right(f"{value:g}")
    return value.item() if isinstance(value, np.generic) else value


def tell_problems(run: record.Run, problems: Sequence[str]) -> list:
    """Return a section with a line for each known or possible problem of a run.

    Args:
      run: the run that the report describes.
      problems: further lines to show, such as errors that occurred while rows were read.

    Returns:
      The problems as paragraphs of warnings, or one paragraph that says that no problem is known.
    """
    lines = [*run.doubts, *_tell_broken(run), *_tell_predictions(run), *_tell_dead(run)]
    skipped = run.training.curves.get("skipped_steps")
    # The scalar `skipped_steps` counts all skipped steps so far, so its last value is the total.
    if skipped and skipped[max(skipped)] > 0:
        count = skipped[max(skipped)]
        lines.append(f"{count:.0f} steps were skipped, because a value was not finite.")
    lines += problems
    if not run.training.curves:
        lines.append("No step was recorded, so it is unknown whether all values were finite.")
    if not lines:
        line = "No problem is known: no step was skipped, and all values were finite."
        return [blocks.Text(line)]
    return [blocks.Text(line, "warning") for line in lines]


def _tell_broken(run: record.Run) -> list[str]:
    # If the sum of the losses is finite, the NaN of a task means that the batch of the step has no
    # label of the task.
    finite = run.training.curves.get("loss", {}).keys()
    broken = {
        tag: sorted(steps - finite if tag.endswith("/loss") else steps)
        for tag, steps in run.training.broken.items()
        # A scalar of a surgery is NaN at steps that do not measure it, or without rows of its task.
        if not _OF_SURGERY.search(tag)
    }
    broken = {tag: steps for tag, steps in broken.items() if steps}
    lines = []
    for tag, steps in list(broken.items())[:_MOST_TAGS]:
        text = ", ".join(map(str, steps[:_MOST_STEPS])) + ", ..." * (len(steps) > _MOST_STEPS)
        lines.append(f"{tag} was not finite at {len(steps)} of the recorded steps: {text}.")
    if len(broken) > len(lines):
        lines.append(f"{len(lines)} of {len(broken)} scalars that were not finite are shown.")
    return lines


def _tell_predictions(run: record.Run) -> list[str]:
    return [
        f"{name.rpartition('/')[0]} predicts NaN for {value:.0f} held-out rows."
        for name, value in run.metrics.items()
        if name.endswith("/nan_predictions") and value > 0
    ]


def _tell_dead(run: record.Run) -> list[str]:
    """Return a line for each expert or layer with many dead units."""
    _, gates = gates_picture.group(run.training.curves)
    layers = sparsity_picture.group(run.training.curves)
    curves = {**gates.get("dead_units", {}), **layers.get("dead_units", {})}
    return [
        f"{100 * points[max(points)]:.0f}% of the units of {name} are dead at the end."
        for name, points in curves.items()
        # Only the last value is used, because units that are dead early may recover.
        if points[max(points)] > _DEAD_SHARE
    ]


def tell_commands(run: record.Run) -> list:
    """Return a section with commands that repeat a run, predict with its model and serve it."""
    folder, name = shlex.quote(run.model_dir), run.experiment.serving.model_name
    checkpoint = "best" if run.best.get("step") is not None else "latest"
    # Use another folder, because in the folder of the run, the command would continue the run.
    again = shlex.quote(f"{run.model_dir.rstrip('/')}_again")
    config = shlex.quote(os.path.join(run.model_dir, "config.gin"))
    lines = [
        (
            "Repeat the training in another folder",
            f"python -m launch.train --gin_file {config} --model_dir {again}",
        ),
        (
            "Evaluate",
            f"python -m launch.evaluate --model_dir {folder} --checkpoint {checkpoint}",
        ),
        (
            "Predict rows of files",
            f"python -m launch.predict --model_dir {folder} --checkpoint {checkpoint} "
            "--input 'new/*.csv' --output predictions.jsonl",
        ),
        (
            "Compare with other runs",
            f"python -m launch.compare {folder} OTHER_RUN",
        ),
    ]
    if run.export:
        export_folder = shlex.quote(storage.make_absolute(os.path.dirname(run.export["path"])))
        serve = f"docker run -p 8501:8501 -v {export_folder}:/models/{name} -e MODEL_NAME={name} "
        lines.append(
            ("Try a server on this machine", f"python -m launch.serve --model_dir {folder}")
        )
        lines.append(("Serve the export", serve + "tensorflow/serving"))
    return [blocks.Commands(lines)]
