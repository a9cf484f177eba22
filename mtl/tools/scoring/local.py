"""Loads models into this process: a SavedModel, or the checkpoint of a run.

model = local.SavedModel("models/income", "serving_default")
model([example.SerializeToString()])                     # {"income/probability": [1]}
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks
from mtl import spec as spec_lib
from mtl.data import source
from mtl.deferred import compat, tf, tf1
from mtl.files import checksums, storage
from mtl.serving import metadata
from mtl.tools.scoring import batches

_INDEX = "variables/variables.index"


def explain_refusal(error: Exception) -> batches.RefusedError:
    """Turn an error of TensorFlow about wrong values into a RefusedError."""
    return batches.RefusedError(source.explain_unreadable(error))


def input_of(signature: str, inputs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the name of the input for serialized tf.Examples of a signature.

    Args:
      signature: the name of the signature.
      inputs: {signature: {input: type}} for all signatures of the model.

    Raises:
      UserError: the signature does not exist, or does not take serialized tf.Examples.
    """
    takes_examples = {name for name in inputs if list(inputs[name].values()) == [tf.string]}
    checks.one_of("--signature", signature, sorted(takes_examples))
    return next(iter(inputs[signature]))


def per_row(outputs: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
    """Fail unless each output has a row for each example; return the outputs.

    Args:
      outputs: {output: array}.
      rows: the number of examples, B.

    Returns:
      {output: [B, ...]}.

    Raises:
      UserError: the number of rows in an output differs from the number of examples.
    """
    for name, value in outputs.items():
        if value.ndim == 0 or len(value) != rows:
            fix = "Choose another --signature."
            checks.fail(f"output {name!r}", f"have {rows} rows, like the input", value.shape, fix)
    return dict(outputs)


class _InSession:
    """Computes outputs of a graph for serialized tf.Examples."""

    def __init__(
        self,
        identity: str,
        files: Sequence[str],
        session: tf.compat.v1.Session,
        examples: Any,
        outputs: Any,
    ):
        """Prepare the session call that computes the outputs.

        Args:
          identity: a text that names the model, in scoring.json beside its predictions.
          files: the paths of the model's files. The digest of the model consists of the checksums
            of all paths in `files` that exist.
          session: the session with the weights.
          examples: the input for serialized tf.Examples, as a tensor or the name of a tensor.
          outputs: {output: a tensor or the name of a tensor}.
        """
        existing_files = filter(tf.io.gfile.exists, files)
        self.identity, self.digest = identity, " ".join(map(checksums.of_file, existing_files))
        self._names = sorted(outputs)
        self._call = session.make_callable([outputs[name] for name in self._names], [examples])

    def __call__(self, examples: Sequence[bytes] | np.ndarray) -> dict[str, np.ndarray]:
        try:
            values = self._call(np.asarray(examples, object))
        except source.list_refusals() as error:
            raise explain_refusal(error) from error
        return per_row(dict(zip(self._names, values, strict=True)), len(examples))


class SavedModel(_InSession):
    """Computes predictions with a signature of a SavedModel."""

    def __init__(self, path: str, signature: str = "serving_default"):
        """Load the SavedModel.

        Args:
          path: a folder with saved_model.pb, or a folder of numbered versions, of which the newest
            is loaded.
          signature: the name of a signature that takes serialized tf.Examples.

        Raises:
          UserError: the SavedModel cannot be read, or has no signature with this name.
        """
        directory = find_newest(path)
        metadata.require_intact(directory)
        session = tf1.Session(graph=tf.Graph())
        try:
            with session.graph.as_default():
                signatures = tf1.saved_model.load(session, ["serve"], directory).signature_def
        except (OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
            reason = f"It cannot be read: {source.explain_unreadable(error)}."
            checks.fail("--saved_model", "be a SavedModel", path, reason)
        inputs = {
            name: {key: tf.as_dtype(info.dtype) for key, info in definition.inputs.items()}
            for name, definition in signatures.items()
        }
        input_name = input_of(signature, inputs)
        feed = signatures[signature].inputs[input_name].name
        outputs = {name: info.name for name, info in signatures[signature].outputs.items()}
        # The digest uses the index instead of the weights: the index is small, and has a checksum
        # of each variable.
        files = [os.path.join(directory, name) for name in ("saved_model.pb", _INDEX)]
        super().__init__(f"{directory} {signature}", files, session, feed, outputs)


def find_newest(path: str) -> str:
    """Return the folder of a SavedModel: `path` itself, or the newest numbered version in `path`.

    Args:
      path: a folder with saved_model.pb, or a folder of numbered versions.

    Raises:
      UserError: the folder has no SavedModel.
    """
    storage.require_plain("--saved_model", path)
    if tf.io.gfile.exists(os.path.join(path, "saved_model.pb")):
        return path
    names = tf.io.gfile.listdir(path) if tf.io.gfile.isdir(path) else []
    numbers = [name.rstrip("/") for name in names if name.rstrip("/").isdecimal()]
    rule = "be a SavedModel or a folder of numbered versions"
    checks.require(bool(numbers), "--saved_model", rule, path)
    # Compare versions as numbers, because the text "9" is greater than the text "10".
    return os.path.join(path, max(numbers, key=int))


class Checkpoint(_InSession):
    """Computes predictions with a checkpoint of an Estimator."""

    @classmethod
    @contextlib.contextmanager
    def restored(
        cls, estimator: compat.estimator.Estimator, spec: spec_lib.Spec, path: str
    ) -> Iterator[Checkpoint]:
        """Yield the model of a checkpoint; close its session when the context ends.

        Args:
          estimator: the Estimator that builds the graph.
          spec: the features of the model.
          path: the path of the checkpoint.
        """
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            examples = tf1.placeholder(tf.string, [None], name="examples")
            # Drop empty texts from lists, as training does.
            features = spec.drop_empty_texts(spec.parse(examples, with_labels=False))
            mode = compat.estimator.ModeKeys.PREDICT
            estimator_spec = estimator.model_fn(features, None, mode, estimator.config)
            creator = tf1.train.ChiefSessionCreator(
                estimator_spec.scaffold, checkpoint_filename_with_path=path
            )
            session = creator.create_session()
        # Leave the context of the graph before `yield`, so that the caller can use eager
        # TensorFlow.
        with contextlib.closing(session):
            yield cls(path, [f"{path}.index"], session, examples, estimator_spec.predictions)
