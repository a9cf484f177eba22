"""Parts are found, built and refused without TensorFlow: its import takes seconds."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
_START = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow" or name == "mtl.compat":
            raise ImportError("TensorFlow is imported")
sys.meta_path.insert(0, Absent())
from launch import parts
from mtl import checks
from mtl.configs import config
"""


def _run(code):
    command = [sys.executable, "-c", _START + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_every_part_is_found():
    found = _run("for kind in parts.find_parts(): print(kind.__qualname__)")
    assert len(found) > 200 and {"Binary", "MMoE", "Adam", "Pipeline", "Growing"} <= set(found)


def test_every_shipped_experiment_is_built():
    """Code of a user, as in `examples`, may import TensorFlow."""
    paths = [str(path.relative_to(ROOT)) for path in (ROOT / "gin_configs").rglob("*.gin")]
    wanted = [path for path in sorted(paths) if "experiments" in path and "keras" not in path]
    built = _run(f"for path in {wanted}: print(type(config.load([path])).__name__)")
    assert built == ["Experiment"] * len(wanted) and len(wanted) > 30


def test_a_value_that_a_part_refuses_is_one_line():
    (line,) = _run(
        "try:\n"
        "    config.load(['gin_configs/experiments/digits_shared_bottom.gin'],"
        " ['networks.MLP.activation = \"rleu\"'])\n"
        "except checks.UserError as error:\n"
        "    print(error)\n"
    )
    assert "MLP.activation must be one of" in line and "got 'rleu'. Did you mean 'relu'?" in line
