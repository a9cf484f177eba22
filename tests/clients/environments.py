"""A separate environment for each client, made once, with this project in it.

python = environments.build(".clients/ranking", extras="heads,serving", packages=("pytest", "six"))
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).parents[2]
# The exit code by which automake and meson know a skipped test.
_SKIPPED = 77


def make_parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser for a client's arguments; `--env` is by default the folder of this name."""
    parser = argparse.ArgumentParser(description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    told = f"where its environment is, or is made; .clients/{name}"
    parser.add_argument("--env", default=str(find_folder(name)), help=told)
    return parser


def find_folder(name: str) -> pathlib.Path:
    """Return the folder in which a client's environment lies by default."""
    return ROOT / ".clients" / name


class LackingError(Exception):
    """Something is not on this machine, and cannot be had: the client is skipped."""


@contextlib.contextmanager
def skipping() -> Iterator[None]:
    """End with one line and exit code 77 if something is lacking within the context."""
    try:
        yield
    except LackingError as error:
        print(f"Skipped: {error}")
        sys.exit(_SKIPPED)


def require_data(folder: str | None, names: Sequence[str], flag: str) -> pathlib.Path:
    """Return the folder with the named files: `folder`, or a folder in MTL_DATA_DIR.

    Raises:
      LackingError: a file is not there.
    """
    default = os.path.join(os.environ.get("MTL_DATA_DIR", ROOT.parent / "shared" / "data"), "adult")
    chosen = pathlib.Path(folder or default).absolute()
    lacking = [name for name in names if not (chosen / name).is_file()]
    if lacking:
        raise LackingError(f"no {', '.join(lacking)} in {chosen}: set {flag} or MTL_DATA_DIR.")
    return chosen


def ask_by_files(command: Sequence[str], questions: bytes) -> bytes:
    """Return the replies of a client's program, which gets files for requests and replies."""
    with tempfile.TemporaryDirectory() as folder:
        requests, replies = (pathlib.Path(folder, name) for name in ("requests", "replies"))
        requests.write_bytes(questions)
        whole = [*command, str(requests), str(replies)]
        subprocess.run(whole, check=True, env=environ(), timeout=600)
        return replies.read_bytes()


def require_program(name: str) -> str:
    """Return the path of a program.

    Raises:
      LackingError: it is not on the PATH.
    """
    path = shutil.which(name)
    if path is None:
        raise LackingError(f"no {name} on the PATH.")
    return path


def build(
    env: str | os.PathLike[str],
    extras: str = "",
    packages: Sequence[str] = (),
    with_project: bool = True,
) -> str:
    """Return the Python of an environment, which is made where it is not there whole.

    Raises:
      LackingError: pip does not find the packages, or no versions of them that fit.
    """
    folder = pathlib.Path(env).absolute()
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists():
        venv.create(folder, with_pip=True)
        project = [f"{ROOT}[{extras}]" if extras else str(ROOT)] if with_project else []
        install([str(python), "-m", "pip", "install", "-q", *project, *packages], folder)
        installed.touch()
    return str(python)


def install(command: Sequence[str], folder: pathlib.Path) -> None:
    """Run the command of a package manager in a folder.

    Raises:
      LackingError: it fails; with the last line of its errors.
    """
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise LackingError(f"{' '.join(command[-4:])} failed: {errors[-1]}")


def environ() -> dict[str, str]:
    """Return the variables of a process that runs a client, without a GPU and without traces."""
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**os.environ, **quiet, "PYTHONPATH": str(ROOT)}
