"""Plants single defects in mtl and launch, and tells which no test sees.

python -m tests.strength --output strength.jsonl            # goes on where it was stopped
python -m tests.strength --output strength.jsonl --report   # the share of each group
python -m tests.strength --output other.jsonl --seed 2 --count 8 --pytest "-m 'not slow'"
python -m tests.strength --output strength.jsonl --reached reached   # in a fifth of the time

Each defect is planted in a work tree of the newest commit, never in this one. The files of tests
whose imports reach the place run, the nearest first, until a case fails. That case then runs
without the defect: if it fails there too, it has seen nothing. A run that hangs counts as seen.

With --reached, which tests.strength.reached writes, only cases that run the line and files near it
are tried, for some minutes at most. A defect may then be called unseen that others would see.
"""

import argparse
import collections
import importlib.util
import itertools
import json
import pathlib
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator

from tests import forks, imports
from tests.strength import defects, groups, reached

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# So many files run at a time: the first ones are the likeliest to fail.
_CHUNKS = (4, 16, 1000)
# These files look at all parts of a kind, though they run no line of them: {kind: chunks}.
_LISTS = {"wrong default": [["tests/configs/defaults_test.py"]]}
# Modules that all runs of pytest share: their import takes longer than most cases.
_IMPORTED = ("tensorflow", "pandas", "pyarrow.dataset", "pytest")
# Runs pytest in a fork, as `python -m pytest` does in the folder of the tree.
_PYTEST = """
import os, sys
for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
    del sys.modules[name]
os.chdir({tree!r})
sys.path[:] = [{tree!r}, *(path for path in sys.path if path != {root!r})]
import pytest
sys.exit(pytest.main({arguments!r}))
"""
# Cases that run the line, in seconds: some before the nearest files as a whole, more after them.
_FIRST_SECS, _NEXT_SECS = 60.0, 200.0


