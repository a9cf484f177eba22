"""Predicts file by file, and skips files whose predictions exist.

made = shards.plan_shards(["in/a.csv", "in/b.csv"], "out", "jsonl")
shards.score_shards(made, reader, model)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import tqdm

from mtl import checks
from mtl.files import atomic, remote
from mtl.runs import kept_fields
from mtl.tools.scoring import batches, blocks, claim, protection, readers, writers

_INPUTS_ONLY = protection.Protection()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The input files of each output file.

    Attributes:
      inputs: the files that are read.
      output: the file that holds all predictions, None for standard output; or the folder that
        gets a file for each input.
      format_name: the format of the outputs.
      is_folder: True if `output` is a folder.
      escape_formulas: True to escape text in CSV that a spreadsheet would run as a formula.
      guard: protects other files than the inputs from outputs.
    """

    inputs: Sequence[str]
    output: str | None
    format_name: str
    is_folder: bool
    guard: protection.Protection = _INPUTS_ONLY
    escape_formulas: bool = False

    def __post_init__(self):
        rule = "come with CSV, as no other format has formulas"
        fits = self.format_name == "csv" or not self.escape_formulas
        checks.require(fits, "--escape_formulas", rule, self.format_name)
        # An output that is also an input would count as done, or overwrite the input.
        guard = dataclasses.replace(self.guard, files=[*self.guard.files, *self.inputs])
        for output in self.shards():
            if output is not None:
                guard.check(output)

    @property
    def folder(self) -> str:
        """The output folder; only if the output is a folder."""
        return cast(str, self.output)

    def shards(self) -> dict[str | None, list[str]]:
        """Return {output file: the inputs whose predictions it holds}."""
        if not self.is_folder:
            return {self.output: list(self.inputs)}
        found: dict[str | None, list[str]] = {}
        for path in self.inputs:
            name = writers.rename_output(os.path.basename(path), self.format_name)
            found.setdefault(os.path.join(self.folder, name), []).append(path)
        for output, paths in found.items():
            rule = f"lead to different names in {self.output}"
            checks.require(len(paths) == 1, "--input", rule, paths, f"All lead to {output!r}.")
        return found


def plan_shards(
    inputs: Sequence[str],
    output: str | None,
    format_name: str = "auto",
    guard: protection.Protection = _INPUTS_ONLY,
    escape_formulas: bool = False,
) -> Plan:
    """Choose the output file of each input.

    `output` is a folder if it ends in "/", is one already, or its name has no ending while there
    are several inputs.

    Args:
      inputs: the files with rows.
      output: a file or a folder; None for standard output.
      format_name: the format of the outputs; "auto" goes by the names of the files.
      guard: protects other files than the inputs from outputs.
      escape_formulas: True to escape text in CSV that a spreadsheet would run as a formula.

    Raises:
      UserError: two inputs have the same name, an output is an input or something else that
        `guard` keeps, or the ending of the output's name is an unknown format.
    """
    checks.one_of("--output_format", format_name, ["auto", *writers.FORMATS])
    output = output and output.removeprefix("file://")
    is_folder = output is not None and _is_folder(output, len(inputs))
    if output is not None and not is_folder:
        writers.check_name(output, format_name)
    if format_name == "auto":
        named = inputs[0] if is_folder and inputs else output
        format_name = (named and writers.format_in(named)) or "jsonl"
    return Plan(
        inputs=inputs,
        output=output,
        format_name=format_name,
        is_folder=is_folder,
        guard=guard,
        escape_formulas=escape_formulas,
    )


def _is_folder(output: str, num_inputs: int) -> bool:
    several = num_inputs > 1 and not os.path.splitext(output)[1]
    if atomic.is_special(output):
        return False
    return output.endswith("/") or remote.is_folder(output) or several


