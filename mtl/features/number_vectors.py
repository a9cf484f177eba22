"""Columns that turn numbers into vectors, by bins, by sine waves, or by soft buckets.

features.PiecewiseLinear.names = ["age", "hours"]        # 32 fitted bins of equal frequency
features.Periodic.names = ["age", "hours"]
features.AutoDis.names = ["age", "hours"]
features.AutoDis.dimension = 8
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from mtl import checks, types
from mtl.deferred import tf, tf1
from mtl.features import accumulators, column, numeric

# The paper of AutoDis gives no slope for leaky ReLU; 0.01 is PyTorch's default.
_LEAKY_SLOPE = 0.01


@checks.dataclass
class _Vectors(numeric.Numbers):
    """The base class of columns that turn normalised numbers into vectors.

    Attributes:
      dimension: the length of the vector of each number; None means the length of the raw encoding.
    """

    dimension: checks.Count | None = None

    def __call__(self, features: types.Tensors, fitted: types.Statistics) -> types.Tensors:
        """Encode {field: [B] or [B, n]} as {column: [B, n D], or [B, n D + n] with flags}."""
        flags_and_numbers = super().__call__(features, fitted)
        share = 2 if self.missing_flags else 1
        sizes = {output: value.shape[1] // share for output, value in flags_and_numbers.items()}
        numbers = tf.concat(
            [flags_and_numbers[output][:, :size] for output, size in sizes.items()], axis=1
        )
        # Transpose to [N, B], because each element has separate weights, and `tf.linalg.matmul`
        # expects the elements on the first axis.
        vectors_by_column = self._encode_numbers(tf.transpose(numbers), sizes, fitted)
        outputs = {}
        for output, size in sizes.items():
            # [n, B, D] -> [B, n, D]
            by_row = tf.transpose(vectors_by_column[output], [1, 0, 2])
            row_vectors = tf.reshape(by_row, [-1, size * by_row.shape[2]])
            flags = [flags_and_numbers[output][:, size:]] if self.missing_flags else []
            outputs[output] = tf.concat([row_vectors, *flags], axis=1)
        return outputs

    @abc.abstractmethod
    def _encode_numbers(
        self, numbers: tf.Tensor, sizes: Mapping[str, int], fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        """Encode normalised numbers [N, B] as {column: [n, B, D]}.

        Args:
          numbers: the elements of all fields; each element is encoded separately.
          sizes: {column: n}, which sum to N.
          fitted: the statistics of the training split.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PiecewiseLinear(_Vectors):
    """Encodes x by bins: 1 for bins below x, `(x - b[t]) / (b[t+1] - b[t])` for its bin, 0 above.

    Y. Gorishniy, I. Rubachev, A. Babenko, "On Embeddings for Numerical Features in Tabular Deep
    Learning", NeurIPS 2022, arXiv:2203.05556, section 3.2. A linear layer on the bins is a
    piecewise linear function of x that bends at every boundary. Unlike buckets, the bins keep the
    position of x inside of a bin. As in the paper, the first bin has no lower end, and the last bin
    has no upper end, so numbers outside of the boundaries give values below 0 or above 1.

    Fields of shape [B] become [B, D], and fields of shape [B, n] become [B, n D]. Each element of a
    field has separate fitted boundaries. If an element has fewer bins than other elements of the
    field, its encoding is padded with zeros. A constant element is encoded as zeros.

    A value that is not finite counts as missing. The fit ignores missing values. The middle
    boundary, about the median of the training split, replaces a missing value.

    Attributes:
      names: the fields; integers and bools count as numbers.
      boundaries: two or more ascending numbers for all fields; or the approximate number of bins
        for each element. If `boundaries` is a number, the bins are fitted to the training split,
        from the least value to the greatest, so that all bins hold about equally many values. A
        frequent value takes only one bin, so all other bins are left for other values. An element
        with k distinct values has at most k - 1 bins.
      dimension: the number of units of a ReLU layer on the bins, in `features/<column>/linear`,
        with separate weights for each element. Without a layer (None), the column consists of the
        numbers of the bins.
      log: True first applies sign(x) log(1 + |x|), also to boundaries in the settings.
      missing_flags: True adds n inputs that are 1 if the value is missing.
      prefix: the start of the column's name, `<prefix>_<field>`.
    """

    boundaries: column.Boundaries = 32
    prefix: str = "piecewise_linear"

    def __post_init__(self):
        super().__post_init__()
        where = "PiecewiseLinear.boundaries"
        column.check_boundaries(where, self.boundaries, least=2)
        for boundary in () if isinstance(self.boundaries, int) else self.boundaries:
            checks.number(where, boundary)

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column: accumulator of bin boundaries}."""
        if not isinstance(self.boundaries, int):
            return {}
        return {
            output: accumulators.Bins(
                source=f"log of {field}" if self.log else field,
                read=functools.partial(self._read, field=field),
                num_bins=self.boundaries,
            )
            for output, (field,) in self.columns.items()
        }

    def _find_entry(self, output: str, fitted: types.Statistics) -> Mapping[str, Any]:
        if isinstance(self.boundaries, int):
            return fitted.for_column(output)
        boundaries = np.asarray(self.boundaries)
        if self.log:
            boundaries = np.sign(boundaries) * np.log1p(np.abs(boundaries))
        bins = boundaries.tolist()
        return {"boundaries": [bins], "least": bins[:1], "greatest": bins[-1:]}

    def _shift_and_scale(self, entry: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        shift = np.array([_find_origin(bins) for bins in entry["boundaries"]])
        return shift, column.inverse(np.array(entry["greatest"]) - np.array(entry["least"]))

    def _stand_in(self, entry: Mapping[str, Any]) -> np.ndarray:
        normal_boundaries = [_normalise_boundaries(bins) for bins in entry["boundaries"]]
        # The middle boundary, or the mean of the two middle boundaries.
        middles = [np.interp((len(b) - 1) / 2, np.arange(len(b)), b) for b in normal_boundaries]
        return np.array(middles, np.float32)

    def _encode_numbers(
        self, numbers: tf.Tensor, sizes: Mapping[str, int], fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        elements: dict[str, list[np.ndarray]] = {}
        for output, size in sizes.items():
            bins = self._find_entry(output, fitted)["boundaries"]
            # Boundaries from the settings apply to all elements.
            boundaries = bins if len(bins) == size else bins * size
            elements[output] = [_normalise_boundaries(ends) for ends in boundaries]
        counts = {
            output: max(1, *(len(ends) - 1 for ends in boundaries))
            for output, boundaries in elements.items()
        }
        encoded = _encode_by_bin(numbers, sum(elements.values(), []), max(counts.values()))
        if self.dimension is None:
            columns = _split_columns(encoded, sizes)
            return {output: columns[output][:, :, :count] for output, count in counts.items()}
        return _split_columns(_apply_layers(encoded, sizes, counts, self.dimension), sizes)


def _find_origin(boundaries: Sequence[float]) -> float:
    """Return the boundary to subtract from all numbers: the start of the narrowest bin.

    The closer a number is to 0, the smaller is its rounding error in float32. If the least boundary
    is an outlier, and were subtracted, all other numbers might be rounded to the same number.
    """
    widths = np.diff(boundaries)
    return boundaries[int(np.argmin(widths))] if len(widths) else boundaries[0]


def _normalise_boundaries(boundaries: Sequence[float]) -> np.ndarray:
    """Scale boundaries to a range of length 1; the boundaries of a constant element become 0."""
    # Subtract before the cast to float, because the subtraction of integers is exact.
    from_origin = (np.asarray(boundaries) - _find_origin(boundaries)).astype(np.float64)
    return from_origin * column.inverse(from_origin[-1] - from_origin[0])


def _encode_by_bin(
    numbers: tf.Tensor, boundaries: Sequence[np.ndarray], max_bins: int
) -> tf.Tensor:
    """Encode numbers [N, B] by N lists of boundaries as [N, B, K], with K = `max_bins`."""
    shape = (len(boundaries), 1, max_bins)
    starts, slopes = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    lower, upper = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    for index, ends in enumerate(boundaries):
        count = len(ends) - 1
        if count:
            starts[index, 0, :count] = ends[:-1]
            slopes[index, 0, :count] = column.inverse(np.diff(ends))
            # The first and the last bin continue beyond the boundaries.
            lower[index, 0, 0], upper[index, 0, count - 1] = -np.inf, np.inf
    shares = (numbers[:, :, tf.newaxis] - starts) * slopes
    return tf.minimum(tf.maximum(shares, lower), upper)


@checks.dataclass
class Periodic(_Vectors, numeric.Numeric):
    """Encodes x by waves: `relu(W [sin(2 pi c x), cos(2 pi c x)] + b)` with learned frequencies c.

    Y. Gorishniy, I. Rubachev, A. Babenko, "On Embeddings for Numerical Features in Tabular Deep
    Learning", NeurIPS 2022, arXiv:2203.05556, section 3.3, where this encoding is called PLR. x is
    normalised as in `Numeric`. A missing value becomes 0 after the normalisation, which is the mean
    of the training split under "z_score". Each element of a field has its own frequencies c,
    weights W and biases b.

    Fields of shape [B] become [B, D], and fields of shape [B, n] become [B, n D].

    Attributes:
      names: the fields; integers and bools count as numbers.
      dimension: the number of units of the ReLU layer with W and b, in `features/<column>/linear`.
        Without a layer (None), the column consists of the waves, `2 num_frequencies` numbers for
        each element.
      num_frequencies: the number of frequencies c for each element, in
        `features/<column>/frequencies`.
      sigma: the standard deviation of the initial frequencies c, above 0. Tune sigma first: a large
        sigma separates close numbers, but can make the network overfit. The paper tries values of
        sigma from 0.01 to 100.
      normalization: "z_score", "min_max" or "none", as in `Numeric`.
      log: True first applies sign(x) log(1 + |x|), for heavy tails such as sums of money.
      missing_flags: True adds n inputs that are 1 if the value is missing.
      prefix: the start of the column's name, `<prefix>_<field>`.
    """

    dimension: int | None = 24
    num_frequencies: checks.Count = 48
    sigma: checks.Positive = 0.01
    prefix: str = "periodic"

    def _encode_numbers(
        self, numbers: tf.Tensor, sizes: Mapping[str, int], fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        del fitted
        normal = tf1.random_normal_initializer(stddev=self.sigma)
        frequencies = _get_variables("frequencies", sizes, [self.num_frequencies], normal)
        # [N, B, 1] * [N, 1, F] -> [N, B, F]
        angles = (2 * math.pi) * numbers[:, :, tf.newaxis] * frequencies[:, tf.newaxis]
        waves = tf.concat([tf.sin(angles), tf.cos(angles)], axis=2)
        if self.dimension is not None:
            counts = dict.fromkeys(sizes, 2 * self.num_frequencies)
            waves = _apply_layers(waves, sizes, counts, self.dimension)
        return _split_columns(waves, sizes)


@checks.dataclass
class AutoDis(_Vectors, numeric.Numeric):
    """Encodes x as a mixture of learned vectors M: `softmax((W h + skip h) / temperature) M`.

    The hidden values are `h = leaky_relu(w x)`, with a slope of 0.01 below 0. H. Guo et al., "An
    Embedding Learning Framework for Numerical Features in CTR Prediction", KDD 2021,
    arXiv:2012.08986. x is normalised as in `Numeric`. A missing value becomes 0 after the
    normalisation, which is the mean of the training split under "z_score".

    As in the paper, layers have no bias. Without a bias, x = 0 always becomes the mean of the
    learned vectors, and numbers of equal sign differ only in the sharpness of the softmax. Use
    `PiecewiseLinear` if the encoding should change at arbitrary numbers.

    Fields of shape [B] become [B, dimension], and fields of shape [B, n] become [B, n dimension].

    Attributes:
      names: the fields; integers and bools count as numbers.
      dimension: the length of the vectors.
      num_buckets: the number of vectors in the matrix M, which is learned for each element of a
        field. The variable `features/<column>/embedding` is M, `features/<column>/hidden` is w, and
        `features/<column>/buckets` is W.
      temperature: the temperature of the softmax, above 0; a lower temperature gives the largest
        weight to fewer vectors.
      skip: the factor of h in the skip connection, at least 0.
      normalization: "z_score", "min_max" or "none", as in `Numeric`.
      log: True first applies sign(x) log(1 + |x|), for heavy tails such as sums of money.
      missing_flags: True adds n inputs that are 1 if the value is missing.
      prefix: the start of the column's name, `<prefix>_<field>`.
    """

    dimension: checks.Count = 8
    num_buckets: Annotated[int, checks.AtLeast(2)] = 16
    temperature: checks.Positive = 1.0
    skip: checks.NotNegative = 0.1
    prefix: str = "autodis"

    def _encode_numbers(
        self, numbers: tf.Tensor, sizes: Mapping[str, int], fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        del fitted
        count = self.num_buckets
        slopes = _get_variables("hidden/kernel", sizes, [count], _make_glorot(1, count))
        kernels = _get_variables(
            "buckets/kernel", sizes, [count, count], _make_glorot(count, count)
        )
        normal = tf1.truncated_normal_initializer(stddev=self.dimension**-0.5)
        embeddings = _get_variables("embedding", sizes, [count, self.dimension], normal)
        hidden = tf.nn.leaky_relu(
            numbers[:, :, tf.newaxis] * slopes[:, tf.newaxis], alpha=_LEAKY_SLOPE
        )
        # [N, B, K] @ [N, K, K]
        logits = tf.linalg.matmul(hidden, kernels) + self.skip * hidden
        weights = tf.nn.softmax(logits / self.temperature)
        return _split_columns(tf.linalg.matmul(weights, embeddings), sizes)


def _apply_layers(
    inputs: tf.Tensor, sizes: Mapping[str, int], counts: Mapping[str, int], units: int
) -> tf.Tensor:
    """Apply a separate ReLU layer to each element, from [N, B, K] to [N, B, units].

    Args:
      inputs: the encoded elements of all columns, [N, B, K].
      sizes: {column: number of elements}.
      counts: {column: K'}; the layer of a column reads the first K' of the K numbers of an element.
      units: the number of units of the layer.
    """
    kernels = []
    for output, size in sizes.items():
        shape = [counts[output], units]
        kernel = _get_variables("linear/kernel", {output: size}, shape, _make_glorot(*shape))
        # Pad the weights with zeros for inputs beyond the bins of a column.
        kernels.append(tf.pad(kernel, [[0, 0], [0, inputs.shape[2] - counts[output]], [0, 0]]))
    biases = _get_variables("linear/bias", sizes, [units], tf1.zeros_initializer())
    products = tf.linalg.matmul(inputs, tf.concat(kernels, axis=0))
    return tf.nn.relu(products + biases[:, tf.newaxis])


def _make_glorot(inputs: int, outputs: int) -> Callable:
    """Return Glorot's initializer for the kernel of one element, not of all elements."""
    bound = math.sqrt(6 / (inputs + outputs))
    return tf1.random_uniform_initializer(-bound, bound)


def _get_variables(
    name: str, sizes: Mapping[str, int], shape: Sequence[int], initializer: Callable
) -> tf.Tensor:
    """Get a variable [n, *shape] in the scope of each column; join all variables to [N, *shape]."""
    variables = []
    for output, size in sizes.items():
        with tf1.variable_scope(output):
            variables.append(tf1.get_variable(name, [size, *shape], tf.float32, initializer))
    return tf.concat(variables, axis=0)


def _split_columns(elements: tf.Tensor, sizes: Mapping[str, int]) -> dict[str, tf.Tensor]:
    """Split the elements [N, B, D] by column, into {column: [n, B, D]}."""
    return dict(zip(sizes, tf.split(elements, list(sizes.values())), strict=True))
