"""Notes where the tests of `mtl.compat` passed: with which of our files, TensorFlow and Python.

python -m tests.compat.passed           # after they passed; `make test-all` does it
python -m tests.compat.passed --check   # say so if the note no longer holds

They reach few files of ours. While the note holds, `make test` leaves out those that take long.
"""

import ast
import hashlib
import importlib.metadata
import json
import pathlib
import platform
import sys

from tests import imports

_FOLDER = pathlib.Path(__file__).parent
_ROOT = _FOLDER.parents[1]
_NOTE = _FOLDER / "passed.json"
_PACKAGES = ("tensorflow", "tensorflow-estimator", "tf-keras", "keras", "numpy")
# It trains with all of `mtl`, and so it always runs.
OTHERS = ("canned_test.py",)


def main() -> None:
    """Note what passed, or with --check, say what `make test` does without a valid note."""
    if "--check" in sys.argv[1:]:
        if not holds():
            print("The long tests of mtl.compat run, too: its code or a package has changed.")
        return
    _NOTE.write_text(json.dumps(_describe(), indent=2) + "\n")


def holds() -> bool:
    """Return True if nothing that these tests reach has changed since they passed."""
    return json.loads(_NOTE.read_text()) == _describe()


def _describe() -> dict[str, str]:
    found = {"python": platform.python_version().rpartition(".")[0]}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    digest = hashlib.sha256()
    for name in sorted(list_files()):
        digest.update(read_code((_ROOT / name).read_text()).encode() + b"\0")
    return {**found, "files": digest.hexdigest()}


def read_code(source: str) -> str:
    """Return the syntax tree of a module as text, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def list_files() -> set[str]:
    """Return the modules that these tests reach by their imports, and the files of this folder."""
    graph = imports.Graph(_ROOT)
    waiting = [
        path.relative_to(_ROOT).as_posix()
        for path in _FOLDER.glob("*.py")
        if path.name not in OTHERS
    ]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.list_imports(name)
    # The checks of settings change often, and have tests of their own.
    reached = {name for name in found if name.startswith(("mtl/", "tests/compat/"))}
    return {name for name in reached if not name.startswith("mtl/checks/")}


if __name__ == "__main__":
    main()
