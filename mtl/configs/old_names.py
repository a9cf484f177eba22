"""Maps the old names of moved modules, so that earlier gin files and runs can still be read.

old_names.current_module("mtl.data.funnel")              # "mtl.datasets.funnel"
old_names.current_selector("mtl.data.funnel.Funnel")     # "mtl.datasets.funnel.Funnel"
"""

from collections.abc import Collection

from gin import config_parser

MODULES = {
    "mtl.balancing.affinity": "mtl.tools.affinity",
    "mtl.clip_audit": "mtl.tools.clip_audit",
    "mtl.clip_audit.audit": "mtl.tools.clip_audit.recording",
    "mtl.data.click_stream": "mtl.datasets.click_stream",
    "mtl.data.funnel": "mtl.datasets.funnel",
    "mtl.data.numbered": "mtl.tools.clip_audit.numbered",
    "mtl.data.related_tasks": "mtl.datasets.related_tasks",
    "mtl.monitoring.tensorboard": "mtl.tools.tensorboard",
    "mtl.monitoring.tensorboard.settings": "mtl.tools.tensorboard.board_hooks",
    "mtl.tracking": "mtl.tools.tracking",
    "mtl.tracking.mlflow": "mtl.tools.tracking.mlflow",
    "mtl.tracking.wandb": "mtl.tools.tracking.wandb",
    "mtl.transfer.calibration": "mtl.tools.calibration",
}
"""{old module: current module}. `tfds.Tfds` uses the table for the modules of builders, too."""

REMOVED = {
    "mtl.auxiliary.CentreLoss": "Take auxiliary.SupervisedContrastive.",
    "mtl.heads.HeatMap": "Take a heads.Segmentation of two classes, or a head of your own.",
    "mtl.model.combined.Hypervolume": "Take combined.MeanGain.",
    "mtl.optimization.schedules.InverseSqrt": "Take schedules.Exponential or schedules.Cosine.",
}
"""{removed part: advice}. Version 0.2.0 still reads runs with removed parts."""


def current_module(module: str) -> str:
    """Return the current name of a module; the same name if the module did not move."""
    return MODULES.get(module, module)


def find_removal(name: str, modules: Collection[str]) -> str | None:
    """Return a text that says that a class was removed, with advice; None for other classes.

    Args:
      name: the name of the class.
      modules: the full names of the modules that may have contained the class.
    """
    for part, advice in REMOVED.items():
        package, _, old_name = part.rpartition(".")
        if name == old_name and any(f"{module}.".startswith(f"{package}.") for module in modules):
            return f"{old_name} was removed after version 0.2.0. {advice}"
    return None


def current_statement(
    statement: config_parser.ImportStatement,
) -> config_parser.ImportStatement:
    """Return a statement that imports the current module under the name that the file uses."""
    module = current_module(statement.module)
    if module == statement.module:
        return statement
    alias = statement.alias
    if statement.is_from and not alias and module.rpartition(".")[2] != statement.bound_name():
        # Import the new module under its old name, which the file uses.
        alias = statement.bound_name()
    return statement._replace(module=module, alias=alias)


def current_selector(selector: str) -> str:
    """Return a selector with the current name of its module, also if the module did not move."""
    module, _, name = selector.rpartition(".")
    return f"{current_module(module)}.{name}" if module in MODULES else selector
