"""A base class for sources that select some rows of another source, such as a share of a table.

@checks.dataclass
class EvenRows(chosen_rows.ChosenRows):
    def find_choice(self, split):
        return chosen_rows.Choice(lambda rows, keys: rows % 2 == 0) if split == "train" else None

Every way to read a split gives the same rows: as records, in blocks, by row number, or as values.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import packed
from mtl.data import source as source_lib
from mtl.deferred import tf

# Batches of `_ROWS_AT_ONCE` rows fit into memory even if the rows have images.
_ROWS_AT_ONCE = 256
# `scan` selects among `_SCANNED` rows at once; with keys, among more rows, because each selection
# by keys runs a graph.
_SCANNED, _SCANNED_WITH_KEYS = 64, 1024
# {type: the value that stands for an absent key}.
_ABSENT = {"string": "", "int64": spec_lib.MISSING["int64"]}
# The number of rows in a batch when only keys or labels are read.
_KEYS_AT_ONCE = 1024


class Choice(NamedTuple):
    """A rule that selects the rows of a new split from an existing split.

    Attributes:
      takes: a function from row numbers, int64 [B], and from the keys of these rows, {key: texts,
        [B]}, to a mask of the selected rows, bool [B]. If `keys` is empty, `takes` must also accept
        NumPy arrays.
      keys: the fields whose texts `takes` gets; an absent value is an empty text.
    """

    takes: Callable[[Any, Mapping[str, Any]], Any]
    keys: Sequence[str] = ()


class ChosenRows(types.Source):
    """A source that selects rows of one split of another source; other splits are unchanged.

    Attributes:
      source: the source whose rows are selected.
      split: the split from which rows are selected.
    """

    source: types.Source
    split: str

    @abc.abstractmethod
    def find_choice(self, split: str) -> Choice | None:
        """Return the rule that selects the rows of a split.

        Args:
          split: a new split, or a split of the inner source.

        Returns:
          The rule, which selects from the rows of the split `self.split`. The result is None if
          `split` is an unchanged split of the inner source.
        """

    def _find(self, split: str) -> Choice | None:
        """Return the rule of a split as `find_choice` does; fail if the split does not exist."""
        choice = self.find_choice(split)
        if choice is None:
            _require_split(self, split)
        return choice

    def describe_left_out(self) -> list[str]:
        """Return a warning if some rows are unexpectedly in no split."""
        return []

    @property
    def names(self) -> list[str]:
        """The column names of the inner source; [] if the source has no column names."""
        return list(getattr(self.source, "names", ()))

    def find_key_type(self, name: str) -> str:
        """Return the type of a key, "int64" or "string", as splits and joins read the field."""
        return types.read_member(self.source, types.Source, "find_key_type")(name)

    @property
    def key_types(self) -> dict[str, str]:
        """{field: type} of the fields that decide which split a row belongs to."""
        return {}

    def require_keys(self) -> None:
        """Fail if a field of `key_types` has no value in any row: its name may be misspelt.

        Raises:
          UserError: no row of the split `self.split` has a value in the field.
        """
        for name, kind in self.key_types.items():
            spec = spec_lib.Spec(features={name: kind}, labels={}, defaults={name: _ABSENT[kind]})
            absent = _ABSENT["int64"] if kind == "int64" else b""
            blocks = read_fields(self.source, self.split, spec)
            has_key = any((block[name] != absent).any() for block in blocks)
            where = f"{type(self).__name__}: field {name!r}"
            checks.require(has_key, where, f"be in a row of split {self.split!r}", "no value")

    def add_keys(self, spec: spec_lib.Spec) -> spec_lib.Spec:
        """Return a specification with the fields of `key_types` as further features.

        Args:
          spec: the specification to extend.

        Returns:
          A specification with the unchanged fields of `spec`, and with the added features. An added
          feature has a default, so a row may lack the key.
        """
        kinds = {name: kind for name, kind in self.key_types.items() if name not in spec.fields}
        absent = {name: _ABSENT[kind] for name, kind in kinds.items()}
        features, defaults = {**spec.features, **kinds}, {**spec.defaults, **absent}
        return dataclasses.replace(spec, features=features, defaults=defaults)

    def _specify_keys(self, choice: Choice) -> spec_lib.Spec:
        """Return a specification of the keys that a selection rule reads."""
        kinds = {name: self.find_key_type(name) for name in choice.keys}
        absent = {name: _ABSENT[kind] for name, kind in kinds.items()}
        return spec_lib.Spec(features=kinds, labels={}, defaults=absent)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the raw records of a split, in the order of the source."""
        choice = self._find(split)
        if choice is None:
            return self.source.records(split)
        # Select in batches, because a selection row by row takes 20 to 90 microseconds for each
        # row.
        batches = source_lib.batch(self.source.records(self.split), _ROWS_AT_ONCE)
        return _choose(functools.partial(self._apply_choice, choice), batches).unbatch()

    def blocks(self, split: str) -> tf.data.Dataset | None:
        """Return the raw records of a split in batches; None if the inner source has no batches."""
        choice = self._find(split)
        read_blocks = types.read_shortcut(self.source, "blocks")
        blocks = read_blocks(split if choice is None else self.split)
        if choice is None or blocks is None:
            return blocks
        return _choose(functools.partial(self._apply_choice, choice), blocks)

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each record of a split.

        If the selection reads keys, every split reports all unreadable records, because the split
        of an unreadable record is unknown.
        """
        choice = self._find(split)
        rows = self.source.scan(split if choice is None else self.split, spec)
        if choice is None:
            yield from rows
            return
        keys, fields = self._read_all_keys(choice, self.source.scan)
        at_once = _SCANNED_WITH_KEYS if choice.keys else _SCANNED
        # Without keys, the row number alone decides whether a row is selected.
        pairs = zip(keys or itertools.repeat(("", {})), rows, strict=False)
        start = 0
        while block := list(itertools.islice(pairs, at_once)):
            values = _join_keys([row_keys for (_, row_keys), _ in block], fields)
            mask = _decide(choice, np.arange(start, start + len(block)), values)
            start += len(block)
            # An unreadable record has no key, so every split reports it.
            are_bad = (bool(choice.keys) and isinstance(row[1], str) for _, row in block)
            marked = zip(block, mask, are_bad, strict=True)
            yield from (row for (_, row), is_chosen, is_bad in marked if is_chosen | is_bad)

    def estimate_bytes(self, split: str) -> int | None:
        """Estimate the memory of all rows of the inner split; the selected rows may take less."""
        inner = split if self._find(split) is None else self.split
        return types.read_shortcut(self.source, "estimate_bytes")(inner)

    def list_rows(self, split: str) -> np.ndarray | None:
        """Return the row numbers of a split; None if the inner source does not list row numbers."""
        choice = self._find(split)
        list_numbers = types.read_shortcut(self.source, "list_rows")
        if choice is None:
            return list_numbers(split)
        if split not in self._number_cache:
            numbers = list_numbers(self.split)
            self._number_cache[split] = (
                None if numbers is None else self._choose_numbers(choice, numbers)
            )
        return self._number_cache[split]

    def _choose_numbers(self, choice: Choice, numbers: np.ndarray) -> np.ndarray:
        """Return the selected row numbers among `numbers`, int64 [N]."""

        def read() -> tf.data.Dataset:
            blocks = tf.data.Dataset.from_tensor_slices(numbers).batch(_ROWS_AT_ONCE)
            pairs = blocks.map(lambda rows: (rows, self.source.take_rows(self.split, rows)))
            takes = functools.partial(self._apply_choice, choice)
            return _choose(lambda first, pair: takes(first, pair[1]), pairs).map(lambda n, _: n)

        if choice.keys:
            return np.concatenate([np.zeros([0], np.int64), *_iterate(read)])
        return numbers[np.asarray(choice.takes(np.arange(len(numbers)), {}), bool)]

    @functools.cached_property
    def _number_cache(self) -> dict[str, np.ndarray | None]:
        """The cache {split: row numbers}."""
        return {}

    def take_rows(self, split: str, rows: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """Return the raw records for row numbers, int64 [B]."""
        split = split if self._find(split) is None else self.split
        return self.source.take_rows(split, rows)

    def read_values(
        self, split: str, spec: spec_lib.Spec
    ) -> Iterable[Mapping[str, packed.Values]] | None:
        """Return the values of a split in blocks; None if only `decode` can read the values."""
        choice = self._find(split)
        read_blocks = types.read_shortcut(self.source, "read_values")
        if choice is None:
            return read_blocks(split, spec)
        blocks = read_blocks(self.split, spec)
        keys, key_fields = self._read_all_keys(choice, read_blocks)
        if blocks is None or (choice.keys and keys is None):
            return None
        return _cut_values(choice, blocks, keys or (), spec.fields, key_fields)

    def list_blocks(self, split: str, spec: spec_lib.Spec) -> types.Blocks | None:
        """Return blocks of the selected rows; None if the inner source has no blocks.

        If the selection reads keys, this method reads the keys of all blocks.
        """
        choice = self._find(split)
        list_blocks = types.read_shortcut(self.source, "list_blocks")
        if choice is None:
            return list_blocks(split, spec)
        blocks = list_blocks(self.split, spec)
        keys, key_fields = self._read_all_keys(choice, list_blocks)
        return None if blocks is None else _cut_blocks(choice, blocks, keys, key_fields)

    def _read_all_keys(
        self, choice: Choice, read: Callable[[str, spec_lib.Spec], Any]
    ) -> tuple[Any, Mapping[str, spec_lib.Field]]:
        """Return the keys of all rows, and the fields of the keys; None and {} if there are none.

        Args:
          choice: the rule of selection.
          read: a function that reads the fields of a specification from a split, such as
            `self.source.scan`. This function reads the keys in a separate pass, because a Spec may
            lack the keys.
        """
        if not choice.keys:
            return None, {}
        spec = self._specify_keys(choice)
        return read(self.split, spec), spec.fields

    def count_rows(self, choice: Choice) -> tuple[int, int]:
        """Count the rows of the split `self.split`, and the rows that a rule selects.

        Args:
          choice: the rule that selects rows.

        Returns:
          The number of all rows of the split, and the number of rows that the rule selects. At a
          malformed record, counting stops without an error.
        """

        @tf.autograph.experimental.do_not_convert
        def count(first: tf.Tensor, part: Any) -> tuple[tf.Tensor, Any]:
            rows = tf.cast(types.count_rows({"": tf.nest.flatten(part)[0]}), tf.int64)
            mask = self._apply_choice(choice, first + tf.range(rows), part)
            return first + rows, (rows, tf.math.count_nonzero(mask))

        def read() -> tf.data.Dataset:
            blocks = source_lib.read_batches(self.source, self.split, _KEYS_AT_ONCE)
            return blocks.scan(tf.constant(0, tf.int64), count)

        # A bad record ends the count without an error, because the next reader of the rows reports
        # the record.
        counts = [
            element for element in source_lib.iterate(read) if not isinstance(element, Exception)
        ]
        return sum(int(rows) for rows, _ in counts), sum(
            int(num_chosen) for _, num_chosen in counts
        )

    def decode(self, batch: Any, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Decode a batch with the inner source."""
        return self.source.decode(batch, spec, with_labels)

    def _apply_choice(self, choice: Choice, numbers: tf.Tensor, batch: Any) -> tf.Tensor:
        """Return the mask of selected rows, bool [B], from row numbers and raw records."""
        return choice.takes(numbers, self.read_keys(choice, batch))

    def read_keys(self, choice: Choice, batch: Any) -> dict[str, tf.Tensor]:
        """Read the keys of raw records.

        Args:
          choice: the rule whose keys are read.
          batch: B raw records, as `decode` takes them.

        Returns:
          {key: texts, string [B]}; {} if the rule reads no keys. An absent key is an empty text.
        """
        if not choice.keys:
            return {}
        return _to_texts(self.source.decode(batch, self._specify_keys(choice), False))


