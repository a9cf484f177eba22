"""Checks before a run that the packages of trackers are installed, without importing them.

packages.require("MLflow", "mlflow")          # UserError: ... Run: pip install ...
"""

import importlib.util

from mtl import checks, versions


def require(where: str, package: str) -> None:
    """Fail unless a package is installed.

    Args:
      where: the name of the tracker in error messages.
      package: the name of the package to import.

    Raises:
      UserError: the package is not installed; the message has the command that installs it.
    """
    # `find_spec` does not import the package, which would take seconds.
    if importlib.util.find_spec(package) is None:
        raise checks.UserError(
            f"tracking.{where} needs {package}, which is not installed. "
            f"Run: {versions.how_to_get(package)}."
        )
