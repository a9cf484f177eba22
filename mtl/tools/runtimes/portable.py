"""Writes an export for runtimes other than TensorFlow Serving.

portable.write_portable(written, estimator, checkpoint, spec)
# <written>/portable/raw   one signature with a plain placeholder for each feature
# <written>/portable/ids   the same for ids, with vocabularies and encoders

Servers only look for folders whose names are numbers, so they ignore the folder `portable` of a
version.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mtl import checks
from mtl import spec as spec_lib
from mtl.deferred import compat, tf, tf1
from mtl.files import atomic
from mtl.serving import (
    dead_units,
    folding,
    graphs,
    inputs,
    loaded,
    optimized,
    rows,
    settings,
    signatures,
    verification,
)
from mtl.tf_internals import saved_model
from mtl.tools.runtimes import outside_ids, spelled_out
from mtl.tools.runtimes.encoders import encoder

FOLDER, RAW, IDS = "portable", "raw", "ids"
_ENCODERS = ("encoder.py", "encoder.h")
# The largest number of bytes of all weights together. A protocol buffer has at most 2 GB, and the
# nodes may take 1 MB.
_MAX_BYTES = 2**31 - 2**20
# Further numbers of rows to try, which reveal a batch size that was fixed by mistake.
_BATCHES = (7, 1)


class _Built(NamedTuple):
    """The graph of a model whose inputs are plain placeholders.

    Attributes:
      graph: the graph of the model.
      inputs: {input: placeholder}.
      outputs: {output: tensor}.
      saver: the saver that restores the variables of the graph.
    """

    graph: tf.Graph
    inputs: Mapping[str, tf.Tensor]
    outputs: Mapping[str, tf.Tensor]
    saver: Any


def write_portable(
    directory: str,
    estimator: compat.estimator.Estimator,
    checkpoint: str,
    spec: spec_lib.Spec,
    may_drop_units: bool = False,
) -> None:
    """Write the SavedModels portable/raw and portable/ids into the folder of an export.

    Args:
      directory: the folder of the export.
      estimator: the Estimator of the run, whose model function defines the signatures of exports.
      checkpoint: the checkpoint to export.
      spec: the features of the model.
      may_drop_units: True to remove units that cannot change a prediction, for example after
        pruning.

    Raises:
      UserError: the weights do not fit into the 2 GB of a graph.
    """
    target = os.path.join(directory, FOLDER)
    # Build two graphs, because only the graph of raw features drops empty texts: for ids, the
    # encoder drops empty texts.
    for name in (RAW, IDS):
        built = _build_graph(estimator, spec, drops_empty=name == RAW)
        _require_small(built.graph)
        with tf1.Session(graph=built.graph, config=rows.on_cpu()) as session:
            with built.graph.as_default():
                session.run(tf1.tables_initializer())
            built.saver.restore(session, checkpoint)
            folder = os.path.join(target, name)
            if name == RAW:
                _write_raw(folder, session, built)
            else:
                _write_ids(folder, session, built, spec, may_drop_units)


def verify_portable(
    directory: str, held_out: rows.Rows, expected: Mapping[str, np.ndarray]
) -> float:
    """Return the largest difference between predictions of the SavedModels and the checkpoint.

    Args:
      directory: the folder of the export.
      held_out: the rows to predict. The encoder of the export turns texts into ids.
      expected: the predictions of the checkpoint for the N rows, {"<task>/<name>": [N, ...]}.

    Raises:
      RefusedError: a prediction of a SavedModel differs from the checkpoint, or a SavedModel fails
        on a batch of all rows, of the first 7 rows or of the first row.
    """
    encode = encoder.Encoder(os.path.join(directory, FOLDER, IDS))
    encodings = {RAW: lambda batch: batch.raw(), IDS: lambda batch: encode(batch.values)}
    differences = [0.0]
    for name, prepare in encodings.items():
        what = os.path.join(FOLDER, name)
        with loaded.load_export(os.path.join(directory, what)) as model:
            for size in (len(held_out), *_BATCHES):
                batch = held_out.first(size)
                try:
                    outputs = model([settings.DEFAULT], prepare(batch))
                except tf.errors.OpError as error:
                    reason = error.message.splitlines()[0]
                    raise verification.RefusedError(
                        f"{what} fails on {len(batch)} rows: {reason}"
                    ) from error
                for (_, key), value in outputs.items():
                    target = expected[key][: len(batch)]
                    # Compare classes only for all rows, because in a tie the class may depend on
                    # the batch size.
                    if value.dtype.kind == "f" or len(batch) == len(held_out):
                        where = f"output {key!r} of {what}"
                        differences.append(verification.require_close(where, value, target))
    return max(differences)


def _build_graph(
    estimator: compat.estimator.Estimator, spec: spec_lib.Spec, drops_empty: bool
) -> _Built:
    with tf.Graph().as_default() as graph:
        tf1.train.get_or_create_global_step()
        tensors: dict[str, tf.Tensor] = {}
        features = {name: _add_input(field, tensors) for name, field in spec.feature_fields.items()}
        if drops_empty:
            features = spec.drop_empty_texts(features)
        mode = compat.estimator.ModeKeys.PREDICT
        model_spec = estimator.model_fn(features, None, mode, estimator.config)
        # Prefer the lean signature, which has fewer outputs to compute and to check.
        output = model_spec.export_outputs.get(
            settings.LEAN, model_spec.export_outputs[settings.DEFAULT]
        )
        saver = model_spec.scaffold.saver or tf1.train.Saver(sharded=True)
        return _Built(graph, tensors, dict(output.outputs), saver)


def _require_small(graph: tf.Graph) -> None:
    """Fail unless all variables fit into a graph as constants."""
    variables = graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
    size = sum(v.shape.num_elements() * v.dtype.base_dtype.size for v in variables)
    fix = "Leave Serving.portable out: other runtimes read weights as constants of the graph."
    rule = f"have weights of less than {_MAX_BYTES} bytes"
    checks.require(size < _MAX_BYTES, "an export with Serving.portable", rule, size, fix)


def _add_input(
    field: spec_lib.Field, placeholders: dict[str, tf.Tensor]
) -> tf.Tensor | tf.RaggedTensor:
    """Add the placeholders of a field to the graph; return the field as a feature of the model."""
    name = inputs.op_name(field.name)
    if not field.is_ragged:
        placeholders[field.name] = tf1.placeholder(field.dtype, [None, *field.shape], name=name)
        return placeholders[field.name]
    length = inputs.length_name(field.name)
    padded = placeholders[field.name] = tf1.placeholder(field.dtype, [None, None], name=name)
    lengths = placeholders[length] = tf1.placeholder(tf.int64, [None], name=inputs.op_name(length))
    return inputs.read_lists(field.name, padded, lengths)


def _write_raw(folder: str, session: tf.compat.v1.Session, built: _Built) -> None:
    """Write the SavedModel with raw features as inputs, with lookup tables and constant weights."""
    with session.graph.as_default():
        _save_model(
            folder,
            session,
            built.inputs,
            built.outputs,
            assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
            main_op=tf1.tables_initializer(),
        )
    with saved_model.edited(folder) as meta_graph:
        # Remove the paths of vocabularies, which only exist on this machine.
        signatures.forget_paths(meta_graph)
    optimized.Optimized()(folder)


def _save_model(
    folder: str,
    session: tf.compat.v1.Session,
    inputs_of_model: Mapping[str, tf.Tensor],
    outputs: Mapping[str, tf.Tensor],
    **more: Any,
) -> None:
    builder = tf1.saved_model.Builder(folder)
    signature = tf1.saved_model.predict_signature_def(inputs_of_model, outputs)
    named_signatures = {settings.DEFAULT: signature}
    builder.add_meta_graph_and_variables(session, ["serve"], named_signatures, **more)
    builder.save()


def _write_ids(
    folder: str, session: tf.compat.v1.Session, built: _Built, spec: spec_lib.Spec, may_drop: bool
) -> None:
    """Write the SavedModel with ids as inputs, and the files that encode texts as ids."""
    tables = outside_ids.read_tables(session, session.graph.as_graph_def())
    outputs = [tensor.op.name for tensor in built.outputs.values()]
    input_nodes = {tensor.op.name: name for name, tensor in built.inputs.items()}
    graph = folding.fold_graph(session, [*outputs, *input_nodes])
    if may_drop:
        graph = dead_units.remove_units(graph, [*outputs, *input_nodes])
    spelled_out.write_bounds(graph)
    spelled_out.write_float32(graph)
    fields = {node: name for node, name in input_nodes.items() if name in spec.features}
    graph_def, ids_inputs = _take_ids(
        graph.pruned([*outputs, *input_nodes]), outputs, fields, tables
    )
    reachable_nodes = {node.name for node in graph_def.node}
    plain = {name: node for node, name in input_nodes.items() if node in reachable_nodes}
    with tf.Graph().as_default() as rewritten, tf1.Session() as saving:
        tf.import_graph_def(graph_def, name="")
        nodes = {**plain, **{name: placeholder.node for name, placeholder in ids_inputs.items()}}
        tensors = {name: rewritten.get_tensor_by_name(f"{node}:0") for name, node in nodes.items()}
        results = {
            name: rewritten.get_tensor_by_name(tensor.name)
            for name, tensor in built.outputs.items()
        }
        fill = outside_ids.fill_tables(rewritten, tables)
        _save_model(folder, saving, tensors, results, main_op=fill)
    _write_encoder(folder, spec, plain, ids_inputs, tables)


def _take_ids(
    graph_of_texts: tf.compat.v1.GraphDef,
    outputs: Collection[str],
    fields: Mapping[str, str],
    tables: Mapping[str, outside_ids.Table],
) -> tuple[tf.compat.v1.GraphDef, dict[str, outside_ids.Placed]]:
    """Return a graph whose lookups are replaced by placeholders of ids, and the placeholders.

    A column that needs texts as well as ids, such as `Growing`, keeps its lookups and gets texts as
    inputs.
    """
    without: set[str] = set()
    while True:
        # Copy the graph, because `take_lookups` rewrites it in place.
        graph = graphs.Graph(tf1.GraphDef.FromString(graph_of_texts.SerializeToString()))
        ids_inputs = outside_ids.take_lookups(graph, fields, tables, without)
        graph_def = graph.pruned(outputs)
        of_texts = set().union(*outside_ids.list_obstacles(graph_def).values(), {""}) - {""}
        columns = {outside_ids.find_column(input_.lookup) for input_ in ids_inputs.values()}
        if not of_texts & columns:
            nodes = {node.name for node in graph_def.node}
            return graph_def, {
                n: input_ for n, input_ in ids_inputs.items() if input_.node in nodes
            }
        without |= of_texts & columns


def _write_encoder(
    folder: str,
    spec: spec_lib.Spec,
    plain: Collection[str],
    ids_inputs: Mapping[str, outside_ids.Placed],
    tables: Mapping[str, outside_ids.Table],
) -> None:
    """Write encoder.txt and the vocabularies, and copy the encoders in Python and C++."""
    files: dict[str, str] = {}
    lines = list(_describe_features(spec))
    for name in plain:
        field = name if name in spec.features else name.removesuffix(inputs.length_name(""))
        kind = encoder.VALUES if name in spec.features else encoder.LENGTH
        lines.append(("input", name, field, kind))
    for name, input_ in ids_inputs.items():
        settings_of = [str(input_.size)]
        if input_.table:
            file = files.setdefault(input_.table, f"vocabulary_{len(files)}.txt")
            settings_of = [file, str(input_.size), str(input_.unknown)]
        lines.append(("input", name, input_.field, input_.kind, *settings_of))
    atomic.write(os.path.join(folder, encoder.FILE), encoder.describe(lines))
    for table, file in files.items():
        text = b"".join(encoder.escape_bytes(key) + b"\n" for key in tables[table].keys)
        atomic.write(os.path.join(folder, file), text)
    for name in _ENCODERS:
        # With a copy, a client uses the version of the encoder that fits the export.
        program = pathlib.Path(encoder.__file__).with_name(name).read_bytes()
        atomic.write(os.path.join(folder, name), program)


def _describe_features(spec: spec_lib.Spec) -> Iterator[tuple[str, ...]]:
    """Yield the lines of encoder.txt that describe features."""
    for name, field in spec.feature_fields.items():
        shape = encoder.LIST if field.is_ragged else ",".join(map(str, field.shape))
        default = () if field.default is None else (str(field.default),)
        if field.dtype == "bool" and default:
            # The encoders expect truth values as 0 or 1.
            default = (str(int(field.default)),)
        yield ("feature", name, field.dtype, shape, *default)
    for counts, name in spec.counted.items():
        yield ("counts", counts, name)
