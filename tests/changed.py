"""Runs the tests whose imports reach what differs from a commit, the nearest first.

python -m tests.changed                     # what differs from the newest commit of main
python -m tests.changed --since HEAD~3 -- -m 'not slow'
"""

import argparse
import pathlib
import subprocess
import sys

from tests import imports

_ROOT = pathlib.Path(__file__).parent.parent


def main() -> int:
    """Parse flags, and run the tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--since", default="HEAD", help="the commit to compare the files with")
    parser.add_argument("--list", action="store_true", help="list the tests and run none")
    parser.add_argument("rest", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    chosen = imports.Graph(_ROOT).list_tests(list_changed(options.since))
    print(f"{len(chosen)} files of tests reach what differs from {options.since}", file=sys.stderr)
    if options.list or not chosen:
        print("\n".join(chosen))
        return 0
    command = ["-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile", *options.rest]
    return subprocess.run([sys.executable, *command, *chosen], cwd=_ROOT).returncode


def list_changed(since: str) -> list[str]:
    """Return the files that differ from a commit, those that git does not know yet included."""
    commands = [
        ["git", "diff", "--name-only", since],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ]
    return [
        name
        for command in commands
        for name in subprocess.check_output(command, cwd=_ROOT, text=True).splitlines()
    ]


if __name__ == "__main__":
    sys.exit(main())
