"""Keeps in a run's folder the id of its run in a tracker, and the steps that were reported.

kept = kept.Kept("runs/digits", "mlflow", "sqlite:///mlflow.db mtl")
kept.read_id()                              # the tracker's name for this run, or None
kept.claim("train", 100)                    # True if step 100 was not reported; now it counts so

Only one process writes a file: the chief `run.json`, and the reporter of a stream `<stream>.json`.
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


class Kept:
    """Keeps the id of a run in a tracker, and the steps that were reported.

    The id is only valid for the same folder and the same destination: a copied folder is a new run.

    Args:
      model_dir: the folder of the run, or of this part of it.
      name: the name of the tracker.
      destination: the place that the tracker reports to.
      part: the place of this part in a run of several parts, whose folder keeps the id too.
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
        # The parts of a run are one run of the tracker: all of them read the id of the whole.
        self._whole = Kept(part.folder, name, destination) if part else None

    def read_id(self) -> str | None:
        """Return the tracker's id of this run; None without one."""
        if self._whole:
            return self._whole.read_id()
        found = self._read("run")
        # A kept destination may hold a password, which `_owner` masks.
        is_own = {name: _mask_value(found.get(name)) for name in self._owner} == self._owner
        run_id = found.get("run_id")
        return run_id if is_own and isinstance(run_id, str) else None

    def write_id(self, run_id: str) -> None:
        """Keep the tracker's id of this run."""
        if self._part and self._read("run").get("run_id", run_id) != run_id:
            tf.io.gfile.rmtree(self.folder)  # The whole run is new, and lacks this part.
        # Later commands on the folder of a part, such as launch.evaluate, get no `part`.
        prefix = {"part": self._part.name} if self._part else {}
        self._write("run", {"run_id": run_id, **self._owner, **prefix})
        if self._whole:
            self._whole.write_id(run_id)

    def read_part(self) -> str:
        """Return the name of the part that is reported from this folder; "" for a whole run."""
        part = self._part.name if self._part else self._read("run").get("part")
        return part if isinstance(part, str) else ""

    def tell_other(self) -> str:
        """Say which other run the folder's id belongs to; "" if it is not another run."""
        found = self._read("run")
        kept = {name: _mask_value(found.get(name, own)) for name, own in self._owner.items()}
        others = [f"{kept[name]}" for name, own in self._owner.items() if kept[name] != own]
        return " of ".join(others)

    def forget(self) -> None:
        """Forget the run: later reports begin a new run, or a new part of a run."""
        if tf.io.gfile.isdir(self.folder):
            tf.io.gfile.rmtree(self.folder)
        # Later parts must not forget the run that the first one has begun.
        if self._whole and self._part and self._part.is_first:
            self._whole.forget()

    def claim(self, stream: str, step: int) -> bool:
        """Return whether a step of a stream is not yet reported, and mark it as reported.

        The mark comes before the report: a process that is killed in between skips a step, but
        never repeats one. Training only goes forward; evaluations may take any checkpoint.

        Args:
          stream: "train", "eval" or "eval_<split>".
          step: the global step.
        """
        known = self._read(stream)
        if stream == TRAIN:
            last = known.get("last_step", -1)
            # A run that goes on from a checkpoint repeats steps that were reported already.
            if step <= last:
                return False
            self._write(stream, {"last_step": step})
            return True
        steps = known.get("steps", [])
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
                found = json.loads(file.read())
            except ValueError:  # If the file is damaged, the run is reported anew.
                return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        tf.io.gfile.makedirs(self.folder)
        # Whole or not at all: a file that is cut off would begin a new run.
        atomic.write(self._path(name), json.dumps(content) + "\n")


def _mask_value(value: Any) -> Any:
    """Return a kept value with any password masked."""
    return checks.mask(value) if isinstance(value, str) else value
