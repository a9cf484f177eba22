"""What the names of earlier versions are now, so that their gin files and runs are read as before.

old_names.current_module("mtl.freezing")                 # "mtl.variables.freezing"
old_names.current_selector("mtl.freezing.Freezing")      # "mtl.variables.freezing.Freezing"
old_names.current_class("Compute")                       # "Precision"
old_names.current_parameter(experiment.Run, "compute")   # "precision"
"""

from typing import Any

from gin import config_parser

MODULES = {
    "mtl.atomic": "mtl.files.atomic",
    "mtl.averaging": "mtl.variables.averaging",
    "mtl.balancing.watched": "mtl.balancing.monitored",
    "mtl.checksums": "mtl.files.checksums",
    "mtl.clip_audit.finished": "mtl.runs.checkpoint_audit",
    "mtl.cluster": "mtl.distribution.tf_config",
    "mtl.compute": "mtl.layers.precision",
    "mtl.diagnosis": "mtl.runs.diagnosis",
    "mtl.evaluation": "mtl.runs.evaluation",
    "mtl.fitting": "mtl.runs.fitting",
    "mtl.freezing": "mtl.variables.freezing",
    "mtl.given_files": "mtl.checkpoints.given_files",
    "mtl.label_counts": "mtl.data.label_counts",
    "mtl.literals": "mtl.spec.literals",
    "mtl.masks": "mtl.variables.masks",
    "mtl.members": "mtl.runs.members",
    "mtl.memory": "mtl.distribution.memory",
    "mtl.metrics": "mtl.heads.metrics",
    "mtl.monitoring.balancing": "mtl.monitoring.balancing_picture",
    "mtl.monitoring.checkpoints": "mtl.checkpoints",
    "mtl.monitoring.heartbeat": "mtl.distribution.heartbeat",
    "mtl.monitoring.input_state": "mtl.checkpoints.input_state",
    "mtl.monitoring.interruption": "mtl.distribution.interruption",
    "mtl.monitoring.leftovers": "mtl.checkpoints.leftovers",
    "mtl.monitoring.lock": "mtl.checkpoints.lock",
    "mtl.monitoring.run_directory": "mtl.checkpoints.run_directory",
    "mtl.monitoring.saving": "mtl.checkpoints.saving",
    "mtl.objectives": "mtl.heads.objectives",
    "mtl.optimization.gradients": "mtl.step.gradients",
    "mtl.patterns": "mtl.variables.patterns",
    "mtl.plausibility": "mtl.runs.plausibility",
    "mtl.preparation": "mtl.runs.preparation",
    "mtl.quantization": "mtl.layers.quantization",
    "mtl.ranking": "mtl.heads.ranking",
    "mtl.refit": "mtl.transfer.refit",
    "mtl.replicas": "mtl.step.replicas",
    "mtl.resources": "mtl.distribution.resources",
    "mtl.row_names": "mtl.variables.row_names",
    "mtl.settings": "mtl.checkpoints.settings",
    "mtl.sharding": "mtl.variables.sharding",
    "mtl.step_state": "mtl.step.step_state",
    "mtl.storage": "mtl.files.storage",
    "mtl.straight_through": "mtl.layers.straight_through",
    "mtl.summaries": "mtl.step.summaries",
    "mtl.training": "mtl.runs.training",
    "mtl.training_loop": "mtl.step.training_loop",
    "mtl.whole_batch": "mtl.step.whole_batch",
}
"""Earlier module -> the module, or package, that its classes are found in."""

CLASSES = {
    "mtl.balancing.monitored.Watched": "Monitored",
    "mtl.layers.precision.Compute": "Precision",
}
"""Earlier class, in the module that it is in now -> its name."""

PARAMETERS = {
    "mtl.experiment.Run.compute": "precision",
    "mtl.layers.precision.Precision.precision": "dtype",
}
"""Earlier setting of a class, by the names that module and class have now -> its name."""


def current_module(module: str) -> str:
    """Return the name that a module has now; its own where it did not move."""
    return MODULES.get(module, module)


def current_statement(
    statement: config_parser.ImportStatement,
) -> config_parser.ImportStatement:
    """Return the statement that binds what `statement` did, under the same name."""
    module = current_module(statement.module)
    if module == statement.module:
        return statement
    alias = statement.alias
    if statement.is_from and not alias and module.rpartition(".")[2] != statement.bound_name():
        alias = statement.bound_name()
    return statement._replace(module=module, alias=alias)


def current_selector(selector: str) -> str:
    """Return a selector that starts with the whole name of a module, as it is now."""
    module, _, name = selector.rpartition(".")
    return f"{current_module(module)}.{name}" if module in MODULES else selector


def current_class(selector: str, module: str = "") -> str | None:
    """Return the selector with the class's name of now; None for a class that has its old name.

    Args:
      selector: `module.Class`, or a class alone.
      module: the whole name of the module that the selector names; "" if it names none.
    """
    head, _, name = selector.rpartition(".")
    for old, new in CLASSES.items():
        old_module, _, old_name = old.rpartition(".")
        if name == old_name and module in ("", old_module):
            return f"{head}.{new}".lstrip(".")
    return None


def current_parameter(target: Any, parameter: str) -> str:
    """Return the name that a setting of a class has now; its own where it was not renamed."""
    where = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"
    return PARAMETERS.get(f"{where}.{parameter}", parameter)
