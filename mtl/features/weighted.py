"""A column for lists with weights, such as the topics of an article with topic probabilities.

features.Weighted.lookups = [@features.Hashed()]         # its `pooling` weighs the vectors
features.Hashed.names = ["topics"]                       # and reads "topics/weights"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.deferred import tf, tf1
from mtl.features import accumulators, column, growth, tables
from mtl.step import codes
from mtl.variables import freezing
from mtl.variables import row_names as row_names_lib

_MEAN, _SUM = "mean", "sum"


@checks.dataclass
class Weighted(types.Column):
    """Encodes ids with weights: [B, (L)] or [B, L], and `<field>/weights` likewise -> [B, D].

    As in `tf.nn.embedding_lookup_sparse`, the `pooling` of the column that looks ids up determines
    how the vectors v of a row are combined by the weights w:

        mean: sum w v / sum w      sum: sum w v      sqrtn: sum w v / sqrt(sum w^2)

    A row without ids, or with only zero weights, gets zeros. "mean" refuses negative weights.
    `tf.feature_column.weighted_categorical_column` gives the same result.

    Attributes:
      lookups: columns of ids, which may share tables with other columns. The variables of a column
        are in `features/<column>`, and its output is the column `weighted_<column>`.
    """

    lookups: Annotated[
        Sequence[Annotated[tables.Ids, checks.Part("features.Hashed", arguments=2)]],
        checks.Filled("hold a column"),
    ]

    def __post_init__(self):
        for part in self.lookups:
            rule = "hold columns of ids, such as @features.Hashed()"
            checks.require(isinstance(part, tables.Ids), "Weighted.lookups", rule, part)

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """{column: (field of the list, field of its weights)}."""
        return {
            _name(output): (field, spec_lib.weights_name(field))
            for part in self.lookups
            for output, (field,) in part.columns.items()
        }

    @property
    def parts(self) -> Sequence[types.Column]:
        """The columns that look ids up."""
        return self.lookups

    @property
    def coded_columns(self) -> dict[str, str]:
        """The columns whose ids may be looked up when rows are read, {column: name of the list}."""
        return {
            _name(output): field
            for part in self.lookups
            for output, field in types.read_member(part, types.Column, "coded_columns").items()
        }

    def find_ids(self, column: str, values: tf.Tensor, fitted: types.Statistics) -> tf.Tensor:
        """Return the ids of values [N] from the list that a column reads, int64 [N]."""
        parts = {_name(output): (part, output) for part in self.lookups for output in part.columns}
        part, output = parts[column]
        return part.find_ids(output, values, fitted)

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column or table: accumulator} for the columns that look ids up."""
        gathered: dict[str, types.Accumulator] = {}
        for part in self.lookups:
            for name, own in part.accumulators().items():
                earlier, kind = gathered.get(name), accumulators.Vocabulary
                # Columns that share a table count the values of all their fields.
                is_shared = isinstance(earlier, kind) and isinstance(own, kind)
                gathered[name] = cast(Any, earlier).join(own) if is_shared else own
        return gathered

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return {column or table: names of the table's rows} for the columns that look ids up."""
        names: dict[str, types.RowNames] = {}
        for part in self.lookups:
            names = row_names_lib.join(names, part.row_names(fitted))
        return names

    @property
    def files(self) -> dict[str, str]:
        """{column: path of a file in its settings}, for the columns that look ids up."""
        return {name: path for part in self.lookups for name, path in part.files.items()}

    def keys(self, features: types.Tensors) -> dict[str, tf.Tensor]:
        """Return the keys of a batch in growing tables, {table: keys [N]}."""
        return growth.join_keys(
            types.read_member(part, types.Column, "keys")(features) for part in self.lookups
        )

    def check(self, features: Mapping[str, types.PythonValue]) -> str | None:
        """Return an error message if the weights of a record are invalid; otherwise None."""
        for part in self.lookups:
            for output, (field,) in part.columns.items():
                ids = cast(Sequence[Any], features[field])
                weights = cast(Sequence[float], features[spec_lib.weights_name(field)])
                problem = _find_problem(field, ids, weights, part.pooling)
                if problem:
                    return f"features.{_name(output)} must read {problem}."
        return None

    def __call__(self, features: types.Tensors, fitted: types.Statistics) -> types.Tensors:
        """Encode lists: {field: [B, (L)] or [B, L]} -> {column: [B, D]}."""
        outputs = {}
        for part in self.lookups:
            pairs = {
                output: self._read_pair(features, field, output, part.pooling)
                for output, (field,) in part.columns.items()
            }
            values = {field: pairs[output][0] for output, (field,) in part.columns.items()}
            with freezing.hold_part(part.trainable):
                vectors = part({name: own.values for name, own in values.items()}, fitted)
            for output, (_, weights) in pairs.items():
                pooled = _pool(tf.cast(vectors[output], tf.float32), weights, part.pooling)
                outputs[_name(output)] = pooled
        return outputs

    def _read_pair(
        self, features: types.Tensors, field: str, output: str, pooling: str
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Return a list and its weights, both [B, (L)].

        Raises:
          InvalidArgumentError: when run, if a row has another number of weights, or if a weight is
            NaN, infinite, or negative for a mean.
        """
        name, where = spec_lib.weights_name(field), f"features.{_name(output)} must read"
        values, weights = (_as_list(features, key, output) for key in (field, name))
        flat = weights.values
        message = f"{where} a weight for each value of {field}"
        fits = [
            tf1.assert_equal(values.row_lengths(), weights.row_lengths(), message=message),
            _require(tf.math.is_finite(flat), flat, f"{where} finite numbers in {name}"),
        ]
        if pooling == _MEAN:
            message = f"{where} weights of at least 0 for a mean in {name}"
            fits.append(_require(flat >= 0, flat, message))
        with tf.control_dependencies(fits):
            splits, flat = tf.identity(values.row_splits), tf.identity(flat)
        # Make a new tensor, because `codes.remember` stores its ids under the name of the inner
        # column.
        flat_values = tf.identity(values.values)
        ids = codes.find_ids(features[field], _name(output))
        if ids is not None:
            codes.remember(flat_values, {output: column.flat(ids)})
        pair = tf.RaggedTensor.from_row_splits(flat_values, splits, validate=False)
        return pair, pair.with_values(flat)


def _name(output: str) -> str:
    return f"weighted_{output}"


def _find_problem(
    field: str, ids: Sequence[Any], weights: Sequence[float], pooling: str
) -> str | None:
    """Return the broken rule and the wrong value, for an error; None if the weights are valid."""
    # Empty texts in lists are dropped.
    count = sum(one not in ("", b"") for one in ids)
    if len(weights) != count:
        return f"a weight for each value of {field}, {count}, got {len(weights)}"
    name = spec_lib.weights_name(field)
    odd = next((weight for weight in weights if not math.isfinite(weight)), None)
    if odd is not None:
        return f"finite numbers in {name}, got {odd}"
    least = min(weights, default=0.0)
    if pooling == _MEAN and least < 0:
        return f"weights of at least 0 for a mean in {name}, got {least}"
    return None


def _as_list(features: types.Tensors, field: str, output: str) -> tf.RaggedTensor:
    where = f"features.{_name(output)}"
    checks.one_of(f"{where}'s field", field, features)
    values = features[field]
    if isinstance(values, tf.RaggedTensor):
        return values
    fix = f"Its batches have shape {values.shape}; in Spec.features, (None,) is a list."
    checks.require(values.shape.rank == 2, where, "read fields that are lists", field, fix)
    return tf.RaggedTensor.from_tensor(values)


def _require(are_good: tf.Tensor, weights: tf.Tensor, message: str) -> tf.Operation:
    return tf1.Assert(tf.reduce_all(are_good), [message, tf.boolean_mask(weights, ~are_good)])


def _pool(vectors: tf.Tensor, weights: tf.RaggedTensor, pooling: str) -> tf.Tensor:
    """Pool vectors [N, D] of the values of B rows, with weights [B, (L)], to [B, D]."""

    def add_up(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(weights.with_values(values), axis=1)

    factors = weights.values[:, tf.newaxis]
    total = tf.ensure_shape(add_up(factors * vectors), [None, vectors.shape[-1]])
    if pooling == _SUM:
        return total
    scale = add_up(factors) if pooling == _MEAN else tf.sqrt(add_up(factors**2))
    # A row without weights stays 0.
    return tf.math.divide_no_nan(total, scale)
