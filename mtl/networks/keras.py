"""A trunk that wraps any Keras 2 model.

networks.SharedBottom.trunk = @networks.KerasModel()
networks.KerasModel.build = @my_models.mobile_net        # a function that makes the model
my_models.mobile_net.width = 0.5
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from mtl import checks, deferred, types
from mtl.deferred import tf, tf1
from mtl.layers import precision
from mtl.tf_internals import graphs, keras_layers
from mtl.variables import freezing, patterns, views

with deferred.imports():
    from mtl.compat import keras as keras_lib


@checks.dataclass
class KerasModel:
    """A model of `tf.keras` as a trunk (Keras 2: tf-keras from TensorFlow 2.16 on).

    Updates of the model, such as the moving averages of batch norm, are added to UPDATE_OPS. The
    losses of the Keras model (of weights, of activities and from `add_loss`) are added to
    REGULARIZATION_LOSSES. (In a graph of TensorFlow 1, Keras adds neither updates nor losses.)
    Variables are named `<scope>/<layer>/<weight>`, and are frozen, warm-started, saved and exported
    like all other variables. A run ignores weights that `build` loads: write these weights to a
    checkpoint (`transfer.write_checkpoint`), and start from the checkpoint. Layers with
    `trainable = False` remain frozen. Keras draws initial weights and dropout without `Run.seed`,
    so give seeds to the layers. Quantisation and 16-bit numbers (`Run.precision`) apply to weights
    that are attributes of layers.

    Attributes:
      build: a function that creates the model; in gin `@name` without parentheses. A run calls
        `build` once in each graph and scope. The model takes a single input, or {column: input} for
        several columns, which are named `<prefix>_<field>`, and returns [B, H].
      trainable: False freezes all variables of the model (see `mtl.variables.freezing`).
    """

    build: Annotated[
        Callable[[], Any],
        checks.Rule("be a function that makes a model", lambda value: callable(value)),
    ]
    trainable: bool = True

    def __call__(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        """Run the Keras model, {column: [B, ...]} -> [B, H]."""
        with freezing.hold_part(self.trainable):
            return self._call_model(inputs, training)

    def _call_model(self, inputs: types.Tensors, training: bool) -> tf.Tensor:
        model = self._get_model(inputs)
        _require_inputs(model, inputs)
        _hold_layers(model)
        new_inputs = _copy_inputs(inputs)
        # Keras reads weights from attributes, not by `get_variable`, so replace the attributes.
        with _replace_weights(model):
            outputs = model(new_inputs, training=training)
        if training:
            keras_layers.collect_updates(model, new_inputs)
        is_flat = isinstance(outputs, tf.Tensor) and outputs.shape.rank == 2
        fix = "End the model with Flatten or GlobalAveragePooling2D."
        rule = "make a model with the output [B, H]"
        checks.require(is_flat, "KerasModel.build", rule, outputs, fix)
        return outputs

    def _get_model(self, inputs: types.Tensors) -> Any:
        """Return a new Keras model, or the existing model of a scope that reuses variables."""
        scope = tf1.get_variable_scope()
        # A key that is not a string keeps the collection out of saved graphs.
        models = graphs.outermost_graph().get_collection_ref(
            (self, scope.name, precision.current_dtype())
        )
        # A second pass in the same graph, such as over another slice, reuses the weights.
        if not models or not scope.reuse:
            models[:] = [self._make_model(inputs)]
        return models[0]

    def _make_model(self, inputs: types.Tensors) -> Any:
        with keras_layers.computing(precision.current_dtype()):
            model = self.build()
        version = keras_lib.in_use()
        has_version_2 = version.startswith("2.")
        is_model = has_version_2 and isinstance(model, tf.keras.Model)
        rule = f"make a model of Keras 2 (tf.keras is {version})"
        fix = "Take all layers from tf.keras." if has_version_2 else keras_lib.how_to_get()
        checks.require(is_model, "KerasModel.build", rule, model, fix)
        # A Sequential model creates its weights at its first call.
        if not model.built:
            model(_copy_inputs(inputs), training=False)
        return model


def _require_inputs(model: Any, inputs: types.Tensors) -> None:
    """Check that the inputs of a model are columns; models without named inputs pass."""
    named = [getattr(spec, "name", None) for spec in tf.nest.flatten(model.input_spec)]
    names = [name for name in named if name is not None]
    rule = f"make a model whose inputs are named as columns, from {', '.join(inputs)}"
    # Keras ignores the name of a single input.
    fits = len(names) <= 1 if len(inputs) == 1 else set(names) <= set(inputs)
    checks.require(fits, "KerasModel.build", rule, names)


def _copy_inputs(inputs: types.Tensors) -> Any:
    """Copy the inputs, because Keras separates the updates of two calls by their input tensors."""
    new_inputs = {column: tf.identity(value) for column, value in inputs.items()}
    return new_inputs if len(new_inputs) > 1 else next(iter(new_inputs.values()))


def _hold_layers(model: Any) -> None:
    """Freeze a layer in both Keras and TensorFlow if one of them freezes the layer."""
    for layer in model.submodules:
        if hasattr(layer, "moving_mean"):
            moves = freezing.averages_move(layer.moving_mean)
            rule, fix = (
                "leave out the normalisations of a Keras model",
                "Freeze the normalisation layers for the whole run.",
            )
            checks.require(moves in (True, False), "Freezing.until", rule, layer.name, fix)
            layer.trainable &= moves
    frozen_names = {patterns.variable_name(weight) for weight in model.non_trainable_weights}
    trainable = tf1.get_collection_ref(tf1.GraphKeys.TRAINABLE_VARIABLES)
    trainable[:] = [
        variable for variable in trainable if patterns.variable_name(variable) not in frozen_names
    ]


@contextlib.contextmanager
def _replace_weights(model: Any) -> Iterator[None]:
    """Replace the weights of layers, within the context, by values from the scope's custom getter.

    Raises:
      UserError: a weight to be replaced is not an attribute of a layer.
    """
    replacements = (
        _read_weights(_list_trainable(model)) if tf1.get_variable_scope().custom_getter else {}
    )
    holders = [model, *model.submodules]
    places = [
        (vars(holder), attribute, value)
        for holder in holders
        for attribute, value in vars(holder).items()
        if id(value) in replacements
    ]
    missing = sorted(set(replacements) - {id(value) for *_, value in places})
    names = [patterns.variable_name(replacements[weight][0]) for weight in missing]
    checks.require(not names, "KerasModel.build", "keep weights as attributes of layers", names)
    try:
        for attributes, name, value in places:
            attributes[name] = replacements[id(value)][1]
        yield
    finally:
        for attributes, name, value in places:
            attributes[name] = value


def _read_weights(weights: list[Any]) -> dict[int, tuple[Any, Any]]:
    """Return {id of weight: (weight, replacement)} for weights that the custom getter replaces."""
    replacements = {}
    for weight in weights:
        dtype = precision.current_dtype() if keras_layers.is_cast(weight) else weight.dtype
        name = patterns.variable_name(weight)
        value = views.read_as(weight, name, shape=weight.shape, dtype=dtype, trainable=True)
        if value is not weight:
            replacements[id(weight)] = (weight, value)
    return replacements


def _list_trainable(model: Any) -> list[Any]:
    """List all weights that training could change if no layer were frozen."""
    layers = [layer for layer in [model, *model.submodules] if hasattr(layer, "trainable_weights")]
    states = [layer.trainable for layer in layers]
    # Keras omits the weights of frozen layers, so unfreeze all layers for the list.
    model.trainable = True
    weights = model.trainable_weights
    # Restore `trainable` of each layer, which `model.trainable = True` has changed.
    for layer, is_trainable in zip(layers, states, strict=True):
        layer.trainable = is_trainable
    return weights
