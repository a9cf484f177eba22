"""An export in C++: TensorFlow's own loader answers `portable/raw` as this process answers.

    python -m tests.clients.cpp

g++ builds tests/clients/cpp_predict.cc against the headers and libraries of the TensorFlow wheel of
this Python. The program loads the SavedModel with plain tensors of `Serving.portable`, and gets the
requests of `odd_export.list_requests()` that tensors can hold.
"""

import pathlib
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tests.clients import environments, odd_export

_SOURCE = pathlib.Path(__file__).with_name("cpp_predict.cc")
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")


def build(env: str) -> pathlib.Path:
    """Build the program, unless it is there, and return its path.

    Raises:
      LackingError: g++ or the C++ libraries of the wheel are missing.
    """
    compiler = environments.require_program("g++")
    library = pathlib.Path(tf.sysconfig.get_lib())
    libraries = [library / name for name in _LIBRARIES]
    for needed in libraries:
        if not needed.exists():
            raise environments.LackingError(f"no {needed}.")
    program = pathlib.Path(env).absolute() / f"predict-{tf.__version__}"
    if not program.exists() or program.stat().st_mtime < _SOURCE.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        # The program calls no function of the library that registers the sessions.
        linking = ["-Wl,--no-as-needed", f"-Wl,-rpath,{library}"]
        flags = ["-O1", "-w", *tf.sysconfig.get_compile_flags(), *linking]
        command = [compiler, *flags, str(_SOURCE), *map(str, libraries), "-o", str(program)]
        subprocess.run(command, check=True)
    return program


def ask(
    program: pathlib.Path, export: str, requests: list[Mapping[str, np.ndarray]]
) -> list[dict[str, np.ndarray] | None]:
    """Return the outputs for each request; None if TensorFlow refuses it."""
    done = subprocess.run(
        [program, export],
        input=b"".join(map(write_request, requests)),
        stdout=subprocess.PIPE,
        env=environments.environ(),
        check=True,
        timeout=300,
    )
    replies = _Replies(done.stdout)
    answers = [replies.read() for _ in requests]
    assert replies.is_over
    return answers


def write_request(inputs: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of a request, which tests/clients/cpp_predict.cc describes."""
    pieces = [_pack(len(inputs))]
    for name, array in inputs.items():
        dtype = tf.as_dtype(array.dtype).as_datatype_enum
        pieces += [_pack_text(name.encode()), _pack(dtype, array.ndim, *array.shape)]
        texts = array.dtype == object
        pieces += map(_pack_text, array.ravel()) if texts else [array.tobytes()]
    return b"".join(pieces)


def _pack(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _pack_text(text: bytes) -> bytes:
    return _pack(len(text)) + text


class _Replies:
    """Reads the replies of the program one by one."""

    def __init__(self, data: bytes):
        self._data, self._place = data, 0

    @property
    def is_over(self) -> bool:
        return self._place == len(self._data)

    def read(self) -> dict[str, np.ndarray] | None:
        (count,) = self._read_numbers(1)
        return None if count < 0 else dict(self._read_tensor() for _ in range(count))

    def _read_tensor(self) -> tuple[str, np.ndarray]:
        name = self._read_text().decode()
        enum, rank = self._read_numbers(2)
        shape, dtype = self._read_numbers(rank), tf.as_dtype(enum).as_numpy_dtype
        size = int(np.prod(shape, dtype=np.int64))
        if enum == tf.string.as_datatype_enum:
            array = np.array([self._read_text() for _ in range(size)], object)
        else:
            array = np.frombuffer(self._read_bytes(size * np.dtype(dtype).itemsize), dtype)
        return name, array.reshape(shape)

    def _read_text(self) -> bytes:
        return self._read_bytes(*self._read_numbers(1))

    def _read_numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}q", self._read_bytes(8 * count))

    def _read_bytes(self, size: int) -> bytes:
        start, self._place = self._place, self._place + size
        assert self._place <= len(self._data)
        return self._data[start : self._place]


def compare(program: pathlib.Path, export: odd_export.Export) -> odd_export.Tally:
    """Ask every request, and fail unless the answers equal the answers of this process."""
    asked = [request for request in odd_export.list_requests() if request.examples is None]
    inputs = [request.fill().write_tensors() for request in asked]
    # Lengths beyond the lists, which TensorFlow refuses.
    wrong = {**inputs[0], "tags/length": inputs[0]["tags/length"] + 9}
    *answers, refused = ask(program, f"{export.path}/portable/raw", [*inputs, wrong])
    assert refused is None, refused
    tally = odd_export.Tally()
    for request, answered in zip(asked, answers, strict=True):
        tally.compare(request.name, answered, export.answer(request, "lean"))
    return tally


def main() -> None:
    """Build, export and compare, and print how many answers are equal."""
    options = environments.make_parser(__doc__, "cpp").parse_args()
    with environments.skipping():
        program = build(options.env)
    with tempfile.TemporaryDirectory() as folder:
        export = odd_export.make(pathlib.Path(folder), portable=True)
        tally = compare(program, export)
    print(f"C++, TensorFlow {tf.__version__}: {tally}")


if __name__ == "__main__":
    sys.exit(main())
