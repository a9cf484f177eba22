"""Records the id of a run in a tracker, and the reported steps, in the folder of the run.

record = records.Record("runs/digits", "mlflow", "sqlite:///mlflow.db mtl")
record.read_id()                            # the tracker's id of this run, or None
record.claim("train", 100)                  # True if step 100 is not yet reported; marks it

Each file has a single writer: the chief writes `run.json`, and the process that reports a stream,
such as "eval", writes `<stream>.json`.
"""

from __future__ import annotations

import json
import os
from typing import Any

from mtl import checks, types
from mtl.deferred import tf
from mtl.files import atomic

FOLDER = "tracking"
TRAIN = "train"


class Record:
    """Stores the id of a run in a tracker, and the reported steps, in files of the run's folder.

    The id is only valid for the folder and the destination that are stored with it. A copy of the
    folder is therefore a new run.

    Args:
      model_dir: the folder of the run, or of a part of the run.
      name: the name of the tracker.
      destination: describes the server and project that the tracker reports to.
      part: the part of a run that consists of several parts; None for a whole run. The folder of
        the whole run also stores the id of the run.
    """

    def __init__(
        self, model_dir: str, name: str, destination: str, part: types.RunPart | None = None
    ):
        self.folder = os.path.join(model_dir, FOLDER, name)
        self._owner = {
            "model_dir": atomic.absolute(model_dir),
            "destination": checks.mask(destination),
        }
        self._part = part
        # If a run consists of several trainings, all of them report to the same run of the tracker,
        # so the folder of the whole run stores the id.
        self._whole = Record(part.folder, name, destination) if part else None

    def read_id(self) -> str | None:
        """Return the id of the run in the tracker; None before the tracker has given an id."""
        if self._whole:
            return self._whole.read_id()
        content = self._read("run")
        # Mask the destination in the file, because it may hold a password and `_owner` is masked.
        is_own = {name: _mask_value(content.get(name)) for name in self._owner} == self._owner
        run_id = content.get("run_id")
        return run_id if is_own and isinstance(run_id, str) else None

    def write_id(self, run_id: str) -> None:
        """Store the id that the run has in the tracker."""
        if self._part and self._read("run").get("run_id", run_id) != run_id:
            # The id is new, so no step of this part is reported yet.
            tf.io.gfile.rmtree(self.folder)
        # Commands on the folder of a single training of the run, such as launch.evaluate, need the
        # name of this part.
        prefix = {"part": self._part.name} if self._part else {}
        self._write("run", {"run_id": run_id, **self._owner, **prefix})
        if self._whole:
            self._whole.write_id(run_id)

    def read_part(self) -> str:
        """Return the name of this folder's training in a run of several trainings; "" for one."""
        part = self._part.name if self._part else self._read("run").get("part")
        return part if isinstance(part, str) else ""

    def tell_other(self) -> str:
        """Describe the folder and the destination of the stored id if it belongs to another run.

        Returns:
          A text with the stored folder or the stored destination, or with both, if they differ from
          the folder and the destination of this run; "" if neither differs.
        """
        content = self._read("run")
        stored = {
            name: _mask_value(content.get(name, own_value))
            for name, own_value in self._owner.items()
        }
        other_values = [
            f"{stored[name]}"
            for name, own_value in self._owner.items()
            if stored[name] != own_value
        ]
        return " of ".join(other_values)

    def forget(self) -> None:
        """Delete the stored id and steps, so that later reports begin a new run or a new part."""
        if tf.io.gfile.isdir(self.folder):
            tf.io.gfile.rmtree(self.folder)
        # Only the first part begins a new run; later parts continue this run.
        if self._whole and self._part and self._part.is_first:
            self._whole.forget()

    def claim(self, stream: str, step: int) -> bool:
        """Mark a step of a stream, such as "train", as reported.

        Steps are marked before they are reported, so a process that is killed in between may skip a
        step, but never reports a step twice. Steps of training increase, but evaluations may come
        in any order.

        Args:
          stream: "train", "eval" or "eval_<split>".
          step: the global step.

        Returns:
          True if the step was not yet marked as reported.
        """
        content = self._read(stream)
        if stream == TRAIN:
            last = content.get("last_step", -1)
            # A run that continues from a checkpoint repeats steps, which may be reported already.
            if step <= last:
                return False
            self._write(stream, {"last_step": step})
            return True
        steps = content.get("steps", [])
        if step in steps:
            return False
        self._write(stream, {"steps": [*steps, step]})
        return True

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, f"{name}.json")

    def _read(self, name: str) -> dict[str, Any]:
        path = self._path(name)
        if not tf.io.gfile.exists(path):
            return {}
        with tf.io.gfile.GFile(path, "rb") as file:
            try:
                content = json.loads(file.read())
            except ValueError:  # After damage to the file, steps are reported again.
                return {}
        return content if isinstance(content, dict) else {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        tf.io.gfile.makedirs(self.folder)
        # Write atomically, because a truncated file would lose the id and thus begin a new run.
        atomic.write(self._path(name), json.dumps(content) + "\n")


def _mask_value(value: Any) -> Any:
    """Return a stored value in which a mask replaces a password."""
    return checks.mask(value) if isinstance(value, str) else value
