"""Columns that turn categories into ids by a vocabulary or a hash, or read ids directly.

features.Categorical.names = ["job", "country"]          # each learns a vocabulary
features.Hashed.names = ["user"]
features.Identity.names = ["weekday"]

item/features.Hashed.names = ["item", "last_item"]
item/features.Hashed.table = "item"                      # one table for both
item/features.Hashed.embedding = @embeddings.QuotientRemainder()         # a smaller table
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

from mtl import checks, types
from mtl.deferred import tf
from mtl.features import accumulators, tables, vocabulary, word_vectors
from mtl.features import column as columns_lib
from mtl.spec import literals


@checks.dataclass
class Categorical(tables.Embedded, tables.Coded):
    """Looks up strings or integers in a vocabulary: [B], [B, n] or [B, (L)] -> [B, D].

    The ids of categories are embedded, or become one-hot vectors. Unknown categories get additional
    ids, which follow the ids of the vocabulary. The empty string, such as an empty cell of a CSV
    file, is unknown unless a list in `vocabulary` contains it.

    Attributes:
      names: the fields; each field has a separate vocabulary and embedding.
      vocabulary: a list of categories, or the path of a file with one category per line. With
        `vocabulary = None`, the column learns the categories from the training split. A continued
        run fails if the file in `vocabulary` has changed since the run started.
      min_count: the least number of times that a category of the vocabulary occurs in the training
        split. `min_count` is 2 by default, because a category that occurs once says little, and its
        row can train the vector of unknown categories.
      max_size: the largest number of categories; the most frequent categories are kept. None keeps
        all categories.
      num_unknown: the number of ids for unknown categories; a hash chooses one of these ids.
      dimension: the length of the embedding's vectors; None gives one-hot inputs.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
      prefix: the start of the column's name, `<prefix>_<field>`.
      table: the name of a table. Columns with equal table names share a vocabulary and an
        embedding, in `features/<table>`. Without a name (None), each field gets a separate table.
      embedding: a smaller table from `mtl.features.embeddings`; None gives each id a separate row.
      word_vectors: the path of a file with initial vectors, see `mtl.features.word_vectors`.
        Categories that are missing from the file start from random vectors.
    """

    vocabulary: Sequence[str | int | float] | str | None = None
    min_count: checks.Count = 2
    max_size: checks.Count | None = None
    num_unknown: checks.Count = 1
    prefix: str = "categorical"
    word_vectors: str | None = None

    _of_table = (
        "vocabulary",
        "min_count",
        "max_size",
        "num_unknown",
        "embedding",
        "word_vectors",
    )
    _is_ranked = True

    @property
    def _num_ids(self) -> int:
        return self.num_unknown  # A vocabulary in memory has fewer than 2^31 ids.

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.vocabulary, (list, tuple)):
            checks.require(bool(self.vocabulary), "Categorical.vocabulary", "hold a category", [])
            for category in self.vocabulary:
                fits = isinstance(category, str) or literals.whole(category) is not None
                checks.require(fits, "Categorical.vocabulary", "hold texts or integers", category)
                if not isinstance(category, bool):
                    kinds = (str, int, float)
                    checks.is_a("Categorical.vocabulary", category, kinds, "hold categories")
            checks.unique("Categorical.vocabulary", self._list_vocabulary())
        elif self.vocabulary is not None:
            rule = "be a list, the path of a file or None"
            checks.is_a("Categorical.vocabulary", self.vocabulary, str, rule)
        where = "Categorical.word_vectors"
        word_vectors.check(where, self.word_vectors, self.dimension)
        fits = self.embedding is None or self.word_vectors is None
        rule = "be None if Categorical.embedding is set, because ids then share rows"
        checks.require(fits, where, rule, self.word_vectors)

    def _list_vocabulary(self) -> tuple[str, ...]:
        """Return the list as strings, like `columns_lib.tokens`: True and 1.0 give "1"."""
        wholes = [(category, literals.whole(category)) for category in self.vocabulary or ()]
        return tuple(str(category if number is None else number) for category, number in wholes)

    def accumulators(self) -> dict[str, types.Accumulator]:
        """Return {column or table: accumulator} for vocabularies and word vectors."""
        names = dict.fromkeys(map(self._name, self.columns))
        of_file = {word_vectors.key(name): self._make_vectors(name) for name in names}
        return {**self._make_vocabularies(), **({} if self.word_vectors is None else of_file)}

    def _make_vocabularies(self) -> dict[str, types.Accumulator]:
        if self.vocabulary is not None:
            return {}
        vocabularies: dict[str, accumulators.Vocabulary] = {}
        for output, (field,) in self.columns.items():
            name = self._name(output)
            settings: dict[str, Any] = {
                "reads": {field: functools.partial(_read_tokens, field=field)},
                "min_count": self.min_count,
                "max_size": self.max_size,
            }
            ends = tuple(self._block_ends)
            accumulator = (
                accumulators.VocabularyOfBlocks(ends=ends, **settings)
                if ends
                else accumulators.Vocabulary(**settings)
            )
            # Columns with a common table have a common vocabulary, which counts the values of all
            # fields.
            vocabularies[name] = (
                vocabularies[name].join(accumulator) if name in vocabularies else accumulator
            )
        return dict(vocabularies)

    def _make_vectors(self, name: str) -> types.Accumulator:
        is_list = isinstance(self.vocabulary, (list, tuple))
        return word_vectors.WordVectors(
            where="Categorical.word_vectors",
            path=cast(str, self.word_vectors),
            dimension=cast(int, self.dimension),
            column=name,
            given=self._list_vocabulary() if is_list else cast(str | None, self.vocabulary),
        )

    @property
    def files(self) -> dict[str, str]:
        """The files of vocabularies and word vectors that the settings name, {column: path}."""
        path, vectors = self.vocabulary, self.word_vectors
        of_words = dict.fromkeys(self.columns, path) if isinstance(path, str) else {}
        if vectors is None:
            return of_words
        return {**of_words, **{word_vectors.key(output): vectors for output in self.columns}}

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return the categories of each table's rows, {column, table or block: categories}."""
        row_names: dict[str, types.RowNames] = {}
        for output in self.columns:
            name, entries = self._name(output), self._find_entries(output, fitted)[0]
            names = types.RowNames(names=entries, axis=0, and_unknown=True)
            # Unknown categories have the last ids, so only the last block has rows for unknown
            # categories.
            starts, ends = (0, *self._block_ends), (*self._block_ends, None)
            if self.embedding is None:
                row_names[name] = names
            elif not self._block_ends:
                row_names[name] = names._replace(are_grouped=True)
            else:
                for block, (first, last) in enumerate(zip(starts, ends, strict=True)):
                    block_names = names._replace(first=first, last=last, and_unknown=last is None)
                    row_names[f"{name}/block_{block}"] = block_names
        return row_names

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        ids = self._read_ids(features, field, output, fitted)
        size = self._find_entries(output, fitted)[1] + self.num_unknown
        counts = self._count_blocks(output, fitted)
        return self._look_up(output, ids, size, self._make_initializer(output, fitted), counts)

    def find_ids(self, column: str, values: tf.Tensor, fitted: types.Statistics) -> tf.Tensor:
        """Look up values in the vocabulary.

        Args:
          column: the name of the column.
          values: strings or integers [N].
          fitted: the statistics, which hold a learned vocabulary.

        Returns:
          Ids, int64 [N], below the number of categories plus `num_unknown`; the last `num_unknown`
          ids are for unknown values.

        Raises:
          UserError: `values` are floats, or the file in `vocabulary` is not a vocabulary.
        """
        tokens = columns_lib.tokens("Categorical", {column: values}, column)
        entries, _ = self._find_entries(column, fitted)
        return _find_places(vocabulary.create_table(entries, self.num_unknown), tokens)

    @property
    def limited_fields(self) -> Sequence[str]:
        """The fields in which unknown values are counted: all fields of the column."""
        return self.names

    def find_unknown(
        self, features: types.Tensors, fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        """Return {field: mask of the values that the vocabulary lacks, bool [N]}."""
        is_unknown = {}
        for output, (field,) in self.columns.items():
            tokens = _read_tokens(features, field)
            entries, size = self._find_entries(output, fitted)
            # The ids of unknown categories start at `size`.
            places = vocabulary.create_table(entries, self.num_unknown).lookup(tokens)
            is_unknown[field] = (places >= size) & tf.not_equal(tokens, "")
        return is_unknown

    def _count_blocks(self, output: str, fitted: types.Statistics) -> Sequence[int]:
        """Return the counts of training values in each block (range of ids) of a vocabulary."""
        is_fitted = self.vocabulary is None and self._block_ends
        return fitted.for_column(self._name(output))["block_counts"] if is_fitted else ()

    def _make_initializer(
        self, output: str, fitted: types.Statistics
    ) -> Callable[..., tf.Tensor] | None:
        """Return an initializer that copies word vectors into the table; None without a file."""
        if self.word_vectors is None:
            return None
        stddev = self.initial_stddev or cast(int, self.dimension) ** -0.5
        return word_vectors.make_initializer(fitted, self._name(output), stddev)

    def _find_entries(
        self, output: str, fitted: types.Statistics
    ) -> tuple[tuple[str, ...] | str, int]:
        """Return the vocabulary, as a list or a file, and its size."""
        if isinstance(self.vocabulary, (list, tuple)):
            return self._list_vocabulary(), len(self.vocabulary)
        if self.vocabulary is None:
            entry = fitted.for_column(self._name(output))
            return fitted.path(entry["file"]), entry["size"]
        # `__post_init__` refuses a vocabulary that is not None, a list or a path.
        path = cast(str, self.vocabulary)
        return path, len(vocabulary.read_file("Categorical.vocabulary", path))


def _find_places(table: Any, tokens: tf.Tensor) -> tf.Tensor:
    """Look up tokens [...] in a vocabulary; return ids, int64 [...]."""
    places = table.lookup(tokens)
    # Set the static shape, because graph optimisations skip all ops behind an unknown shape.
    return tf.ensure_shape(places, tokens.shape) if tokens.shape.is_fully_defined() else places


def _read_tokens(features: types.Tensors, field: str) -> tf.Tensor:
    return columns_lib.flat(columns_lib.tokens("Categorical", features, field))


@checks.dataclass
class Hashed(tables.Embedded, tables.Coded):
    """Hashes strings or integers, without a vocabulary: [B], [B, n] or [B, (L)] -> [B, D].

    A category that is absent from the training split also gets a hash bucket.

    Attributes:
      names: the fields; each field has a separate embedding.
      num_buckets: the number of hash buckets; several times the number of categories makes
        collisions rare.
      dimension: the length of the embedding's vectors; None gives one-hot inputs.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
      prefix: the start of the column's name, `<prefix>_<field>`.
      table: the name of a table. Columns with equal table names share an embedding, in
        `features/<table>`. Without a name (None), each field gets a separate table.
      embedding: a smaller table from `mtl.features.embeddings`; None gives each id a separate row.
    """

    num_buckets: Annotated[int, checks.AtLeast(2)]
    prefix: str = "hashed"

    _of_table = ("num_buckets", "embedding")

    @property
    def _num_ids(self) -> int:
        return self.num_buckets

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return {column or table: names of rows}, for tables with fewer rows than ids."""
        del fitted
        return self._name_groups(map(self._name, self.columns), self._of_table)

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        ids = self._read_ids(features, field, output, fitted)
        return self._look_up(output, ids, self.num_buckets)

    def find_ids(self, column: str, values: tf.Tensor, fitted: types.Statistics) -> tf.Tensor:
        """Hash values to buckets.

        Args:
          column: the name of the column.
          values: strings or integers [N].
          fitted: the statistics of the training split, which this class does not need.

        Returns:
          int64 [N], in [0, num_buckets).

        Raises:
          UserError: `values` are floats, which cannot be hashed.
        """
        del fitted
        tokens = columns_lib.tokens("Hashed", {column: values}, column)
        return tf.strings.to_hash_bucket_fast(tokens, self.num_buckets)


@checks.dataclass
class Identity(tables.Embedded, tables.Ids):
    """Reads integers that are already ids: [B], [B, n] or [B, (L)] -> [B, D].

    All integers outside of [0, size) share one additional id.

    Attributes:
      names: the fields; each field has a separate embedding.
      size: the number of ids.
      dimension: the length of the embedding's vectors; None gives one-hot inputs.
      pooling: how the vectors of several values in a row are combined: "sum", "mean" or "sqrtn".
      initial_stddev: the standard deviation of the embedding's initial values, above 0; None means
        `dimension ** -0.5`. The initial values come from a normal distribution that is truncated at
        two standard deviations.
      storage: the type of the table's numbers: "float32", or "bfloat16", which halves the memory.
      prefix: the start of the column's name, `<prefix>_<field>`.
      table: the name of a table. Columns with equal table names share an embedding, in
        `features/<table>`. Without a name (None), each field gets a separate table.
      embedding: a smaller table from `mtl.features.embeddings`; None gives each id a separate row.
    """

    size: checks.Count
    prefix: str = "identity"

    _of_table = ("size", "embedding")

    def row_names(self, fitted: types.Statistics) -> dict[str, types.RowNames]:
        """Return {column or table: names of rows}, for tables with fewer rows than ids."""
        del fitted
        return self._name_groups(map(self._name, self.columns), self._of_table)

    def _encode(
        self, features: types.Tensors, field: str, output: str, fitted: types.Statistics
    ) -> tf.Tensor:
        ids = columns_lib.integers("Identity", features, field)
        ids = tf.ragged.map_flat_values(self._known_or_last, ids)
        return self._look_up(output, ids, self.size + 1)

    @property
    def limited_fields(self) -> Sequence[str]:
        """The fields in which unknown values are counted: all fields of the column."""
        return self.names

    def find_unknown(
        self, features: types.Tensors, fitted: types.Statistics
    ) -> dict[str, tf.Tensor]:
        """Return {field: mask of the integers outside of [0, size), bool [N]}."""
        del fitted
        ids = {field: columns_lib.integers("Identity", features, field) for field in self.names}
        flat = {field: columns_lib.flat(values) for field, values in ids.items()}
        return {field: ~((values >= 0) & (values < self.size)) for field, values in flat.items()}

    def _known_or_last(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.where((ids >= 0) & (ids < self.size), ids, tf.constant(self.size, tf.int64))
