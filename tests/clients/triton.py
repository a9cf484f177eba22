"""An export behind Triton: `launch.predict --server http://HOST:PORT/v2` answers as here.

    python -m tests.clients.triton

The program first builds a missing environment with `nvidia-pytriton`, which contains Triton's
C++ server. Triton then serves each signature as a model, by its Python backend: the wheel has no
TensorFlow backend. Our client sends every request of `odd_export.list_requests()` to each model,
and `launch.predict` has to write the same file with the server as with the SavedModel.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence

from mtl import checks
from mtl.deferred import tf
from mtl.tools import scoring
from mtl.tools.scoring import batches
from tests.clients import environments, odd_export
from tests.files import object_servers

_SCRIPT = pathlib.Path(__file__).with_name("triton_server.py")
_START_SECS = 180
_LOG_CHARACTERS = 3000


def build(env: str) -> str:
    """Return the Python of an environment with Triton.

    Raises:
      LackingError: the packages are not to be had.
    """
    version = tf.__version__
    # With NumPy 2, Triton's proxy gives empty outputs and no error.
    packages = ("nvidia-pytriton==0.7.*", "numpy<2", f"tensorflow=={version}")
    return environments.build(env, packages=packages, with_project=False)


@contextlib.contextmanager
def serve(python: str, export: odd_export.Export, log: pathlib.Path) -> Iterator[str]:
    """Give http://HOST:PORT/v2 of a Triton that serves an export."""
    http_port, grpc_port = object_servers.find_port(), object_servers.find_port()
    command = [python, str(_SCRIPT), export.path, str(http_port), str(grpc_port)]
    with run(command, http_port, list(map(_name_model, export.signatures)), log) as address:
        yield address


@contextlib.contextmanager
def run(
    command: Sequence[str], http_port: int, models: Sequence[str], log: pathlib.Path
) -> Iterator[str]:
    """Run a program that serves models by Triton while the context is open.

    Args:
      command: the program and its arguments.
      http_port: the port on which it serves HTTP.
      models: the models that have to be ready before the context starts.
      log: a file for the program's output.

    Yields:
      http://HOST:PORT/v2.
    """
    # The backend loads the libpython of its Python, which is not on the library path.
    libraries = [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH", "")]
    environ = environments.environ() | {"LD_LIBRARY_PATH": ":".join(filter(None, libraries))}
    environ.pop("PYTHONPATH")
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environ, stdout=file, stderr=file)
        try:
            address = f"http://127.0.0.1:{http_port}/v2"
            for model in models:
                _wait(process, f"{address}/models/{model}/ready", log)
            yield address
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _name_model(signature: str) -> str:
    """Return the name of the model of a signature; Triton allows no slash."""
    return signature.replace("/", ".")


def _wait(process: subprocess.Popen, address: str, log: pathlib.Path) -> None:
    until = time.monotonic() + _START_SECS
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:  # It does not listen yet, or has no such model yet.
            if process.poll() is not None or time.monotonic() > until:
                told = log.read_text()[-_LOG_CHARACTERS:]
                raise SystemExit(f"Triton does not start:\n{told}") from None
            time.sleep(0.5)


def compare(address: str, export: odd_export.Export) -> odd_export.Tally:
    """Send every request to every model; fail if an answer differs from this process's answer."""
    tally = odd_export.Tally()
    for signature in sorted(export.signatures):
        call = scoring.Call(model=_name_model(signature), deadline_secs=60.0, retries=0)
        client = scoring.connect_server(address, call)
        for request in odd_export.list_requests():
            inputs = export.write_inputs(request, signature)
            if inputs is None:
                continue
            try:
                answered = client(request.serialize())
            except batches.RefusedError:
                answered = None
            except checks.UserError as error:
                assert "HTTP 500" in str(error), error
                answered = None
            where = f"{signature}, {request.name}"
            if all(array.size for array in inputs.values()):
                tally.compare(where, answered, export.answer(request, signature))
            else:
                # The proxy before the Python backend refuses tensors without values.
                assert answered is None, f"{where}: Triton can answer it now: {answered}"
    return tally


def predict_file(address: str, export: odd_export.Export, folder: pathlib.Path) -> int:
    """Fail unless `launch.predict` writes the same files, and return their rows."""
    rows = [r for r in odd_export.list_requests() if r.rows and r.name != "odd floats"]
    examples = [example for request in rows for example in request.serialize()]
    with tf.io.TFRecordWriter(str(folder / "in.tfrecord")) as writer:
        for example in examples:
            writer.write(example)
    models = {
        "here": ["--saved_model", export.path],
        "triton": ["--server", address, "--model_name", "serving_default"],
    }
    for ending in ("jsonl", "csv", "parquet"):
        for name, model in models.items():
            output = ["--input", "in.tfrecord", "--output", f"{name}.{ending}"]
            command = [sys.executable, "-m", "launch.predict", *output, *model]
            subprocess.run(command, cwd=folder, env=environments.environ(), check=True)
        here, triton = (folder / f"{name}.{ending}" for name in models)
        assert here.read_bytes() == triton.read_bytes(), ending
    return len(examples)


def main() -> None:
    """Export, serve and compare, and print how many answers are equal."""
    options = environments.make_parser(__doc__, "triton").parse_args()
    with environments.skipping():
        python = build(options.env)
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        export = odd_export.make(folder)
        with serve(python, export, folder / "triton.log") as address:
            tally = compare(address, export)
            rows = predict_file(address, export, folder)
    print(f"{len(export.signatures)} signatures: {tally}")
    print(f"launch.predict: the same files of {rows} rows, by the server and by the SavedModel")


if __name__ == "__main__":
    main()
