"""Datasets that read files; remote files are first copied to this machine.

read = copies.Reader(["s3://bucket/a.csv", "s3://bucket/b.csv"])       # copies both
lines = tf.data.Dataset.from_tensor_slices(paths).flat_map(lambda path: read.lines(path, ""))

The saved state of an iterator holds the paths of the original files. So another process can load
the state of an iterator, although the paths of its local copies differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtl.deferred import tf
from mtl.files import remote

# The number of bytes in one read, as in TensorFlow's readers of files.
_BUFFER = 256 * 1024


class Reader:
    """Makes datasets from file paths, which are string tensors.

    Args:
      paths: the files that the datasets may read.
      copy: a function from a path to the path of the local copy.

    Raises:
      UserError: a file cannot be copied.
    """

    def __init__(self, paths: Sequence[str], copy: Callable[[str], str] = remote.copy_here):
        self._paths, self._is_here = list(paths), not any(map(remote.is_remote, paths))
        self._copies = self._paths if self._is_here else list(map(copy, paths))

    def lines(self, path: Any, compression: Any) -> tf.data.Dataset:
        """Return the lines of a text file.

        Args:
          path: one of the files, a scalar string.
          compression: "" or "GZIP".

        Returns:
          A dataset of scalar strings, without line ends.
        """
        if self._is_here:
            return tf.data.TextLineDataset(path, compression)
        return self._open(tf.raw_ops.TextLineDataset, path, compression_type=compression)

    def records(self, path: Any, compression: Any) -> tf.data.Dataset:
        """Return the records of a TFRecord file.

        Args:
          path: one of the files, a scalar string.
          compression: "", "GZIP" or "ZLIB".

        Returns:
          A dataset of scalar strings.
        """
        if self._is_here:
            return tf.data.TFRecordDataset(path, compression)
        return self._open(tf.raw_ops.TFRecordDataset, path, compression_type=compression)

    def pieces(
        self, path: Any, num_bytes: Any, header: Any = 0, footer: Any = 0, compression: str = ""
    ) -> tf.data.Dataset:
        """Return a file without its header and footer, in pieces of equal size.

        Args:
          path: one of the files, a scalar string.
          num_bytes: the size of a piece in bytes.
          header: the number of bytes to leave out at the start of the file.
          footer: the number of bytes to leave out at the end of the file.
          compression: "", "GZIP" or "ZLIB".

        Returns:
          A dataset of scalar strings of `num_bytes` bytes.
        """
        if self._is_here:
            return tf.data.FixedLengthRecordDataset(
                path, num_bytes, header, footer, compression_type=compression
            )
        sizes = {"record_bytes": num_bytes, "header_bytes": header, "footer_bytes": footer}
        sizes = {name: tf.cast(size, tf.int64) for name, size in sizes.items()}
        op = tf.raw_ops.FixedLengthRecordDatasetV2
        return self._open(op, path, compression_type=compression, **sizes)

    def _open(self, op: Callable[..., Any], path: Any, **settings: Any) -> tf.data.Dataset:
        # Use raw ops, because classes of tf.data would save the paths of the copies in the state of
        # an iterator.
        is_path = tf.equal(tf.constant(self._paths), path)
        message = "a file that was read before the stop is not among the files of the split"
        check = tf.debugging.Assert(tf.reduce_any(is_path), [message, path])
        with tf.control_dependencies([check]):
            copy = tf.boolean_mask(tf.constant(self._copies), is_path)[:1]
        size = tf.constant(_BUFFER, tf.int64)
        variant = op(filenames=copy, buffer_size=size, **settings)
        return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
