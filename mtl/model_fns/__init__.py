"""Functions that add features of `MultiTaskModel` to the `model_fn` of any Estimator.

step = model_fns.build_step(losses, update=update.Update(), surgery=surgery.Combine(...))
model_fns.warm_start(transfer.WarmStart(source="runs/a"), config.model_dir)
rows = model_fns.SavedInput(input_fn, model_dir)          # a resumed run reads the next rows
audit = model_fns.Audit(clip_audit.ClipAudit(), model_dir)
model_fns.export(estimator, "models/a", spec, rows)       # checks the SavedModel first

docs/have_an_estimator.md is a tutorial of the functions in this package, and docs/own_model_fn.md a
reference.
"""

from mtl.model_fns.audit import Audit
from mtl.model_fns.exporting import export
from mtl.model_fns.saved_input import SavedInput
from mtl.model_fns.step import Step, build_step
from mtl.model_fns.warm_start import warm_start
from mtl.tf_internals.keras_layers import collect_updates

__all__ = ["Audit", "SavedInput", "Step", "build_step", "collect_updates", "export", "warm_start"]
