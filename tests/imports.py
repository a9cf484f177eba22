"""The files that a test reaches by its imports, and their distances.

graph = imports.Graph(root)
graph.measure("tests/heads/binary_test.py")      # {"mtl/heads/binary.py": 1, ...}
graph.list_tests(["mtl/heads/binary.py"])        # the nearest first
"""

import ast
import collections
import functools
import pathlib
import re
from collections.abc import Iterable

# A test that starts a process may reach every file; how near they are it does not tell.
_STARTS_PROCESSES = re.compile(r"subprocess|launch_in|\blaunch\(|processes\.|fork_server|forks\.")
FAR = 99


class Graph:
    """The imports of a checkout, those in functions included.

    Args:
      root: of the checkout.
    """

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.files = {
            path.relative_to(root).as_posix()
            for top in ("mtl", "launch", "tests")
            for path in (root / top).rglob("*.py")
        }
        self.tests = sorted(name for name in self.files if name.endswith("_test.py"))

    @functools.cached_property
    def sources(self) -> set[str]:
        """The files that are tested."""
        return {name for name in self.files if not name.startswith("tests/")}

    @functools.cache  # noqa: B019  There are one or two of them.
    def list_imports(self, name: str) -> frozenset[str]:
        """Return the files that a file imports, and of a test those of its fixtures."""
        found = set()
        for node in ast.walk(ast.parse((self.root / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {self._find(one) or self._find(node.module) for one in names}
            elif isinstance(node, ast.Import):
                found |= {self._find(alias.name) for alias in node.names}
        if name.startswith("tests/"):
            parents = pathlib.PurePosixPath(name).parents
            found |= {f"{parent}/conftest.py" for parent in parents}
        return frozenset(found & self.files - {name})

    def _find(self, module: str) -> str | None:
        base = module.replace(".", "/")
        return next((n for n in (f"{base}.py", f"{base}/__init__.py") if n in self.files), None)

    @functools.cache  # noqa: B019
    def measure(self, test: str) -> dict[str, int]:
        """Return {file: over how many imports a test reaches it}."""
        found, waiting = {test: 0}, collections.deque([test])
        while waiting:
            name = waiting.popleft()
            for other in self.list_imports(name):
                if other not in found:
                    found[other] = found[name] + 1
                    waiting.append(other)
        if self.starts_processes(test):
            found = dict.fromkeys(self.sources, FAR) | found
        return found

    def starts_processes(self, test: str) -> bool:
        """Return whether a test runs code in other processes as well."""
        return bool(_STARTS_PROCESSES.search((self.root / test).read_text()))

    def list_tests(self, changed: Iterable[str]) -> list[str]:
        """Return the tests that reach any of the files, those named after one first."""
        wanted = set(changed)
        stems = {pathlib.PurePosixPath(name).stem for name in wanted}
        order = {}
        for test in self.tests:
            near = [distance for name, distance in self.measure(test).items() if name in wanted]
            if near:
                has_name = pathlib.PurePosixPath(test).stem.removesuffix("_test") in stems
                order[test] = (not has_name, min(near), test)
        return sorted(order, key=lambda test: order[test])
