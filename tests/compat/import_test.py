"""Import orders, missing packages and missing pieces, each in a separate Python process.

Tests that begin with the same import share a process that has done it, and run in its forks.
"""

import contextlib
import functools
import os
import pathlib
import subprocess
import sys

import pytest

from mtl import versions
from mtl.compat import keras
from tests import forks

pytestmark = pytest.mark.medium

ROOT = pathlib.Path(__file__).parents[2]
NEW_KERAS = not versions.installed("keras").startswith("2.")
new_keras_only = pytest.mark.skipif(not NEW_KERAS, reason="TensorFlow 2.15 comes with Keras 2")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def run_after():
    """run_after(module, code): as `_run`, where `module` was imported first."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def server(module):
            stack.enter_context(pytest.MonkeyPatch.context()).delenv(keras.SWITCH, raising=False)
            return stack.enter_context(forks.Server(module, TF_CPP_MIN_LOG_LEVEL="3"))

        def run(module, code):
            status, output, errors = server(module).start(code).wait(timeout_secs=120)
            return status, output.strip(), (errors.strip().splitlines() or [""])[-1]

        yield run


def _run(code, **environment):
    """Runs `code`; returns exit code, output and the last line on standard error."""
    inherited = {k: v for k, v in os.environ.items() if k != keras.SWITCH}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout.strip(), (done.stderr.strip().splitlines() or [""])[-1]


def _check(code, **environment):
    status, output, error = _run(code, **environment)
    assert status == 0, error
    return output


def _message(code, run=_run, **environment):
    """The CompatError that `code` ends with."""
    status, _, error = run(code, **environment)
    assert status == 1
    assert error.startswith("mtl.compat.errors.CompatError: "), error
    return error.removeprefix("mtl.compat.errors.CompatError: ")


def test_mtl_alone_does_not_import_tensorflow():
    _check("import mtl, mtl.checks, sys; assert 'tensorflow' not in sys.modules")


def test_importing_says_nothing():
    code = "import warnings; warnings.simplefilter('error', FutureWarning); import mtl.compat"
    status, output, _ = _run(code)
    assert (status, output) == (0, "")


def test_training_does_not_import_the_private_debugger(run_after):
    """TensorFlow may move it, and a run does not need it."""
    code = (
        "import sys, launch.train, mtl.tools.debugging.inspection\n"
        "assert 'mtl.tf_internals.debugger' not in sys.modules"
    )
    status, _, error = run_after("tensorflow", code)
    assert status == 0, error


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("mtl.compat", "import tensorflow as tf"),
        ("tensorflow", "import tensorflow as tf, mtl.compat"),
        slow("mtl.compat", "import tensorflow_estimator, tensorflow as tf"),
        slow("tensorflow", "import tensorflow.compat.v1, mtl.compat, tensorflow as tf"),
        # On a newer TensorFlow the first import fails; mtl.compat repairs it.
        slow(
            None,
            "try:\n    import tensorflow_estimator\nexcept ImportError:\n    pass\n"
            "import mtl.compat, tensorflow as tf",
        ),
    ],
)
def test_import_orders(first, then, run_after):
    run = functools.partial(run_after, first) if first else _run
    status, _, error = run(
        f"{then}\n"
        "import tensorflow_estimator as tfe, tensorflow.compat.v1 as tf1\n"
        "from tensorflow_estimator.python.estimator import estimator\n"
        "assert tf.estimator.Estimator is estimator.EstimatorV2\n"
        "assert tf1.estimator.Estimator is tfe.estimator.Estimator is estimator.Estimator\n"
    )
    assert status == 0, error


@pytest.mark.slow
@pytest.mark.skipif(not keras.in_use().startswith("2."), reason="needs tf-keras")
@pytest.mark.parametrize(
    ("first", "then"), [("mtl.compat", "tensorflow"), ("tensorflow", "mtl.compat")]
)
def test_keras_2_whatever_the_order(first, then, run_after):
    status, _, error = run_after(
        first,
        f"import {then}\n"
        "import tensorflow as tf\n"
        "from tensorflow.keras.layers import Dense\n"
        "from mtl.compat import keras\n"
        "assert keras.in_use().startswith('2.')\n"
        "assert issubclass(Dense, tf.keras.layers.Layer)\n"
        "tf.estimator.BinaryClassHead()\n",
    )
    assert status == 0, error


@pytest.mark.slow
@new_keras_only
def test_without_keras_2_estimator_trains_and_heads_refuse():
    output = _check(
        "import tempfile\n"
        "from mtl import compat\n"
        "from tests.compat import toy\n"
        "estimator = compat.estimator.Estimator(toy.model_fn, tempfile.mkdtemp())\n"
        "estimator.train(toy.input_fn, steps=2)\n"
        "print(estimator.evaluate(toy.input_fn, steps=1)['global_step'])\n"
        "for make in (compat.estimator.BinaryClassHead, compat.estimator_v1.DNNClassifier,\n"
        "             compat.estimator_v1.experimental.linear_logit_fn_builder):\n"
        "    try:\n"
        "        make([1], [2])\n"
        "    except compat.errors.CompatError as error:\n"
        "        print(error)\n",
        TF_USE_LEGACY_KERAS="0",
    )
    lines = output.splitlines()
    assert lines[0] == "2"
    names = ["BinaryClassHead", "DNNClassifier", "linear_logit_fn_builder"]
    for line, name in zip(lines[1:], names, strict=True):
        assert line.startswith(f"{name} must run on Keras 2, got '3."), line


@pytest.mark.slow
@new_keras_only
def test_without_tf_keras_the_fix_is_to_install_it():
    code = (
        "import sys; sys.modules['tf_keras'] = None\n"
        "from mtl import compat; compat.estimator.RegressionHead()"
    )
    minor = versions.minor(versions.installed("tensorflow"))
    assert f"pip install 'tf-keras~={minor}.0'" in _message(code)


def test_asking_for_keras_2_without_it():
    code = "import sys; sys.modules['tf_keras'] = None; import mtl.compat"
    message = _message(code, TF_USE_LEGACY_KERAS="1")
    assert message.startswith("TF_USE_LEGACY_KERAS must be unset, as tf-keras is not installed")


@pytest.mark.parametrize("package", ["tensorflow", "tensorflow_estimator"])
def test_a_missing_package_is_named(package):
    message = _message(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == '{package}':\n"
        f"            raise ModuleNotFoundError('No module', name='{package}')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import mtl.compat"
    )
    assert message.startswith(f"mtl.compat must find {package}, got no such package. pip install")


def _without(module, name):
    """Code that takes `name` out of a TensorFlow module, as a future version might."""
    return (
        f"import sys, {module}; sys.modules['{module}.{name}'] = None\n"
        f"vars(sys.modules['{module}']).pop('{name}', None); import mtl.compat"
    )


@pytest.mark.parametrize(
    ("module", "name", "piece"),
    [
        ("tensorflow.python.training", "device_setter", "tensorflow_estimator"),
        slow("tensorflow.python.distribute", "distribute_coordinator", "tensorflow_estimator"),
    ],
)
def test_a_missing_piece_is_named(module, name, piece, run_after):
    """A TensorFlow that lacks one more piece fails with one line that names it."""
    run = functools.partial(run_after, "tensorflow")
    message = _message(_without(module, name), run)
    assert message.startswith(f"mtl.compat must prepare {piece} on TensorFlow 2.")
    assert name in message
    assert "2.15 to 2.21 are known to work" in message
