"""The tests that run the line of a defect are chosen, the nearest tests first."""

import pytest

from tests import imports, selection
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


def _case(*lines, secs=1.0):
    return reached.Case(secs, False, {SOURCE: sum(1 << line for line in lines)} if lines else {})


CASES = {
    "tests/times_test.py::test_a": _case(2, 3),
    "tests/times_test.py::test_b": _case(4, secs=3.0),
    "tests/times_test.py::test_c": _case(4, secs=2.0),
    "tests/zones_test.py::test_a": _case(2, 3),
    "tests/drawn_test.py::test_a": _case(2, 4),
    "tests/launch_test.py::test_a": _case(),
}
TIMES, ZONES, DRAWN, LAUNCH, UNKNOWN = (
    f"tests/{name}_test.py" for name in ("times", "zones", "drawn", "launch", "unknown")
)


def test_the_files_that_run_a_line_come_first(graph):
    assert reached.list_files(graph, CASES, SOURCE, 4) == [TIMES, UNKNOWN, DRAWN, LAUNCH]
    # Nobody runs it by itself.
    found = reached.list_files(graph, CASES, SOURCE, 1)
    assert found == [TIMES, UNKNOWN, ZONES, DRAWN, LAUNCH]


def test_the_cases_that_run_a_line_come_by_nearness_and_then_by_time(graph, monkeypatch):
    names = [f"{TIMES}::test_c", f"{TIMES}::test_b", f"{DRAWN}::test_a"]
    assert reached.list_cases(graph, CASES, SOURCE, 4) == names
    monkeypatch.setattr(selection, "read_list", lambda: {names[1]})
    assert reached.list_cases(graph, CASES, SOURCE, 4) == [names[0], names[2]]
    assert reached.cut(names, CASES, 5.0) == [names[:2], names[2:]]
    assert reached.cut(names, CASES, 60.0) == [names]


@pytest.mark.medium
@pytest.mark.thorough
def test_lines_are_told_apart_by_the_case_that_runs_them(tmp_path):
    tests = ["tests/times_test.py", "tests/files/csv_text_test.py"]
    reached._run(tests, ["-k", "not zone"], tmp_path)
    assert reached._list_done(tmp_path) == set(tests)
    cases = reached.read_cases(tmp_path)
    assert {name.partition("::")[0] for name in cases} == set(tests)
    assert any(case.is_quick for case in cases.values())
    texts = [case for name, case in cases.items() if tests[1] in name]
    assert any("mtl/files/csv_text.py" in case.lines for case in texts)
    assert not any(SOURCE in case.lines for case in texts)
    lines = {case.lines.get(SOURCE) for name, case in cases.items() if tests[0] in name}
    assert len(lines) > 1
    near = next(iter(cases.values())).split_lines({SOURCE})
    assert near[SOURCE, True] == near[SOURCE, False]
