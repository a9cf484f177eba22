"""Notes the model, settings and inputs of predictions in a file beside the predictions.

note = claim.Claim("out", {"model": "models/income", "keep": ["id"]}, {"out/a.csv": ["in/a.csv"]})
note.is_done("out/a.csv")                       # True if it exists and its input has not changed
with note.held(["out/a.csv"]):                  # before the first output is written
    before = claim.observe("in/a.csv")          # before the input is read
    note.finish("out/a.csv", before)            # after out/a.csv is complete
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
# The least time between two writes of the note: for many small files, writing the note after each
# would take longer than the predictions.
_SECS_BETWEEN_NOTES = 5.0


def observe(path: str) -> dict[str, Any] | None:
    """Return the size, the dates and the checksum of an input; None for a pipe or a device."""
    if atomic.is_special(path):
        return None
    # Get the dates before the checksum, so that a change during reading makes the dates differ.
    return {**_look_at(path), "checksum": checksums.of_file(remote.copy_here(path))}


def _look_at(path: str) -> dict[str, Any]:
    """Return the size and the dates of a file.

    The first date may be older than the content, as after `cp -p`, `rsync -t` or `tar -x`. So a
    local file has a second date, which only the operating system sets.
    """
    if storage.is_local(path):
        status = os.stat(path)
        return {"size": status.st_size, "dates": [status.st_mtime_ns, status.st_ctime_ns]}
    size, date = remote.look(path)
    return {"size": size, "dates": [date]}


def _is_unchanged(path: str, noted: Mapping[str, Any]) -> bool:
    if atomic.is_special(path):
        return False
    now = _look_at(path)
    if now.items() <= noted.items():
        return True
    same = now["size"] == noted.get("size")
    return same and checksums.of_file(remote.copy_here(path)) == noted.get("checksum")


class Claim:
    """The note in a folder of predictions.

    Args:
      folder: the folder.
      facts: the model and the settings; equal facts mean equal predictions.
      shards: {output: its inputs}; an output in a folder has one input.

    Raises:
      UserError: the folder has predictions of another model, other settings or other files.
    """

    def __init__(self, folder: str, facts: Mapping[str, Any], shards: Mapping[str, Sequence[str]]):
        self._folder, self._path = folder, os.path.join(folder, _FILE)
        self._before = before = self._read()
        inputs = {out: atomic.absolute(ins[0]) for out, ins in shards.items()}
        if before:
            # Notes of old versions have only the path of a model.
            made_with = {**dict.fromkeys(facts), "digest": facts.get("digest"), **before}
            made_with = {name: made_with[name] for name in facts}
            rule = f"hold predictions with {json.dumps(facts)}, or none"
            fix = f"It has {json.dumps(made_with)}. Choose another folder, or delete this one."
            checks.require(made_with == facts, "--output", rule, folder, fix)
        # Folders of old versions have no note.
        noted_inputs = before.get("inputs", {})
        for output, path in inputs.items():
            noted_input = noted_inputs.get(os.path.basename(output), path)
            same = noted_input == path or not remote.exists(output)
            fix = f"It comes from {noted_input!r}. Choose another file, or delete this one."
            checks.require(same, "--output", f"come from {path!r}", output, fix)
        # The note has only names of outputs, because it lies in the same folder.
        names = {os.path.basename(output): path for output, path in inputs.items()}
        self._facts = {**facts, "inputs": {**noted_inputs, **names}}
        states = before.get("states", {})
        self._inputs, self._states = names, {**states} if isinstance(states, dict) else {}
        self._written = 0.0

    def is_done(self, output: str) -> bool:
        """Return whether an output exists and its input has not changed since it was read.

        The result is False if the note has no state of the input.
        """
        name = os.path.basename(output)
        noted = self._states.get(name)
        if not isinstance(noted, dict) or not remote.exists(output):
            return False
        return _is_unchanged(self._inputs[name], noted)

    def _read(self) -> dict[str, Any]:
        """Return the note; {} if there is none, or the folder has no predictions."""
        if not remote.exists(self._path):
            return {}
        with open(remote.copy_here(self._path), "rb") as file:
            try:
                before = json.load(file)
            except ValueError:
                before = None
        rule, fix = "be a note of launch.predict", "Choose another folder, or delete this file."
        is_note = isinstance(before, dict) and before.keys() >= {"model", "keep"}
        is_note = is_note and isinstance(before.get("inputs", {}), dict)
        checks.require(is_note, self._path, rule, before, fix)
        names = {name for name in remote.list_names(self._folder) if name != _FILE}
        # The folder may also have other files. Notes of old versions do not list the outputs.
        outputs = names & set(before.get("inputs", names))
        return before if any(not name.endswith(".partial") for name in outputs) else {}

    @contextlib.contextmanager
    def held(self, due: Sequence[str]) -> Iterator[None]:
        """Create the folder if it is absent, and write the note at the start and at the end.

        Outputs in `due` count as not done until `finish` is called for them.
        """
        for output in due:
            self._states.pop(os.path.basename(output), None)
        self._write()
        try:
            yield
        finally:
            self._write()

    def finish(self, output: str, state: Mapping[str, Any] | None) -> None:
        """Mark an output as done.

        Args:
          output: the complete output.
          state: the result of `observe` before the input was read.
        """
        # The output of a pipe is never marked, so that the next command makes it again.
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
            # Convert the note as reading does: tuples become lists, and keys become texts.
            self._before = json.loads(json.dumps(note))
        self._written = time.monotonic()
