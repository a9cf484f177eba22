"""Checks for optional packages before a run; they are imported when it reports.

packages.require("MLflow", "mlflow")          # UserError: ... Run: pip install ...
"""

import importlib.util

from mtl import checks, versions


def require(where: str, package: str) -> None:
    """Fail unless a package is installed, without the seconds of importing it."""
    # `find_spec` finds a package without importing it.
    if importlib.util.find_spec(package) is None:
        raise checks.UserError(
            f"tracking.{where} needs {package}, which is not installed. "
            f"Run: {versions.how_to_get(package)}."
        )
