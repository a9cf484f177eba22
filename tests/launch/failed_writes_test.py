"""Writes of each verb fail one by one, as on a disk that has just become full.

The verb ends with a one-line error, or works without the file and says so. Earlier files stay
whole, no partial file is left, and the same command works once there is room.
"""

import os
import random
import re
import shutil

import pytest

from tests.launch import toy

pytestmark = pytest.mark.medium

_EARLIER = b"".join(b"of an earlier command, line %d\n" % i for i in range(100))
# The number of writes of a verb that fail, each in a separate run; a training has about 150.
_COUNT = int(os.environ.get("MTL_WRITES", "1"))
_FULL = "No space left on device"
_TRAINED = (
    "toy.gin",
    "gin_configs/balancing/affinity.gin",
    "gin_configs/monitoring/clip_audit.gin",
)
_STEPS = ("TaskAffinity.every_steps = 5", "Run.summary_steps = 5")
_WARM = """\
from __gin__ import dynamic_registration
from mtl import experiment
from mtl import transfer
experiment.Experiment.warm_start = @transfer.WarmStart()
transfer.WarmStart.source = "run"
"""

# {verb, and a word: its arguments}, in a folder with the data of the toy and two runs of it.
VERBS = {
    "affinity": ["--model_dir=run"],
    "clip_audit": ["--model_dir=run", "--output=audit"],
    "compare": ["run", "other", "--html=o.html", "--csv=o.csv"],
    "data": ["data/train.csv", "--output=o.html", "--statistics=s.pb", "--schema=s.pbtxt"],
    "explain": ["--model_dir=run", "--output=o.html", "--repeats=1"],
    "export": ["--model_dir=run", "--export_dir=served"],
    "inspect": ["--model_dir=run", "--summary", "--output=o.svg"],
    "new": ["--data=data/train.csv", "--task=rich", "--force", "--out=o.gin"],
    "predict": ["--model_dir=run", "--output=o.csv"],
    "predict all": ["--model_dir=run", "--input=data/*.csv", "--output=predicted/"],
    "prune": [
        "--model_dir=run",
        "--output_dir=cut",
        "--rows=32",
        "--gin_file=gin_configs/sparsity/finished.gin",
    ],
    "report": ["--model_dir=run", "--output=o.html"],
    "train": ["--gin_file=toy.gin", "--model_dir=new"],
    "train on": ["--model_dir=run", "--gin_param=Run.train_steps=30"],
    "train warm": ["--gin_file=toy.gin", "--gin_file=warm.gin", "--model_dir=new"],
}
# One write of each of these fails in make test, thirty of each verb in make test-all.
QUICK = ("affinity", "clip_audit", "compare", "export", "inspect", "new", "predict", "train")


@pytest.fixture(scope="module")
def trained(launch_in, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    toy.write(folder)
    (folder / "warm.gin").write_text(_WARM)
    args = [f"--gin_file={file}" for file in _TRAINED] + [f"--gin_param={p}" for p in _STEPS]
    result = launch_in(folder, "train", *args, "--model_dir=run")
    assert result.code == 0, result
    shutil.copytree(folder / "run", folder / "other")
    for output in outputs(folder):
        output.write_bytes(_EARLIER)
    return folder


def outputs(folder):
    return [folder / f"o.{kind}" for kind in ("html", "csv", "svg", "gin")]


def names(folder):
    """Return the names in a folder, without the times in names of exports and event files."""
    found = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return {re.sub(r"\d{9,}[^/]*", "TIME", name) for name in found}


class Case:
    """A verb in copies of a folder."""

    def __init__(self, verb, trained, launch_in, folder):
        self._verb, self._trained, self._launch_in = verb, trained, launch_in
        self._folder = folder
        at, done = self.run(0)
        assert done.code == 0, done
        self.writes = (folder / "written").read_text().splitlines()
        self._before, self._complete = names(trained), names(at)
        self._sizes = {output.name: output.stat().st_size for output in outputs(at)}

    def run(self, failing):
        """Run the verb in a new copy; return the copy, and the result of the verb."""
        at = self._folder / f"failing_{failing}"
        shutil.copytree(self._trained, at)
        return at, self._launch(at, failing)

    def _launch(self, at, failing=None):
        counted = None if failing is None else [failing, str(self._folder / "written")]
        return self._launch_in(at, self._verb.split()[0], *VERBS[self._verb], failing_write=counted)

    def check(self, failing):
        what = f"write {failing} of {self._verb}: {self.writes[failing - 1]}"
        at, done = self.run(failing)
        assert "Traceback" not in done.err and done.code in (0, 2), (what, done)
        # A state of the input counts once the checkpoint of its step is listed.
        left = {name for name in names(at) if "/input/" not in name or name in self._complete}
        assert left <= self._before | self._complete, (what, left - self._before - self._complete)
        if done.code == 2:
            last = done.err.splitlines()[-1]
            assert last.startswith("Error: ") and _FULL in last, (what, done)
        else:
            assert left == self._complete or _FULL in done.err, (what, self._complete - left)
        for output in outputs(at):
            data = output.read_bytes()
            is_new = output.stat().st_size >= 0.9 * self._sizes[output.name]
            assert data == _EARLIER or (_EARLIER[:20] not in data and is_new), (what, output)
        again = self._launch(at)
        if again.code == 2 and "hold no run" in again.err:  # All that is left is to evaluate it.
            again = self._launch_in(at, "train", "--model_dir=cut")
        assert again.code == 0, (what, again)
        assert names(at) == self._complete, (what, names(at) ^ self._complete)
        shutil.rmtree(at)


@pytest.fixture(params=VERBS if _COUNT > 1 else QUICK)
def case(request, trained, launch_in, tmp_path):
    return Case(request.param, trained, launch_in, tmp_path)


@pytest.mark.drawn(3)
def test_a_write_that_fails_leaves_all_whole(case):
    numbers = range(1, len(case.writes) + 1)
    for failing in random.Random(1).sample(numbers, min(_COUNT, len(numbers))):
        case.check(failing)
