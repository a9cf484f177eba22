"""Loads an export, describes its signatures, and calls them from several threads at a time.

model = models.Model.load("adult", 1795231775, "models/adult/1795231775")
model.run("raw/income", {"age": ages}, ["probability"])      # {"probability": [B]}
model.close()
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import checks, serving
from mtl.deferred import tf
from mtl.serving import inputs as inputs_lib
from mtl.serving import loaded, metadata, settings, signatures, warm_up
from mtl.tools.serve import tensors

DEFAULT, RAW = settings.DEFAULT, settings.RAW
PREDICT, CLASSIFY, REGRESS = "predict", "classify", "regress"
# The number of prepared calls that a model keeps in memory. The number of calls is limited, because
# clients may request any subset of the outputs.
_MOST_CALLS = 256
# When an export is loaded, only the warm-up requests of these signatures run, because other
# signatures share most of their graph with them.
_WARMED = (DEFAULT, settings.LEAN, RAW, f"{RAW}/{settings.LEAN}")


@dataclasses.dataclass(frozen=True)
class Signature:
    """A signature of an export.

    Attributes:
      name: the name of the signature.
      method: "predict", "classify" or "regress".
      inputs, outputs: {name of an input or output: its tensor}.
      defaults: {input: the value if a request omits the input}.
    """

    name: str
    method: str
    inputs: Mapping[str, tensors.Tensor]
    outputs: Mapping[str, tensors.Tensor]
    defaults: Mapping[str, np.ndarray]

    @functools.cached_property
    def lengths(self) -> dict[str, str]:
        """{input of lists: the input with the length of each list}."""
        names = {name: inputs_lib.length_name(name) for name in self.inputs}
        # In an export, the input `tags/length` holds the lengths of the lists in the input `tags`.
        return {name: length for name, length in names.items() if length in self.inputs}

    @functools.cached_property
    def is_by_row(self) -> bool:
        """True if the first axis of all inputs and outputs counts rows."""
        return all(
            tensor.shape is None or tensor.shape[:1] == (None,)
            for tensor in [*self.inputs.values(), *self.outputs.values()]
        )

    @property
    def takes_examples(self) -> bool:
        """True if the signature has one input, which takes serialized tf.Examples."""
        dtypes = [tensor.dtype for tensor in self.inputs.values()]
        return dtypes == [tf.string] and not signatures.is_raw(self.name)


class Model:
    """A version of a model that is loaded into memory."""

    def __init__(self, name: str, number: int, directory: str, export: loaded.Loaded):
        self.name, self.number, self.directory = name, number, directory
        self.signature_defs = {
            key: definition
            for key, definition in export.signatures.items()
            if not key.startswith("__")
        }
        self.signatures = {
            key: _describe_signature(key, definition)
            for key, definition in self.signature_defs.items()
        }
        self.spec = serving.spec_of(directory)
        self._export = export
        self._calls: dict[Any, Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, name: str, number: int, directory: str) -> Model:
        """Check the files of a SavedModel, load it, and run its warm-up requests.

        Args:
          name: the name under which clients call the model.
          number: the number of the version.
          directory: the folder of the version.

        Raises:
          UserError: a file has changed since the export.
          OSError, ValueError, RuntimeError, OpError: the SavedModel cannot be read.
        """
        metadata.require_intact(directory)
        model = cls(name, number, directory, loaded.open_export(directory))
        try:
            for signature, requests in model.read_warm_up().items():
                for request in requests if signature in _WARMED else ():
                    model.run(signature, request, list(model.signatures[signature].outputs))
        except BaseException:
            model.close()
            raise
        return model

    def read_warm_up(self) -> dict[str, list[dict[str, np.ndarray]]]:
        """Return {signature: list of warm-up requests}; a request is {input: [B, ...]}."""
        requests_of = warm_up.predict_inputs(self.directory)
        return {name: requests for name, requests in requests_of.items() if name in self.signatures}

    def find_signature(self, name: str, method: str = PREDICT) -> Signature:
        """Return the signature with a name; fail if the method cannot call it.

        Args:
          name: the name; "" for `serving_default`.
          method: "predict", "classify" or "regress"; "predict" can call any signature.

        Raises:
          UserError: no signature with this name can be called by the method.
        """
        # As in TensorFlow Serving, "predict" can call signatures of all methods.
        callable_names = [
            key
            for key, signature in self.signatures.items()
            if method in (PREDICT, signature.method)
        ]
        name = name or DEFAULT
        if name not in callable_names:
            near = checks.nearest(name, callable_names)
            names = ", ".join(sorted(callable_names)[:20]) or "(nothing)"
            checks.fail(f"the signature of {method}", f"be one of {names}", name, near)
        return self.signatures[name]

    def run(
        self, signature: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Compute outputs of a signature.

        Args:
          signature: the name of the signature.
          inputs: {input: its values in B rows, [B, ...]}. A missing input gets its default value.
          outputs: the names of the outputs to compute.

        Returns:
          {output: array}. The arrays have shape [B, ...] if `Signature.is_by_row` is True.

        Raises:
          InvalidArgumentError: TensorFlow refuses the values.
        """
        description = self.signatures[signature]
        values = {**description.defaults, **inputs}
        names = sorted(values)
        call = self._find_call(signature, names, outputs)
        return dict(zip(outputs, call(*[values[name] for name in names]), strict=True))

    def _find_call(self, signature: str, names: Sequence[str], outputs: Sequence[str]) -> Any:
        """Return a function that runs the session: it takes the inputs and returns the outputs."""
        key = signature, tuple(names), tuple(outputs)
        with self._lock:
            if key not in self._calls:
                if len(self._calls) >= _MOST_CALLS:
                    self._calls.clear()
                definition = self.signature_defs[signature]
                fetches = [definition.outputs[name].name for name in outputs]
                feeds = [definition.inputs[name].name for name in names]
                self._calls[key] = self._export.session.make_callable(fetches, feeds)
            return self._calls[key]

    def close(self) -> None:
        """Free the model's memory. The caller must wait until no prediction is running."""
        self._calls.clear()
        self._export.session.close()


def _describe_signature(name: str, definition: Any) -> Signature:
    return Signature(
        name=name,
        method=definition.method_name.rpartition("/")[2],
        inputs={key: _describe_tensor(info) for key, info in sorted(definition.inputs.items())},
        outputs={key: _describe_tensor(info) for key, info in sorted(definition.outputs.items())},
        defaults={key: tf.make_ndarray(value) for key, value in definition.defaults.items()},
    )


def _describe_tensor(info: Any) -> tensors.Tensor:
    shape = tf.TensorShape(info.tensor_shape)
    return tensors.Tensor(tf.as_dtype(info.dtype), None if shape.rank is None else tuple(shape))
