"""An export in Node.js: tfjs-node, on the C API of TensorFlow, answers as this process does.

    python -m tests.clients.node

It needs node, npm and g++. npm installs `@tensorflow/tfjs-node` without its scripts, which would
download an old TensorFlow. g++ builds its binding against the TensorFlow wheel of this Python. Then
Node.js gets every request of `odd_export.list_requests()`, for each signature.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import tensorflow as tf

from tests.clients import environments, odd_export

_PACKAGE = "@tensorflow/tfjs-node"
_VERSION = "4.22"
_NAPI_VERSION = 8
_SOURCES = ("tfjs_backend.cc", "tfjs_binding.cc")
_SCRIPT = pathlib.Path(__file__).with_name("node_predict.js")


def build(env: str) -> pathlib.Path:
    """Install tfjs-node and build its binding, unless both are there, and return its folder.

    Raises:
      LackingError: a program, the package or TensorFlow's library is not to be had.
    """
    environments.require_program("node")
    npm, compiler = map(environments.require_program, ("npm", "g++"))
    folder = pathlib.Path(env).absolute()
    package = folder / "node_modules" / _PACKAGE
    if not package.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
        environments.install([npm, "install", *options, f"{_PACKAGE}@{_VERSION}"], folder)
    binding = package / "lib" / f"napi-v{_NAPI_VERSION}" / "tfjs_binding.node"
    stamp = binding.with_name(f"tensorflow-{tf.__version__}")
    if not stamp.exists():
        _compile(compiler, package, binding)
        stamp.touch()
    return package


def _compile(compiler: str, package: pathlib.Path, binding: pathlib.Path) -> None:
    library = pathlib.Path(tf.sysconfig.get_lib())
    libraries = [library / "libtensorflow_cc.so.2", library / "libtensorflow_framework.so.2"]
    node = pathlib.Path(environments.require_program("node")).resolve()
    headers = node.parents[1] / "include" / "node"
    for needed in (*libraries, headers / "node_api.h"):
        if not needed.exists():
            raise environments.LackingError(f"no {needed}.")
    binding.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", "-fPIC", "-O1", "-std=c++17", f"-DNAPI_VERSION={_NAPI_VERSION}"]
    includes = [f"-I{headers}", f"-I{tf.sysconfig.get_include()}"]
    sources = [package / "binding" / name for name in _SOURCES]
    command = [compiler, *flags, *includes, *sources, *libraries, f"-Wl,-rpath,{library}"]
    subprocess.run([*map(str, command), "-o", str(binding)], check=True)


def ask(package: pathlib.Path, export: str, questions: list[dict]) -> dict:
    """Return the versions and signatures that Node.js tells, and its answers."""
    command = ["node", str(_SCRIPT), str(package), export]
    return json.loads(environments.ask_by_files(command, json.dumps(questions).encode()))


def compare(package: pathlib.Path, export: odd_export.Export) -> tuple[dict, odd_export.Tally]:
    """Send all requests to all signatures; fail unless the answers equal this process's answers."""
    asked, questions = [], []
    for signature in sorted(export.signatures):
        for request in odd_export.list_requests():
            inputs = export.write_inputs(request, signature)
            if inputs is not None:
                asked.append((signature, request))
                described = odd_export.write_tensors(inputs)
                questions.append({"signature": signature, "inputs": described})
    told = ask(package, export.path, questions)
    assert sorted(told["signatures"]) == sorted(export.signatures), told["signatures"]
    tally = odd_export.Tally()
    for (signature, request), answer in zip(asked, told["answered"], strict=True):
        outputs = odd_export.read_tensors(answer["outputs"]) if "outputs" in answer else None
        where = f"{signature}, {request.name}"
        tally.compare(where, outputs, export.answer(request, signature))
    return told["versions"], tally


def main() -> None:
    """Build, export and compare, and print how many answers are equal."""
    options = environments.make_parser(__doc__, "node").parse_args()
    with environments.skipping():
        package = build(options.env)
    with tempfile.TemporaryDirectory() as folder:
        export = odd_export.make(pathlib.Path(folder))
        versions, tally = compare(package, export)
    print(f"tfjs-node {_VERSION}, Node.js {versions['node']}, TensorFlow {versions['tensorflow']}")
    print(f"{len(export.signatures)} signatures: {tally}")


if __name__ == "__main__":
    sys.exit(main())
