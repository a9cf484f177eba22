"""Computes predictions file by file, and skips files whose predictions exist.

plan = shards.plan_shards(["in/a.csv", "in/b.csv"], "out", "jsonl")
shards.score_shards(plan, reader, model)
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
from mtl.data import file_settings
from mtl.files import atomic, remote
from mtl.runs import kept_fields
from mtl.tools.scoring import batches, blocks, claim, protection, readers, writers

_INPUTS_ONLY = protection.Protection()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan: the input files for each output file, and the format of the outputs.

    Attributes:
      inputs: the files with rows to predict.
      output: the file for all predictions, or a folder with a file for each input; None for
        standard output.
      format_name: the format of the outputs.
      is_folder: True if `output` is a folder.
      guard: describes the files that outputs must not overwrite, in addition to the inputs.
      escape_formulas: True to escape text in CSV that a spreadsheet would run as a formula.
    """

    inputs: Sequence[str]
    output: str | None
    format_name: str
    is_folder: bool
    guard: protection.Protection = _INPUTS_ONLY
    escape_formulas: bool = False

    def __post_init__(self):
        rule = "come with CSV, as other formats have no formulas"
        fits = self.format_name == "csv" or not self.escape_formulas
        checks.require(fits, "--escape_formulas", rule, self.format_name)
        # Protect the inputs, because a file that is both input and output would be overwritten, or
        # would be skipped as an output that exists.
        guard = dataclasses.replace(self.guard, files=[*self.guard.files, *self.inputs])
        for output in self.shards():
            if output is not None:
                guard.check(output)

    @property
    def folder(self) -> str:
        """The output folder; this property may only be used if `is_folder` is True."""
        return cast(str, self.output)

    def shards(self) -> dict[str | None, list[str]]:
        """Return {output file: input files}.

        Raises:
          UserError: two inputs would have the same output in a folder.
        """
        if not self.is_folder:
            return {self.output: list(self.inputs)}
        inputs_of: dict[str | None, list[str]] = {}
        for path in self.inputs:
            name = writers.rename_output(os.path.basename(path), self.format_name)
            inputs_of.setdefault(os.path.join(self.folder, name), []).append(path)
        for output, paths in inputs_of.items():
            rule = f"have different names, as each gets an output in {self.output}"
            checks.require(len(paths) == 1, "--input", rule, paths, f"All would get {output!r}.")
        return inputs_of


def plan_shards(
    inputs: Sequence[str],
    output: str | None,
    format_name: str = "auto",
    guard: protection.Protection = _INPUTS_ONLY,
    escape_formulas: bool = False,
) -> Plan:
    """Choose the output file for each input file.

    `output` is a folder if it ends in "/" or is an existing folder. If there are several inputs,
    `output` is also a folder if it has no file extension.

    Args:
      inputs: the files with rows to predict.
      output: a file or a folder; None for standard output.
      format_name: the format of the outputs; "auto" to derive it from the names of the files.
      guard: describes the files that outputs must not overwrite, in addition to the inputs.
      escape_formulas: True to escape text in CSV that a spreadsheet would run as a formula.

    Raises:
      UserError: two inputs have the same name, an output would overwrite an input or a file of
        `guard`, or the extension of the output's name is unknown.
    """
    checks.one_of("--output_format", format_name, ["auto", *writers.FORMATS])
    output = output and output.removeprefix("file://")
    is_folder = output is not None and _is_folder(output, len(inputs))
    if output is not None and not is_folder:
        writers.check_name(output, format_name)
    if format_name == "auto":
        example = inputs[0] if is_folder and inputs else output
        format_name = (example and writers.format_in(example)) or "jsonl"
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
    plan: Plan, reader: readers.Reader, model: batches.Model, concurrency: int = 4
) -> tuple[int, int]:
    """Write predictions for the rows of all input files that have no predictions yet.

    An output file appears only after it is complete. In a folder, an output is skipped if it exists
    and its input has not changed since the last prediction.

    Args:
      plan: the input files of each output file.
      reader: the reader of the inputs.
      model: the model that predicts the rows. Several threads call the model at the same time.
      concurrency: the number of threads, which is the number of batches in progress.

    Returns:
      The number of predicted rows, and the number of skipped outputs.

    Raises:
      UserError: a row is malformed, the model does not answer, an output cannot be written, the
        inputs have no rows, or the folder has predictions of another model, of other files or with
        other settings.
    """
    shards = plan.shards()
    note = _claim_folder(plan, reader, model) if plan.is_folder else None
    pending = _list_due(shards, note)
    outputs = {path: output for output, inputs in pending.items() for path in inputs}
    reader.check(list(outputs))
    make_block = blocks.find_maker(plan.format_name, plan.escape_formulas)
    score = functools.partial(_score_chunk, reader, model, make_block)
    states: dict[str, Any] = {}
    chunks = _observe_chunks(reader, outputs, states) if note else reader.chunks(list(outputs))
    scored = batches.in_order(chunks, score, concurrency)
    with contextlib.closing(scored):
        # Predict the first rows before creating the folder, so that no folder remains if the model
        # fails.
        first_results = _first_rows(scored)
        # Fail without input rows, but only if no output existed before. If some outputs
        # existed, all inputs that remain to be predicted may be empty.
        if pending and len(pending) == len(shards):
            _require_row(plan, first_results)
        results = itertools.chain(first_results, scored)
        if note is None:
            rows = _write_outputs(plan, outputs, results)
        else:
            with note.held(cast(list[str], list(pending))):
                rows = _write_outputs(
                    plan, outputs, results, lambda out, path: note.finish(out, states[path])
                )
    return rows, len(shards) - len(pending)


