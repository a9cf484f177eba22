"""Checks before a run that optional packages are installed; they are imported later.

packages.require("MLflow", "mlflow")          # UserError: ... Run: pip install ...
"""

import importlib.util

from mtl import checks, versions


def require(where: str, package: str) -> None:
    """Fail unless a package is installed, without the time of an import."""
    # `find_spec` finds a package without importing it.
    if importlib.util.find_spec(package) is None:
        raise checks.UserError(
            f"tracking.{where} needs {package}, which is not installed. "
            f"Run: {versions.how_to_get(package)}."
        )
