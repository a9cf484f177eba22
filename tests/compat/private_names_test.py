"""TensorFlow has every name that tensorflow-estimator uses, and accepts the arguments of its calls.

If a new TensorFlow breaks a name or a call, this test reports it with the file that uses it.
"""

import pathlib
import re

import pytest
import tensorflow as tf

from mtl.compat import keras
from tests.compat import sources

TPU_FILES = "python/estimator/tpu/"
# Names for the setup of embedding tables on a TPU.
TPU_ONLY = {
    *(
        f"tensorflow.compat.v1.tpu.experimental.{name}Parameters"
        for name in ("Adagrad", "Adam", "Ftrl", "StochasticGradientDescent")
    ),
    "tensorflow.python.tpu.tpu_embedding.EnqueueData.from_sparse_tensor",
}


def _all_uses():
    for path in sources.files():
        name = path.relative_to(sources.ROOT).as_posix()
        for use in sources.uses(path):
            yield f"{name}:{use.line}", use


def _in_keras_2(use):
    return ".keras" in use.dotted or "compat.v1.layers" in use.dotted


@pytest.mark.medium
def test_every_name_exists():
    uses = list(_all_uses())
    assert len(uses) > 5000
    missing = {use.dotted: place for place, use in uses if use.missing}
    assert all(missing.get(name, TPU_FILES).startswith(TPU_FILES) for name in TPU_ONLY)
    missing = {name: place for name, place in missing.items() if name not in TPU_ONLY}
    if not keras.in_use().startswith("2."):
        of_keras = {use.dotted for _, use in uses if _in_keras_2(use)}
        missing = {name: place for name, place in missing.items() if name not in of_keras}
    assert not missing


@pytest.mark.medium
def test_every_call_fits_what_it_calls():
    uses = [(place, use) for place, use in _all_uses() if use.call]
    assert len(uses) > 1000
    if not keras.in_use().startswith("2."):
        uses = [(place, use) for place, use in uses if not _in_keras_2(use)]
    assert not [f"{place} {use.misfit()}" for place, use in uses if use.misfit()]


def test_only_two_rooms_touch_private_modules():
    project = pathlib.Path(__file__).parents[2]
    files = [p for folder in ("mtl", "launch") for p in (project / folder).rglob("*.py")]
    assert len(files) > 20
    private = re.compile(
        r"^\s*(from|import) (tensorflow\.(python|core)|tensorflow_estimator)\b", re.M
    )
    found = {p.relative_to(project).as_posix() for p in files if private.search(p.read_text())}
    assert {name.rpartition("/")[0] for name in found} == {"mtl/compat", "mtl/tf_internals"}


def test_it_finds_what_is_missing_and_what_does_not_fit(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import tensorflow as tf\n"
        "from tensorflow.python.training import saver, no_such_module\n"
        "from tensorflow.python.framework.ops import convert_to_tensor\n"
        "tf.compat.v1.no_such_name.deeper()\n"
        "saver.Saver(saver.no_such_thing)\n"
        "tf.compat.v1.train.Saver(no_such_argument=1)\n"
        "convert_to_tensor()\n"
        "tf.Graph.no_such_method()\n"
    )
    uses = list(sources.uses(path))
    assert {use.dotted for use in uses if use.missing} == {
        "tensorflow.Graph.no_such_method",
        "tensorflow.compat.v1.no_such_name",
        "tensorflow.python.training.no_such_module",
        "tensorflow.python.training.saver.no_such_thing",
    }
    assert {use.line: use.dotted for use in uses if use.misfit()} == {
        6: "tensorflow.compat.v1.train.Saver",
        7: "tensorflow.python.framework.ops.convert_to_tensor",
    }
    assert tf.compat.v1.train.Saver