def _claim_folder(plan: Plan, reader: readers.Reader, model: batches.Model) -> claim.Claim:
    """Return the note for the output folder of a plan, with the model and the settings."""
    facts: dict[str, Any] = {"model": model.identity, "keep": list(reader.keep)}
    facts["digest"] = model.digest or None
    # In scoring.json by old versions of this package, `escape_formulas` and `files_of_run` are
    # missing, and count as None.
    facts["escape_formulas"] = plan.escape_formulas or None
    facts["files_of_run"] = file_settings.describe(reader.settings) or None
    # If the output is a folder, all keys of `shards` are paths, and no key is None.
    return claim.Claim(plan.folder, facts, cast(dict[str, list[str]], plan.shards()))


def _list_due(
    shards: Mapping[str | None, list[str]], note: claim.Claim | None
) -> dict[str | None, list[str]]:
    """Return {output: inputs} for outputs that are missing or whose inputs have changed."""
    return {out: ins for out, ins in shards.items() if not (note and note.is_done(cast(str, out)))}


def _observe_chunks(
    reader: readers.Reader, paths: Iterable[str], states: dict[str, Any]
) -> Iterator[batches.Chunk]:
    """Yield the chunks of files; store the state of each file before reading the file."""
    for path in paths:
        states[path] = claim.observe(path)
        yield from reader.chunks([path])


_Scored = tuple[batches.Chunk, blocks.Block]


def _first_rows(scored: Iterator[_Scored]) -> list[_Scored]:
    """Return the predicted chunks, up to and including the first chunk that has rows."""
    results = []
    for chunk, block in scored:
        results.append((chunk, block))
        if chunk.numbers:
            break
    return results


def _require_row(plan: Plan, results: Sequence[_Scored]) -> None:
    has_row = any(chunk.numbers for chunk, _ in results)
    checks.require(has_row, "--input", "hold a row", list(plan.inputs))


def _write_outputs(
    plan: Plan,
    outputs: Mapping[str, str | None],
    scored: Iterable[_Scored],
    finish: Callable[[Any, str], None] = lambda output, path: None,
) -> int:
    """Write all outputs, and return the number of rows.

    Args:
      plan: the plan, with the format of the outputs.
      outputs: {input file: output file}.
      scored: the chunks of all inputs, in the order of the inputs. Each chunk comes with a block
        that has its predictions.
      finish: a function that is called with each complete output file and its last input file.
    """
    rows = 0
    count = len(set(outputs.values()))
    with tqdm.tqdm(unit=" rows", disable=None, unit_scale=True) as bar:
        # Chunks come in the order of the inputs, so `groupby` yields each output only once.
        of_files = itertools.groupby(scored, lambda done: outputs[done[0].path])
        for number, (output, of_file) in enumerate(of_files, start=1):
            bar.set_description(f"file {number} of {count}")
            path = ""
            with writers.open_writer(output, plan.format_name) as write:
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
    """Return a chunk, and a block with predictions for it. `_score_chunk` is thread-safe."""
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
