"""A note in a folder of predictions: the model, the settings and the inputs behind them.

note = claim.Claim("out", {"model": "models/income", "keep": ["id"]}, {"out/a.csv": ["in/a.csv"]})
note.is_done("out/a.csv")                                # True if its input has not changed
with note.held(["out/a.csv"]):                           # before the first output
    before = claim.observe("in/a.csv")                   # before it is read
    note.finish("out/a.csv", before)                     # once out/a.csv is complete
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtl import checks
from mtl.files import atomic, checksums, remote, storage

_FILE = "scoring.json"
# Of many small files, the notes would take longer than the predictions.
_SECS_BETWEEN_NOTES = 5.0


def observe(path: str) -> dict[str, Any] | None:
    """Return the size, the dates and the checksum of an input; None for a pipe or a device."""
    if atomic.is_special(path):
        return None
    # The dates first: a change while the file is read then shows in the dates.
    return {**_look_at(path), "checksum": checksums.of_file(remote.copy_here(path))}


def _look_at(path: str) -> dict[str, Any]:
    """Return the size and the dates of a file.

    A copy can carry an older date (`cp -p`, `rsync -t`, `tar -x`). Only the operating system
    sets the second date of a local file.
    """
    if storage.is_local(path):
        status = os.stat(path)
        return {"size": status.st_size, "dates": [status.st_mtime_ns, status.st_ctime_ns]}
    size, changed = remote.look(path)
    return {"size": size, "dates": [changed]}


def _is_unchanged(path: str, noted: Mapping[str, Any]) -> bool:
    if atomic.is_special(path):
        return False
    now = _look_at(path)
    if now.items() <= noted.items():
        return True
    same = now["size"] == noted.get("size")
    return same and checksums.of_file(remote.copy_here(path)) == noted.get("checksum")


class Claim:
    """Notes the model, settings and inputs of a folder's predictions in a file there.

    Raises:
      UserError: the folder holds predictions of another model, other settings or other files.
    """

    def __init__(self, folder: str, facts: Mapping[str, Any], shards: Mapping[str, Sequence[str]]):
        self._folder, self._path = folder, os.path.join(folder, _FILE)
        self._before = before = self._read()
        inputs = {out: atomic.absolute(ins[0]) for out, ins in shards.items()}
        if before:
            # Notes of old versions know only the path of a model.
            made_with = {**dict.fromkeys(facts), "digest": facts.get("digest"), **before}
            made_with = {name: made_with[name] for name in facts}
            rule = f"hold predictions with {json.dumps(facts)}, or none"
            fix = f"It was made with {json.dumps(made_with)}. Choose another folder, or delete it."
            checks.require(made_with == facts, "--output", rule, folder, fix)
        # Folders of old versions have no note.
        known = before.get("inputs", {})
        for output, path in inputs.items():
            other = known.get(os.path.basename(output), path)
            same = other == path or not remote.exists(output)
            fix = f"It was made from {other!r}. Choose another, or delete it."
            checks.require(same, "--output", f"come from {path!r}", output, fix)
        # By their names, as the note lies in the same folder.
        names = {os.path.basename(output): path for output, path in inputs.items()}
        self._facts = {**facts, "inputs": {**known, **names}}
        states = before.get("states", {})
        self._inputs, self._states = names, {**states} if isinstance(states, dict) else {}
        self._written = 0.0

    def is_done(self, output: str) -> bool:
        """Return True if an output is there and its input has not changed since it was read.

        An output whose note has no state of the input is made again.
        """
        name = os.path.basename(output)
        noted = self._states.get(name)
        if not isinstance(noted, dict) or not remote.exists(output):
            return False
        return _is_unchanged(self._inputs[name], noted)

    def _read(self) -> dict[str, Any]:
        """Return the note; {} if it is absent, or the folder has no predictions."""
        if not remote.exists(self._path):
            return {}
        with open(remote.copy_here(self._path), "rb") as file:
            try:
                before = json.load(file)
            except ValueError:
                before = None
        rule, fix = "hold notes of launch.predict", "Choose another folder, or delete it."
        is_note = isinstance(before, dict) and before.keys() >= {"model", "keep"}
        checks.require(is_note, self._path, rule, before, fix)
        lying = {name for name in remote.list_names(self._folder) if name != _FILE}
        # Other files may lie in the folder; notes of old versions list no inputs.
        written = lying & set(before.get("inputs", lying))
        return before if any(not name.endswith(".partial") for name in written) else {}

    @contextlib.contextmanager
    def held(self, due: Sequence[str]) -> Iterator[None]:
        """Create the folder if it is absent, and write the note at the start and at the end.

        Outputs in `due` count as not done until they are complete.
        """
        for output in due:
            self._states.pop(os.path.basename(output), None)
        self._write()
        try:
            yield
        finally:
            self._write()

    def finish(self, output: str, state: Mapping[str, Any] | None) -> None:
        """Mark an output as done; `observe` returned `state` before the input was read."""
        # A pipe has no state: its output is made again.
        if state is not None:
            self._states[os.path.basename(output)] = state
            if time.monotonic() - self._written >= _SECS_BETWEEN_NOTES:
                self._write()

    def _write(self) -> None:
        note = {**self._facts, "states": self._states}
        if note != self._before:
            text = json.dumps(note)
            if remote.is_remote(self._path):
                remote.write(self._path, text.encode())
            else:
                with storage.writing("--output", "a folder", self._folder):
                    os.makedirs(self._folder, exist_ok=True)
                    atomic.write(self._path, text)
            # As it is read back: tuples become lists, and keys texts.
            self._before = json.loads(json.dumps(note))
        self._written = time.monotonic()
