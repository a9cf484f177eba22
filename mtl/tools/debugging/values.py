"""Shows the values of a tensor as text, and saves values to a file.

print(values.draw_table(array, rows=4))
values.save("runs/a/hidden.npz", {"network/trunk/hidden_0/Relu:0": array})
"""

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtl import aligned
from mtl.files import atomic

_COLUMNS = 8


def draw_table(value: np.ndarray, rows: int, columns: int = _COLUMNS) -> str:
    """Return an array as text; if its first axis has the rows of the batch, each row gets a line.

    Args:
      value: an array of any shape.
      rows: the number of rows in the batch.
      columns: the number of columns to show at most.
    """
    # An array such as a kernel has no axis for rows.
    if value.ndim == 0 or len(value) != rows:
        return np.array2string(value, precision=6, threshold=200)
    flat = value.reshape(rows, -1)
    lines = [
        [str(row), *map(_show_value, itertools.islice(flat[row], columns))] for row in range(rows)
    ]
    header = ["row", *map(str, range(min(columns, flat.shape[1])))]
    more = f"\n{flat.shape[1] - columns:,} more columns" if flat.shape[1] > columns else ""
    return _align_lines([header, *lines]) + more


def draw_fields(arrays: Mapping[str, np.ndarray], rows: int) -> str:
    """Return arrays as text, with a line for each number and a column for each row of the batch.

    Arrays whose first axis is not the axis of rows come at the end.

    Args:
      arrays: {name: array}; some arrays have an entry for each row of the batch along their first
        axis.
      rows: the number of rows in the batch.
    """
    lines = [["", *(f"row {row}" for row in range(rows))]]
    single = []
    for name, value in arrays.items():
        if value.ndim and len(value) == rows:
            flat = value.reshape(rows, -1)
            names = [name] if flat.shape[1] == 1 else [f"{name}[{i}]" for i in range(flat.shape[1])]
            lines += [[n, *map(_show_value, c)] for n, c in zip(names, flat.T, strict=True)]
        else:
            single.append([name, _show_value(value[()])])
    # Leave out the table of rows if it has only a header.
    return "\n\n".join(_align_lines(part) for part in (lines[len(lines) == 1 :], single) if part)


def _align_lines(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(aligned.align_columns(lines, right=range(1, len(lines[0]))))


def _show_value(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:.7g}" if isinstance(value, (float, np.floating)) else str(value)


def save(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file for `numpy.load`.

    Args:
      path: the path of the .npz file.
      arrays: {name: array of any shape}. Bytes become Unicode, so that the file needs no pickle.
    """
    buffer = io.BytesIO()
    texts = {name: _decode_texts(array) for name, array in arrays.items() if array.dtype == object}
    all_arrays: dict[str, Any] = {**arrays, **texts}
    np.savez(buffer, **all_arrays)
    atomic.write(path, buffer.getvalue())


def _decode_texts(values: np.ndarray) -> np.ndarray:
    """Convert bytes to texts, and escape bytes that are not UTF-8."""
    texts = [
        value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
        for value in values.ravel().tolist()
    ]
    return np.array(texts, str).reshape(values.shape)
