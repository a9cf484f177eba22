"""Writes the model, settings and inputs of predictions into a note beside the predictions.

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
# The least number of seconds between two writes of scoring.json, the note about the predictions in
# a folder. Writing scoring.json after each of many small files would take longer than the
# predictions.
_SECS_BETWEEN_NOTES = 5.0


def observe(path: str) -> dict[str, Any] | None:
    """Return the state of an input file, to notice later changes.

    Args:
      path: the path or the URL of the file.

    Returns:
      The size in bytes, the dates and the checksum, as {"size", "dates", "checksum"}; None for a
      pipe or a device.
    """
    if atomic.is_special(path):
        return None
    # Get the dates of the file before its checksum. If the file changes while the checksum is
    # computed, a later look at the dates finds a difference.
    return {**_look_at(path), "checksum": checksums.of_file(remote.copy_here(path))}


def _look_at(path: str) -> dict[str, Any]:
    """Return the size and the dates of a file.

    After `cp -p`, `rsync -t` or `tar -x`, the modification date of a file is older than the last
    change of its content. The dates of a local file therefore include ctime, which only the
    operating system sets.
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
    """A note in a folder of predictions, which says how the predictions were made.

    Args:
      folder: the folder of the predictions.
      facts: the model and the settings, which determine the predictions for an input file.
      shards: {output file: [input file]}; each output file of a folder has a single input file.

    Raises:
      UserError: the folder has predictions of another model, with other settings or for other
        files.
    """

    def __init__(self, folder: str, facts: Mapping[str, Any], shards: Mapping[str, Sequence[str]]):
        self._folder, self._path = folder, os.path.join(folder, _FILE)
        self._before = earlier_note = self._read()
        inputs = {out: atomic.absolute(ins[0]) for out, ins in shards.items()}
        if earlier_note:
            # Notes by old versions of this package lack `digest` and `files_of_run`, so assume that
            # these facts have not changed.
            unknown = {name: facts.get(name) for name in ("digest", "files_of_run")}
            made_with = {**dict.fromkeys(facts), **unknown, **earlier_note}
            made_with = {name: made_with[name] for name in facts}
            rule = f"hold predictions with {json.dumps(facts)}, or none"
            fix = f"It has {json.dumps(made_with)}. Choose another folder, or delete the folder."
            checks.require(made_with == facts, "--output", rule, folder, fix)
        # Folders by old versions of this package have no scoring.json.
        noted_inputs = earlier_note.get("inputs", {})
        for output, path in inputs.items():
            noted_input = noted_inputs.get(os.path.basename(output), path)
            same = noted_input == path or not remote.exists(output)
            fix = f"The file comes from {noted_input!r}. Choose another file, or delete the file."
            checks.require(same, "--output", f"come from {path!r}", output, fix)
        # The note of a scoring run has the names of output files instead of paths, because the note
        # lies in the folder of the outputs.
        names = {os.path.basename(output): path for output, path in inputs.items()}
        self._facts = {**facts, "inputs": {**noted_inputs, **names}}
        states = earlier_note.get("states", {})
        self._inputs, self._states = names, {**states} if isinstance(states, dict) else {}
        self._written = 0.0

    def is_done(self, output: str) -> bool:
        """Return True if an output exists and its input has not changed since the prediction.

        If scoring.json lacks the state of the input file, `is_done` returns False.

        Args:
          output: the path of an output file in `shards`.
        """
        name = os.path.basename(output)
        noted = self._states.get(name)
        if not isinstance(noted, dict) or not remote.exists(output):
            return False
        return _is_unchanged(self._inputs[name], noted)

    def _read(self) -> dict[str, Any]:
        """Return the content of scoring.json; {} without this file, or without predictions."""
        if not remote.exists(self._path):
            return {}
        with open(remote.copy_here(self._path), "rb") as file:
            try:
                earlier_note = json.load(file)
            except ValueError:
                earlier_note = None
        rule, fix = "be a note of launch.predict", "Choose another folder, or delete this file."
        is_note = isinstance(earlier_note, dict) and earlier_note.keys() >= {"model", "keep"}
        is_note = is_note and isinstance(earlier_note.get("inputs", {}), dict)
        checks.require(is_note, self._path, rule, earlier_note, fix)
        names = {name for name in remote.list_names(self._folder) if name != _FILE}
        # Ignore files in the folder that are not outputs. Notes by old versions of this package do
        # not list the outputs.
        outputs = names & set(earlier_note.get("inputs", names))
        return earlier_note if any(not name.endswith(".partial") for name in outputs) else {}

    @contextlib.contextmanager
    def held(self, due: Sequence[str]) -> Iterator[None]:
        """Create the folder if it is absent; write scoring.json when the context starts and ends.

        Until `finish` is called for an output in `due`, `is_done` returns False for the output.

        Args:
          due: the paths of the outputs that will be written.
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
          output: the path of the complete output file.
          state: the state of the input file, which `observe` returned before the file was read.
        """
        # If the input is a pipe, do not mark the output, because its content cannot be compared
        # later: the next command predicts again.
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
            # Convert the note as a JSON file would: tuples become lists, and keys become texts.
            self._before = json.loads(json.dumps(note))
        self._written = time.monotonic()
