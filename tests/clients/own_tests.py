"""Runs the Estimator tests of DeepCTR and TF-Ranking on new TensorFlow.

    git clone https://github.com/shenweichen/DeepCTR .clients/sources/DeepCTR
    python -m tests.clients.own_tests deepctr --source .clients/sources/DeepCTR
    git clone https://github.com/tensorflow/ranking .clients/sources/ranking
    python -m tests.clients.own_tests ranking --source .clients/sources/ranking

It builds a missing environment, imports `mtl.compat` there, and has pytest run the tests of the
clone. Nothing in the clone is changed. It fails if a test fails, or if no test runs.
"""

import dataclasses
import subprocess
import sys

from tests.clients import environments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Client:
    """The needs of a client's tests, and the files and the keyword that select the tests."""

    packages: tuple[str, ...]
    files: tuple[str, ...]
    extras: str = "heads"
    keyword: str = ""
    before: str = ""


CLIENTS = {
    "deepctr": Client(
        packages=("h5py", "packaging", "requests"),
        files=("tests/models",),
        keyword="Estimator",
        # Its tests of Estimators return at once on TensorFlow 2.6 and later, unless they are told.
        before="import tests.utils; tests.utils.TEST_Estimator = True",
    ),
    "ranking": Client(
        packages=("six",),
        files=(
            "tensorflow_ranking/python/estimator_test.py",
            "tensorflow_ranking/python/head_test.py",
            "tensorflow_ranking/python/model_test.py",
            "tensorflow_ranking/python/keras/estimator_test.py",
        ),
        extras="heads,serving",
        # absl's runner of tests does so, and pytest does not.
        before="from absl import flags; flags.FLAGS(sys.argv[:1])",
    ),
}


def main() -> int:
    """Run the tests of a client, and return the exit code of pytest: 0 if all of them pass."""
    parser = environments.make_parser(__doc__, "own_CLIENT")
    parser.set_defaults(env=None)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--source", required=True, help="the clone")
    options = parser.parse_args()
    client = CLIENTS[options.client]
    env = options.env or environments.find_folder(f"own_{options.client}")
    python = environments.build(env, client.extras, ("pytest", *client.packages))
    script = "\n".join(
        [
            "import sys, mtl.compat",
            client.before,
            "import pytest, tensorflow as tf",
            "from mtl.compat import keras",
            "print('TensorFlow', tf.__version__, 'and Keras', keras.in_use())",
            "sys.exit(pytest.main(sys.argv[1:]))",
        ]
    )
    tests = ["-v", "-o", "addopts=", "-p", "no:cacheprovider", "-k", client.keyword, *client.files]
    command = [python, "-c", script, *tests]
    return subprocess.run(command, cwd=options.source, env=environments.environ()).returncode


if __name__ == "__main__":
    sys.exit(main())