def describe_left_out(source: Any, split: str = "train") -> list[str]:
    """Return warnings about rows and splits that are never read, and about keys that no table has.

    Args:
      source: a source; inner sources are included.
      split: the split whose keys are looked up in the tables.

    Raises:
      UserError: a field that decides the split of a row has no value in any row.
    """
    lines: list[str] = []
    while source is not None:
        if hasattr(source, "describe_absent_keys"):
            lines += source.describe_absent_keys(split)
        if isinstance(source, ChosenRows):
            source.require_keys()
            lines += [*source.describe_left_out(), *_describe_hidden_splits(source)]
            # The inner source knows the rows by the name of the original split.
            split = split if source.find_choice(split) is None else source.split
        # In a mixture, the split of a single source has another name, such as ratings/train.
        for part in source.list_parts(split) if hasattr(source, "list_parts") else ():
            lines += describe_left_out(part.source, part.split)
        source = getattr(source, "source", None)
    return lines


def _describe_hidden_splits(source: ChosenRows) -> list[str]:
    """Return a warning for each split of the inner source that has the same name as a new split."""
    return [
        f"Split {name!r} of the source is not read: {type(source).__name__} cuts a split of this "
        f"name from {source.split!r}."
        for name in dict.fromkeys(list_splits(source.source))
        if name != source.split and source.find_choice(name) is not None
    ]


