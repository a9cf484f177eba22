"""Modules that have moved, so that gin files and runs of before are read as they were.

old_names.current_module("mtl.data.funnel")              # "mtl.datasets.funnel"
old_names.current_selector("mtl.data.funnel.Funnel")     # "mtl.datasets.funnel.Funnel"
"""

from gin import config_parser

MODULES = {
    "mtl.data.click_stream": "mtl.datasets.click_stream",
    "mtl.data.funnel": "mtl.datasets.funnel",
    "mtl.data.related_tasks": "mtl.datasets.related_tasks",
}
"""Earlier module -> the module of today. `tfds.Tfds` finds the builders that moved with them."""


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
