"""Warm-starts the `model_fn` of any Estimator, with the checks of `transfer.WarmStart`.

if mode == tf.estimator.ModeKeys.TRAIN:
    model_fns.warm_start(transfer.WarmStart(source="runs/a", include=["^tower/"]), model_dir)
"""

from __future__ import annotations

from collections.abc import Mapping

from mtl import transfer, types
from mtl.checkpoints import run_directory
from mtl.deferred import tf, tf1
from mtl.transfer import values


@tf.autograph.experimental.do_not_convert
def warm_start(
    settings: transfer.WarmStart,
    model_dir: str,
    row_names: Mapping[str, types.RowNames] | None = None,
) -> None:
    """Initialise variables of the graph with values from another run.

    Call this function after `build_step`, instead of Estimator's `warm_start_from`. In a resumed
    run, which starts from its last checkpoint, the function does nothing. The source of each
    initial value is logged, and written to `<model_dir>/warm_start.txt`.

    Args:
      settings: the source, and patterns of the variables that start from it.
      model_dir: the folder of the run.
      row_names: {variable scope: the names of the table's rows in this run}, if rows have other
        places than in the source.

    Raises:
      UserError: the source is missing, a pattern matches no variable, or a shape differs.
    """
    if run_directory.find_latest(model_dir) is None:
        plan = settings.plan(tf1.global_variables(), row_names or {})
        tf.io.gfile.makedirs(model_dir)
        settings.prepare(plan, model_dir)
        values.initialize_variables(plan, model_dir)