def list_splits(source: Any) -> list[str]:
    """Return the splits that the settings of a source, or of its inner sources, name.

    Args:
      source: a source with or without inner sources.

    Returns:
      The splits: first the splits of `source`, then the splits of its inner source, and so on. A
      split that several settings name occurs several times.
    """
    names: list[str] = []
    while source is not None:
        for setting in ("files", "splits", "held_out", "starts", "shares"):
            value = getattr(source, setting, None)
            names += value if isinstance(value, Mapping) else []
        source = getattr(source, "source", None)
    return names


def _require_split(source: ChosenRows, split: str) -> None:
    """Fail if neither a source nor its files have a split; the error lists all their splits."""
    inner: types.Source = source
    names = list_splits(source)
    while isinstance(inner, ChosenRows):
        if inner.find_choice(split) is not None:
            return
        names += [getattr(inner, "fold_split", "")] if getattr(inner, "folds", None) else []
        inner = inner.source
    if isinstance(getattr(inner, "files", None), Mapping):
        checks.one_of("The split", split, dict.fromkeys(names))


def read_fields(
    source: types.Source, split: str, spec: spec_lib.Spec
) -> Iterator[dict[str, np.ndarray]]:
    """Yield {feature: values} for all rows of a split, one batch at a time.

    Args:
      source: the source of the rows.
      split: the name of the split, such as "train".
      spec: the features to read.

    Raises:
      UserError: a record is malformed; the error names the record.
    """

    def read() -> tf.data.Dataset:
        return source_lib.read_batches(source, split, _KEYS_AT_ONCE).map(
            lambda *batch: source.decode(batch[0], spec, False)
        )

    for element in source_lib.iterate(read):
        if isinstance(element, Exception):
            bad_records = (pair for pair in source.scan(split, spec) if isinstance(pair[1], str))
            for place, problem in bad_records:
                raise checks.UserError(f"{place}: {problem}") from element
            raise element
        yield element


