"""Replays a training step under TensorFlow's debugger; shows the failed op, its code and rows.

Without --step, the command replays the step at which the run failed. The command writes a page to
debug/step_<n> in --model_dir.

    python -m launch.debug --model_dir runs/digits
    python -m launch.debug --model_dir runs/digits --step 1234 --cli
"""

from absl import flags

from launch import app
from mtl import checks, deferred

with deferred.imports():
    from mtl import verbs

STEP = flags.DEFINE_integer(
    "step",
    None,
    "The step to replay, by the global step before it, as in the error of a failed run. (default: "
    "the step that failed)",
)
CLI = flags.DEFINE_boolean(
    "cli", False, "Open tfdbg in the terminal at this step, instead of writing a page."
)


def main() -> None:
    """Replay the step that the flags name, and print the findings."""
    rule = "name the folder of a run"
    checks.require(bool(app.MODEL_DIR.value), "--model_dir", rule, app.MODEL_DIR.value)
    experiment, model_dir = app.load()
    findings = verbs.debug(experiment, model_dir, STEP.value, CLI.value)
    # With --cli, the debugger has already shown the findings.
    if findings:
        print(findings)


if __name__ == "__main__":
    app.run(main)