def main() -> None:
    """Parse flags, and plant what the output does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True, help="a file of JSON lines, gone on with")
    parser.add_argument("--seed", type=int, default=1, help="of the places and kinds of defects")
    parser.add_argument("--count", type=int, default=8, help="how many defects each group gets")
    parser.add_argument("--reached", help="a folder of tests.strength.reached")
    parser.add_argument("--pytest", default="", help="further arguments of pytest")
    parser.add_argument("--secs", type=float, default=2400, help="after which a run hangs")
    parser.add_argument("--shard", type=int, default=1, help="which of --shards this is, from 1")
    parser.add_argument("--shards", type=int, default=1, help="how many processes share the work")
    parser.add_argument("--report", action="store_true", help="tell what the output holds")
    options = parser.parse_args()
    output = pathlib.Path(options.output)
    if not options.report:
        plant_all(output, options)
    print(report(_read(output)))


def plant_all(output: pathlib.Path, options: argparse.Namespace) -> None:
    """Plant the drawn defects one by one, with a line of progress for each."""
    done = {(row["file"], row["start"], row["new"]) for row in _read(output)}
    imported = forks.Server(*_IMPORTED, TF_USE_LEGACY_KERAS="1")
    with tempfile.TemporaryDirectory() as folder, imported as server:
        tree = pathlib.Path(folder, "tree")
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree)], check=True)
        try:
            drawn = groups.draw(tree, options.seed, options.count)
            graph = imports.Graph(tree)
            cases = reached.read_cases(pathlib.Path(options.reached)) if options.reached else {}
            runs = _Runs(server, tree, options)
            for number, (group, name, defect) in enumerate(drawn, 1):
                is_here = (number - options.shard) % options.shards == 0
                if not is_here or (name, defect.start, defect.new) in done:
                    continue
                before = time.monotonic()
                chunks = itertools.chain(
                    _LISTS.get(defect.kind, ()), _list_chunks(graph, cases, name, defect.line)
                )
                row = _plant(chunks, name, defect, runs)
                row = {"group": group, **row, "secs": round(time.monotonic() - before)}
                with output.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                told = row["seen_by"] or "NOT SEEN"
                print(f"{number} of {len(drawn)}: {name}:{defect.line} {defect.kind}: {told}")
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _list_chunks(
    graph: imports.Graph, cases: reached.Cases, name: str, line: int
) -> Iterator[list[str]]:
    """Yield cases or files of tests that may see a defect, the likeliest first."""
    files = graph.list_tests([name])
    if cases:
        near = reached.list_cases(graph, cases, name, line)
        yield from reached.cut(near, cases, _FIRST_SECS)[:1]
        # The nearest files also count if they do not run the line: threads of TensorFlow may.
        running = reached.list_files(graph, cases, name, line)
        first = list(dict.fromkeys([*files[:3], *running[:3]]))
        yield first
        left = [case for case in near if case.partition("::")[0] not in first]
        yield from reached.cut(left, cases, _NEXT_SECS)[:1]
        known = {case.partition("::")[0] for case in cases}
        folder = f"{pathlib.PurePosixPath(name).parent}/".replace("mtl/", "tests/", 1)
        mirrored = [file for file in files if file.startswith(folder) or file not in known]
        files = mirrored if near else mirrored + running[:20]
        files = [file for file in dict.fromkeys(files) if file not in first]
    for size in _CHUNKS:
        yield files[:size]
        files = files[size:]


def _plant(
    chunks: Iterable[list[str]], name: str, defect: defects.Defect, runs: "_Runs"
) -> dict[str, object]:
    path = runs.tree / name
    text = path.read_text()
    row = {"file": name, "line": defect.line, "kind": defect.kind, "start": defect.start}
    row |= {"old": defect.read_old(text), "new": defect.new, "seen_by": ""}
    ignored: list[str] = []
    for chunk in chunks:
        while chunk:
            _write(path, defect.plant(text))
            try:
                failed = runs.find_failed(chunk, ignored)
            finally:
                _write(path, text)
            if not failed:
                break
            if failed == "a run that hangs" or not runs.find_failed([failed], []):
                return row | {"seen_by": failed}
            if failed in ignored:
                break
            ignored.append(failed)  # It fails without the defect, too.
    return row


def _write(path: pathlib.Path, text: str) -> None:
    """Write a source, and delete its bytecode, which looks valid if time and length are equal."""
    path.write_text(text)
    pathlib.Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


class _Runs:
    """Runs cases of a tree.

    Attributes:
      tree: the root of the work tree.
    """

    def __init__(self, server: forks.Server, tree: pathlib.Path, options: argparse.Namespace):
        self.tree = tree
        self._server, self._options = server, options

    def find_failed(self, tests: list[str], ignored: list[str]) -> str:
        """Run tests until one fails, and return which; "" if none does."""
        (self.tree / "strength.txt").write_text("\n".join(tests))
        noted = self.tree / "failed.txt"
        noted.unlink(missing_ok=True)
        plugins = ["-p", "no:cacheprovider", "-p", "tests.strength.failures"]
        arguments = ["-x", "-q", *plugins, "@strength.txt", *shlex.split(self._options.pytest)]
        arguments += [f"--deselect={case}" for case in ignored]
        # Processes that share the work already keep the cores busy.
        has_workers = len(tests) > 1 and self._options.shards == 1
        arguments += ["--numprocesses", "auto", "--dist", "worksteal"] if has_workers else []
        code = _PYTEST.format(tree=str(self.tree), root=str(_ROOT), arguments=arguments)
        fork = self._server.start(code, {"PYTHONPATH": str(self.tree), "MTL_FAILED": str(noted)})
        if not fork.ends_within(self._options.secs):
            fork.kill()
            return "a run that hangs"
        if fork.poll() in (0, 5):  # 5: nothing was collected.
            return ""
        return noted.read_text() if noted.exists() else tests[0]


def _read(output: pathlib.Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []


def report(rows: list[dict[str, object]]) -> str:
    """Return the share of seen defects in each group and in total, and list the unseen defects."""
    seen: collections.Counter[str] = collections.Counter()
    total: collections.Counter[str] = collections.Counter()
    for row in rows:
        for group in (row["group"], "all"):
            total[group] += 1
            seen[group] += bool(row["seen_by"]) or bool(row.get("changes_nothing"))
    lines = [f"{group:<28} {seen[group]:>4} of {total[group]}" for group in total]
    for row in rows:
        if not row["seen_by"]:
            why = row.get("changes_nothing", "NOT SEEN")
            what = f"{row['kind']}: {row['old']!r} -> {row['new']!r}"
            lines.append(f"{row['file']}:{row['line']} {what}: {why}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
