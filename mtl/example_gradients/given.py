"""The argument of the rules in `arithmetic` and `movement`: an op with its inputs' layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from mtl.deferred import tf
from mtl.example_gradients import layouts, sizes
from mtl.example_gradients.layouts import EVEN, Layout, State


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ENTRY_BY_ENTRY = _split_words(
    """
    Abs Acos Acosh Add AddN AddV2 AsString Asin Asinh Atan Atan2 Atanh BitwiseAnd BitwiseOr
    BitwiseXor Bucketize Cast Ceil CheckNumerics ClipByValue Cos Cosh DebugGradientIdentity Digamma
    Div DivNoNan Elu EluGrad EnsureShape Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod
    Greater GreaterEqual Identity Igamma Igammac Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu
    LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr
    LookupTableFind LookupTableFindV2 Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual
    OnesLike Pow PreventGradient RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad
    RightShift Rint Round Rsqrt RsqrtGrad SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh
    Snapshot Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square SquaredDifference
    StaticRegexFullMatch StaticRegexReplace StopGradient StringLength StringLower StringStrip
    StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper
    Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike Zeta
    """
)
OF_IMAGES = _split_words(
    """
    AvgPool AvgPool3D Conv2D Conv3D DepthToSpace DepthwiseConv2dNative Dilation2D LRN MaxPool
    MaxPool3D MaxPoolGrad ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor SpaceToDepth
    """
)
DRAWS = _split_words(
    """
    RandomStandardNormal RandomUniform RandomUniformInt StatelessRandomNormal
    StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessTruncatedNormal
    StatelessTruncatedNormalV2 TruncatedNormal
    """
)


class Known(Protocol):
    """The proven facts about the tensors before an op, which rules read; see `proof.Proof`.

    Attributes:
      count: B, the number of examples; a symbol if the number is unknown.
    """

    count: sizes.Size

    def state(self, tensor: tf.Tensor) -> State: ...
    def dims(self, tensor: tf.Tensor, of_one: bool = False) -> sizes.Known | None: ...
    def is_of_one(self, tensor: tf.Tensor) -> bool: ...
    def examples(self, axis: int, dims: Sequence[sizes.Size]) -> Layout: ...
    def list_of(self, layout: Layout) -> tf.RaggedTensor: ...
    def lists(self) -> Sequence[tf.RaggedTensor]: ...
    def is_apart_back(self, op: tf.Operation, states: Sequence[State]) -> bool: ...


class Given:
    """An op, and facts about its inputs."""

    def __init__(self, op: tf.Operation, known: Known, is_moved: bool):
        self.op, self.known, self.is_moved = op, known, is_moved
        self.states = [known.state(tensor) for tensor in op.inputs]
        self.output = op.outputs[0]
        self.placed = [
            (n, state) for n, state in enumerate(self.states) if isinstance(state, Layout)
        ]

    @property
    def layout(self) -> Layout:
        """The layout of the first input that has a layout."""
        return self.placed[0][1]

    def static(self, place: int) -> np.ndarray | None:
        """Return the value of an input if it is constant; else None."""
        return tf.get_static_value(self.op.inputs[place])

    def axes(self, place: int, rank: int) -> list[int] | None:
        """Return the axes that an input lists, such as the axes of a Sum, as indices from 0.

        Args:
          place: the index of the input; an axis below 0 in its value counts from the end.
          rank: the rank of the tensor to which the axes belong.

        Returns:
          The axes; None if the input is not a constant.
        """
        value = self.static(place)
        # Negative axes count from the end.
        return None if value is None else [int(n) % max(rank, 1) for n in np.reshape(value, [-1])]

    def entries(self, place: int) -> sizes.Known | None:
        """Return the entries of an input as sizes.

        Args:
          place: the index of an input whose entries are sizes, such as the new shape of a reshape.

        Returns:
          A size for each entry, with None for unknown entries; None if no entry is known.
        """
        return sizes.infer_sizes(self.op.inputs[place], self.known.dims)

    def to(
        self,
        axis: int,
        dims: Sequence[sizes.Size | None] | None = None,
        outer: sizes.Size | None = None,
    ) -> list[State]:
        """Return layouts for all outputs, with the examples along an axis.

        Args:
          axis: the axis of the outputs, from 0.
          dims: sizes for axes whose static size is unknown; None leaves them unknown.
          outer: the number of times that the outputs repeat the batch along the axis of the
            examples. The default is the number of repetitions in the first input with a layout.
        """
        return [self.placed_at(out, axis, dims, outer) for out in self.op.outputs]

    def placed_at(
        self,
        output: tf.Tensor,
        axis: int,
        dims: Sequence[sizes.Size | None] | None = None,
        outer: sizes.Size | None = None,
    ) -> Layout:
        """Return the layout of one output, with the examples along an axis.

        Args:
          output: the output.
          axis: the axis of the output, from 0.
          dims: sizes for axes whose static size is unknown, as in the method `to`.
          outer: the number of times that the output repeats the batch along the axis of the
            examples, as in the method `to`.
        """
        axis_sizes = layouts.own_dims(output)
        for n, size in enumerate((dims or [])[: len(axis_sizes)]):
            if size is not None and axis_sizes[n].unknown:
                axis_sizes[n] = size
        return self.layout.at(axis, axis_sizes, outer)

    def is_free(self, *places: int) -> bool:
        """Return True if the inputs with these indices do not depend on the batch."""
        return all(self.states[place] is None for place in places)

    def fits(self, place: int, from_end: int) -> bool:
        """Return True if a broadcast input is constant along an axis.

        Args:
          place: the index of the input.
          from_end: the axis, counted from the end; 1 is the last axis.
        """
        tensor = self.op.inputs[place]
        rank = tensor.shape.rank
        if rank is None:
            return False
        return rank < from_end or tensor.shape[rank - from_end] == 1 or self.is_even(tensor)

    def is_even(self, tensor: tf.Tensor) -> bool:
        """Return True if all entries of a tensor are equal, or independent random draws."""
        if self.known.state(tensor) is not None:
            return self.known.state(tensor) == EVEN
        op = tensor.op
        if op.type == "Const":
            return _are_equal(tf.get_static_value(tensor))
        if op.type in ("Fill", "OnesLike", "ZerosLike", *DRAWS):
            return True
        if op.type in ("BroadcastTo", "ExpandDims", "Reshape", "Tile"):
            return self.is_even(op.inputs[0])
        is_made = op.type in ENTRY_BY_ENTRY and tensor.shape.rank is not None
        return is_made and all(value.shape.rank == 0 or self.is_even(value) for value in op.inputs)


def _are_equal(values: np.ndarray | None) -> bool:
    return values is not None and (values.size < 2 or bool(np.all(values == values.flat[0])))


Rule = Callable[[Given], list[State] | None]
"""A function from an op to the states of its outputs; None if the rule cannot find the states."""
