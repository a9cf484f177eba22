"""No module writes a file in place, as a failed write would destroy the earlier content."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# Functions that write a file where it stands, and how often a module calls them for a reason.
_WRITERS = {"write_text", "write_bytes", "TFRecordWriter", "copy", "copyfile", "copy2"}
_ALLOWED = {
    # The one place: into a file of a name that nobody else knows.
    "mtl/files/atomic.py": {"open_file(wb)": 1},
    "mtl/files/remote.py": {"open(wb)": 2},  # Scratch files, which are copies or are sent.
    # Into the files of `atomic.replacing`.
    "mtl/checkpoints/input_state.py": {"GFile(wb)": 2, "copy": 1},  # One unpacked for a restore.
    "mtl/data/frames.py": {"TFRecordWriter": 1},
    "mtl/tools/scoring/writers.py": {"TFRecordWriter": 1, "GFile(wb)": 2},
    "mtl/tools/runtimes/onnx.py": {"copy": 1},
    # Into folders that appear when they are complete.
    "mtl/tf_internals/saved_model.py": {"GFile(wb)": 1},
    "mtl/features/accumulators.py": {"GFile(wb)": 1},
    "mtl/features/statistics.py": {"copy": 1},
    "mtl/features/tokenizers/piece_learning.py": {"GFile(wb)": 1},
    "mtl/serving/blank.py": {"GFile(wb)": 1, "copy": 1},
    "mtl/serving/exporter.py": {"copy": 1},
    "mtl/serving/warm_up.py": {"TFRecordWriter": 1},
    "mtl/from_python.py": {"open(w)": 1},  # A scratch folder.
    "mtl/tools/tensorboard/board_hooks.py": {"write_text": 1},  # A summary, and no file.
    "mtl/tools/runtimes/tflite.py": {"open(wb)": 1},  # A file that nobody reads.
    "mtl/tools/debugging/replay.py": {"copy": 1},  # The module's own method, into a scratch folder.
    # Checkpoints, which count once they are listed.
    "mtl/checkpoints/best.py": {"copy": 1},
    "mtl/checkpoints/run_directory.py": {"copy": 1, "GFile(w)": 1},  # And a probe.
    # A line more; readers leave out one that is cut off.
    "mtl/monitoring/metrics_file.py": {"GFile(a)": 1},
    # Renamed once it is whole; other processes watch the folder for names.
    "mtl/distribution/heartbeat.py": {"GFile(w)": 1},
}


def find_writes(source):
    """{what is called: how often}, of calls that write to a path."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        values = [*node.args[1:], *(word.value for word in node.keywords if word.arg == "mode")]
        modes = [v.value for v in values if isinstance(v, ast.Constant)]
        modes = [mode for mode in modes if isinstance(mode, str) and set("wax+") & set(mode)]
        if name in ("open", "open_file", "GFile") and modes:
            key = f"{name}({modes[0]})"
        elif name in _WRITERS and len(node.args) > (name.startswith("copy")):
            key = name
        else:
            continue
        found[key] = found.get(key, 0) + 1
    return found


def test_all_files_are_written_by_one_module():
    modules = [*ROOT.glob("mtl/**/*.py"), *ROOT.glob("launch/**/*.py")]
    found = {str(path.relative_to(ROOT)): find_writes(path.read_text()) for path in modules}
    assert {path: calls for path, calls in found.items() if calls} == _ALLOWED


@pytest.mark.parametrize(
    "call",
    ["open(p, 'w')", "open(p, mode='ab')", "tf.io.gfile.GFile(p, 'wb')", "out.write_text(t)"],
)
def test_a_write_in_place_is_seen(call):
    assert find_writes(f"with {call} as file:\n  pass")
    assert not find_writes("open(p), open(p, 'rb'), gfile.GFile(p), dict.copy(a), os.open(p, f)")