def choose_by_mask(mask: np.ndarray) -> Choice:
    """Return the rule that selects rows by a mask over all rows, bool [N]."""

    def takes(numbers: Any, _: Any) -> Any:
        return mask[numbers] if isinstance(numbers, np.ndarray) else tf.gather(mask, numbers)

    return Choice(takes)


def _to_texts(keys: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Convert keys to texts, {key: [B]}; absent whole numbers become empty texts."""
    texts: dict[str, tf.Tensor] = {}
    for name, values in keys.items():
        texts[name] = values
        if values.dtype == tf.int64:
            absent = tf.equal(values, _ABSENT["int64"])
            texts[name] = tf.where(absent, "", tf.strings.as_string(values))
    return texts


def _join_keys(
    rows: Sequence[Mapping[str, Any] | str], fields: Mapping[str, spec_lib.Field]
) -> dict[str, np.ndarray]:
    """Return {key: values [B]} of scanned rows; the keys of an unreadable row are absent."""
    return {
        name: np.array(
            [field.default if isinstance(row, str) else row[name] for row in rows],
            packed.DTYPES.get(field.dtype, np.object_),
        )
        for name, field in fields.items()
    }


def _iterate(make: Callable[[], tf.data.Dataset]) -> Iterator[Any]:
    for element in source_lib.iterate(make):
        if isinstance(element, Exception):
            raise element
        yield element


def _choose(takes: Callable[[tf.Tensor, Any], tf.Tensor], blocks: tf.data.Dataset) -> Any:
    """Return the selected rows of each batch, as batches."""

    @tf.autograph.experimental.do_not_convert
    def cut(first: tf.Tensor, part: Any) -> tuple[tf.Tensor, Any]:
        rows = tf.cast(types.count_rows({"": tf.nest.flatten(part)[0]}), tf.int64)
        places = tf.squeeze(tf.where(takes(first + tf.range(rows), part)), 1)
        return first + rows, tf.nest.map_structure(lambda tensor: tf.gather(tensor, places), part)

    return blocks.scan(tf.constant(0, tf.int64), cut)


def _decide(choice: Choice, numbers: np.ndarray, keys: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the mask of selected rows, bool [B], computed outside of the caller's graph."""
    if not choice.keys:
        return np.asarray(choice.takes(numbers, {}))
    if not len(numbers):
        return np.zeros([0], bool)
    (mask,) = _iterate(
        lambda: tf.data.Dataset.from_tensors((numbers, dict(keys))).map(
            tf.autograph.experimental.do_not_convert(
                lambda rows, values: choice.takes(rows, _to_texts(values))
            )
        )
    )
    return mask


def _count_rows(block: Mapping[str, packed.Values], fields: Mapping[str, spec_lib.Field]) -> int:
    name, field = next(iter(fields.items()))
    return packed.count_rows(block[name], field)


def _decide_values(
    choice: Choice, first: int, block: Mapping[str, packed.Values], count: int
) -> np.ndarray:
    """Return the mask of selected rows, bool [count], from a block of packed keys."""
    keys = {
        name: packed.unpack_texts(values) if isinstance(values, packed.Texts) else values
        for name, values in cast(Mapping[str, Any], block).items()
    }
    return _decide(choice, np.arange(first, first + count), keys)


def _cut_values(
    choice: Choice,
    blocks: Iterable[Mapping[str, packed.Values]],
    keys: Iterable[Mapping[str, packed.Values]],
    fields: Mapping[str, spec_lib.Field],
    key_fields: Mapping[str, spec_lib.Field],
) -> Iterator[dict[str, packed.Values]]:
    """Yield the selected rows of each block; blocks of `keys` may have other sizes."""
    masks, mask, start = _decide_blocks(choice, keys, key_fields), np.zeros([0], bool), 0
    for block in blocks:
        count = _count_rows(block, fields)
        # Read keys only up to the end of this block, because a caller may stop after some blocks.
        while len(mask) < count and (part := next(masks, None)) is not None:
            mask = np.concatenate([mask, part])
        is_chosen, mask = mask[:count], mask[count:]
        if not choice.keys:
            is_chosen = _decide_values(choice, start, {}, count)
        places = np.flatnonzero(is_chosen)
        yield {name: packed.choose(block[name], places, field) for name, field in fields.items()}
        start += count


def _decide_blocks(
    choice: Choice,
    keys: Iterable[Mapping[str, packed.Values]],
    fields: Mapping[str, spec_lib.Field],
) -> Iterator[np.ndarray]:
    """Yield a mask of the selected rows for each block of keys."""
    start = 0
    for block in keys:
        count = _count_rows(block, fields)
        yield _decide_values(choice, start, block, count)
        start += count


def _cut_blocks(
    choice: Choice,
    blocks: types.Blocks,
    keys: types.Blocks | None,
    key_fields: Mapping[str, spec_lib.Field],
) -> types.Blocks:
    """Return the blocks reduced to the selected rows, without empty blocks."""
    masks, sizes, start = {}, [], 0
    for number, count in enumerate(blocks.sizes):
        block_keys = {} if keys is None else keys.read(number, key_fields)
        is_chosen = _decide_values(choice, start, block_keys, count)
        start += count
        if is_chosen.any():
            masks[number] = np.packbits(is_chosen)  # Bits take an eighth of the memory of bools.
            sizes.append(int(is_chosen.sum()))
    numbers = list(masks)

    def read(block: int, fields: Mapping[str, spec_lib.Field]) -> dict[str, packed.Values]:
        values = blocks.read(numbers[block], fields)
        # `count` drops the padding bits of the last byte.
        bits = np.unpackbits(masks[numbers[block]], count=blocks.sizes[numbers[block]])
        places = np.flatnonzero(bits)
        return {name: packed.choose(values[name], places, field) for name, field in fields.items()}

    return blocks._replace(sizes=tuple(sizes), read=read)
