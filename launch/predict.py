"""Predicts every task for each example of a split or of files.

python -m launch.predict --model_dir runs/digits --checkpoint best --output predictions.jsonl
python -m launch.predict --model_dir runs/adult --input 'in/*.csv' --keep id --output out/
python -m launch.predict --model_dir runs/adult --split test --keep age --output test.parquet
python -m launch.predict --model_dir runs/adult --input in.csv --server localhost:8500
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, cast

from absl import flags

from launch import app
from mtl import checks, deferred

with deferred.imports():
    from mtl import serving, verbs
    from mtl.data import file_settings
    from mtl.runs import kept_fields
    from mtl.tools import scoring

CHECKPOINT = app.define_checkpoint()
SPLIT = flags.DEFINE_string("split", None, "The split to predict. (default: Pipeline.eval_split)")
INPUT = flags.DEFINE_multi_string(
    "input",
    [],
    "Files or globs to predict instead of a split: CSV, JSON lines, Parquet, ORC, Feather, "
    "spreadsheets or TFRecords of tf.Examples, with or without labels. Files may be remote, such "
    "as s3://bucket/a.csv. Text and TFRecords may be .gz. Repeatable.",
)
INPUT_FORMAT = flags.DEFINE_string(
    "input_format",
    "auto",
    "The format of --input, if the names of the files do not show it: csv, jsonl, parquet or "
    "tfrecord.",
)
OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "The file to write. A folder, or a name that ends in /, gets a file for each input file; after "
    "an interruption, the same command continues in the folder. (default: standard output)",
)
OUTPUT_FORMAT = flags.DEFINE_string(
    "output_format",
    "auto",
    "The format of the output: csv, jsonl, parquet or tfrecord. By default, the ending of "
    "--output decides the format; a folder gets the format of the input, and standard output gets "
    "jsonl.",
)
ESCAPE_FORMULAS = flags.DEFINE_boolean(
    "escape_formulas",
    False,
    "Put an apostrophe before text in CSV that a spreadsheet would take for a formula.",
)
KEEP = flags.DEFINE_multi_string(
    "keep",
    [],
    "Fields of the input or of the split, such as an id, to write beside the predictions, with "
    "commas. Repeatable.",
)
SAVED_MODEL = flags.DEFINE_string(
    "saved_model", None, "The SavedModel to predict with, instead of a checkpoint."
)
SERVER = flags.DEFINE_string(
    "server",
    None,
    "The server to predict with, instead of a checkpoint: HOST:PORT (gRPC), http://HOST:PORT "
    "(REST), or http://HOST:PORT/v2 (KServe's protocol, such as Triton).",
)
MODEL_NAME = flags.DEFINE_string("model_name", "mtl", "The model's name on the server.")
MODEL_VERSION = flags.DEFINE_string(
    "model_version", "", "The version on the server, or a label. (default: the newest)"
)
SIGNATURE = flags.DEFINE_string(
    "signature", "serving_default", "A signature of the model that takes tf.Examples."
)
BATCH_SIZE = flags.DEFINE_integer("batch_size", 512, "The number of rows in a batch.")
CONCURRENCY = flags.DEFINE_integer("concurrency", 4, "The number of batches predicted in parallel.")
DEADLINE = flags.DEFINE_float("deadline_secs", 10.0, "The time limit of each attempt of a request.")
RETRIES = flags.DEFINE_integer(
    "retries", 4, "How often to retry a batch at most, with growing pauses, if the server is busy."
)
TLS = flags.DEFINE_boolean("tls", False, "Use TLS with gRPC; REST uses it with https://.")
CA_FILE = flags.DEFINE_string(
    "ca_file",
    None,
    "A PEM file of the authorities that sign the server's certificate. (default: the system's)",
)
TOKEN_FILE = flags.DEFINE_string(
    "token_file", None, "A file with the bearer token for the server, read for every request."
)
TOKEN_ENV = flags.DEFINE_string(
    "token_env", None, "The environment variable with the token, instead of --token_file."
)


_OF_SERVERS = [MODEL_NAME, MODEL_VERSION, DEADLINE, RETRIES, TLS, CA_FILE, TOKEN_FILE, TOKEN_ENV]


def main() -> None:
    """Write the predictions of a split or of files."""
    _refuse_unused()
    if INPUT.value:
        _predict_files()
        return
    for flag in (SERVER, SAVED_MODEL):
        rule = "come with --input, because a split is predicted with a checkpoint"
        checks.require(not flag.value, f"--{flag.name}", rule, flag.value)
    kept = _list_kept()
    checks.unique("--keep", kept)
    checks.at_least("--batch_size", BATCH_SIZE.value, 1)
    experiment, model_dir = app.load()
    plan = _plan_outputs([], experiment, model_dir)
    checks.require(not plan.is_folder, "--output", "be a file for a split", OUTPUT.value)
    rows = verbs.predict(experiment, model_dir, SPLIT.value, CHECKPOINT.value, kept)
    make_block = scoring.find_maker(plan.format_name, plan.escape_formulas)
    with scoring.open_writer(plan.output, plan.format_name) as write:
        # Write blocks of rows: columnar formats need blocks, and all rows may not fit into memory.
        while block := list(itertools.islice(rows, BATCH_SIZE.value)):
            columns = {
                name: kept_fields.stack_column([row[name] for row in block]) for name in block[0]
            }
            write(make_block(columns))


def _refuse_unused() -> None:
    """Fail if a flag belongs to another kind of model than the command uses."""
    is_exported = SERVER.value or SAVED_MODEL.value
    unused = [] if SERVER.value else [(flag, "come with --server") for flag in _OF_SERVERS]
    unused += [] if is_exported else [(SIGNATURE, "come with --server or --saved_model")]
    unused += [(CHECKPOINT, "be left out with --server or --saved_model")] if is_exported else []
    for flag, rule in unused:
        is_set = flag.present and flag.value != flag.default
        checks.require(not is_set, f"--{flag.name}", rule, flag.value)


def _list_kept() -> list[str]:
    # A name with a comma is in quotes.
    kept: list[str] = []
    for value in KEEP.value:
        rows = csv.reader(value.splitlines(), skipinitialspace=True)
        kept += list(itertools.chain.from_iterable(rows)) or [value]
    return kept


def _predict_files() -> None:
    checks.at_least("--concurrency", CONCURRENCY.value, 1)
    has_two_models = SERVER.value and SAVED_MODEL.value
    checks.require(not has_two_models, "--server", "come without --saved_model", SERVER.value)
    rule = "be left out with --input"
    checks.require(SPLIT.value is None, "--split", rule, SPLIT.value)
    needs_run = not (SERVER.value or SAVED_MODEL.value)
    has_run = app.GIN_FILE.value or app.MODEL_DIR.value
    # A server or a SavedModel needs no run, but with a run the command reads rows as in training.
    experiment, model_dir = app.load() if has_run or needs_run else (None, None)
    reader = _make_reader(experiment)
    plan = _plan_outputs(reader.find(INPUT.value), experiment, model_dir)
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(_open_model(experiment, model_dir))
        if experiment is not None and model_dir is not None:
            # Count unknown values only if there is a run, because the run has the vocabularies of
            # the training split.
            model = stack.enter_context(verbs.count_unknown(experiment, model_dir, model))
        rows, skipped = scoring.score_shards(plan, reader, model, CONCURRENCY.value)
    # Without --output, predictions go to standard output, so print nothing else.
    if plan.output is not None:
        note = f", {skipped} files existed already" if skipped else ""
        print(f"Predicted {rows} rows{note}: {plan.output}", file=sys.stderr)


def _plan_outputs(inputs: Sequence[str], experiment: Any, model_dir: str | None) -> Any:
    """Return the plan of the output files; fail if an output would replace a file of the run."""
    files = [*app.GIN_FILE.value, *(experiment.files_read if experiment else ())]
    guard = scoring.Protection(files=files, model_dir=model_dir, anywhere=True)
    return scoring.plan_shards(
        inputs, OUTPUT.value, OUTPUT_FORMAT.value, guard, escape_formulas=ESCAPE_FORMULAS.value
    )


def _make_reader(experiment: Any) -> scoring.Reader:
    spec = experiment and experiment.data.spec
    settings = experiment and experiment.data.source
    if SAVED_MODEL.value and not experiment:
        # The metadata of the export says which features the model has, and how files write values.
        folder = scoring.find_newest(SAVED_MODEL.value)
        spec = serving.spec_of(folder)
        settings = file_settings.restore(serving.read_metadata(folder).get("files_of_run", []))
    return scoring.Reader(
        spec=spec,
        settings=settings,
        batch_size=BATCH_SIZE.value,
        keep=_list_kept(),
        format_name=INPUT_FORMAT.value,
    )


@contextlib.contextmanager
def _open_model(experiment: Any, model_dir: str | None) -> Iterator[Any]:
    """Open the model that the flags choose: on a server, a SavedModel or a checkpoint."""
    if SERVER.value:
        yield scoring.connect_server(SERVER.value, _call(), _make_access())
    elif SAVED_MODEL.value:
        yield scoring.SavedModel(SAVED_MODEL.value, SIGNATURE.value)
    else:
        # `app.load` has returned both the experiment and the folder.
        folder = cast(str, model_dir)
        with verbs.open_scorer(experiment, folder, CHECKPOINT.value) as model:
            yield model


def _call() -> scoring.Call:
    return scoring.Call(
        model=MODEL_NAME.value,
        signature=SIGNATURE.value,
        version=MODEL_VERSION.value,
        deadline_secs=DEADLINE.value,
        retries=RETRIES.value,
    )


def _make_access() -> scoring.Access:
    return scoring.Access(
        tls=TLS.value,
        ca_file=CA_FILE.value,
        token_file=TOKEN_FILE.value,
        token_env=TOKEN_ENV.value,
    )


if __name__ == "__main__":
    app.run(main)
