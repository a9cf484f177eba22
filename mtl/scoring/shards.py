"""Files in, files out: one for each, skipped where it is there already.

shards = shards_lib.plan(["in/a.csv", "in/b.csv"], "out", "jsonl")
shards_lib.run(shards, reader, model, "jsonl")
"""

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Sequence

import tensorflow as tf
import tqdm

from mtl import checks
from mtl.scoring import batches, blocks, readers, writers

# What the predictions in a folder were made with.
_FILE = "scoring.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Which files become which.

    Attributes:
      inputs: the files that are read.
      output: the file that holds all predictions, None for standard output; or the folder that
        gets a file for each input.
      format_name: of what is written.
      is_folder: whether `output` is a folder.
    """

    inputs: Sequence[str]
    output: str | None
    format_name: str
    is_folder: bool

    def shards(self) -> dict[str | None, list[str]]:
        """{output file: the inputs whose predictions it holds}."""
        if not self.is_folder:
            return {self.output: list(self.inputs)}
        found: dict[str | None, list[str]] = {}
        for path in self.inputs:
            name = writers.renamed(os.path.basename(path), self.format_name)
            found.setdefault(os.path.join(self.output, name), []).append(path)
        for output, paths in found.items():
            rule = f"lead to different names in {self.output}"
            checks.require(len(paths) == 1, "--input", rule, paths, f"All lead to {output!r}.")
        return found


def plan(inputs: Sequence[str], output: str | None, format_name: str = "auto") -> Plan:
    """Decides what is written where.

    `output` is a folder if it ends in "/", is one already, or has no format in its name while
    there are several inputs.

    Raises:
      UserError: two inputs have the same name.
    """
    checks.one_of("--output_format", format_name, ["auto", *writers.FORMATS])
    is_folder = output is not None and _is_folder(output, len(inputs))
    if format_name == "auto":
        named = inputs[0] if is_folder and inputs else output
        format_name = (named and writers.format_in(named)) or "jsonl"
    made = Plan(inputs=inputs, output=output, format_name=format_name, is_folder=is_folder)
    made.shards()
    return made


def _is_folder(output: str, num_inputs: int) -> bool:
    several = num_inputs > 1 and writers.format_in(output) is None
    return output.endswith("/") or tf.io.gfile.isdir(output) or several


def run(
    made: Plan, reader: readers.Reader, model: batches.Model, concurrency: int = 4
) -> tuple[int, int]:
    """Scores what is not scored yet, file by file; each appears when it is complete.

    A file in a folder is done if it is not older than its input.

    Returns:
      How many rows were scored, and how many files were there already.

    Raises:
      UserError: on a malformed row, a model that does not answer, an output that cannot be
        written, or a folder that holds predictions of another model or with other settings.
    """
    shards = made.shards()
    if made.is_folder:
        _claim(made.output, {"model": model.identity, "keep": list(reader.keep)})
    due = {out: ins for out, ins in shards.items() if not (made.is_folder and _done(out, ins))}
    outputs = {path: output for output, inputs in due.items() for path in inputs}
    score = functools.partial(_score, reader, model, blocks.MAKERS[made.format_name])
    scored = batches.in_order(reader.chunks(list(outputs)), score, concurrency)
    rows = 0
    with tqdm.tqdm(unit=" rows", disable=None, unit_scale=True) as bar:
        of_files = itertools.groupby(scored, lambda done: outputs[done[0].path])
        for number, (output, of_file) in enumerate(of_files, start=1):
            bar.set_description(f"file {number} of {len(due)}")
            with writers.writing(output, made.format_name) as write:
                for chunk, block in of_file:
                    write(block)
                    rows += len(chunk.rows)
                    bar.update(len(chunk.rows))
    return rows, len(shards) - len(due)


def _score(
    reader: readers.Reader,
    model: batches.Model,
    make_block: Callable[[blocks.Columns], blocks.Block],
    chunk: batches.Chunk,
) -> tuple[batches.Chunk, blocks.Block]:
    """A chunk and what is written for it; from several threads at a time."""
    if not chunk.numbers:
        return chunk, blocks.EMPTY
    batch = reader.parse(chunk)
    try:
        outputs = model(batch.examples)
    except batches.RefusedError as error:
        raise checks.UserError(reader.explain(chunk, error)) from error
    return chunk, make_block({**batch.kept, **outputs})


def _done(output: str, inputs: Sequence[str]) -> bool:
    if not tf.io.gfile.exists(output):
        return False
    written = tf.io.gfile.stat(output).mtime_nsec
    return all(tf.io.gfile.stat(path).mtime_nsec <= written for path in inputs)


def _claim(folder: str, facts: dict[str, object]) -> None:
    """Notes with what a folder is filled; fails if that was something else before."""
    path = os.path.join(folder, _FILE)
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path) as file:
            before = json.load(file)
        rule = f"hold predictions with {json.dumps(facts)}, or none"
        fix = f"It has those with {json.dumps(before)}. Choose another folder, or delete it."
        checks.require(before == facts, "--output", rule, folder, fix)
        return
    try:
        tf.io.gfile.makedirs(folder)
        with tf.io.gfile.GFile(path + ".partial", "w") as file:
            file.write(json.dumps(facts))
        tf.io.gfile.rename(path + ".partial", path)
    except tf.errors.OpError as error:
        reason = f"{error.message.rpartition('; ')[2]}."
        checks.fail("--output", "be a folder that can be written", folder, reason)
