"""A source that reads any dataset of tensorflow-datasets, by name or by its builder class.

tfds.Tfds.name = "mnist"                                    # or "glue/cola", "mnist:3.0.1"
tfds.Tfds.name = "mtl.datasets.digits.builder.Digits"           # a builder that is not registered
tfds.Tfds.rename = {"digit": "label"}                       # {field: feature}
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from absl import logging

from mtl import checks, deferred, types
from mtl import spec as spec_lib
from mtl.data import source
from mtl.deferred import tf, tf1
from mtl.files import storage

with deferred.imports():  # Only the setting `window` needs this import.
    from mtl.data import record_blocks

_CLASS_PATH = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"
# Matches a dataset in the catalogue of tensorflow-datasets, with config and version.
_CATALOGUED = r"[A-Za-z]\w*(/[\w+\-.]+)?(:(\d+|\*)(\.(\d+|\*)){2})?"
# A hub may precede the name, and arguments of the builder may follow the name.
_READABLE = rf"([\w\-]+:)?{_CATALOGUED}(/(\w+=[^,]+,?)+)?"
# Saved runs may name the earlier package of the builders in `mtl.datasets`.
_MOVED = re.compile(r"^mtl\.data\.")
_NAMES = "name a dataset, such as 'mnist', 'glue/cola' or 'mnist:3.0.1', or a builder class"


@checks.dataclass
class Tfds(types.Source):
    """A source that reads tensorflow-datasets; splits may be expressions, such as "train[:80%]".

    The first use of a dataset downloads the data if necessary, and writes the dataset to
    `data_dir`, under a temporary name until the dataset is complete.

    Attributes:
      name: the name in tensorflow-datasets, optionally with config and version, or
        "package.module.Class" for a builder that you wrote.
      data_dir: the folder of prepared datasets; None is the default of tensorflow-datasets
        (TFDS_DATA_DIR or ~/tensorflow_datasets).
      manual_dir: the folder for files that you must download by hand, as some builders require;
        None is <data_dir>/downloads/manual.
      rename: {field: feature}, if the dataset has another name for a field; "a/b" is the feature b
        inside of the feature a.
      window: the number of examples that all workers together keep in memory and shuffle at a time,
        if the dataset is stored as TFRecord files; see `tfrecord.TfRecord`. With `window = None`,
        `Pipeline.shuffle_buffer` mixes the examples.
    """

    name: Annotated[str, checks.Is(str, _NAMES)]
    data_dir: Annotated[str | None, checks.Is((str, type(None)), "be a path")] = None
    manual_dir: Annotated[str | None, checks.Is((str, type(None)), "be a path")] = None
    rename: Annotated[Mapping[str, str], checks.Map("map fields to features")] = dataclasses.field(
        default_factory=dict
    )
    # The repr leaves out this setting, because a resumed run compares the repr with the saved
    # repr, which lacks the setting if an older version saved it.
    window: Annotated[int, checks.positive] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self):
        is_readable = any(re.fullmatch(form, self.name) for form in (_CLASS_PATH, _READABLE))
        checks.require(is_readable, "Tfds.name", _NAMES, self.name)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the examples of a split in the order of the files.

        If the dataset stores each feature unchanged, the examples stay serialized, because `decode`
        can parse a whole batch of serialized examples in a tenth of the time. If the dataset stores
        a feature in another form, each example is a dict of features.

        Raises:
          UserError: the dataset cannot be read or prepared, or the split does not exist or is
            empty.
        """
        return self._read_serialized(split) if self._stored else self._read_parsed(split)

    def list_blocks(self, split: str, spec: spec_lib.Spec) -> types.Blocks | None:
        """Return the blocks of a split; None without a window.

        Raises:
          UserError: the dataset is not stored as TFRecord files, a file is damaged, or the windows
            do not fit into memory.
        """
        if self.window is None:
            return None
        info = self._builder.info
        kind = getattr(info.file_format, "value", "")
        rule = f"be left out, because {self.name} is stored as {kind}, not as tfrecord"
        checks.require(kind == "tfrecord", "Tfds.window", rule, self.window)

        def decode(
            records: tf.data.Dataset, count: tf.Tensor, spec: spec_lib.Spec
        ) -> Mapping[str, Any]:
            if not self._stored:
                records = records.map(info.features.deserialize_example)
            return self.decode(source.batch(records, count).get_single_element(), spec, True)

        files = [
            record_blocks.File(os.fspath(part.filename), part.skip, part.take)
            for part in self._list_parts(split)
        ]
        return record_blocks.list_blocks("Tfds.window", self.window, files, spec, decode)

    def _list_parts(self, split: str) -> Sequence[Any]:
        """Return the parts of files that a split consists of, with `filename`, `skip` and `take`.

        Raises:
          UserError: the split does not exist or is empty.
        """
        try:
            parts = self._builder.info.splits[split].file_instructions
        except (ValueError, AssertionError, KeyError) as error:
            raise self._split_error(split, error) from None
        if not parts:
            problem = ValueError(f"Instruction {split!r} corresponds to no data.")
            raise self._split_error(split, problem)
        return parts

    def _read_serialized(self, split: str) -> tf.data.Dataset:
        parts = self._list_parts(split)
        paths = [os.fspath(part.filename) for part in parts]
        skips, takes = (np.array([getattr(p, key) for p in parts]) for key in ("skip", "take"))
        files = tf.data.Dataset.from_tensor_slices((paths, skips, takes))

        def read(path: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
            return tf.data.TFRecordDataset(path).skip(skip).take(take)

        # If a file is truncated between two records, `assert_cardinality` raises an error.
        count = tf.data.experimental.assert_cardinality(takes.sum())
        return files.flat_map(read).apply(count)

    def _read_parsed(self, split: str) -> tf.data.Dataset:
        import tensorflow_datasets

        builder = self._builder
        # A cycle length of 1 keeps the order of the files.
        config = tensorflow_datasets.ReadConfig(
            interleave_cycle_length=1, try_autocache=False, skip_prefetch=True
        )
        try:
            return builder.as_dataset(split=split, shuffle_files=False, read_config=config)
        except (ValueError, AssertionError) as error:
            raise self._split_error(split, error) from None

    @functools.cached_property
    def _stored(self) -> dict[str, tuple[Any, tf.DType]]:
        """{feature: (parser, type)}; {} if a feature is nested, encoded, optional or a list."""
        import tensorflow_datasets

        features, info = tensorflow_datasets.features, self._builder.info
        as_it_is = (features.Tensor, features.Scalar, features.ClassLabel, features.Text)
        top = info.features if type(info.features) is features.FeaturesDict else {}
        kinds = {name: feature.get_tensor_info() for name, feature in top.items()}
        can_be_parsed = getattr(info.file_format, "value", "") == "tfrecord" and all(
            type(feature) in as_it_is and _is_stored_as_it_is(feature) for feature in top.values()
        )
        if not can_be_parsed:
            return {}
        return {name: (_describe_stored(kind), kind.tf_dtype) for name, kind in kinds.items()}

    def _split_error(self, split: str, error: Exception) -> checks.UserError:
        split_names = list(self._builder.info.splits)
        base = re.split(r"[\[+]", split, maxsplit=1)[0]
        hint = (
            source.explain_unreadable(error)
            if base in split_names
            else checks.nearest(base, split_names)
        )
        rule = f"name a split ({', '.join(split_names)}) or a slice, such as 'train[:80%]'"
        return checks.UserError(f"Tfds {self.name} split must {rule}, got {split!r}. {hint}")

    def decode(self, batch: Any, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Turn a batch of records into {name: [B, ...]}; floats are never cast to integers."""
        fields = spec.fields if with_labels else spec.feature_fields
        if self._stored:
            batch = self._parse(
                batch, {self._name_feature(f, self._stored) for f in fields.values()}
            )
        return {name: self._decode(batch, field) for name, field in fields.items()}

    def _parse(self, serialized: tf.Tensor, names: Collection[str]) -> dict[str, tf.Tensor]:
        """Parse only some features of serialized examples [B] into {feature: [B, ...]}."""
        specs = {name: self._stored[name][0] for name in sorted(names)}
        values = tf.io.parse_example(serialized, specs)
        return {name: tf.cast(value, self._stored[name][1]) for name, value in values.items()}

    def _decode(self, batch: Mapping[str, Any], field: spec_lib.Field) -> Any:
        values = _reach(batch, self._name_feature(field, batch))
        where = f"Tfds {self.name} field {field.name!r}"
        dtype = tf.as_dtype(field.dtype)
        texts = (values.dtype == tf.string, dtype == tf.string)
        lossless = texts[0] == texts[1] and (dtype.is_floating or not values.dtype.is_floating)
        fix = f"Make it {values.dtype.name} in the Spec."
        checks.require(lossless, where, f"hold {field.dtype}", values.dtype.name, fix)
        fits = values.shape.is_compatible_with([None, *field.shape])
        fix = f"Make it {tuple(values.shape[1:])} in the Spec."
        checks.require(fits, where, f"have shape {field.shape}", tuple(values.shape[1:]), fix)
        if isinstance(values, tf.RaggedTensor) and not field.is_ragged:
            values = _require_sizes(values, field)
        return field.cast(values)

    def _name_feature(self, field: spec_lib.Field, example: Mapping[str, Any]) -> str:
        path = self.rename.get(field.name, field.name)
        paths = _list_paths(example)
        checks.one_of(f"Tfds {self.name} field {field.name!r}", path, paths)
        return path

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each example of a split."""
        for index, example in enumerate(source.iterate(functools.partial(self.records, split))):
            location = f"{self.name} split {split!r} example {index}"
            if isinstance(example, tf.errors.OpError):
                yield location, f"{source.explain_unreadable(example)}."
            else:
                stored_example = self._read_stored(example) if self._stored else example
                yield location, self._scan_example(stored_example, spec)

    def _read_stored(self, serialized: bytes) -> dict[str, np.ndarray]:
        features = tf.train.Example.FromString(serialized).features.feature
        lists = {tf.string: "bytes_list", tf.float32: "float_list", tf.int64: "int64_list"}
        arrays = {
            name: np.array(
                getattr(features[name], lists[kind.dtype]).value, kind.dtype.as_numpy_dtype
            )
            for name, (kind, _) in self._stored.items()
        }
        # tf.Examples store unsigned numbers from 2^63 on as negative numbers.
        return {
            name: arrays[name].astype(dtype.as_numpy_dtype)
            for name, (_, dtype) in self._stored.items()
        }

    def _scan_example(self, example: Mapping[str, Any], spec: spec_lib.Spec) -> dict | str:
        def list_parts(field: spec_lib.Field) -> list[Any]:
            array = _reach(example, self._name_feature(field, example))
            flat = array.reshape(-1).tolist() if hasattr(array, "reshape") else [array]
            return [v.decode(errors="replace") if isinstance(v, bytes) else v for v in flat]

        return spec.example(list_parts)

    @property
    def modules(self) -> dict[str, str]:
        """{name of a setting: the module whose code runs because of the setting}.

        If the name of a dataset has a hub or arguments of the builder, it may stand for a folder,
        so the whole name is returned in place of a module.
        """
        if re.fullmatch(_CLASS_PATH, self.name):
            return {"name": self.name.rpartition(".")[0]}
        is_plain = re.fullmatch(_CATALOGUED, self.name)
        return {"name": "tensorflow_datasets" if is_plain else self.name}

    @functools.cached_property
    def _builder(self) -> Any:
        """The builder of the prepared dataset."""
        import tensorflow_datasets

        settings = {"data_dir": self.data_dir} if self.data_dir else {}
        try:
            is_path = re.fullmatch(_CLASS_PATH, self.name)
            if is_path:
                builder = self._builder_class()(**settings)
            else:
                builder = self._catalogued_builder(settings)
        except tensorflow_datasets.core.registered.DatasetNotFoundError:
            catalogue = tensorflow_datasets.list_builders(with_community_datasets=False)
            fix = checks.nearest(re.split("[/:]", self.name)[0], catalogue)
            checks.fail("Tfds.name", _NAMES, self.name, fix)
        if not builder.data_path.exists():
            self._prepare(builder)
        return builder

    def _catalogued_builder(self, settings: Mapping[str, str]) -> Any:
        import tensorflow_datasets

        try:
            return tensorflow_datasets.builder(self.name, try_gcs=False, **settings)
        except tensorflow_datasets.core.registered.DatasetNotFoundError:
            raise
        except Exception as error:  # A wrong config, version, argument or file may raise any error.
            where = f" in {self.data_dir!r}" if self.data_dir else ""
            problem = source.explain_unreadable(error).rstrip(".: ")
            checks.fail("Tfds.name", _NAMES, self.name, f"It cannot be opened{where}: {problem}.")

    def _builder_class(self) -> Any:
        import tensorflow_datasets

        module, _, name = _MOVED.sub("mtl.datasets.", self.name).rpartition(".")
        rule = _NAMES
        try:
            builder_class = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            checks.fail("Tfds.name", rule, self.name, f"{source.explain_unreadable(error)}.")
        builder = tensorflow_datasets.core.DatasetBuilder
        is_builder = isinstance(builder_class, type) and issubclass(builder_class, builder)
        checks.require(is_builder, "Tfds.name", rule, self.name)
        return builder_class

    def _prepare(self, builder: Any) -> None:
        import tensorflow_datasets

        # Check the network first, because tensorflow-datasets would retry each download for
        # minutes.
        for url in [] if self.manual_dir else list(builder.url_infos or {})[:1]:
            if not storage.reachable(url):
                raise self._prepare_error(builder, f"{url} cannot be reached.")
        logging.info("Preparing %s in %s", self.name, builder.data_path)
        tensorflow_datasets.disable_progress_bar()
        config = tensorflow_datasets.download.DownloadConfig(
            try_download_gcs=False, manual_dir=self.manual_dir
        )
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                builder.download_and_prepare(download_config=config)
        except Exception as error:  # Builders can raise any error.
            # Another worker may have prepared the same dataset in the meantime.
            if builder.data_path.exists():
                return
            raise self._prepare_error(builder, f"{source.explain_unreadable(error)}.") from error

    def _prepare_error(self, builder: Any, problem: str) -> checks.UserError:
        by_hand = builder.MANUAL_DOWNLOAD_INSTRUCTIONS
        steps = f" For Tfds.manual_dir: {' '.join(by_hand.split())}" if by_hand else ""
        return checks.UserError(
            f"Tfds.name must name a dataset that can be read or prepared, got {self.name!r}. "
            f"{problem} If you cannot mend that, prepare it elsewhere and copy it to "
            f"{builder.data_path}.{steps}"
        )


def _require_sizes(values: tf.RaggedTensor, field: spec_lib.Field) -> tf.Tensor:
    """Convert lists to an array; the op fails if a list has another size than the field."""
    message = f"field {field.name!r} must have shape {field.shape}"
    # `to_tensor` would truncate long lists, and fill short lists with 0.
    fits = [
        tf1.assert_equal(lengths, tf.cast(size, lengths.dtype), message=message)
        for lengths, size in zip(values.nested_row_lengths(), field.shape, strict=False)
    ]
    with tf.control_dependencies(fits):
        return tf.reshape(values.flat_values, [-1, *field.shape])


def _is_stored_as_it_is(feature: Any) -> bool:
    stored_info, info = feature.get_serialized_info(), feature.get_tensor_info()
    # An optional feature has a default, which may be an array, for which `== None` fails.
    is_optional = info.default_value is not None
    is_same = (stored_info.shape, stored_info.tf_dtype) == (info.shape, info.tf_dtype)
    return is_same and None not in info.shape and not is_optional


def _describe_stored(kind: Any) -> tf.io.FixedLenFeature:
    """Return a parser for a feature as tensorflow-datasets stores it in a tf.Example."""
    dtype = kind.tf_dtype
    if dtype != tf.string:
        dtype = tf.float32 if dtype.is_floating else tf.int64
    return tf.io.FixedLenFeature(kind.shape, dtype)


def _list_paths(example: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the paths of the leaves of a nested dict; "a/b" is the leaf b inside of a."""
    return [
        path
        for name, value in example.items()
        for path in (
            _list_paths(value, f"{prefix}{name}/")
            if isinstance(value, Mapping)
            else [prefix + name]
        )
    ]


def _reach(example: Mapping[str, Any], path: str) -> Any:
    return functools.reduce(lambda value, name: value[name], path.split("/"), example)
