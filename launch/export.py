"""Exports a trained model as a SavedModel that TF Serving serves as it is.

python -m launch.export --model_dir runs/digits --checkpoint best --export_dir models/digits
"""

import os

from absl import flags

from launch import app
from mtl import checks, scoring
from mtl.runs import verbs
from mtl.serving import deployment, metadata, onnx

CHECKPOINT = app.define_checkpoint()
EXPORT_DIR = flags.DEFINE_string(
    "export_dir", None, "Where the numbered version is written. (default: MODEL_DIR/export/manual)"
)
ONNX = flags.DEFINE_string(
    "onnx", None, "A file for the same model in ONNX, with features as tensors. Needs mtl[onnx]."
)


def main() -> None:
    """Export the run that the flags describe; print what was written and how it is served."""
    if ONNX.value is not None:
        checks.require(ONNX.value.endswith(".onnx"), "--onnx", "end in .onnx", ONNX.value)
    experiment, model_dir = app.load()
    if ONNX.value:
        files = [*app.GIN_FILE.value, *experiment.files_read]
        scoring.Protection(
            files=files, model_dir=model_dir, where="--onnx", endings=("onnx",)
        ).check(ONNX.value)
        onnx.require()
    folder = EXPORT_DIR.value or os.path.join(model_dir, "export", "manual")
    differences = []

    def convert(written: str) -> None:
        """Before the export is published: a model that ONNX cannot hold leaves nothing behind."""
        if ONNX.value:
            differences.append(onnx.write_onnx(written, ONNX.value))

    path = verbs.export(experiment, model_dir, folder, CHECKPOINT.value, convert)
    script = deployment.write(folder, experiment.serving.model_name)
    print("Exported", path)
    facts = metadata.read_metadata(path)
    if "difference" in facts:
        print(
            f"  checked     {facts['checked_rows']} held-out rows, "
            f"at most {facts['difference']:.1g} from the Estimator's predictions"
        )
    for difference in differences:
        print(f"  ONNX        {ONNX.value}, at most {difference:.1g} from the export")
    print(f"  serve it    sh {script}")


if __name__ == "__main__":
    app.run(main)
