"""What the predictions in a folder were made with, in a file beside them.

note = claim.Claim("out", {"model": "models/income", "keep": ["id"]}, {"out/a.csv": ["in/a.csv"]})
note.write()                                             # once there is something to write
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import checks
from mtl.files import atomic, storage

_FILE = "scoring.json"


class Claim:
    """Notes with what a folder is filled, in a file of its own there.

    Raises:
      UserError: the folder holds what was made otherwise, or of other files.
    """

    def __init__(self, folder: str, facts: Mapping[str, Any], shards: Mapping[str, Sequence[str]]):
        self._folder, self._path = folder, os.path.join(folder, _FILE)
        self._before = before = self._read()
        inputs = {out: atomic.absolute(ins[0]) for out, ins in shards.items()}
        if before:
            # Of earlier versions the path of a model is all that is known.
            made_with = {**dict.fromkeys(facts), "digest": facts.get("digest"), **before}
            made_with = {name: made_with[name] for name in facts}
            rule = f"hold predictions with {json.dumps(facts)}, or none"
            fix = f"It has those with {json.dumps(made_with)}. Choose another folder, or delete it."
            checks.require(made_with == facts, "--output", rule, folder, fix)
        # Runs before this note was kept have none.
        known = before.get("inputs", {})
        for output, path in inputs.items():
            other = known.get(os.path.basename(output), path)
            same = other == path or not tf.io.gfile.exists(output)
            fix = f"It was made of {other!r}. Choose another folder, or delete it."
            checks.require(same, "--output", f"be made of {path!r}", output, fix)
        names = {os.path.basename(output): path for output, path in inputs.items()}
        self._facts = {**facts, "inputs": {**known, **names}}

    def _read(self) -> dict[str, Any]:
        """Return what was noted; {} if nothing was, or no predictions were written after it."""
        if not tf.io.gfile.exists(self._path):
            return {}
        with tf.io.gfile.GFile(self._path) as file:
            try:
                before = json.load(file)
            except ValueError:
                before = None
        rule, fix = "be what launch.predict notes there", "Choose another folder, or delete it."
        is_note = isinstance(before, dict) and before.keys() >= {"model", "keep"}
        checks.require(is_note, self._path, rule, before, fix)
        lying = {name for name in tf.io.gfile.listdir(self._folder) if name != _FILE}
        written = lying & set(before.get("inputs", lying))
        return before if any(not name.endswith(".partial") for name in written) else {}

    def write(self) -> None:
        """Leave the note in the folder, which is made if need be."""
        if self._facts == self._before:
            return
        with storage.writing("--output", "a folder", self._folder):
            tf.io.gfile.makedirs(self._folder)
            atomic.write(self._path, json.dumps(self._facts))
