"""What the predictions in a folder were made with, in a file beside them.

note = claim.Claim("out", {"model": "models/income", "keep": ["id"]}, {"out/a.csv": ["in/a.csv"]})
note.is_done("out/a.csv")                                # its input is as it was when it was read
with note.held():                                        # once there is something to write
    before = claim.observe("in/a.csv")                   # before it is read
    note.finish("out/a.csv", before)                     # once out/a.csv is complete
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mtl import checks
from mtl.files import atomic, checksums, storage

_FILE = "scoring.json"
# Of many small files, the notes would take longer than the predictions.
_SECS_BETWEEN_NOTES = 5.0


def observe(path: str) -> dict[str, Any] | None:
    """Return the size, the dates and the checksum of an input; None of a pipe or a device."""
    if atomic.is_special(path):
        return None
    # The dates first: a change while the file is read then shows in the dates.
    return {**_look(path), "checksum": checksums.of_file(path)}


def _look(path: str) -> dict[str, Any]:
    """Return the size and the dates of a file.

    A copy can carry an older date (`cp -p`, `rsync -t`, `tar -x`). The second date of a local file
    is the one that the operating system alone sets.
    """
    if storage.is_local(path):
        status = os.stat(path)
        return {"size": status.st_size, "dates": [status.st_mtime_ns, status.st_ctime_ns]}
    found = tf.io.gfile.stat(path)
    return {"size": found.length, "dates": [found.mtime_nsec]}


def _is_unchanged(path: str, noted: Mapping[str, Any]) -> bool:
    if atomic.is_special(path):
        return False
    now = _look(path)
    if now.items() <= noted.items():
        return True
    return now["size"] == noted.get("size") and checksums.of_file(path) == noted.get("checksum")


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
        states = before.get("states", {})
        self._inputs, self._states = names, {**states} if isinstance(states, dict) else {}
        self._written = 0.0

    def is_done(self, output: str) -> bool:
        """Return whether an output is there, of an input that did not change since it was read.

        Earlier versions noted no states, so that their outputs are made again.
        """
        name = os.path.basename(output)
        noted = self._states.get(name)
        if not isinstance(noted, dict) or not tf.io.gfile.exists(output):
            return False
        return _is_unchanged(self._inputs[name], noted)

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

    @contextlib.contextmanager
    def held(self, due: Sequence[str]) -> Iterator[None]:
        """Leave the note in the folder, which is made if need be, and keep it while it is filled.

        The outputs that are due count as not done until they are complete.
        """
        for output in due:
            self._states.pop(os.path.basename(output), None)
        self._write()
        try:
            yield
        finally:
            self._write()

    def finish(self, output: str, state: Mapping[str, Any] | None) -> None:
        """Take an output for done; `state` is what `observe` saw before its input was read."""
        if state is not None:
            self._states[os.path.basename(output)] = state
            if time.monotonic() - self._written >= _SECS_BETWEEN_NOTES:
                self._write()

    def _write(self) -> None:
        note = {**self._facts, "states": self._states}
        if note != self._before:
            with storage.writing("--output", "a folder", self._folder):
                tf.io.gfile.makedirs(self._folder)
                atomic.write(self._path, json.dumps(note))
            self._before = json.loads(json.dumps(note))
        self._written = time.monotonic()
