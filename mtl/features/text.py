"""A column for texts, which are cut into tokens and encoded like a history of events.

features.Text.names = ["title"]
features.Text.tokenizer = @tokenizers.WordPiece()
features.Text.encoder = @histories.Convolution()
features.Text.max_tokens = 200
"""

from __future__ import annotations

import functools
import numbers
from typing import Annotated, cast

from mtl import checks, layers, types
from mtl.deferred import tf
from mtl.features import column, word_vectors


@checks.dataclass
class Text(column.PerField):
    """Encodes texts as sequences of tokens: strings [B], [B, n] or [B, (L)] -> [B, H].

    The texts of a list are joined by spaces into one text. For a text without tokens, such as an
    empty text, the encoder encodes an empty sequence. All tokenizers except `Bytes` drop bytes that
    are not UTF-8.

    Attributes:
      names: the fields; each field has a separate vocabulary, embedding and encoder.
      tokenizer: turns texts into ids, such as `tokenizers.WordPiece`.
      encoder: turns the vectors of tokens into one vector, such as `histories.Convolution`.
        Encoders that need a target are not allowed.
      dimension: the length of a token's vector, in `features/<column>/embedding`.
      max_tokens: the number of tokens to read from the beginning of a text; None reads all tokens.
        A limit on the tokens bounds the memory for long texts, which grows with the square of their
        length in a transformer.
      place_dimension: the length of an embedding of a token's position, counted from the beginning,
        which is appended to the token's vector. `place_dimension` requires `max_tokens`. With
        `place_dimension = None`, no embedding is added.
      word_vectors: the path of a file with initial vectors, see `mtl.features.word_vectors`. Tokens
        that are missing from the file start from random vectors.
      prefix: the start of the column's name, `<prefix>_<field>`.
      trainable: False freezes all variables of the column, including the encoder.
    """

    tokenizer: Annotated[types.Tokenizer, checks.Part("tokenizers.WordPiece", 3, ["num_tokens"])]
    encoder: Annotated[types.HistoryEncoder, checks.Part("histories.Convolution", arguments=2)]
    dimension: checks.Count = 32
    max_tokens: checks.Count | None = None
    place_dimension: int | None = None
    word_vectors: str | None = None
    prefix: str = "text"

    def __post_init__(self):
        super().__post_init__()
        needs = types.read_member(self.encoder, types.HistoryEncoder, "needs_target")
        rule = "be an encoder without a target"
        fix = "Take Pooling, Convolution, GRU or Transformer."
        checks.require(not needs, "Text.encoder", rule, type(self.encoder).__name__, fix)
        if self.place_dimension is not None:
            checks.whole("Text.place_dimension", self.place_dimension, 1)
            rule = "be set if Text.place_dimension is set"
            checks.require(self.max_tokens is not None, "Text.max_tokens", rule, self.max_tokens)
        word_vectors.check("Text.word_vectors", self.word_vectors, self.dimension)
        # Any field name will do, because this check needs only the presence of an accumulator.
        has_words = self.word_vectors is None or self._vocabulary_file or self._make_accumulator("")
        fix = f"{type(self.tokenizer).__name__} has none."
        rule = "be None if the tokenizer has no vocabulary"
        checks.require(bool(has_words), "Text.word_vectors", rule, self.word_vectors, fix)

    @property
    def _vocabulary_file(self) -> str | None:
        """The vocabulary file in the tokenizer's settings, or None."""
        return types.read_member(self.tokenizer, types.Tokenizer, "file")

    def _make_accumulator(self, field: str) -> types.Accumulator | None:
        """Return the accumulator that learns the tokenizer's vocabulary from a field, or None."""
        read = functools.partial(_read_texts, field=field)
        return types.read_member(self.tokenizer, types.Tokenizer, "accumulator")(field, read)

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {name: accumulator} for vocabularies and word vectors."""
        accumulators: dict[str, types.Accumulator] = {}
        for output, (field,) in self.columns.items():
            accumulator = self._make_accumulator(field)
            if accumulator is not None:
                accumulators[output] = accumulator
            if self.word_vectors is not None:
                accumulators[word_vectors.key(output)] = word_vectors.WordVectors(
                    where="Text.word_vectors",
                    path=self.word_vectors,
                    dimension=self.dimension,
                    column=output,
                    given=self._vocabulary_file,
                )
        return accumulators

    @property
    def files(self) -> dict[str, str]:
        """The files of vocabularies and word vectors that the settings name, {name: path}."""
        files: dict[str, str] = {}
        for output in self.columns:
            files |= {output: self._vocabulary_file} if self._vocabulary_file else {}
            if self.word_vectors is not None:
                files[word_vectors.key(output)] = self.word_vectors
        return files

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return {`<column>/embedding`: tokens}, if the tokenizer has names for tokens."""
        of_tokens = types.read_member(self.tokenizer, types.Tokenizer, "row_names")
        names_by_column = {output: of_tokens(output, fitted) for output in self.columns}
        # Name the embedding, not its scope, because the scope also holds the encoder's variables.
        return {f"{output}/embedding": names for output, names in names_by_column.items() if names}

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        ids = self.tokenizer(_read_texts(features, field), output, fitted)
        name = type(self.tokenizer).__name__
        is_ragged = (
            isinstance(ids, tf.RaggedTensor)
            and ids.ragged_rank == 1
            and ids.shape.rank in (None, 2)
        )
        is_right = is_ragged and ids.dtype in (tf.int32, tf.int64)
        checks.require(is_right, name, "return a tf.RaggedTensor of ids, int64 [B, (L)]", ids)
        if self.max_tokens is not None:
            ids = ids[:, : self.max_tokens]
        start = None
        if self.word_vectors is not None:
            start = word_vectors.make_initializer(fitted, output, self.dimension**-0.5)
        size = self.tokenizer.num_tokens(output, fitted)
        is_count = isinstance(size, numbers.Integral) and size >= 1
        checks.require(is_count, f"{name}.num_tokens", "return a whole number of at least 1", size)
        vectors = layers.embedding(ids.flat_values, size, self.dimension, initializer=start)
        if self.place_dimension is not None:
            # The index of the first token of each token's text, [N].
            firsts = tf.gather(ids.row_splits, ids.value_rowids())
            places = tf.range(tf.size(firsts, firsts.dtype)) - firsts
            max_tokens = cast(int, self.max_tokens)
            of_places = layers.embedding(places, max_tokens, self.place_dimension, "place")
            vectors = tf.concat([vectors, of_places], axis=1)
        tokens = tf.RaggedTensor.from_row_splits(vectors, ids.row_splits, validate=False)
        return self.encoder(tokens, None)


def _read_texts(features: types.Tensors, field: str) -> tf.Tensor:
    """Read one text for each row, strings [B]."""
    values = features[field]
    if values.dtype != tf.string:
        fix = f"The field holds {values.dtype.name}: give it to a column of numbers or categories."
        checks.fail("Text.names", "name fields of strings", field, fix)
    if values.shape.rank == 1:
        return values
    fix = f"Its batches have shape {values.shape}."
    rule = "name fields of texts or of lists of texts"
    checks.require(values.shape.rank == 2, "Text.names", rule, field, fix)
    return tf.strings.reduce_join(values, axis=1, separator=" ")
