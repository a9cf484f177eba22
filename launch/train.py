r"""Trains, evaluates and exports the model that a gin file describes.

If --model_dir has a checkpoint, the training continues from this checkpoint, up to Run.train_steps,
and warns of settings and training files that have changed.

    python -m launch.train --gin_file gin_configs/experiments/digits_shared_bottom.gin \
        --gin_param 'Run.train_steps = 2000' --model_dir runs/digits
    python -m launch.train --gin_file train.gin --dry_run
"""

from absl import flags

from launch import app
from launch.processes import launcher_watch
from mtl import deferred
from mtl.configs import changes, config

with deferred.imports():
    from mtl import verbs
    from mtl.monitoring import summary
    from mtl.tools.rehearsal import rehearsal, rehearsal_text

DRY_RUN = flags.DEFINE_boolean(
    "dry_run",
    False,
    "Read the data, build the model, and measure the time of some batches and steps. Nothing is "
    "written to --model_dir.",
)


def main() -> None:
    """Train the experiment that the flags describe, and print a summary."""
    # Watch launch.cluster, if it has started this process.
    launcher_watch.start()
    experiment, model_dir = app.load()
    if DRY_RUN.value:
        print(rehearsal_text.describe(rehearsal.rehearse(experiment, model_dir)))
        return

    def start() -> None:
        changes.tell(experiment, model_dir, app.TRUSTED.value or ())
        config.save(model_dir)

    with changes.undone_without_checkpoint(model_dir):
        metrics, steps = verbs.train(experiment, model_dir, on_start=start)
    if metrics:  # Only the process that evaluates has metrics.
        print(summary.of_training(model_dir, metrics, steps, experiment.serving.model_name))


if __name__ == "__main__":
    app.run(main)
