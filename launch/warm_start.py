r"""Shows the first value of each variable of a new run, with the reason, without training.

The gin files have to bind Experiment.warm_start. A run that starts writes this table of first
values to MODEL_DIR/warm_start.txt, too.

    python -m launch.warm_start --gin_file gin_configs/experiments/digits_shared_bottom.gin \
        --gin_file gin_configs/transfer/warm_start.gin \
        --gin_param 'source = "runs/digits_shared_bottom"'
"""

from launch import app
from mtl import deferred

with deferred.imports():
    from mtl import verbs


def main() -> None:
    """Plan the warm start of the experiment that the flags describe, and print a table."""
    experiment, _ = app.load()
    print(verbs.plan_warm_start(experiment).table())


if __name__ == "__main__":
    app.run(main)