def score_shards(
    made: Plan, reader: readers.Reader, model: batches.Model, concurrency: int = 4
) -> tuple[int, int]:
    """Score the files without predictions; an output appears when it is complete.

    An output in a folder is done if its input has not changed since it was read. The first
    predictions come before the first write.

    Args:
      made: the inputs of each output.
      reader: reads the inputs.
      model: predicts; several threads call it at a time.
      concurrency: how many batches are at work at a time.

    Returns:
      The numbers of rows that were scored and of files that were done already.

    Raises:
      UserError: on a malformed row, a model that does not answer, an output that cannot be
        written, inputs without a row, or a folder that holds predictions of another model, of
        other files or with other settings.
    """
    shards = made.shards()
    note = _claim_folder(made, reader, model) if made.is_folder else None
    due = _list_due(shards, note)
    outputs = {path: output for output, inputs in due.items() for path in inputs}
    reader.check(list(outputs))
    make_block = blocks.find_maker(made.format_name, made.escape_formulas)
    score = functools.partial(_score_chunk, reader, model, make_block)
    seen: dict[str, Any] = {}
    chunks = _observe_chunks(reader, outputs, seen) if note else reader.chunks(list(outputs))
    scored = batches.in_order(chunks, score, concurrency)
    with contextlib.closing(scored):
        # Nothing is written before it: a model that is not there leaves no folder behind.
        first = _first_rows(scored)
        # With some outputs done, the rest may well be without rows.
        if due and len(due) == len(shards):
            _require_row(made, first)
        every = itertools.chain(first, scored)
        if note is None:
            rows = _write_outputs(made, outputs, every)
        else:
            with note.held(cast(list[str], list(due))):
                rows = _write_outputs(
                    made, outputs, every, lambda out, path: note.finish(out, seen[path])
                )
    return rows, len(shards) - len(due)


def _claim_folder(made: Plan, reader: readers.Reader, model: batches.Model) -> claim.Claim:
    """Return the note of a folder on the model and inputs of its predictions."""
    facts: dict[str, Any] = {"model": model.identity, "keep": list(reader.keep)}
    facts["digest"] = model.digest or None
    # Notes of old folders lack this setting.
    facts["escape_formulas"] = made.escape_formulas or None
    # In a folder every output has a name.
    return claim.Claim(made.folder, facts, cast(dict[str, list[str]], made.shards()))


def _list_due(
    shards: Mapping[str | None, list[str]], note: claim.Claim | None
) -> dict[str | None, list[str]]:
    """Return the outputs that are not there yet, with their inputs."""
    return {out: ins for out, ins in shards.items() if not (note and note.is_done(cast(str, out)))}


def _observe_chunks(
    reader: readers.Reader, paths: Iterable[str], seen: dict[str, Any]
) -> Iterator[batches.Chunk]:
    """Yield the chunks of files; `seen` gets the state of each file before it is read."""
    for path in paths:
        seen[path] = claim.observe(path)
        yield from reader.chunks([path])


_Scored = tuple[batches.Chunk, blocks.Block]


def _first_rows(scored: Iterator[_Scored]) -> list[_Scored]:
    """Return the results up to the first chunk that holds a row."""
    first = []
    for chunk, block in scored:
        first.append((chunk, block))
        if chunk.numbers:
            break
    return first


def _require_row(made: Plan, first: Sequence[_Scored]) -> None:
    some = any(chunk.numbers for chunk, _ in first)
    checks.require(some, "--input", "hold a row", list(made.inputs))


def _write_outputs(
    made: Plan,
    outputs: Mapping[str, str | None],
    scored: Iterable[_Scored],
    finish: Callable[[Any, str], None] = lambda output, path: None,
) -> int:
    """Write each {input: output}, and return the number of rows.

    `finish` is called for each complete output, with its last input.
    """
    rows = 0
    count = len(set(outputs.values()))
    with tqdm.tqdm(unit=" rows", disable=None, unit_scale=True) as bar:
        # Chunks come in the order of the files, so each output is opened once.
        of_files = itertools.groupby(scored, lambda done: outputs[done[0].path])
        for number, (output, of_file) in enumerate(of_files, start=1):
            bar.set_description(f"file {number} of {count}")
            path = ""
            with writers.open_writer(output, made.format_name) as write:
                for chunk, block in of_file:
                    write(block)
                    rows, path = rows + len(chunk.rows), chunk.path
                    bar.update(len(chunk.rows))
            finish(output, path)
    return rows


def _score_chunk(
    reader: readers.Reader,
    model: batches.Model,
    make_block: Callable[[blocks.Columns], blocks.Block],
    chunk: batches.Chunk,
) -> tuple[batches.Chunk, blocks.Block]:
    """Return a chunk and its block of predictions; threads may call it in parallel."""
    if not chunk.numbers:
        return chunk, blocks.EMPTY
    batch = reader.parse(chunk)
    try:
        outputs = model(batch.examples)
    except batches.RefusedError as error:
        raise checks.UserError(reader.explain(chunk, error)) from error
    for name in batch.kept:
        kept_fields.require_no_output(name, outputs)
    return chunk, make_block({**batch.kept, **outputs})
