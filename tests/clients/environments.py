"""An environment of its own for each client, made once, with this project in it.

python = environments.build(".clients/ranking", extras="heads,serving", packages=("pytest", "six"))
"""

import os
import pathlib
import subprocess
import venv
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[2]


def build(env: str | os.PathLike[str], extras: str, packages: Sequence[str] = ()) -> str:
    """Return the Python of an environment, which is made where it is not there whole."""
    folder = pathlib.Path(env).absolute()
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists():
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "-q", f"{ROOT}[{extras}]", *packages]
        subprocess.run(install, check=True)
        installed.touch()
    return str(python)


def environ() -> dict[str, str]:
    """Return the variables of a process that runs a client, without a GPU and without traces."""
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**os.environ, **quiet, "PYTHONPATH": str(ROOT)}
