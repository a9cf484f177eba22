r"""Finds training samples with large or clipped gradients in a trained model.

python -m launch.clip_audit --model_dir runs/digits
python -m launch.clip_audit --model_dir runs/digits --key id \
    --compare runs/digits_2/clip_audit/checkpoints
"""

import os
import sys

from absl import flags

from launch import app
from mtl import deferred

with deferred.imports():
    from mtl import verbs
    from mtl.files import storage

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", "all", "all, latest, best, or a path such as DIR/model.ckpt-500."
)
KEY = flags.DEFINE_string(
    "key", None, "The field that identifies samples. (default: ClipAudit.key, or the row number)"
)
OUTPUT = flags.DEFINE_string(
    "output", None, "The report's folder. (default: clip_audit/checkpoints in --model_dir)"
)
COMPARE = flags.DEFINE_multi_string(
    "compare",
    [],
    "The --output of an audit of another run on the same samples, such as with another seed, for "
    "comparison. Repeatable.",
)


def main() -> None:
    """Audit the run that the flags describe, and print the summary."""
    experiment, model_dir = app.load()
    path = verbs.audit_clipping(
        experiment, model_dir, CHECKPOINT.value, OUTPUT.value, KEY.value, COMPARE.value
    )
    print(storage.read(path).decode())
    print(f"Report: {os.path.dirname(path)}", file=sys.stderr)


if __name__ == "__main__":
    app.run(main)
