"""Of the tests that may see a defect those that run its line are chosen, the nearest first."""

import pytest

from tests import imports
from tests.strength import reached

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
@pytest.mark.thorough
def test_lines_are_told_apart_by_the_case_that_runs_them(tmp_path):
    tests = ["tests/times_test.py", "tests/files/csv_text_test.py"]
    reached._run(tests, ["-k", "not zone"], tmp_path)
    assert reached._list_done(tmp_path) == set(tests)
    found = reached.read(tmp_path)
    assert set(found) == set(tests)
    assert SOURCE in found[tests[0]] and SOURCE not in found[tests[1]]
    assert found[tests[1]]["mtl/files/csv_text.py"]
    cases = reached.read_cases(tmp_path)
    assert {name.partition("::")[0] for name in cases} == set(tests)
    assert any(case.is_quick for case in cases.values())
    lines = {case.lines.get(SOURCE) for name, case in cases.items() if tests[0] in name}
    assert len(lines) > 1
    near = next(iter(cases.values())).split_lines({SOURCE})
    assert near[SOURCE, True] == near[SOURCE, False]
