"""Of the tests that may see a defect those that run its line are chosen, the nearest first."""

import pathlib
import subprocess
import sys

import pytest

from tests import imports
from tests.strength import reached

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = "mtl/times.py"
FILES = {
    SOURCE: "def read(text):\n    if not text:\n        return None\n    return float(text)\n",
    "tests/times_test.py": "from mtl import times\n",
    "tests/zones_test.py": "from mtl import times\n",
    "tests/unknown_test.py": "from mtl import times\n",
    "tests/launch_test.py": "import subprocess\n",
    "tests/drawn_test.py": "",
}


@pytest.fixture(name="graph")
def _graph(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return imports.Graph(tmp_path)


def test_the_files_that_run_a_line_come_first(graph):
    lines = {
        "tests/times_test.py": {SOURCE: {2, 4}},
        "tests/zones_test.py": {SOURCE: {2, 3}},
        "tests/drawn_test.py": {SOURCE: {2, 4}},
        "tests/launch_test.py": {},
    }
    times, zones, drawn, launch, unknown = (
        f"tests/{name}_test.py" for name in ("times", "zones", "drawn", "launch", "unknown")
    )
    found = reached.list_tests(graph, lines, SOURCE, 4)
    assert found == [times, unknown, drawn, launch] and zones not in found
    # Nobody runs it by itself.
    assert reached.list_tests(graph, lines, SOURCE, 1) == [times, unknown, zones, drawn, launch]


@pytest.mark.medium
def test_lines_are_told_apart_by_the_file_that_runs_them(tmp_path):
    tests = ["tests/times_test.py", "tests/files/csv_text_test.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.strength.reached", *tests]
    command += ["--numprocesses", "1", f"--reached={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True)
    found = reached.read_folder(tmp_path)
    assert set(found) == set(tests)
    assert SOURCE in found[tests[0]] and SOURCE not in found[tests[1]]
    assert found[tests[1]]["mtl/files/csv_text.py"]
