"""A warm start with the checks of `transfer.WarmStart`, in the `model_fn` of any Estimator.

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
    """Let the variables of the graph start from saved values, by `settings`.

    Call it last, once the step is built, in place of Estimator's `warm_start_from`. A run that goes
    on starts from its own checkpoint. The start of each variable is logged, and written to
    `<model_dir>/warm_start.txt`.

    Args:
      settings: the source and the chosen variables.
      model_dir: the folder of the run.
      row_names: {scope: the meanings of its table rows in this run}, if rows have moved.

    Raises:
      UserError: the source is missing, a pattern matches no variable, or a shape differs.
    """
    if run_directory.find_latest(model_dir) is None:
        plan = settings.plan(tf1.global_variables(), row_names or {})
        tf.io.gfile.makedirs(model_dir)
        settings.prepare(plan, model_dir)
        values.initialize_variables(plan, model_dir)
