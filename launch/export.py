"""Exports a trained model as a SavedModel for TensorFlow Serving.

python -m launch.export --model_dir runs/digits --checkpoint best --export_dir models/digits
python -m launch.export --model_dir runs/digits --compare
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from absl import flags

from launch import app
from mtl import checks, deferred
from mtl.deferred import tf

with deferred.imports():
    from mtl import experiment as experiment_lib
    from mtl import verbs
    from mtl.checkpoints import run_directory
    from mtl.serving import deployment, metadata, rows
    from mtl.tools import scoring
    from mtl.tools.exports import export_comparison
    from mtl.tools.runtimes import onnx, portable, tflite

CHECKPOINT = app.define_checkpoint()
EXPORT_DIR = flags.DEFINE_string(
    "export_dir", None, "The folder for numbered versions. (default: MODEL_DIR/export/manual)"
)
ONNX = flags.DEFINE_string(
    "onnx",
    None,
    "A file for the model in ONNX, with features as tensors. Needs the extra onnx.",
)
TFLITE = flags.DEFINE_string(
    "tflite", None, "A file for the model in TensorFlow Lite, with features as tensors."
)
TFLITE_WEIGHTS = flags.DEFINE_string(
    "tflite_weights",
    "float32",
    "The weights of --tflite: float32, int8, or sparse, which neither stores nor multiplies zeros "
    "of dense layers.",
)
COMPARE = flags.DEFINE_boolean(
    "compare",
    False,
    "Export nothing, but print bytes, latency and deviation of the model in each format.",
)


def _check_flags(others: Mapping[str, str | None]) -> None:
    """Fail if flags have wrong values or exclude each other; `others` is {format: output path}."""
    for ending, path in others.items():
        if path is not None:
            checks.require(path.endswith(f".{ending}"), f"--{ending}", f"end in .{ending}", path)
    checks.one_of("--tflite_weights", TFLITE_WEIGHTS.value, tflite.KINDS)
    is_used = TFLITE_WEIGHTS.value == tflite.FLOAT32 or TFLITE.value or COMPARE.value
    rule = "come with --tflite"
    checks.require(bool(is_used), "--tflite_weights", rule, TFLITE_WEIGHTS.value)
    for flag in (EXPORT_DIR, ONNX, TFLITE):
        rule = "be left out, as --compare writes nothing"
        checks.require(not (COMPARE.value and flag.value), f"--{flag.name}", rule, flag.value)


def main() -> None:
    """Export the run that the flags describe; print the files and the command that serves them."""
    others = {"onnx": ONNX.value, "tflite": TFLITE.value}
    _check_flags(others)
    experiment, model_dir = app.load()
    if COMPARE.value:
        _compare_formats(experiment, model_dir)
        return
    for ending, path in others.items():
        if path:
            files = [*app.GIN_FILE.value, *experiment.files_read]
            scoring.Protection(
                files=files, model_dir=model_dir, where=f"--{ending}", endings=(ending,)
            ).check(path)
    if ONNX.value:
        # Check for the packages of ONNX before the export is written.
        onnx.require()
    folder = EXPORT_DIR.value or os.path.join(model_dir, "export", "manual")
    differences = {}

    def convert(written: str, held_out: rows.HeldOut | None) -> None:
        """Convert an export before it is published; after an error, the export is not published."""
        if ONNX.value:
            differences["ONNX", ONNX.value] = onnx.write_onnx(written, ONNX.value, held_out)
        if TFLITE.value:
            weights = TFLITE_WEIGHTS.value
            difference = tflite.write_tflite(written, TFLITE.value, weights, held_out)
            differences["TFLite", TFLITE.value] = difference

    is_converted = bool(ONNX.value or TFLITE.value)
    path = verbs.export(experiment, model_dir, folder, CHECKPOINT.value, convert, is_converted)
    script = deployment.write(folder, experiment.serving.model_name)
    _print_export(path, differences)
    print(f"  serve it    sh {shlex.quote(script)}")


def _print_export(path: str, differences: Mapping[tuple[str, str], float]) -> None:
    """Print the path of an export, and the results of its checks.

    Args:
      path: the path of the export.
      differences: {(format, file): the largest difference from the checkpoint's predictions}.
    """
    print("Exported", path)
    facts = metadata.read_metadata(path)
    if "difference" in facts:
        print(
            f"  checked     {facts['checked_rows']} held-out rows, "
            f"at most {facts['difference']:.1g} from the Estimator's predictions"
        )
    for (kind, file), difference in differences.items():
        print(
            f"  {kind:<10}  {file}, predictions differ by at most {difference:.1g} "
            "from the checkpoint's"
        )
    ids = os.path.join(path, portable.FOLDER, portable.IDS)
    if tf.io.gfile.isdir(ids):
        print(f"  ids         {ids}: encoder.py and encoder.h make its inputs")


def _compare_formats(experiment: experiment_lib.Experiment, model_dir: str) -> None:
    """Print size, latency and deviation of the model in each format."""
    with run_directory.hold_checkpoint(model_dir, CHECKPOINT.value) as path:
        _print_formats(experiment, model_dir, path)


def _print_formats(experiment: experiment_lib.Experiment, model_dir: str, path: str) -> None:
    titles = ("format", "bytes", "gzipped", "ms a request", "deviation")
    print("{:<26}  {:>11}  {:>11}  {:>24}  {:>9}".format(*titles))
    for result in export_comparison.compare_formats(experiment, model_dir, path):
        if result.problem:
            print(f"{result.name:<26}  {result.problem}")
            continue
        times = ", ".join(f"{ms:.3g} ({rows})" for rows, ms in sorted(result.milliseconds.items()))
        print(
            f"{result.name:<26}  {result.size:>11,}  {result.gzipped:>11,}  {times:>24}  "
            f"{result.difference:>9.1g}",
            flush=True,
        )
    print("\nThe number of rows of a request is in brackets. A request runs in one thread.")


if __name__ == "__main__":
    app.run(main)
