"""A source that replaces paths of image files by the bytes of the files.

from mtl.data import image_files
pipeline.Pipeline.source = @image_files.ImageFiles()
image_files.ImageFiles.source = @csv.Csv()
image_files.ImageFiles.fields = ["photo"]                # "string" in the Spec
image_files.ImageFiles.folder = "data/photos"            # paths start here
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from mtl import checks, types
from mtl import spec as spec_lib
from mtl.data import source as source_lib
from mtl.deferred import tf
from mtl.files import images, storage

# File names may not be UTF-8. In regular expressions of TensorFlow, `\C` matches any byte.
_UPWARDS = r"(?s)(?:\C*/)?\.\.(?:/\C*)?"
_ABSOLUTE = r"(?:/|\w+://)"
_NUL = r"(?s)\C*\x00\C*"


@checks.dataclass
class ImageFiles(types.Source):
    """A source that replaces the paths in rows by the bytes of the files.

    The input of an exported model is the encoded image; the model does not read files.
    `launch.predict --input` reads rows with paths in the same way as training.

    Files are read when a batch is decoded: each epoch reads a file once for each row with its path,
    and memory holds only a few batches. Paths outside of `folder` are errors, because rows may come
    from strangers.

    Attributes:
      source: the source of the rows, such as `csv.Csv`.
      fields: the features that hold one path in each row; their type in the Spec is "string".
      folder: the folder in which relative paths start; absolute paths must lie in this folder. ""
        is the current folder, and allows only relative paths.
    """

    source: Annotated[types.Source, source_lib.check]
    fields: Annotated[checks.Names, checks.Filled("name a field")]
    folder: str = ""

    @property
    def names_files(self) -> bool:
        """True, because rows contain file names: the images of all rows may exceed the memory."""
        return True

    @property
    def names(self) -> Sequence[str]:
        """The column names of the inner source; () if the source has no column names."""
        return getattr(self.source, "names", ())

    def find_key_type(self, name: str) -> str:
        """Return the type of a key, "int64" or "string", as splits and joins read the field."""
        return types.read_member(self.source, types.Source, "find_key_type")(name)

    def records(self, split: str) -> tf.data.Dataset:
        """Return the raw records of the inner source, which contain paths.

        Raises:
          UserError: `folder` does not exist.
        """
        self.require_folder()
        return self.source.records(split)

    def shard(self, split: str, num_shards: int, shard: int) -> ImageFiles | None:
        """Return a source for a shard of the files; None if the inner source cannot be divided."""
        deal = types.read_member(self.source, types.Source, "shard")
        part = deal(split, num_shards, shard)
        return part and dataclasses.replace(self, source=part)

    def decode(self, batch: Any, spec: spec_lib.Spec, with_labels: bool) -> dict[str, Any]:
        """Decode a batch with the inner source, and replace paths by file contents, bytes [B].

        Raises:
          InvalidArgumentError: when the graph runs, if a path lies outside of the folder.
          NotFoundError: when the graph runs, if a file does not exist.
        """
        values = self.source.decode(batch, spec, with_labels)
        fields = [name for name in self.fields if name in spec.fields]
        self._check_fields(spec, fields)
        return {**values, **{name: self._read(values[name], name) for name in fields}}

    def scan(self, split: str, spec: spec_lib.Spec) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Yield (location, values or error) for each record; each file must be an image."""
        for location, values in self.source.scan(split, spec):
            yield location, values if isinstance(values, str) else self.read_row(values, spec)

    def read_row(
        self, values: Mapping[str, types.PythonValue], spec: spec_lib.Spec
    ) -> dict[str, types.PythonValue] | str:
        """Replace paths in a row by the bytes of the files.

        Args:
          values: {name: value} of a row, as `scan` of the inner source yields it.
          spec: the fields of the row.

        Returns:
          {name: value}; or an error message, a str, if a file cannot be read or is not an image.

        Raises:
          UserError: the setting `fields` names an unknown field, or a field that is not a single
            text.
        """
        # A pass over labels or keys reads no images, because its Spec lacks the fields.
        columns = source_lib.list_columns(self.source)
        for name in self.fields if columns else ():
            checks.one_of("ImageFiles.fields", name, dict.fromkeys([*spec.features, *columns]))
        fields = [name for name in self.fields if name in spec.features]
        self._check_fields(spec, fields)
        contents: dict[str, types.PythonValue] = {}
        for name in fields:
            problem = self.find_problem(name, values[name])
            if problem:
                return problem
            contents[name] = self.read_file(name, values[name])
        return {**values, **contents}

    def find_problem(self, name: str, path: Any) -> str:
        """Check that a path names an image.

        Args:
          name: the field that holds the path, for the message.
          path: the path, as bytes or text.

        Returns:
          An error message; "" if the file is an image.
        """
        content = self.read_file(name, path)
        if isinstance(content, str):
            return content
        reason = images.explain(content)
        return self._describe(name, path, reason) if reason else ""

    def read_file(self, name: str, path: Any) -> bytes | str:
        """Read the file at a path.

        Args:
          name: the field that holds the path, for the message.
          path: the path, as bytes or text.

        Returns:
          The bytes of the file; or an error message, a str, if the path lies outside of `folder`,
          or the file cannot be read.
        """
        text = os.fsdecode(path)
        is_absolute = re.match(_ABSOLUTE, text) is not None
        # ".." could leave the folder, and C++ would end the file name at NUL.
        is_odd = not text or "\0" in text or ".." in text.split("/")
        if is_odd or (is_absolute and not (self._root and text.startswith(self._root))):
            return self._describe(name, path, self._rule)
        try:
            with tf.io.gfile.GFile(text if is_absolute else self._root + text, "rb") as file:
                return file.read()
        except (OSError, tf.errors.OpError, UnicodeError) as error:
            is_missing = isinstance(error, (FileNotFoundError, tf.errors.NotFoundError))
            reason = (
                "There is no such file."
                if is_missing
                else f"{source_lib.explain_unreadable(error)}."
            )
            return self._describe(name, path, reason)

    def _describe(self, name: str, path: Any, reason: str) -> str:
        folder = f" in {self.folder!r}" if self.folder else ""
        return f"field {name!r} must {images.RULE}, got {os.fsdecode(path)!r}{folder}. {reason}"

    def require_folder(self) -> None:
        """Fail unless `folder` exists.

        Raises:
          UserError: the folder does not exist, or its storage cannot be reached.
        """
        storage.require_path("ImageFiles.folder", self._root or ".")
        is_there = tf.io.gfile.isdir(self._root or ".")
        checks.require(is_there, "ImageFiles.folder", "be a folder that exists", self.folder)

    @property
    def _root(self) -> str:
        """The folder with a slash at the end; "" for the current folder."""
        return os.path.join(os.path.expanduser(self.folder), "") if self.folder else ""

    @property
    def _rule(self) -> str:
        where = f"the folder {self.folder!r}" if self.folder else "the current folder"
        return f"It must be a path within {where} and without '..'."

    def _check_fields(self, spec: spec_lib.Spec, names: Sequence[str]) -> None:
        for name in names:
            field = spec.fields[name]
            is_path = field.dtype == "string" and not field.shape
            rule = "name features of type 'string' without a shape"
            checks.require(is_path, "ImageFiles.fields", rule, name)

    def _read(self, paths: tf.Tensor, name: str) -> tf.Tensor:
        """Read the files at paths [B], and return their bytes [B]."""
        root = re.escape(self._root)
        # This check applies the rules of `read_file` to a whole batch.
        is_absolute = tf.strings.regex_full_match(paths, rf"(?s){_ABSOLUTE}\C*")
        is_below = tf.strings.regex_full_match(paths, rf"(?s){root}\C*") & bool(self._root)
        is_odd = tf.equal(paths, "") | tf.strings.regex_full_match(paths, _NUL)
        is_odd |= tf.strings.regex_full_match(paths, _UPWARDS) | (is_absolute & ~is_below)
        message = f"field {name!r} must {images.RULE}. {self._rule}"
        check = tf.compat.v1.assert_equal(is_odd, False, message=message)
        with tf.control_dependencies([check]):
            full_paths = tf.where(is_absolute, paths, tf.strings.join([self._root, paths]))
        return tf.map_fn(tf.io.read_file, full_paths)
