"""Where the modules of version 0.1 are now, so that its gin files and runs are read as before.

old_names.current("mtl.freezing")                        # "mtl.variables.freezing"
old_names.current_selector("mtl.freezing.Freezing")      # "mtl.variables.freezing.Freezing"
"""

from gin import config_parser

MODULES = {
    "mtl.atomic": "mtl.files.atomic",
    "mtl.averaging": "mtl.variables.averaging",
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
    "mtl.literals": "mtl.files.literals",
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
"""Module of version 0.1 -> the module, or package, that its classes are found in."""


def current(module: str) -> str:
    """Return the name that a module has now; its own where it did not move."""
    return MODULES.get(module, module)


def current_statement(
    statement: config_parser.ImportStatement,
) -> config_parser.ImportStatement:
    """Return the statement that binds what `statement` did, under the same name."""
    module = current(statement.module)
    if module == statement.module:
        return statement
    alias = statement.alias
    if statement.is_from and not alias and module.rpartition(".")[2] != statement.bound_name():
        alias = statement.bound_name()
    return statement._replace(module=module, alias=alias)


def current_selector(selector: str) -> str:
    """Return a selector that starts with the whole name of a module, as it is now."""
    module, _, name = selector.rpartition(".")
    return f"{current(module)}.{name}" if module in MODULES else selector
